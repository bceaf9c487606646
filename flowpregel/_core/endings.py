"""How the tasks of one superstep end: what is kept of it, and what it leads to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from flowpregel._core.calls import Calls, heard
from flowpregel._core.copies import keepable
from flowpregel._core.effects import Cancel, Effect, Ended, StepContext, Submit, Wakeup
from flowpregel._core.plan import handler_task
from flowpregel._core.progress import Run
from flowpregel._core.records import (
    CALL,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    NO_WRITES,
    Escaped,
    Interrupted,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
    Write,
)
from flowpregel._core.retry import Attempts
from flowpregel._core.state import read
from flowpregel._core.update import check_writes
from flowpregel.errors import GraphDrained, NodeCancelledError, ParentCommand, TaskCancelled


class Endings:
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
        self.paused = False
        self.open: dict[str, Task] = {}
        """Tasks that run or wait for their next attempt."""
        self.failure: BaseException | None = None
        self.escaped: object = None
        self.stopped: str | None = None
        self._effects: list[Effect] = []
        """What is to be done at once."""
        # None until they are needed, which in most supersteps they are not.
        self._calls: Calls | None = None
        self._attempts: Attempts | None = None
        self._shared: dict[tuple[tuple[str, ...], str], tuple[Sequence[Write], float | None]] = {}
        """Results for the cache, by key: writes, and how many seconds they are good for."""

    @property
    def calls(self) -> Calls:
        """The calls that its bodies make."""
        if self._calls is None:
            self._calls = Calls(self.run)
        return self._calls

    # ------------------------------------------------------------ what is to be done

    def _at_once(self) -> list[Effect]:
        """Return what is to be done at once, which is done then."""
        effects, self._effects = self._effects, []
        return effects

    def _submit(self, tasks: Sequence[Task], effects: list[Effect]) -> None:
        """Have attempts of *tasks* started after *effects*, by the last if it starts some."""
        if not tasks:
            return
        start = self._start_of(tasks)
        if effects and isinstance(last := effects[-1], Submit):
            last.tasks += start.tasks
        else:
            effects.append(start)

    def _start_of(self, tasks: Sequence[Task]) -> Submit:
        """Return the effect that starts an attempt of each of *tasks*."""
        for task in tasks:
            if task.first_started is None:
                task.first_started = self.run.now
        return Submit([*tasks], self.setting)

    def _cancel_all(self, *, kill: bool) -> None:
        """Stop what still runs; a task that waits for its next attempt will have none."""
        waiting = set() if self._attempts is None else self._attempts.drop()
        for task_id, task in list(self.open.items()):
            if task_id in waiting:
                self._settle(task, Withdrawn())
            elif self._calls is None or task_id not in self._calls.ended:
                self._effects.append(Cancel(task_id, kill))

    def _may_pass(self) -> bool:
        """Return whether the barrier may come once no task is open."""
        failed = self.failure is not None or self.escaped is not None
        return not (failed or self.paused) and self.stopped is None

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.stopped is not None:
            raise TaskCancelled(self.stopped)
        if self.escaped is not None:
            raise ParentCommand(self.escaped)

    # ------------------------------------------------------------ how a task ends

    def _all_ended(self, events: Iterable[Ended], wakeup: Wakeup) -> None:
        opened, bodies = self.open, () if self._calls is None else self._calls.bodies
        for event in events:
            task = opened.get(event.task_id)
            if task is None or task.attempt != event.attempt:
                continue
            task.span = event.span
            if task.kind is CALL and isinstance(event.outcome, Returned) and task.id not in bodies:
                # As most that end in great numbers: no calls below it, and its writes are ours.
                self._settle(task, event.outcome)
            else:
                self._ended_with(task, event, wakeup)

    def _ended_with(self, task: Task, event: Ended, wakeup: Wakeup) -> None:
        outcome = event.outcome
        if event.caught is not None:
            self.calls.saw(task, event.caught)
        if isinstance(outcome, Returned):
            try:
                check_writes(self.run.program, task.node, outcome.writes)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                outcome = Raised(error)
        calls = self._calls
        if calls is not None:
            outcome = heard(calls, task, outcome)
        if isinstance(outcome, Raised) and self._retries(task, outcome.error, wakeup):
            return
        if calls is not None and calls.open_below(task):
            # What it called is going to end and be kept before it is settled.
            calls.ended[task.id] = outcome
            return
        self._settle(task, outcome)

    def _retries(self, task: Task, error: BaseException, wakeup: Wakeup) -> bool:
        """Plan the next attempt of a task that failed, if it gets one."""
        if self.failure is not None or self.stopped is not None:
            return False
        attempts = self._attempts = self._attempts or Attempts(self.run.options)
        if not attempts.plan(task, error, wakeup.monotonic, wakeup.luck):
            return False
        self.calls.uncaught(task, error)
        return True

    def _settle(self, task: Task, outcome: Outcome) -> None:
        """Record how *task* ended for good."""
        del self.open[task.id]
        calls = self._calls
        if calls is not None and task.id in calls.bodies:
            outcome = heard(calls, task, outcome)
        if isinstance(outcome, Returned):
            self._returned(task, outcome)
        else:
            self._not_returned(task, outcome)
        if calls is None:
            return
        calls.resolve(task, outcome)
        parent = task.parent
        if calls.ended and parent is not None:
            self._let_end(calls, parent)

    def _not_returned(
        self, task: Task, outcome: Raised | Interrupted | Escaped | Withdrawn
    ) -> None:
        match outcome:
            case Raised():
                self._raised(task, outcome.error)
            case Interrupted():
                self._interrupted(task, outcome)
            case Escaped():
                self.escaped = outcome.command
                self._cancel_all(kill=False)
            case Withdrawn():
                ends = self.failure is not None or self.escaped is not None
                if task.kind is not CALL and not ends and self.stopped is None:
                    self.failure = NodeCancelledError(task.name)
            case _:
                assert_never(outcome)

    def _let_end(self, calls: Calls, body: Task) -> None:
        """Settle a body that has ended before its calls, if they all have now."""
        if body.id in calls.ended and not calls.open_below(body):
            self._settle(body, calls.ended.pop(body.id))

    def _returned(self, task: Task, outcome: Returned) -> None:
        writes = task.writes = outcome.writes or ((NO_WRITES, None),)
        self._keep(task, writes)
        if task.cache_key is not None:
            self._shared[task.cache_key[:2]] = task.writes, task.cache_key[2]
        run = self.run
        if run.narrator.follows_tasks:
            run.after.extend(run.narrator.updates(task))
            run.after.extend(run.narrator.ended(task, run.step, run.now))

    def _keep(self, task: Task, writes: Sequence[Write]) -> None:
        run = self.run
        if self._calls is not None:
            writes = self._calls.recorded(task, writes)
        if run.recorder.address is not None:
            run.recorder.keep_end(run.checkpoint_id, task, writes)

    def _raised(self, task: Task, error: BaseException) -> None:
        run = self.run
        if isinstance(error, GraphDrained):
            self.failure = self.failure or error
            return
        error.add_note(
            f"During task with name {task.name!r} and id {task.id!r} (attempt {task.attempt})"
        )
        run.after.extend(run.narrator.ended(task, run.step, run.now, error))
        if task.kind is CALL:
            self._keep(task, ((ERROR, keepable(error)),))
            self.calls.uncaught(task, error)
            self.calls.failed(task, error)
            return
        if task.node.handler is not None and self.stopped is None:
            self._keep(task, ((ERROR, keepable(error)), (ERROR_SOURCE, task.name)))
            if self.failure is None:
                # Otherwise the handler runs when the failing run is resumed.
                self._hand_over(task, error)
            return
        self._keep(task, ((ERROR, keepable(error)),))
        self.calls.uncaught(task, error)
        if self.failure is None:
            self.failure = error
            self._cancel_all(kill=False)

    def _hand_over(self, failed: Task, error: BaseException) -> None:
        """Start the error handler of a task, once its failure is kept."""
        handler, run = self._handler_for(failed, error), self.run
        self.open[handler.id] = handler
        run.after.extend(run.narrator.started(handler, run.step, run.now))
        self._submit((handler,), run.after)

    def _handler_for(self, failed: Task, error: BaseException) -> Task:
        handler = handler_task(self.run.program, failed, error, self.setting)
        self.tasks.append(handler)
        return handler

    def _interrupted(self, task: Task, outcome: Interrupted) -> None:
        run = self.run
        asked = {item.id: item for item in self.calls.interrupts_below(task)}
        asked |= {item.id: item for item in outcome.interrupts}
        interrupts = tuple(asked.values())
        self._keep(task, ((INTERRUPT, interrupts),))
        run.after.extend(run.narrator.ended(task, run.step, run.now, interrupts))
        if task.kind is CALL:
            self.calls.interrupted(task, interrupts)
            return
        self.paused = True
        run.interrupts |= asked
        if interrupts:
            shown = read(run.state.channels, run.options.output_channels)
            run.after.extend(run.narrator.interrupted(interrupts, shown))
