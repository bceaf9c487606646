"""Moves a run, and the runs nested in it, from effect to effect.

All of them share one mailbox and one driver::

    driver  <-- Wait, Commit, Load, Look, Share --  pump  <-- effects --  run
            --  replies ----------------------->          --  replies -->    \\-- nested runs

The pump answers what needs no waiting itself: it submits tasks to their
executors, hands callers their results, and puts what is emitted into the outbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from flowpregel._core.commands import Command
from flowpregel._core.effects import (
    Call,
    Cancel,
    Commit,
    Emit,
    Emitted,
    Ended,
    Event,
    Load,
    Look,
    Resolve,
    Share,
    StepContext,
    Steps,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.plan import DEEPEST, too_deep
from flowpregel._core.records import (
    RETURN,
    Escaped,
    Interrupted,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
)
from flowpregel._core.run_state import Result
from flowpregel._engine.keeper import Committer
from flowpregel._engine.placing import RunContext, TaskStarter, run_info
from flowpregel._engine.quota import TaskGroup, stretches
from flowpregel._fault import fault
from flowpregel.channels.context import Context
from flowpregel.context import RunInfo
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.executors.base import Stopwatch


@dataclass(slots=True)
class Ask:
    """An effect that the driver performs, for a run that keeps its state with *keeper*."""

    effect: Commit | Load | Look | Share
    keeper: Committer | None


_ASKED = (Commit, Load, Look, Share)
Request: TypeAlias = Wait | Ask
"""What the pump asks its driver for."""


@dataclass(frozen=True, slots=True)
class Done:
    """A run ended, with this."""

    result: Result


@dataclass(eq=False, slots=True)
class Active:
    """A run that has not ended."""

    steps: Steps
    around: RunContext
    parent: Active | None = None
    task: Task | None = None
    """The task of the parent that it is."""
    setting: StepContext | None = None
    """Where in the parent that task stands."""
    deadline: int | None = None
    reply: Wakeup | None = None
    """What it has been waiting for, until it goes on."""
    inbox: list[Event] = field(default_factory=list)
    is_told: bool = False
    """Whether it was told to end."""
    namespace: tuple[str, ...] = ()
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Its live channels, known once it has submitted a task."""
    run: RunInfo | None = None
    """What its tasks may know about it."""
    previous: Any = None
    """What the thread's previous run saved, as *run* says it."""
    depth: int = 0
    """In how many runs it is nested."""

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.depth = self.parent.depth + 1
        if self.around.namespace:
            self.namespace = tuple(self.around.namespace.split("|"))

    def run_of(self, setting: StepContext) -> RunInfo:
        """Return what a task may know about the run."""
        if self.run is None or self.previous is not setting.previous:
            self.previous = setting.previous
            self.run = run_info(self.around, setting.previous)
        return self.run


class Pump:
    """Moves runs until the outermost ends.

    Args:
        placing: Where tasks run.
    """

    def __init__(self, placing: TaskStarter) -> None:
        self.outbox: deque[tuple[tuple[str, ...], str, Any]] = deque()
        """(namespace, mode, payload) of what the user's stream has not had yet."""
        self.stopping: str | None = None
        self._placing = placing
        self._owners: dict[str, Active] = {}
        """Which nested run a task that was submitted belongs to."""
        self._root: Active
        self._waiting: dict[Active, None] = {}
        self._nested: dict[str, Active] = {}
        """The nested runs, by the id of the task that each of them is."""
        self._watches: dict[str, Stopwatch] = {}
        """Since when they run; their writers' time is theirs too."""
        self._ready: deque[Active] = deque()

    def run(self, steps: Steps, around: RunContext) -> Generator[Request, Any, Result]:
        """Move the run of *steps*; ask the driver for what has to be waited for."""
        self._root = root = Active(steps, around)
        self._ready.append(root)
        while True:
            while self._ready:
                active = self._ready.popleft()
                try:
                    done = yield from self._advance(active)
                except BaseException as error:
                    self._leave_contexts(active, error)
                    if active is root:
                        raise
                    self._nested_failed(active, error)
                    continue
                if done is not None:
                    self._leave_contexts(active)
                    if active is root:
                        return done.result
                    self._nested_ended(active, done.result)
            self._placing.flush()
            deadline = self._deadline()
            self._deliver((yield Wait(deadline)))

    def stop(self, reason: str) -> None:
        """Tell every run to end: at its next wake-up it cancels its tasks."""
        self.stopping = reason
        for active in self._waiting:
            self._tell(active, reason)

    def _tell(self, active: Active, reason: str) -> None:
        """Tell one run to end, once."""
        if not active.is_told:
            active.is_told = True
            active.inbox.append(Stopped(reason))

    # ------------------------------------------------------------ one run

    def _advance(self, active: Active) -> Generator[Request, Any, Done | None]:
        """Move one run to its next `Wait`, or to its end."""
        steps, reply = active.steps, active.reply
        active.reply = None
        failure: BaseException | None = None
        while True:
            try:
                effect = steps.send(reply) if failure is None else steps.throw(failure)
            except StopIteration as stop:
                return Done(stop.value)
            reply = failure = None
            if isinstance(effect, Submit):
                self._submit(active, effect.tasks, effect.setting)
                continue
            if isinstance(effect, Wait):
                active.deadline = effect.deadline
                self._waiting[active] = None
                if self.stopping is not None:
                    self._tell(active, self.stopping)
                return None
            self._placing.flush()
            if isinstance(effect, _ASKED):
                try:
                    reply = yield Ask(effect, active.around.keeper)
                except Exception as error:  # noqa: BLE001 - it is raised inside the run
                    failure = error
            else:
                self._do(active, effect)

    def _do(self, active: Active, effect: Emit | Resolve | Cancel) -> None:
        """Do what needs no waiting."""
        match effect:
            case Resolve():
                self._placing.resolve(effect.answers)
            case Emit():
                namespace = active.namespace if effect.namespace is None else effect.namespace
                self.outbox.append((namespace, effect.mode, effect.payload))
            case Cancel():
                nested = self._nested.get(effect.task_id)
                if nested is None:
                    self._placing.cancel(effect.task_id, kill=effect.kill)
                elif effect.kill:
                    self._tell(nested, "the run was stopped")

    def _deadline(self) -> int | None:
        earliest: int | None = None
        for active in self._waiting:
            if active.inbox:
                return 0
            if active.deadline is not None and (earliest is None or active.deadline < earliest):
                earliest = active.deadline
        return earliest

    def _deliver(self, wakeup: Wakeup) -> None:
        """Sort events to the runs they are for, and move those that have any."""
        self._route(wakeup.events)
        waiting = self._waiting
        is_one = len(waiting) == 1
        for active in list(waiting):
            due = active.deadline is not None and active.deadline <= wakeup.monotonic
            if active.inbox or due:
                events, active.inbox = active.inbox, []
                del waiting[active]
                if is_one:
                    # As nearly always: no other run is told this one's.
                    wakeup.events = events
                    active.reply = wakeup
                else:
                    active.reply = Wakeup(events, wakeup.now, wakeup.monotonic, wakeup.jitter)
                self._ready.append(active)

    def _route(self, events: list[Event]) -> None:
        """Put each event into the inbox of the run that its task belongs to.

        One of a task that nobody knows any more goes to the outermost, which ignores it.
        """
        owners, watches, root = self._owners, self._watches, self._root
        ended: list[str] = []
        callers: list[str] = []
        for event in events:
            # No match: it takes twice as long, and every task comes by here.
            if isinstance(event, Ended):
                task_id = event.task_id
                fault("task.ended", task_id)
                ended.append(task_id)
                owner = owners.pop(task_id, root) if owners else root
                if watches and (watch := watches.pop(task_id, None)) is not None:
                    event.span = watch.stop("graph")
            elif isinstance(event, Call):
                callers.append(event.caller)
                owner = owners.get(event.caller, root)
            elif isinstance(event, Emitted):
                owner = owners.get(event.task_id, root)
            else:
                self.stop(event.reason)
                continue
            owner.inbox.append(event)
        if callers:
            self._placing.called(callers)
        if ended:
            self._placing.ended(ended)

    # ------------------------------------------------------------ tasks

    def _submit(self, active: Active, tasks: list[Task], setting: StepContext) -> None:
        active.channels = setting.channels
        if active is not self._root:
            self._owners.update((task.id, active) for task in tasks)
        if self.stopping is not None:
            for task in tasks:
                self._post(task, Withdrawn())
            return
        run = active.run_of(setting)
        for alike in stretches(tasks):
            node = alike[0].node
            if node.role == "graph":
                for task in alike:
                    self._nest(active, task, setting)
                continue
            self._placing.start(TaskGroup(node, alike, setting, active.around, run))
            for task in alike:
                fault("task.submitted", task.id)

    def _nest(self, active: Active, task: Task, setting: StepContext) -> None:
        """Start the nested run that *task* is."""
        if active.depth >= DEEPEST:
            self._post(task, Raised(too_deep(task.name)))
            return
        try:
            steps, around = task.node.graph.nested_run(task, setting, active.around)
        except Exception as error:  # noqa: BLE001 - the task fails with it
            self._post(task, Raised(error))
            return
        nested = Active(steps, around, active, task, setting)
        self._nested[task.id] = nested
        self._watches[task.id] = Stopwatch()
        self._ready.append(nested)

    def _nested_ended(self, nested: Active, result: Result) -> None:
        task, _ = self._closed(nested)
        if result.paused:
            self._post(task, Interrupted(result.interrupts))
        elif task.kind is Kind.CALL:
            self._post(task, Returned(((RETURN, result.values),)))
        else:
            self._write(nested, result.values)

    def _nested_failed(self, nested: Active, error: BaseException) -> None:
        task, _ = self._closed(nested)
        outcome: Outcome = Raised(error)
        if isinstance(error, TaskCancelled):
            outcome = Withdrawn()
        elif isinstance(error, ParentCommand):
            if error.command.graph == Command.PARENT and task.kind is not Kind.CALL:
                self._write(nested, replace(error.command, graph=None))
                return
            outcome = Escaped(error.command)
        self._post(task, outcome)

    def _closed(self, nested: Active) -> tuple[Task, StepContext]:
        task, setting = nested.task, nested.setting
        assert task is not None
        assert setting is not None
        self._nested.pop(task.id, None)
        return task, setting

    def _write(self, nested: Active, value: Any) -> None:
        """Let the node's writers take what its graph returned."""
        assert nested.task is not None
        assert nested.setting is not None
        assert nested.parent is not None
        parent, setting = nested.parent, nested.setting
        self._placing.write(nested.task, setting, value, parent.around, parent.run_of(setting))

    def _leave_contexts(self, active: Active, error: BaseException | None = None) -> None:
        """Leave what the `Context` channels of a run that ended have entered, everywhere."""
        contexts = [each for each in active.channels.values() if isinstance(each, Context)]
        if contexts:
            self._placing.leave([each.held.token for each in contexts], error)
        for channel in contexts:
            channel.close(error)

    def _post(self, task: Task, outcome: Outcome) -> None:
        self._placing.mailbox.post(Ended(task.id, task.attempt, outcome))
