"""The runs that an engine executes: the outermost run, and the runs of nested
graphs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from flowpregel._core import effects, records
from flowpregel._core.calls import DEEPEST, too_deep
from flowpregel._core.effects import Ended, Event, StepContext, Steps, Stopped
from flowpregel._core.ids import Span, without_ids
from flowpregel._core.program import Options
from flowpregel._core.records import Address, Outcome, Raised, Returned, Task
from flowpregel._core.run import Result
from flowpregel._engine.callbacks import GraphCallbacks
from flowpregel._engine.commits import Committer, Committers
from flowpregel._engine.inbox import now
from flowpregel._fault import fault
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.context import Job, RunInfo
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.executors.attempt import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext(RunInfo):
    """The facts about a run that its tasks and nested graphs need, and the objects that
    commit its records.
    """

    committer: Committer | None = None
    committers: Committers = field(default_factory=Committers)
    """The objects that commit records: one for each saver to which the run, or a graph
    nested in it, commits.
    """
    namespace: str = ""
    modes: frozenset[str] = frozenset()
    """The stream modes in which nested runs emit items."""
    options: Options = field(default_factory=Options)
    """The options of the run itself, which nested runs inherit."""
    variables: Context = field(default_factory=copy_context)
    """The `contextvars.Context` of the run's caller, in which the nodes run."""
    replayed_before: str | None = None
    """The checkpoint from which the outermost run is replayed, or None. Nested graphs
    start from their states before this checkpoint.
    """
    replayed: set[str] = field(default_factory=set)
    """The nested graphs that have already started in this replay, as namespaces without
    task ids.
    """
    is_finished: bool = False
    """True if the run had already ended before it was started again, so that only its
    stored result is returned.
    """
    callbacks: GraphCallbacks | None = None
    """The calls of the callback handlers for the nodes of the run, or None if no
    handler is called for nodes.
    """

    def take_replay_limit(self, namespace: str) -> str | None:
        """Return the checkpoint before which the graph at *namespace* must start, or
        None if the graph may start from its newest checkpoint.

        A graph that runs a second time in the same replay resumes from its own state.
        """
        graph = without_ids(namespace)
        if self.replayed_before is None or graph in self.replayed:
            return None
        self.replayed.add(graph)
        return self.replayed_before

    def keep_output(self, job: Job, text: str) -> None:
        """Store the output of a task of the run with the saver of the run."""
        if self.committer is None or self.thread_id is None:
            return
        task = job.task
        step = job.step
        data = text.encode(errors="replace")
        output = CallOutput(
            checkpoint_id=step.checkpoint_id,
            task_id=task.id,
            name=task.call or task.name,
            began=now(),
            head=data,
            tail=b"",
            size=len(data),
        )
        address = Address(self.thread_id, step.namespace, step.checkpoint_id)
        self.committer.saver.keep_output(address, output)


@dataclass(eq=False, slots=True)
class ActiveRun:
    """A run that has not ended: the outermost run, or a nested run."""

    steps: Steps
    run_context: RunContext
    graph_task: GraphTask | None = None
    """The task that this run executes, or None for the outermost run."""
    depth: int = 0
    """The number of runs that this run is nested in."""
    deadline: int | None = None
    """The time (monotonic nanoseconds) at which the run, which waits for events,
    continues even without an event. It is 0 if the run must continue at once, or None
    if the run continues only after an event.
    """
    reply: Any = None
    """The reply to the run's last effect, which the run gets when it continues."""
    failure: BaseException | None = None
    """The error with which the last effect failed, if it did."""
    inbox: list[Event] = field(default_factory=list)
    stopped: Stopped | None = None
    """The request to stop that the run has received, if any."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """The run's own channel objects, which are known once the run has submitted
    a task.
    """
    end: Result | BaseException | None = None
    """The result or the error of the run, once it has ended."""

    def receive(self, effect: object, reply: Any) -> None:
        """Store the reply to *effect*, with which the run will continue."""
        self.reply = reply
        if isinstance(effect, effects.Prepare):
            self.run_context = reply.run_context

    def post(self, task: Task, outcome: Outcome, span: Span | None = None) -> None:
        """Add the event that a task of the run ended, or never began."""
        self.inbox.append(Ended(task.id, task.attempt.number, outcome, span))
        self.deadline = 0
        fault("task.ended", task.id)

    def post_all(self, tasks: Sequence[Task], outcome: Outcome) -> None:
        """Add the event that each of *tasks*, which never began, ended with
        *outcome*.
        """
        for task in tasks:
            self.post(task, outcome)

    def stop(self, stopped: Stopped) -> None:
        """Ask the run to stop, unless it already has the same request or a stronger
        one.
        """
        before = self.stopped
        if before is not None:
            strength = stopped.kill, stopped.leave
            if strength <= (before.kill, before.leave):
                return
        self.stopped = stopped
        self.inbox.append(stopped)
        self.deadline = 0


@dataclass(frozen=True, slots=True, eq=False)
class GraphTask:
    """A task whose node is a graph. A nested run executes the task."""

    run: ActiveRun
    """The run that the task belongs to."""
    task: Task
    step: StepContext
    """The superstep of the task."""
    watch: Stopwatch = field(default_factory=Stopwatch)


@dataclass(eq=False, slots=True)
class NestedRuns:
    """The nested runs of one outermost run.

    The tasks of two runs of the same graph would have the same ids if both runs resumed
    from the same checkpoint. So the runs of a graph that has a memory (its own
    checkpoints, from which each run resumes) take turns.

    Args:
        ready: The runs that can continue. A nested run is added when it can begin.
    """

    ready: deque[ActiveRun]
    active: dict[str, ActiveRun] = field(default_factory=dict)
    """The runs that have not ended, or whose end the writers of their node have not
    processed yet, by the id of their task.
    """
    _turns: dict[tuple[str | None, str], deque[ActiveRun]] = field(default_factory=dict)
    """The runs of each graph with a memory, by thread and namespace. Only the first run
    of each graph is executed.
    """

    def start(self, outer: ActiveRun, task: Task, step: StepContext) -> None:
        """Start the nested run that executes a *task* of *outer*."""
        if outer.depth >= DEEPEST:
            outer.post(task, Raised(too_deep(task.name)))
            return
        try:
            steps, run_context = task.node.graph.nested_run(
                task, step, outer.run_context
            )
        except Exception as error:  # noqa: BLE001 - the task fails with it
            outer.post(task, Raised(error))
        else:
            graph_task = GraphTask(outer, task, step)
            run = ActiveRun(steps, run_context, graph_task, outer.depth + 1)
            self.active[task.id] = run
            self._take_turn(run)
        fault("task.submitted", task.id)

    def _take_turn(self, run: ActiveRun) -> None:
        """Make *run* ready, or queue it behind another run of the same graph."""
        namespace = run.run_context.namespace
        _, _, last_part = namespace.rpartition("|")
        # If a graph has no memory, its namespace ends with a task id, after a colon.
        has_memory = namespace != "" and ":" not in last_part
        if not has_memory:
            self.ready.append(run)
            return
        key = run.run_context.thread_id, namespace
        turns = self._turns.setdefault(key, deque())
        turns.append(run)
        if turns[0] is run:
            self.ready.append(run)

    def add_span(self, end: Ended) -> None:
        """Add the time span of the nested run to *end*, the event that the writers of a
        nested graph's node have ended.
        """
        graph_task = self.active.pop(end.task_id).graph_task
        if graph_task is not None:
            end.span = graph_task.watch.stop("graph")

    def pass_turn(self, run: ActiveRun) -> None:
        """Make the next run of the same graph ready, since *run* has ended."""
        key = run.run_context.thread_id, run.run_context.namespace
        turns = self._turns.get(key)
        if turns and turns[0] is run:
            turns.popleft()
            if turns:
                self.ready.append(turns[0])


def nested_outcome(end: Result | BaseException) -> Outcome:
    """Return the outcome of a task without writers, whose nested run has this *end*."""
    match end:
        case Result(paused=True):
            return records.Interrupted(end.interrupts, questions=end.questions)
        case Result(values):
            return Returned(((records.RETURN, values),))
        case TaskCancelled():
            return records.Withdrawn()
        case ParentCommand():
            return records.Escaped(end.command)
    return Raised(end)
