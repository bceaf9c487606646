"""Runs inside runs: all that share one engine, and which event belongs to which."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flowpregel._core.effects import Call, Ended, Event, StepContext, Steps, Stopped, Wait, Wakeup
from flowpregel._core.plan import DEEPEST, too_deep
from flowpregel._core.program import Options
from flowpregel._core.records import (
    RETURN,
    Escaped,
    Interrupted,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
)
from flowpregel._core.run_state import Result
from flowpregel._engine.commits import Committer, Committers
from flowpregel.context import RunInfo
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.executors.base import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext(RunInfo):
    """What every graph nested in a run is given: what its tasks are, and how it is kept."""

    committer: Committer | None = None
    committers: Committers = field(default_factory=Committers)
    """Those of all savers that the run and the graphs nested in it keep their state with."""
    namespace: str = ""
    modes: frozenset[str] = frozenset()
    """What a nested run tells the stream."""
    options: Options = field(default_factory=Options)
    """The options of the run itself: what a nested run inherits."""
    variables: Context = field(default_factory=copy_context)
    """The context variables of who started the run: those of its nodes."""
    replayed_before: str | None = None
    """The checkpoint that the outermost run is replayed from, for graphs nested in it."""


class NestedGraph(Protocol):
    """A graph that can run inside another."""

    def nested_run(
        self, task: Task, setting: StepContext, around: RunContext
    ) -> tuple[Steps, RunContext]:
        """Return the run that *task* is, and what its own tasks are given."""


@dataclass(eq=False, slots=True)
class ActiveRun:
    """A run that has not ended: the outermost, or one nested in another."""

    steps: Steps
    around: RunContext
    parent: ActiveRun | None = None
    task: Task | None = None
    """The task of the parent that it is."""
    setting: StepContext | None = None
    """The superstep of the parent that the task belongs to."""
    depth: int = 0
    """In how many runs it is nested."""
    deadline: int | None = None
    reply: Any = None
    """What its last effect is answered with."""
    failure: BaseException | None = None
    """What its last effect failed with."""
    inbox: list[Event] = field(default_factory=list)
    is_stopped: bool = False
    """Whether it was told to end."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Its live channels, known once it has submitted a task."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    end: Result | BaseException | None = None
    """What it returned or raised."""

    def stop(self, reason: str) -> None:
        """Tell it to end, once."""
        if not self.is_stopped:
            self.is_stopped = True
            self.inbox.append(Stopped(reason))


class RunTree:
    """The outermost run and those nested in it, and the events that each waits for.

    Args:
        root: The outermost.
    """

    def __init__(self, root: ActiveRun) -> None:
        self.root = root
        self.ready = deque([root])
        """Those that can be moved."""
        self.stopping: str | None = None
        """Why all of them are to end."""
        self._waiting: dict[ActiveRun, None] = {}
        self.nested: dict[str, ActiveRun] = {}
        """The nested runs, by the id of the task that each of them is."""
        self.owners: dict[str, ActiveRun] = {}
        """The nested run that each task belongs to that was submitted by one."""

    def nest(self, parent: ActiveRun, task: Task, setting: StepContext) -> Outcome | None:
        """Start the nested run that *task* is; return why it failed, if it did."""
        if parent.depth >= DEEPEST:
            return Raised(too_deep(task.name))
        graph: NestedGraph = task.node.graph
        try:
            steps, around = graph.nested_run(task, setting, parent.around)
        except Exception as error:  # noqa: BLE001 - the task fails with it
            return Raised(error)
        run = ActiveRun(steps, around, parent, task, setting, parent.depth + 1)
        self.nested[task.id] = run
        self.ready.append(run)
        return None

    def stop(self, reason: str) -> None:
        """Tell every run to end: at its next wake-up it cancels its tasks."""
        self.stopping = reason
        for run in self._waiting:
            run.stop(reason)

    def wait(self, run: ActiveRun, deadline: int | None) -> None:
        """Note that *run* waits for events, until *deadline* at most."""
        run.deadline = deadline
        self._waiting[run] = None
        if self.stopping is not None:
            run.stop(self.stopping)

    def next_wait(self) -> Wait:
        """Return the wait that ends when one of the runs has something to do."""
        if any(run.inbox for run in self._waiting):
            return Wait(0)
        deadlines = [run.deadline for run in self._waiting if run.deadline is not None]
        return Wait(min(deadlines, default=None))

    def deliver(self, wakeup: Wakeup) -> None:
        """Give each run its events, and make those ready that have any, or are due.

        The event of a task that is not known goes to the outermost run, which ignores it.
        """
        root = self.root
        for event in wakeup.events:
            match event:
                case Stopped(reason):
                    self.stop(reason)
                case Ended(task_id):
                    if (nested := self.nested.pop(task_id, None)) is not None:
                        event.span = nested.watch.stop("graph")
                    self.owners.pop(task_id, root).inbox.append(event)
                case Call(caller):
                    self.owners.get(caller, root).inbox.append(event)
                case _:
                    self.owners.get(event.task_id, root).inbox.append(event)
        for run in list(self._waiting):
            if run.inbox or (run.deadline is not None and run.deadline <= wakeup.monotonic):
                run.reply, run.inbox = replace(wakeup, events=run.inbox), []
                del self._waiting[run]
                self.ready.append(run)


def outcome_of(end: Result | BaseException) -> Outcome:
    """Return what the end of a nested run means for the task that it is, which has no writers."""
    match end:
        case Result(paused=True):
            return Interrupted(end.interrupts)
        case Result(values):
            return Returned(((RETURN, values),))
        case TaskCancelled():
            return Withdrawn()
        case ParentCommand():
            return Escaped(end.command)
    return Raised(end)
