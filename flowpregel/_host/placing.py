"""Where the tasks of a run run, and what each is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flowpregel._core.effects import Call, Ended, Setting
from flowpregel._core.program import Options, Program
from flowpregel._core.progress import Steps
from flowpregel._core.records import Kind, Node, Outcome, Raised, Task, Withdrawn
from flowpregel._host.executors import Executors
from flowpregel._host.keeper import Keeper, Keepers
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
        self._limit = limit
        self._counted: set[str] = set()
        self._queued: deque[Job] = deque()
        self._placed: dict[str, Job] = {}
        self._due: list[Job] = []
        """Jobs that were started, and are given to *next* all at once."""
        self._next: Executor | None = None
        self._entered: set[Executor] = set()
        """Where nodes ran that read `Context` channels."""

    # ------------------------------------------------------------ tasks

    def start(self, task: Task, setting: Setting, around: Surroundings, run: RunInfo) -> None:
        """Start an attempt of *task* where it is to run, at the next `flush` at the latest."""
        self._launch(task.node, _job(task, setting, around, run), around)

    def write(
        self, task: Task, setting: Setting, value: Any, around: Surroundings, run: RunInfo
    ) -> None:
        """Run the writers of a nested graph's node on what the graph returned."""
        node = replace(task.node, role="leaf", graph=None, steps=(), executor="inline")
        job = _job(task, setting, around, run)
        job.node, job.input = node, value
        self._launch(node, job, around, on_loop=self.executors.is_async)

    def _launch(self, node: Node, job: Job, around: Surroundings, *, on_loop: bool = False) -> None:
        try:
            executor = self.executors.for_node(node, around.executor, on_loop=on_loop)
            if job.timeout is not None:
                self.executors.check_timeout(node, executor)
        except Exception as error:  # noqa: BLE001 - the task fails with it
            self.mailbox.post(Ended(*job.key, Raised(error)))
            return
        job.executor = executor
        if node.contexts:
            self._entered.add(executor)
        if node.role == "leaf" and self._limit is not None:
            if len(self._counted) >= self._limit:
                self._queued.append(job)
                return
            self._counted.add(job.info.task_id)
        self._place(job)

    def _place(self, job: Job) -> None:
        """Put *job* with those that its executor is about to be given."""
        if job.executor is not self._next and self._due:
            self.flush()
        self._next = job.executor
        self._due.append(job)
        self._placed[job.info.task_id] = job

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

    def called(self, caller: str) -> None:
        """Note that a task made a call: while it waits, another may run."""
        if caller in self._counted:
            self._counted.discard(caller)
            self._start_queued()

    def ended(self, task_id: str) -> None:
        """Note that an attempt ended: another may run."""
        self._placed.pop(task_id, None)
        if self._limit is None:
            return
        self._counted.discard(task_id)
        self._start_queued()

    def _start_queued(self) -> None:
        while self._queued and self._limit is not None and len(self._counted) < self._limit:
            job = self._queued.popleft()
            self._counted.add(job.info.task_id)
            self._place(job)

    def cancel(self, task_id: str, *, kill: bool) -> None:
        """Withdraw a task that waits, or stop one that runs."""
        self.flush()
        for job in self._queued:
            if job.info.task_id == task_id:
                self._queued.remove(job)
                self.mailbox.post(Ended(*job.key, Withdrawn()))
                return
        placed = self._placed.get(task_id)
        if placed is not None:
            placed.executor.cancel(placed.key, kill=kill)

    def stop_all(self) -> None:
        """Stop every task that runs, for a run that is no longer there to be told how it ended."""
        for job in [*self._placed.values()]:
            job.executor.cancel(job.key, kill=True)

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Hand the caller that made *call* its outcome, if it still runs."""
        placed = self._placed.get(call.caller)
        if placed is not None:
            placed.executor.resolve(call, outcome)


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


def _job(task: Task, setting: Setting, around: Surroundings, run: RunInfo) -> Job:
    node = task.node
    # By position: keywords would take three times as long, and this is done for every task.
    info = TaskInfo(
        task.id,
        node.name,
        task.namespace,
        setting.step,
        setting.stop,
        task.attempt,
        task.first_started or 0,
        task.triggers,
        task.path,
        task.answers,
        setting.checkpoint_id,
        None if task.error is None else _node_error(task),
        run.has_saver or bool(node.retry or (around.options and around.options.retry)),
        run,
    )
    variables = around.variables if task.variables is None else task.variables
    job = Job(
        info,
        task.kind,
        node,
        task.input,
        task.timeout,
        _NOTHING,
        _NOTHING,
        around.store,
        around.control,
        variables,
    )
    if node.reads:
        job.channels = {
            name: setting.channels[name] for name in node.reads if name in setting.channels
        }
        job.managed = {
            name: managed.get(setting.step, setting.stop)
            for name, managed in setting.managed.items()
            if name in node.reads
        }
    return job


def _node_error(task: Task) -> NodeError | None:
    if task.kind is not Kind.HANDLER or task.error is None or task.parent is None:
        return None
    return NodeError(task.parent.name, task.error)
