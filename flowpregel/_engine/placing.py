"""Where the tasks of a run run, and what each is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flowpregel._core.effects import Call, Ended, StepContext
from flowpregel._core.program import Options, Program
from flowpregel._core.progress import Steps
from flowpregel._core.records import Kind, Node, Outcome, Raised, Task, Withdrawn
from flowpregel._engine.executors import Executors, default_executor
from flowpregel._engine.keeper import Committer, Committers
from flowpregel._engine.quota import ConcurrencyLimit, TaskGroup
from flowpregel._fault import fault
from flowpregel.context import RunControl, TaskInfo
from flowpregel.errors import NodeError
from flowpregel.executors.base import Executor, Job, Mailbox
from flowpregel.runinfo import RunInfo, RunValues


class Graph(Protocol):
    """A graph that can run inside another."""

    program: Program

    def nested_run(
        self, task: Task, setting: StepContext, around: RunContext
    ) -> tuple[Steps, RunContext]:
        """Return the run that *task* is, and what its own tasks are given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext:
    """What every task of a run, and every graph nested in it, is given."""

    config: Mapping[str, Any]
    context: Any = None
    store: Any = None
    control: RunControl | None = None
    keeper: Committer | None = None
    keepers: Committers = field(default_factory=Committers)
    """Those of all savers that the run and the graphs nested in it keep their state with."""
    thread_id: str | None = None
    run_id: str | None = None
    namespace: str = ""
    executor: Any = None
    """Where nodes run that do not say it themselves."""
    modes: frozenset[str] = frozenset()
    """What a nested run tells the stream."""
    options: Options | None = None
    """The options of the run itself: what a nested run inherits."""
    variables: Any = None
    """The context variables of who called a nested run; None: those of who started the run."""
    replayed_before: str | None = None
    """The checkpoint that the outermost run is replayed from, for graphs nested in it."""


class TaskStarter:
    """Starts the tasks of one outermost run and of the runs nested in it.

    Args:
        mailbox: Where the events of all its tasks arrive.
        executors: Where tasks can run.
        limit: How many tasks may run at once; bodies, nested graphs and tasks
            that made a call of their own do not count.
    """

    def __init__(self, mailbox: Mailbox, executors: Executors, limit: int | None) -> None:
        self.mailbox = mailbox
        self.executors = executors
        self._quotas: dict[Executor | None, ConcurrencyLimit] = {}
        """Under None that of the whole run, if it has one; else those of executors that have no
        use for more tasks than so many."""
        if limit is not None:
            self._quotas[None] = ConcurrencyLimit(limit)
        self._placed: dict[str, Job] = {}
        self._due: list[Job] = []
        """Jobs that were started, and are given to *next* all at once."""
        self._next: Executor | None = None
        self._entered: set[Executor] = set()
        """Where nodes ran that read `Context` channels."""

    # ------------------------------------------------------------ tasks

    def write(
        self, task: Task, setting: StepContext, value: Any, around: RunContext, run: RunInfo
    ) -> None:
        """Run the writers of a nested graph's node on what the graph returned."""
        node = replace(task.node, role="leaf", graph=None, steps=(), executor="inline")
        writing = replace(task, node=node, input=value)
        stretch = TaskGroup(node, [writing], setting, around, run)
        self.start(stretch, on_loop=self.executors.is_async)

    def start(self, stretch: TaskGroup, *, on_loop: bool = False) -> None:
        """Start an attempt of each task of *stretch*, when its turn comes, where it is to run.

        Args:
            stretch: Which tasks, and with what.
            on_loop: Whether they are to run on the run's event loop, as coroutines do.
        """
        node, tasks = stretch.node, stretch.tasks
        try:
            executor = self.executors.for_node(node, stretch.around.executor, on_loop=on_loop)
            for task in tasks:
                if task.timeout is not None:
                    self.executors.check_timeout(node, executor)
                    break
        except Exception as error:  # noqa: BLE001 - the tasks fail with it
            for task in tasks:
                self.mailbox.post(Ended(task.id, task.attempt, Raised(error)))
            return
        if node.contexts:
            self._entered.add(executor)
        stretch.executor = executor
        is_below = tasks[0].parent is not None and tasks[0].parent.node.role != "body"
        quota = self._quota_for(node, executor, is_below=is_below)
        if quota is None or quota.admits(stretch):
            self._place(stretch)
        else:
            # Else those before them, which call too, would all wait for what waits behind them.
            quota.add(stretch, first=is_below)
            self._place_admitted(quota)

    def _quota_for(
        self, node: Node, executor: Executor, *, is_below: bool
    ) -> ConcurrencyLimit | None:
        """Return what decides when tasks of *node* go to *executor*; None: at once.

        Those below another task go to a pool at once: that one is perhaps at work there.
        """
        if node.role != "leaf":
            return None
        if executor.room is None or None in self._quotas:
            return self._quotas.get(None)
        if is_below:
            return None
        quota = self._quotas.get(executor)
        if quota is None:
            quota = self._quotas[executor] = ConcurrencyLimit(executor.room)
        return quota

    def _place(self, stretch: TaskGroup) -> None:
        """Put the jobs of *stretch* with those that their executor is about to be given."""
        if stretch.executor is not self._next:
            self.flush()
            self._next = stretch.executor
        jobs, placed = _jobs(stretch), self._placed
        self._due += jobs
        for job in jobs:
            placed[job.info.task_id] = job

    def flush(self) -> None:
        """Give an executor the jobs that were started, all at once."""
        if self._due:
            due, self._due = self._due, []
            assert self._next is not None
            self._next.start_all(due, self.mailbox)

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have the contexts of a run that ended left wherever its nodes have entered them."""
        for executor in self._entered:
            executor.leave(contexts, error)

    def called(self, callers: Sequence[str]) -> None:
        """Note that tasks made calls: while they wait, others may run."""
        if self._quotas:
            self._leave(callers)

    def ended(self, task_ids: Sequence[str]) -> None:
        """Note that attempts ended: others may run."""
        forget = self._placed.pop
        for task_id in task_ids:
            forget(task_id, None)
        if self._quotas:
            self._leave(task_ids)

    def _leave(self, task_ids: Sequence[str]) -> None:
        for quota in self._quotas.values():
            quota.leave(task_ids)
            if quota.has_line:
                self._place_admitted(quota)

    def _place_admitted(self, quota: ConcurrencyLimit) -> None:
        for stretch in quota.admit():
            self._place(stretch)

    def cancel(self, task_id: str, *, kill: bool) -> None:
        """Withdraw a task that waits, or stop one that runs."""
        self.flush()
        for quota in self._quotas.values():
            if (task := quota.withdraw(task_id)) is not None:
                self.mailbox.post(Ended(task_id, task.attempt, Withdrawn()))
                return
        placed = self._placed.get(task_id)
        if placed is not None:
            placed.executor.cancel(placed.key, kill=kill)

    def stop_all(self) -> None:
        """Stop every task that runs, for a run that is no longer there to be told how it ended."""
        for job in [*self._placed.values()]:
            job.executor.cancel(job.key, kill=True)

    def resolve(self, answers: Iterable[tuple[Call, Outcome]]) -> None:
        """Hand the callers of these calls their outcomes, if they still run."""
        caller, placed = "", None
        for call, outcome in answers:
            if call.caller != caller:
                caller = call.caller
                placed = self._placed.get(caller)
            if placed is not None:
                placed.executor.resolve(call, outcome)
            fault("task.resolved")


_NOTHING: Mapping[str, Any] = {}
"""What most nodes read in their writers."""


def run_info(around: RunContext, previous: Any) -> RunInfo:
    """Return what all tasks of a run may know about it."""
    return RunInfo(
        RunValues(around.config, around.context, previous),
        thread_id=around.thread_id,
        run_id=around.run_id,
        has_saver=around.keeper is not None,
        executor=default_executor() if around.executor is None else around.executor,
    )


def _jobs(stretch: TaskGroup) -> list[Job]:
    """Return a job for each task of *stretch*."""
    node, setting, around, run = stretch.node, stretch.setting, stretch.around, stretch.run
    name, step, stop, checkpoint_id = node.name, setting.step, setting.stop, setting.checkpoint_id
    compares = run.has_saver or bool(node.retry or (around.options and around.options.retry))
    variables, store, control = around.variables, around.store, around.control
    channels, managed = _read_by(node, setting) if node.reads else (_NOTHING, _NOTHING)
    executor, jobs = stretch.executor, []
    # By position: keywords would take three times as long, and this is done for every task.
    for task in stretch.tasks:
        info = TaskInfo(
            task.id,
            name,
            task.namespace,
            step,
            stop,
            task.attempt,
            task.first_started or 0,
            task.triggers,
            task.path,
            task.answers,
            checkpoint_id,
            None if task.error is None else _node_error(task),
            compares,
            run,
        )
        job = Job(
            info,
            task.kind,
            node,
            task.input,
            task.timeout,
            channels,
            managed,
            store,
            control,
            variables if task.variables is None else task.variables,
            executor,
        )
        jobs.append(job)
    return jobs


def _read_by(node: Node, setting: StepContext) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the channels and the managed values that the writers of *node* may read."""
    channels = {name: setting.channels[name] for name in node.reads if name in setting.channels}
    managed = {
        name: value.get(setting.step, setting.stop)
        for name, value in setting.managed.items()
        if name in node.reads
    }
    return channels, managed


def _node_error(task: Task) -> NodeError | None:
    if task.kind is not Kind.HANDLER or task.error is None or task.parent is None:
        return None
    return NodeError(task.parent.name, task.error)
