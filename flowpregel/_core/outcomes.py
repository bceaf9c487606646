"""How the tasks of one superstep end: what is kept of it, and what it leads to."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, assert_never

from flowpregel._core.calls import Calls
from flowpregel._core.copies import keepable, own_copy
from flowpregel._core.effects import Cancel, Effect, Ended, StepContext, Submit, Wakeup
from flowpregel._core.plan import handler_task
from flowpregel._core.program import read
from flowpregel._core.records import (
    CALLED,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    NO_WRITES,
    RESUME,
    RUN_TASK_ID,
    Escaped,
    Interrupted,
    Kind,
    Outcome,
    Raised,
    Ran,
    Returned,
    Task,
    Withdrawn,
    Write,
)
from flowpregel._core.run_state import Run, line_of
from flowpregel._core.update import check_writes
from flowpregel.errors import (
    INVALID_RESUME,
    GraphDrained,
    NodeCancelledError,
    ParentCommand,
    TaskCancelled,
    WorkerDiedError,
)


class Outcomes:
    """The open tasks of a superstep, and what became of those that have ended.

    Args:
        run: The run it belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        setting: What they have in common.
    """

    def __init__(self, run: Run, tasks: list[Task], setting: StepContext) -> None:
        self.run = run
        self.tasks = tasks
        self.setting = setting
        self.open: dict[str, Task] = {}
        """Tasks that run or wait for their next attempt."""
        self.calls = Calls(run, setting)
        self.retries: list[tuple[int, str]] = []
        """When the next attempts are due, in monotonic nanoseconds, and of which task: a heap."""
        self._deaths: dict[str, int] = {}
        """For each task, the number of workers that died of it."""
        self.effects: list[Effect] = []
        """What is to be done at once."""
        self.shared: dict[tuple[tuple[str, ...], str], tuple[Any, float | None]] = {}
        """Results for the cache, by key: writes, and for how many seconds they are kept."""
        self.paused = False
        self.failure: BaseException | None = None
        self.escaped: object = None
        self.stopped: str | None = None

    def submit(self, tasks: Sequence[Task], effects: list[Effect]) -> None:
        """Have an attempt of each of *tasks* started after *effects*."""
        for task in tasks:
            if task.first_started is None:
                task.first_started = self.run.now
        if effects and isinstance(last := effects[-1], Submit):
            last.tasks.extend(tasks)
        elif tasks:
            effects.append(Submit([*tasks], self.setting))

    def cancel_all(self, *, kill: bool) -> None:
        """Stop what still runs; a task that waits for its next attempt will have none."""
        waiting = {task_id for _, task_id in self.retries}
        self.retries.clear()
        for task_id, task in list(self.open.items()):
            if task_id in waiting:
                self.settle(task, Withdrawn())
            elif not self.calls.has_ended(task):
                self.effects.append(Cancel(task_id, kill))

    @property
    def ends_run(self) -> bool:
        """Whether a failure, a command or a stop ends the run before the barrier."""
        return self.failure is not None or self.escaped is not None or self.stopped is not None

    def raise_failure(self) -> None:
        """Raise what ends the run, unless it is paused."""
        if self.failure is not None:
            raise self.failure
        if self.stopped is not None:
            raise TaskCancelled(self.stopped)
        if self.escaped is not None:
            raise ParentCommand(self.escaped)

    # ------------------------------------------------------------ how a task ends

    def ended(self, event: Ended, wakeup: Wakeup) -> None:
        """Take in that an attempt of a task ended."""
        task, outcome = self.open.get(event.task_id), event.outcome
        if task is None or task.attempt != event.attempt:
            return
        task.span = event.span
        if isinstance(outcome, Returned):
            try:
                check_writes(self.run.program, task.node, outcome.writes)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                outcome = Raised(error)
        calls = self.calls.bodies.get(task.id)
        if calls is not None:
            if event.caught is not None:
                calls.caught = event.caught
            outcome = calls.final_outcome(outcome)
        if isinstance(outcome, Raised) and self._retries(task, outcome.error, wakeup):
            return
        if calls is not None and calls.running:
            # The calls that it made are going to end and be kept before it is settled.
            calls.outcome = outcome
        else:
            self.settle(task, outcome)

    def _retries(self, task: Task, error: BaseException, wakeup: Wakeup) -> bool:
        """Plan the next attempt of a task that failed, if it gets one."""
        if self.failure is not None or self.stopped is not None:
            return False
        delay = self._delay(task, error, wakeup.jitter)
        if delay is None:
            return False
        task.attempt += 1
        task.calls = task.graphs = 0
        heapq.heappush(self.retries, (wakeup.monotonic + int(delay * 1e9), task.id))
        self.calls.uncaught(task, error)
        return True

    def _delay(self, task: Task, error: BaseException, jitter: float) -> float | None:
        """Return the seconds until the next attempt of *task*, or None to give up."""
        deaths = 0
        if isinstance(error, WorkerDiedError):
            deaths = self._deaths[task.id] = self._deaths.get(task.id, 0) + 1
        # A call has its own policies alone.
        policies = task.node.retry or (() if task.kind is Kind.CALL else self.run.options.retry)
        for policy in policies:
            if policy.matches(error):
                if deaths >= policy.max_worker_deaths:
                    return None
                return policy.delay(task.attempt, jitter)
        return None

    def settle(self, task: Task, outcome: Outcome) -> None:
        """Record how *task* ended for good."""
        del self.open[task.id]
        match outcome:
            case Returned(writes):
                task.writes = writes or ((NO_WRITES, None),)
                self.keep(task, task.writes)
                if task.cache_key is not None:
                    self.shared[task.cache_key[:2]] = task.writes, task.cache_key[2]
                if (events := self.run.stream_events).shows_tasks:
                    self.run.after.extend(events.updates(task))
                    self.run.after.extend(events.ended(task, self.run.step, self.run.now))
            case Raised():
                self._raised(task, outcome.error)
            case Interrupted():
                self._interrupted(task, outcome)
            case Escaped():
                self._escaped(task, outcome)
            case Withdrawn():
                if task.kind is not Kind.CALL and not self.ends_run:
                    self.failure = NodeCancelledError(task.name)
            case _:
                assert_never(outcome)
        if task.kind is Kind.CALL:
            self.resolve(task, outcome)

    def resolve(self, task: Task, outcome: Outcome) -> None:
        """Answer those who wait for this call, and settle its body if that waited for it."""
        assert task.parent is not None
        if (held := self.calls.resolve(task, outcome)) is not None:
            self.settle(task.parent, held)

    def keep(self, task: Task, writes: Sequence[Write]) -> None:
        """Keep the writes that *task* ended with, and how it ran if its executor reported it."""
        run, ran = self.run, None
        if task.record is not None:
            # Last: the places of the other writes do not depend on it.
            writes = (*writes, (CALLED, task.record))
        if task.kind is Kind.CALL and run.at_exit:
            # It is recorded after its body got it.
            writes = own_copy(tuple(writes))
        if task.kind is Kind.CALL and task.parent and self.calls.may_repeat(task.parent):
            self.calls.kept[task.id] = own_copy(tuple(writes))
        if task.span is not None:
            began, seconds, executor, pid = task.span
            attempts = 0 if executor == "cache" else task.attempt
            error = line_of(writes[0][1]) if writes[0][0] == ERROR else ""
            ran = Ran(task.name, began, seconds, attempts, executor, pid, error)
        run.keep(run.checkpoint_id, task.id, task.path, writes, ran)

    def _escaped(self, task: Task, outcome: Escaped) -> None:
        # A called graph commands its caller's graph: that is up to the caller.
        if task.kind is not Kind.CALL:
            self.escaped = outcome.command
            self.cancel_all(kill=False)

    def _raised(self, task: Task, error: BaseException) -> None:
        run = self.run
        if isinstance(error, GraphDrained):
            self.failure = self.failure or error
            return
        error.add_note(
            f"During task with name {task.name!r} and id {task.id!r} (attempt {task.attempt})"
        )
        run.after.extend(run.stream_events.ended(task, run.step, run.now, error))
        writes: tuple[Write, ...] = ((ERROR, keepable(error)),)
        if task.kind is Kind.CALL:
            self.keep(task, writes)
            self.calls.uncaught(task, error)
            self.calls.failed(task, error)
        elif task.node.handler is not None and self.stopped is None:
            self.keep(task, (*writes, (ERROR_SOURCE, task.name)))
            if self.failure is None:
                # Otherwise the handler runs when the failing run is resumed.
                handler = self.handler_for(task, error)
                self.open[handler.id] = handler
                run.after.extend(run.stream_events.started(handler, run.step, run.now))
                self.submit((handler,), run.after)
        else:
            self.keep(task, writes)
            self.calls.uncaught(task, error)
            if self.failure is None:
                self.failure = error
                self.cancel_all(kill=False)

    def handler_for(self, failed: Task, error: BaseException) -> Task:
        """Return the task that handles the failure of *failed*, which is in this superstep too."""
        handler = handler_task(self.run.program, failed, error, self.setting)
        self.tasks.append(handler)
        return handler

    def _refuse(self, error: BaseException, question: str) -> None:
        """Fail the run for an answer that does not fit *question*, which waits for another.

        The other tasks go on: their answers were taken.
        """
        run = self.run
        setattr(error, INVALID_RESUME, True)
        self.failure = self.failure or error
        own = [
            (channel, {key: each for key, each in value.items() if key != question})
            if channel == RESUME
            else (channel, value)
            for channel, value in run.pending.get(RUN_TASK_ID, ())
        ]
        if own:
            run.pending[RUN_TASK_ID] = own
            run.keep(run.checkpoint_id, RUN_TASK_ID, "", own)

    def _interrupted(self, task: Task, outcome: Interrupted) -> None:
        run = self.run
        calls = self.calls.bodies.get(task.id)
        # What its calls ask, in the order in which it made them.
        below = [] if calls is None else [calls.asked[path] for path in sorted(calls.asked)]
        asked = {item.id: item for items in below for item in items}
        asked |= {item.id: item for item in outcome.interrupts}
        interrupts = tuple(asked.values())
        writes: tuple[Write, ...] = ((INTERRUPT, interrupts),)
        if outcome.refused is not None:
            writes = ((RESUME, outcome.answers), *writes)
            self._refuse(outcome.refused, outcome.interrupts[0].id)
        self.keep(task, writes)
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.ended(task, run.step, run.now, interrupts))
        if task.kind is Kind.CALL:
            assert task.parent is not None
            # Its body asks it too.
            self.calls.bodies[task.parent.id].asked[task.path] = interrupts
            return
        self.paused = True
        run.interrupts |= asked
        if interrupts and run.options.modes:
            shown = read(run.state.channels, run.options.output_channels)
            run.after.extend(run.stream_events.interrupted(interrupts, shown))
