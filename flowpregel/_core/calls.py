"""The calls that bodies make, and results that need no run: they were kept, or shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowpregel import errors
from flowpregel._core import ids, records
from flowpregel._core.asked import FailedCall, Ran, Span
from flowpregel._core.commands import Interrupt
from flowpregel._core.copies import own_copy
from flowpregel._core.digest import digest_of
from flowpregel._core.effects import BUSY, SAVE, Call, Look, Resolve, StepContext, Steps
from flowpregel._core.failures import note_failed
from flowpregel._core.plan import DEEPEST, call_task, too_deep
from flowpregel._core.records import (
    Arguments,
    Interrupted,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    Write,
)
from flowpregel._core.replay import Replay, digest_of_caller
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import interrupts_of
from flowpregel.errors import CodeChangedError, ConfigurationError, ReplayMismatchError
from flowpregel.policies import CachePolicy

LOOK_AGAIN = 50_000_000
"""Nanoseconds between two looks for a result that another run is computing."""


class CallFailure(NamedTuple):
    """A call that failed."""

    task: Task
    error: BaseException | None
    """None: the present attempt of the body did not make the call."""
    is_late: bool
    """Whether the body had ended before."""


@dataclass(slots=True)
class BodyCalls:
    """What is known of the calls that one body has made."""

    running: int = 0
    """How many calls are running."""
    failures: dict[str, CallFailure] = field(default_factory=dict)
    """The calls that failed, by task id."""
    caught: Collection[str] | None = None
    """The calls whose failures the body has seen; None: its executor does not report them."""
    asked: dict[str, tuple[Interrupt, ...]] = field(default_factory=dict)
    """The interrupts of the calls, by task path."""
    outcome: Outcome | None = None
    """How the body ended, if some of its calls are still running."""

    def is_unseen(self, failure: CallFailure) -> bool:
        """Return whether the body has not seen *failure*."""
        return failure.is_late or (self.caught is not None and failure.task.id not in self.caught)

    def final_outcome(self, outcome: Outcome, caught: Collection[str] | None = None) -> Outcome:
        """Return how the body ended: with the failure of one of its calls, if it never saw it."""
        if caught is not None:
            self.caught = caught
        unseen = {
            each.task: each.error
            for each in self.failures.values()
            if each.error is not None and self.is_unseen(each)
        }
        if isinstance(outcome, Returned) and unseen:
            task, error = next(iter(unseen.items()))
            error.add_note(
                f"nobody looked at this failure of {task.call}: ask each call for its .result(), "
                "or for its .exception() to go on without it"
            )
            outcome = Raised(error)
        if isinstance(outcome, Raised) and not self.running:
            known = records.failed_calls(outcome.error)
            others = [task.call for task in unseen if task.id not in known]
            if others:
                shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
                outcome.error.add_note(f"{len(others)} more failed, and nobody looked: {shown}")
        return outcome


class Calls:
    """The calls that the bodies of one superstep make.

    Args:
        run: The run that the superstep belongs to.
        place: The superstep.
    """

    def __init__(self, run: Run, place: StepContext) -> None:
        self._run = run
        self._place = place
        self._running: dict[str, tuple[Task, list[Call]]] = {}
        """Each task that runs, and the calls that wait for it: one for each attempt of the body."""
        self.bodies: dict[str, BodyCalls] = {}
        """What is known of the bodies that made a call, by task id."""
        self.busy: set[str] = set()
        """The tasks that wait for a result which another run, or another task, is computing."""
        self.cancelled: set[str] = set()
        """The calls that their bodies no longer want, and what those have called."""
        self.replay = Replay(run, place)

    def plan(self, caller: Task, call: Call) -> Task | None:
        """Return the task that is to be run for a *call* of *caller*.

        None: the call is answered at once, by its record for one, or runs already.
        """
        if call.node is SAVE:
            self._save(caller, call)
            return None
        if call.asked is not None and caller.calls_as is None:
            caller.calls_as = digest_of_caller(caller)
        task = call_task(caller, call, self._place)
        run, outcome = self._run, self._known(task, call)
        if outcome is not None:
            if task.writes:
                run.after.extend(run.stream_events.updates(task, mode="recorded"))
            run.after.append(Resolve(call, outcome))
            return None
        if task.id in self._running:
            self._running[task.id][1].append(call)
            return None
        self._running[task.id] = task, [call]
        run.going_on.anew += not task.node.hidden
        self.bodies.setdefault(caller.id, BodyCalls()).running += 1
        return task

    def _save(self, task: Task, call: Call) -> None:
        """Keep what a running *task* saves, for its next attempt; answer it when that is done."""
        run, (task.saved,) = self._run, call.arguments.args
        saved: Write = (records.SAVED, task.saved)
        called = () if task.record is None else ((records.CALLED, tuple(task.record)),)
        run.keep(task.id, task.path, (saved, *called))
        # For a call that the next attempt of its body makes.
        self._drop_saved(task)
        run.pending[task.id].append(saved)
        run.after.append(Resolve(call, Returned(())))

    def _drop_saved(self, task: Task) -> None:
        """Forget what *task* has saved, which is not needed any more."""
        before = self._run.pending.get(task.id, ())
        self._run.pending[task.id] = [each for each in before if each[0] != records.SAVED]

    def cancel(self, wanted: Call) -> list[Task]:
        """Record that a body no longer wants a call; return what is to be stopped: all below it.

        The record comes before whatever the body does next, which depends on it.
        """
        for task, waiting in self._running.values():
            if any(call.reply == wanted.reply for call in waiting):
                self.keep(task, ((records.ERROR, errors.TaskCancelled("its caller cancelled it")),))
                stopped = [task, *self.below(task)]
                self.cancelled.update(each.id for each in stopped)
                return stopped
        return []

    def below(self, body: Task, *, direct: bool = False) -> list[Task]:
        """Return the running calls of *body*, and unless *direct* those that they make."""
        calls = [task for task, _ in self._running.values() if task.parent is body]
        return calls if direct else [*calls, *(each for task in calls for each in self.below(task))]

    def _known(self, task: Task, call: Call) -> Outcome | None:
        """Return how a call ends that needs not run."""
        if task.depth > DEEPEST:
            return self.failed(task, too_deep(task.name))
        if task.id in self._running:
            return None
        try:
            outcome = self.replay.answer(task, call)
        except (CodeChangedError, ReplayMismatchError) as error:
            return Raised(error)  # what is recorded stays as it is
        if isinstance(outcome, Raised) and not isinstance(outcome.error, errors.TaskCancelled):
            # It may bring the body down only now: it was kept while another call asked.
            return self.failed(task, outcome.error)
        return outcome

    def without_shared(self, tasks: list[Task]) -> Steps:
        """Take results that other runs shared, and return the tasks left to run, with cache keys.

        Those whose results others are computing are left in `busy`. A call has its own
        policy alone; the run's is for other tasks.
        """
        run = self._run
        keyed = []
        for task in tasks:
            policy = task.node.cache or (None if task.kind is Kind.CALL else run.options.cache)
            if policy is not None:
                if task.cache_key is None:
                    task.cache_key = (task.node.space, _key_of(task, policy), policy.ttl)
                keyed.append((task.cache_key[:2], task))
        found: Mapping[Any, Any] = {}
        if keyed:
            found = yield Look(tuple(dict.fromkeys(key for key, _ in keyed)))
        claimed = set()
        for key, task in keyed:
            writes = found.get(key, BUSY if key in claimed else None)
            claimed.add(key)
            self.busy.discard(task.id)
            if writes is BUSY and not _is_within(task, key):
                self.busy.add(task.id)
            elif writes is BUSY or writes is None:
                continue
            else:
                task.cache_key, task.writes = None, tuple(writes)
                task.span = Span(run.now, 0.0, "cache")
                self.keep(task, task.writes)
                run.after.extend(run.stream_events.updates(task, cached=True))
        return [task for task in tasks if not task.writes and task.id not in self.busy]

    # ------------------------------------------------------------ ends

    def keep(self, task: Task, writes: Sequence[Write]) -> None:
        """Keep the writes that *task*, a call or a planned one, ended with."""
        run, is_failure = self._run, writes[0][0] == records.ERROR
        if task.saved is not None and not is_failure:
            self._drop_saved(task)
        if task.record is not None:
            # Last: the places of the other writes do not depend on it.
            writes = (*writes, (records.CALLED, tuple(task.record)))
        if task.kind is Kind.CALL and run.at_exit:
            # It is recorded after its body got it.
            writes = own_copy(tuple(writes))
        if task.kind is Kind.CALL and task.parent and self.replay.may_repeat(task.parent):
            self.replay.kept[task.id] = own_copy(tuple(writes))
        ran = None
        if task.span is not None:
            span, error, call = task.span, "", ""
            attempts = 0 if span.executor == "cache" else task.attempt
            if is_failure:
                note_failed(task, writes[0][1])
                error, call = task.failed[-1][3], task.call
            ran = Ran(
                task.node.name, span.began, span.seconds, attempts, span.executor, span.pid, error,
                call, task.first_started or 0, span.cpu, span.peak, span.host, task.failed,
            )  # fmt: skip
        failed = None
        is_failure &= not isinstance(writes[0][1], errors.TaskCancelled)
        if is_failure and task.node.is_task and run.options.keeps_arguments:
            failed = FailedCall(task.node.home, task.input, task.node.redacted)
        run.keep(task.id, task.path, writes, ran, failed)

    def resolve(self, task: Task, outcome: Outcome) -> tuple[Task, Outcome] | None:
        """Answer those who wait for *task*, once how it ended is kept.

        Returns:
            The body that made the call and how it ended, if it had ended before and *task*
            was the last of its calls that ran.
        """
        assert task.parent is not None
        _, waiting = self._running.pop(task.id)
        self._run.after.extend(Resolve(call, outcome) for call in waiting)
        calls = self.bodies[task.parent.id]
        calls.running -= 1
        if calls.running or calls.outcome is None:
            return None
        held, calls.outcome = calls.outcome, None
        return task.parent, calls.final_outcome(held)

    def has_ended(self, body: Task) -> bool:
        """Return whether *body* has ended, and calls that it made were running then."""
        return body.id in self.bodies and self.bodies[body.id].outcome is not None

    # ------------------------------------------------------------ failures and interrupts

    def failed(self, task: Task, error: BaseException) -> Raised:
        """Note that a call failed, perhaps when its body had ended already; return its outcome."""
        assert task.parent is not None
        # A call that only an earlier attempt of the body made is not this one's to raise.
        _, waiting = self._running.get(task.id, (task, None))
        asked = waiting is None or any(call.attempt == task.parent.attempt for call in waiting)
        failure = CallFailure(task, error if asked else None, self.has_ended(task.parent))
        self.bodies.setdefault(task.parent.id, BodyCalls()).failures[task.id] = failure
        records.add_failed_calls(error, (task.id,))
        return Raised(error)

    def to_repeat(self, task: Task, error: BaseException) -> None:
        """Note that an attempt of *task* failed, which another one follows."""
        note_failed(task, error)
        self.uncaught(task, error)

    def uncaught(self, body: Task, error: BaseException) -> None:
        """Forget failures that brought *body* down, so that a resume tries them again.

        The same holds for those that it has not seen. A failure that the body caught is
        part of what it did, and is replayed.
        """
        calls = self.bodies.get(body.id)
        if calls is None:
            return
        failures, calls.failures = calls.failures, {}
        found = records.failed_calls(error)
        for task_id, failure in failures.items():
            if task_id in found or calls.is_unseen(failure):
                self.replay.forget(failure.task)


# ---------------------------------------------------------------- results of earlier runs


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


def _is_within(task: Task, key: Any) -> bool:
    """Return whether *key* is computed by a caller of *task*, which must not wait for it."""
    caller = task.parent
    while caller is not None and (caller.cache_key is None or caller.cache_key[:2] != key):
        caller = caller.parent
    return caller is not None


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* what it saved and the answers it had; the new one it waits for is kept."""
    for channel, value in run.pending.get(task.id, ()):
        if channel == records.RESUME:
            task.answers = tuple(value)
        elif channel == records.SAVED and run.hand_back:
            task.saved = value
    if not run.answers:
        return
    if task.node.role == "graph":
        asked = interrupts_of(run.pending.get(task.id, ()), live=True)
        task.answers = tuple(run.answers[each.id] for each in asked if each.id in run.answers)
        return
    had = len(task.answers)
    if had and ids.interrupt_id(task.namespace, had - 1) in run.answers:
        had -= 1  # it failed with that answer, and gets another in its place
    answers = task.answers[:had]
    while (expected := ids.interrupt_id(task.namespace, len(answers))) in run.answers:
        answers = (*answers, run.answers.pop(expected))
    if len(answers) > had:
        task.answers = answers
        run.keep(task.id, task.path, ((records.RESUME, task.answers),))
        # If the call is made again, by the next attempt of its body, it has its answers too.
        run.pending.setdefault(task.id, []).append((records.RESUME, task.answers))


def answer_moved(run: Run, task: Task, outcome: Outcome) -> bool:
    """Give *task* an answer to what was asked where its graph stood before, if it asks now."""
    if not isinstance(outcome, Interrupted) or not outcome.interrupts:
        return False
    run.answers[outcome.interrupts[0].id] = run.moved_answers.pop(0)
    answer_from_pending(run, task)
    return True
