"""One superstep: start the tasks that are due, and take in how each of them ends.

A wake-up brings any number of events. What they ask for is done in this order:
tasks are started or stopped; what finished is committed; and only then does
anybody hear of it, the stream as well as the bodies that wait for calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, cast

from flowpregel._core.calls import Calls
from flowpregel._core.deadline import Deadline, clock_of, wait_for
from flowpregel._core.effects import (
    Call,
    Effect,
    Emitted,
    Ended,
    Event,
    Share,
    Stopped,
    Wakeup,
)
from flowpregel._core.endings import Endings
from flowpregel._core.progress import Steps
from flowpregel._core.records import (
    Raised,
    Returned,
    Task,
    Withdrawn,
)
from flowpregel._core.replay import answer_from_pending, recorded_error, restore
from flowpregel._core.sharing import look_up

_CALLER: Final[Any] = attrgetter("caller", "attempt")


def _by_kind(events: list[Event]) -> Iterable[tuple[type, Iterable[Event]]]:
    """Return *events* by those of one kind that follow each other."""
    if len(events) == 1:
        # As most wake-ups bring, where tasks are not many.
        return ((type(events[0]), events),)
    return groupby(events, type)


class Superstep(Endings):
    """The tasks of one superstep, and those that they call.

    Args:
        run: The run it belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        setting: What they have in common.
    """

    _deadline: Deadline | None = None

    # ------------------------------------------------------------ the story

    def go(self) -> Steps:
        """Run until every task has ended; return whether somebody has to answer before a barrier.

        If not, the last results are left to the barrier.
        """
        try:
            yield from self._start()
            while self.open:
                wakeup = yield wait_for(self._attempts, self._deadline)
                self.run.note_time(wakeup.now)
                if self._deadline is not None:
                    self._deadline.check(wakeup.monotonic, self.open.values())
                yield from self._take_in(wakeup)
                if self._calls is not None and self._calls.looked_up:
                    yield from self._look_up(self._calls)
                if not self.open and self._may_pass():
                    return False
                yield from self.run.flush()
        except GeneratorExit:
            raise
        except BaseException:
            # The time is over, or a commit failed: nobody waits for what still runs.
            self._cancel_all(kill=True)
            yield from self._at_once()
            raise
        if not self._may_pass():
            yield from self.run.flush()
            self._raise()
        return self.paused

    def _start(self) -> Iterable[Effect]:
        """Return what starts the tasks that are due."""
        run = self.run
        is_plain = run.starts_plainly and not (run.pending or run.answers or run.after)
        if not is_plain or run.recorder.gathered:
            return self._start_with_care()
        for task in self.tasks:
            self.open[task.id] = task
        return (self._start_of(self.tasks),)

    def _start_with_care(self) -> Steps:
        """Start the tasks that are due, where some may be done already, or somebody follows."""
        run, due = self.run, self.tasks.copy()
        if run.pending:
            due = [left for task in due if (left := self._left_to_do(task)) is not None]
        if run.narrator.follows_tasks:
            run.after.extend(run.narrator.planned(self.tasks, run.step, run.now))
        if run.program.caches or run.options.cache is not None:
            due = yield from self._without_shared(due)
        if run.options.step_timeout is not None:
            self._deadline, self.stopped = yield from clock_of(run, run.options.step_timeout)
            if self.stopped is not None:
                return
        for task in due:
            self.open[task.id] = task
            if run.pending or run.answers:
                answer_from_pending(run, task)
        if run.after or run.recorder.gathered:
            yield from run.flush()
        self._submit(due, self._effects)
        yield from self._at_once()

    def _left_to_do(self, task: Task) -> Task | None:
        """Return what is to run of a planned task: itself, its error handler, or nothing."""
        match restore(self.run, task):
            case "due":
                return task
            case "failed":
                return self._left_to_do(self._handler_for(task, recorded_error(self.run, task)))
        return None

    def _without_shared(self, tasks: list[Task]) -> Steps:
        """Take results that were shared before, and return the tasks left to run."""
        known = yield from look_up(tasks, self.run.options.cache)
        for task in tasks:
            if task.id in known:
                task.writes = known[task.id]
                task.span = (self.run.now, 0.0, "cache", 0)
                self._keep(task, task.writes)
                self.run.after.extend(self.run.narrator.updates(task, cached=True))
        return [task for task in tasks if task.id not in known]

    def _look_up(self, calls: Calls) -> Steps:
        """Answer the new calls that another run made before, and start the others."""
        tasks, calls.looked_up = calls.looked_up, []
        for task in tasks:
            try:
                due = yield from self._without_shared([task])
            except Exception as error:  # noqa: BLE001 - a user's key_func; the call fails with it
                self._settle(task, Raised(error))
                yield from self._at_once()
                continue
            if due:
                self._submit(due, self._effects)
            else:
                del self.open[task.id]
                calls.resolve(task, Returned(task.writes))
                if task.parent is not None:
                    self._let_end(calls, task.parent)
            yield from self._at_once()

    # ------------------------------------------------------------ events

    def _take_in(self, wakeup: Wakeup) -> Sequence[Effect]:
        """Take in what happened, and return what is to be done at once."""
        opened = self.open
        if self._attempts is not None:
            again = [opened.get(task_id) for task_id in self._attempts.take(wakeup.monotonic)]
            self._submit([task for task in again if task is not None], self._effects)
        for kind, events in _by_kind(wakeup.events):
            if kind is Ended:
                self._all_ended(cast("Iterable[Ended]", events), wakeup)
            elif kind is Call:
                self._all_called(cast("Iterable[Call]", events))
            elif kind is Emitted:
                for event in cast("Iterable[Emitted]", events):
                    if (task := opened.get(event.task_id)) is not None:
                        self.run.after.extend(self.run.narrator.emitted(task, event))
            else:
                for stop in cast("Iterable[Stopped]", events):
                    self.stopped = stop.reason
                    self._cancel_all(kill=True)
        if self._shared:
            self.run.after.append(Share(self._shared))
            self._shared = {}
        return self._at_once() if self._effects else ()

    def _all_called(self, calls: Iterable[Call]) -> None:
        for (caller_id, attempt), made in groupby(calls, _CALLER):
            caller = self.open.get(caller_id)
            if caller is not None and caller.attempt == attempt:
                self._called(caller, [*made])

    def _called(self, caller: Task, made: list[Call]) -> None:
        """Plan the calls that *caller* has made, one after the other."""
        calls, run = self.calls, self.run
        tells, may_answer = run.narrator.wants_tasks, run.pending or run.answers
        due: list[Task] = []
        for task in calls.plan(caller, made):
            self.open[task.id] = task
            if tells:
                run.after.extend(run.narrator.started(task, run.step, run.now))
            if self.stopped is not None:
                self._settle(task, Withdrawn())
                continue
            if may_answer:
                answer_from_pending(run, task)
            (due if task.node.cache is None else calls.looked_up).append(task)
        self._submit(due, self._effects)
