"""One superstep: start the tasks that are due, and take in how each of them ends.

A wake-up brings any number of events. What they ask for is done in this order:
tasks are started or stopped; what finished is committed; and only then is it
given to anybody: to the stream, and to the bodies that wait for calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop
from typing import Any, NoReturn, assert_never

from flowpregel._core import ids
from flowpregel._core.digest import digest_of
from flowpregel._core.effects import (
    Call,
    Effect,
    Emitted,
    Ended,
    Look,
    Share,
    StepContext,
    Steps,
    Stopped,
    Wait,
    Wakeup,
)
from flowpregel._core.outcomes import Outcomes
from flowpregel._core.records import (
    ERROR,
    ERROR_SOURCE,
    RESUME,
    Arguments,
    Kind,
    Raised,
    Returned,
    Task,
    Withdrawn,
    Write,
)
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy


class Superstep:
    """The tasks of one superstep, and those that they call.

    Args:
        run: The run it belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        setting: What they have in common.
    """

    def __init__(self, run: Run, tasks: list[Task], setting: StepContext) -> None:
        self.run = run
        self.tasks = tasks
        self.outcomes = Outcomes(run, tasks, setting)
        self._deadline: int | None = None
        """The monotonic nanoseconds at which it has to be over."""
        self._looked_up: list[Task] = []
        """Calls whose results another run may have shared: they start when we know."""

    # ------------------------------------------------------------ the story

    def go(self) -> Steps:
        """Run until every task has ended; return whether an interrupt is to be answered first.

        If not, the last results are left to the barrier.
        """
        outcomes = self.outcomes
        try:
            yield from self._start()
            while outcomes.open:
                times = (outcomes.retries[0][0] if outcomes.retries else None, self._deadline)
                earliest = min((time for time in times if time is not None), default=None)
                wakeup = yield Wait(earliest)
                self.run.now = max(wakeup.now, self.run.now + 1)
                if self._deadline is not None and wakeup.monotonic >= self._deadline:
                    self._raise_timeout()
                yield from self._take_in(wakeup)
                if self._looked_up:
                    yield from self._look_up_calls()
                if not (outcomes.open or outcomes.paused or outcomes.ends_run):
                    return False
                yield from self.run.flush()
        except GeneratorExit:
            raise
        except BaseException:
            # The time is over, or a commit failed: what still runs is stopped.
            outcomes.cancel_all(kill=True)
            yield from self._at_once()
            raise
        if outcomes.paused or outcomes.ends_run:
            yield from self.run.flush()
            outcomes.raise_failure()
        return outcomes.paused

    def _at_once(self) -> list[Effect]:
        """Return what is to be done at once."""
        effects, self.outcomes.effects = self.outcomes.effects, []
        return effects

    # ------------------------------------------------------------ start

    def _start(self) -> Steps:
        """Start the tasks that are due; some may be done already."""
        run = self.run
        due = self.tasks.copy()
        if run.pending and run.hand_back:
            due = [left for task in due if (left := self._left_to_do(task)) is not None]
        if run.stream_events.shows_tasks:
            self._show_start()
        if run.options.cache or any(task.node.cache for task in due):
            due = yield from self._without_shared(due)
        if run.options.step_timeout is not None:
            yield from self._set_deadline(run.options.step_timeout)
            if self.outcomes.stopped is not None:
                return
        for task in due:
            self.outcomes.open[task.id] = task
            if run.pending or run.answers:
                answer_from_pending(run, task)
        yield from run.flush()
        effects: list[Effect] = []
        self.outcomes.submit(due, effects)
        yield from effects

    def _show_start(self) -> None:
        """Show the planned tasks, and what those wrote that are done already."""
        run = self.run
        for task in self.tasks:
            run.after.extend(run.stream_events.started(task, run.step, run.now))
        for task in self.tasks:
            if task.writes:
                run.after.extend(run.stream_events.updates(task, cached=True))

    def _left_to_do(self, task: Task) -> Task | None:
        """Return what is to run of a planned task: itself, its error handler, or nothing."""
        writes = self.run.pending.get(task.id, ())
        if done := outputs(writes):
            task.writes = tuple(done)
            return None
        kept = dict(writes)
        if task.node.handler is None or not {ERROR, ERROR_SOURCE} <= kept.keys():
            # Any other failure is forgotten.
            return task
        error = kept[ERROR]
        if not isinstance(error, BaseException):
            error = RuntimeError(f"node {task.name!r} failed in an earlier run")
        return self._left_to_do(self.outcomes.handler_for(task, error))

    # ------------------------------------------------------------ time

    def _set_deadline(self, seconds: float) -> Steps:
        """Set the deadline *seconds* from now; the run may turn out to have been stopped."""
        # The last wake-up's time will not do: a reader of the stream may have paused since.
        wakeup = yield Wait(0)
        self.run.now = max(wakeup.now, self.run.now + 1)
        self._deadline = wakeup.monotonic + int(seconds * 1e9)
        for event in wakeup.events:
            if isinstance(event, Stopped):
                self.outcomes.stopped = event.reason

    def _raise_timeout(self) -> NoReturn:
        """Raise the error for a superstep that took too long; it names the open tasks."""
        names = ", ".join(sorted({task.name for task in self.outcomes.open.values()}))
        raise TimeoutError(
            f"superstep {self.run.step} took longer than "
            f"step_timeout={self.run.options.step_timeout} seconds; still running: {names}"
        )

    # ------------------------------------------------------------ events

    def _take_in(self, wakeup: Wakeup) -> list[Effect]:
        """Take in what happened, and return what is to be done at once."""
        run, outcomes = self.run, self.outcomes
        while outcomes.retries and outcomes.retries[0][0] <= wakeup.monotonic:
            _, task_id = heappop(outcomes.retries)
            outcomes.submit((outcomes.open[task_id],), outcomes.effects)
        for event in wakeup.events:
            match event:
                case Ended():
                    outcomes.ended(event, wakeup)
                case Call():
                    self._called(event)
                case Emitted():
                    if (task := outcomes.open.get(event.task_id)) is not None:
                        run.after.extend(run.stream_events.emitted(task, event))
                case Stopped():
                    outcomes.stopped = event.reason
                    outcomes.cancel_all(kill=True)
                case _:
                    assert_never(event)
        if outcomes.shared:
            run.after.append(Share(outcomes.shared))
            outcomes.shared = {}
        effects, outcomes.effects = outcomes.effects, []
        return effects

    def _called(self, call: Call) -> None:
        """Plan a call that a body has made."""
        run, outcomes = self.run, self.outcomes
        caller = outcomes.open.get(call.caller)
        if caller is None or caller.attempt != call.attempt:
            return
        task = outcomes.calls.plan(caller, call)
        if task is None:
            return
        outcomes.open[task.id] = task
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.started(task, run.step, run.now))
        if outcomes.stopped is not None:
            outcomes.settle(task, Withdrawn())
            return
        if run.pending or run.answers:
            answer_from_pending(run, task)
        if task.node.cache is None:
            outcomes.submit((task,), outcomes.effects)
        else:
            self._looked_up.append(task)

    # ------------------------------------------------------------ shared results

    def _without_shared(self, tasks: list[Task]) -> Steps:
        """Take results that were shared before, and return the tasks left to run."""
        run = self.run
        known = yield from look_up(tasks, run.options.cache)
        for task in tasks:
            if task.id in known:
                task.writes = known[task.id]
                task.span = (run.now, 0.0, "cache", 0)
                self.outcomes.keep(task, task.writes)
                run.after.extend(run.stream_events.updates(task, cached=True))
        return [task for task in tasks if task.id not in known]

    def _look_up_calls(self) -> Steps:
        """Answer the new calls that another run made before, and start the others."""
        tasks, self._looked_up = self._looked_up, []
        outcomes = self.outcomes
        for task in tasks:
            try:
                due = yield from self._without_shared([task])
            except Exception as error:  # noqa: BLE001 - a user's key_func; the call fails with it
                outcomes.settle(task, Raised(error))
            else:
                outcomes.submit(due, outcomes.effects)
                if not due:
                    del outcomes.open[task.id]
                    outcomes.resolve(task, Returned(task.writes))
            yield from self._at_once()


def look_up(tasks: Sequence[Task], default: CachePolicy | None) -> Steps:
    """Give tasks their cache keys, and return what other runs shared of them, by task id.

    A call has its own policy alone; *default* is the run's, for other tasks.
    """
    keyed = []
    for task in tasks:
        policy = task.node.cache or (None if task.kind is Kind.CALL else default)
        if policy is not None:
            task.cache_key = (task.node.space, _key_of(task, policy), policy.ttl)
            keyed.append((task.cache_key[:2], task))
    if not keyed:
        return {}
    found = yield Look(tuple({key for key, _ in keyed}))
    known: dict[str, Sequence[Write]] = {}
    for key, task in keyed:
        if key in found:
            task.cache_key = None
            known[task.id] = tuple(found[key])
    return known


def _key_of(task: Task, policy: CachePolicy) -> str:
    """Return the key under which the result of *task* is shared.

    Raises:
        ConfigurationError: The input has no content to make a key of.
    """
    args, kwargs = (task.input,), {}
    if isinstance(task.input, Arguments):
        args, kwargs = task.input.args, dict(task.input.kwargs)
    if policy.key_func is None:
        return digest_of((args, kwargs), f"the input of {task.name!r}", strict=True)
    made: Any = policy.key_func(*args, **kwargs)
    if not isinstance(made, str | bytes):
        raise ConfigurationError(
            f"the key_func of {task.name!r} returned {type(made).__qualname__}; "
            "a key is str or bytes"
        )
    return digest_of(made, "a key", strict=True)


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* the answers it had, and the new one it waits for, which is kept."""
    for channel, value in run.pending.get(task.id, ()):
        if channel == RESUME:
            task.answers = tuple(value)
    if not run.answers or task.node.role == "graph":
        return
    expected = ids.interrupt_id(task.namespace, len(task.answers))
    if expected in run.answers:
        task.answers = (*task.answers, run.answers.pop(expected))
        run.keep(run.checkpoint_id, task.id, task.path, ((RESUME, task.answers),))
        # If the call is made again, by the next attempt of its body, it has its answers too.
        run.pending.setdefault(task.id, []).append((RESUME, task.answers))
