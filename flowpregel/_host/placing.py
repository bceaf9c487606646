"""Where the tasks of a run run, and what each is given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Protocol

from flowpregel._core.effects import Call, Ended, Setting
from flowpregel._core.program import Options, Program
from flowpregel._core.progress import Steps
from flowpregel._core.records import Kind, Node, Outcome, Raised, Task, Withdrawn
from flowpregel._fault import fault
from flowpregel._host.executors import Executors
from flowpregel._host.keeper import Keeper, Keepers
from flowpregel._host.quota import Quota, Stretch
from flowpregel.context import RunControl, TaskInfo
from flowpregel.errors import NodeError
from flowpregel.executors.base import Executor, Job, Mailbox
from flowpregel.runinfo import RunInfo, RunValues


class Graph(Protocol):
    """A graph that can run inside another."""

    program: Program

    def nested_run(
        self, task: Task, setting: Setting, around: Surroundings
    ) -> tuple[Steps, Surroundings]:
        """Return the run that *task* is, and what its own tasks are given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surroundings:
    """What every task of a run, and every graph nested in it, is given."""

    config: Mapping[str, Any]
    context: Any = None
    store: Any = None
    control: RunControl | None = None
    keeper: Keeper | None = None
    keepers: Keepers = field(default_factory=Keepers)
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


_ALIKE: Final[Any] = attrgetter("node", "parent")


class Placing:
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
        self._quota = None if limit is None else Quota(limit)
        """That of the whole run, if it has one."""
        self._quotas: dict[Executor, Quota] = {}
        """Else those of executors that have no use for more tasks than so many."""
        self._placed: dict[str, Job] = {}
        self._due: list[Job] = []
        """Jobs that were started, and are given to *next* all at once."""
        self._next: Executor | None = None
        self._entered: set[Executor] = set()
        """Where nodes ran that read `Context` channels."""

    # ------------------------------------------------------------ tasks

    def start(
        self, tasks: Iterable[Task], setting: Setting, around: Surroundings, run: RunInfo
    ) -> None:
        """Start an attempt of each of *tasks* where it is to run, at the next `flush` at the latest."""
        for (node, _), alike in groupby(tasks, _ALIKE):
            self._launch(Stretch(node, [*alike], setting, around, run))

    def write(
        self, task: Task, setting: Setting, value: Any, around: Surroundings, run: RunInfo
    ) -> None:
        """Run the writers of a nested graph's node on what the graph returned."""
        node = replace(task.node, role="leaf", graph=None, steps=(), executor="inline")
        writing = replace(task, node=node, input=value)
        stretch = Stretch(node, [writing], setting, around, run)
        self._launch(stretch, on_loop=self.executors.is_async)

    def _launch(self, stretch: Stretch, *, on_loop: bool = False) -> None:
        """Start the tasks of *stretch*, or let them wait for their turn."""
        node, tasks = stretch.node, stretch.tasks
        try:
            executor = self.executors.for_node(node, stretch.around.executor, on_loop=on_loop)
            if any(task.timeout is not None for task in tasks):
                self.executors.check_timeout(node, executor)
        except Exception as error:  # noqa: BLE001 - the tasks fail with it
            for task in tasks:
                self.mailbox.post(Ended(task.id, task.attempt, Raised(error)))
            return
        if node.contexts:
            self._entered.add(executor)
        quota = self._quota_for(tasks[0], executor)
        if quota is None:
            self._place(stretch.on(executor))
        else:
            quota.add(stretch.on(executor))
            self._place_admitted(quota)

    def _quota_for(self, task: Task, executor: Executor) -> Quota | None:
        """Return what decides when *task*, and those like it, go to *executor*; None: at once."""
        if task.node.role != "leaf":
            return None
        if self._quota is not None or executor.room is None:
            return self._quota
        if task.parent is not None and task.parent.node.role != "body":
            # Its caller is perhaps at work there, and waits: those who wait there are to be few.
            return None
        quota = self._quotas.get(executor)
        if quota is None:
            quota = self._quotas[executor] = Quota(executor.room)
        return quota

    def _place(self, stretch: Stretch) -> None:
        """Put the jobs of *stretch* with those that their executor is about to be given."""
        if stretch.executor is not self._next:
            self.flush()
            self._next = stretch.executor
        jobs = _jobs(stretch)
        self._due += jobs
        self._placed.update((job.info.task_id, job) for job in jobs)

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

    def called(self, callers: Iterable[str]) -> None:
        """Note that tasks made calls: while they wait, others may run."""
        if quotas := self._all_quotas():
            self._leave(quotas, [*callers])

    def ended(self, task_ids: Sequence[str]) -> None:
        """Note that attempts ended: others may run."""
        forget = self._placed.pop
        for task_id in task_ids:
            forget(task_id, None)
        if quotas := self._all_quotas():
            self._leave(quotas, task_ids)

    def _all_quotas(self) -> Collection[Quota]:
        return self._quotas.values() if self._quota is None else (self._quota,)

    def _leave(self, quotas: Collection[Quota], task_ids: Sequence[str]) -> None:
        for quota in quotas:
            quota.leave(task_ids)
            self._place_admitted(quota)

    def _place_admitted(self, quota: Quota) -> None:
        for stretch in quota.admit():
            self._place(stretch)

    def cancel(self, task_id: str, *, kill: bool) -> None:
        """Withdraw a task that waits, or stop one that runs."""
        self.flush()
        for quota in self._all_quotas():
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


def run_info(around: Surroundings, previous: Any) -> RunInfo:
    """Return what all tasks of a run may know about it."""
    return RunInfo(
        RunValues(around.config, around.context, previous),
        thread_id=around.thread_id,
        run_id=around.run_id,
        has_saver=around.keeper is not None,
    )


def _jobs(stretch: Stretch) -> list[Job]:
    """Return a job for each task of *stretch*."""
    node, setting, around, run = stretch.node, stretch.setting, stretch.around, stretch.run
    name, step, stop, checkpoint_id = node.name, setting.step, setting.stop, setting.checkpoint_id
    compares = run.has_saver or bool(node.retry or (around.options and around.options.retry))
    variables, store, control = around.variables, around.store, around.control
    channels, managed = _read_by(node, setting) if node.reads else (_NOTHING, _NOTHING)
    # By position: keywords would take three times as long, and this is done for every task.
    return [
        Job(
            TaskInfo(
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
            ),
            task.kind,
            node,
            task.input,
            task.timeout,
            channels,
            managed,
            store,
            control,
            variables if task.variables is None else task.variables,
            stretch.executor,
        )
        for task in stretch.tasks
    ]


def _read_by(node: Node, setting: Setting) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
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
