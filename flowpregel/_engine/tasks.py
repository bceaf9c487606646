"""The start, the end and the cancellation of tasks.

A task that a run submits takes this way::

    run -- submit --> Job               `cancel` withdraws a job that waits
                       |
                       |-- AdmissionQueue: limits and rates
                       |-- ConcurrencyLimit: tasks at once
                       v
                      due -- flush --> Executor          `cancel` stops a running job
                                          |
    inbox of the run <-- deliver ------ mailbox

A task whose node is a graph becomes a nested run instead. When a task ends, or waits
for calls that it made, its slots are free, and `deliver` starts waiting tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from flowpregel import _fault, executors
from flowpregel._core.effects import (
    Call,
    Cancel,
    Emitted,
    Ended,
    Request,
    Resolve,
    SaveState,
    StepContext,
    Stopped,
    Submit,
)
from flowpregel._core.records import Node, Raised, Task, Withdrawn
from flowpregel._engine.admission import AdmissionQueue, ConcurrencyLimit, slots_of
from flowpregel._engine.commits import Committer
from flowpregel._engine.inbox import refuse
from flowpregel._engine.live_state import live_state
from flowpregel._engine.nested import ActiveRun, GraphTask, NestedRuns
from flowpregel.context import Job, Spent
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.attempt import async_in_sync_run
from flowpregel.executors.base import Executor, Mailbox, default_executor
from flowpregel.executors.by_name import (
    ExecutorFactory,
    check_executor,
    executor_named,
)
from flowpregel.executors.local import InlineExecutor, ThreadExecutor
from flowpregel.executors.resources import (
    NO_LIMITS,
    SharedLimits,
    callers_of,
    limits_folder_of,
    priority_of,
)
from flowpregel.policies import Resources

_node_and_caller: Final = attrgetter("node", "parent")
_timeout_of: Final = attrgetter("timeout")


@dataclass(frozen=True, slots=True)
class Placement:
    """The executor of the tasks of one node, and the limits that these tasks wait
    for.
    """

    executor: Executor
    concurrency: ConcurrencyLimit | None
    """The limit of tasks that run at once, or None if the tasks go to the executor
    without waiting.
    """
    limits: SharedLimits | None
    """The limits and rates that the tasks wait for in the run, or None if they do not
    wait in the run.
    """


class TaskStarter:
    """The starter of the tasks of one outermost run and of the runs nested in it.

    Args:
        mailbox: The mailbox that receives the events of all tasks.
        run_executors: The executors that the run may use.
        nested: The nested runs, to which tasks that run a graph are passed.
        limit: The greatest number of tasks that run at once. Bodies, nested graphs and
            tasks that have made a call are not counted.
        give_up: A function that is called with the error if a task could not be
            started, so that its end will never be reported.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        run_executors: RunExecutors,
        nested: NestedRuns,
        limit: int | None,
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._mailbox = mailbox
        self._executors = run_executors
        self._nested = nested
        self._give_up = give_up
        self.stopping: Stopped | None = None
        """The request to stop that applies to all runs, if any."""
        self._placement_of = lru_cache(self._place)
        self._limits: dict[
            tuple[Executor, Resources | None] | None, ConcurrencyLimit
        ] = {}
        """The limits on the number of running tasks. If the whole run has a limit, the
        only key is None. Otherwise, there is one for each `Resources` of an executor
        with a `room` (a limit on the size of the jobs that it gets at once).
        """
        if limit is not None:
            self._limits[None] = ConcurrencyLimit(limit)
        self._admission: AdmissionQueue | None = None
        """The queue of tasks that wait in the run for limits and rates, or None if no
        task had to wait for these so far.
        """
        self.deadline: int | None = None
        """The time, in monotonic nanoseconds, at which a task that waits for a rate may
        start even if no event arrives.
        """
        self._are_ranked = False
        """True once a task has had a priority. Until then, every job gets the priority
        0.
        """
        self._jobs: dict[str, Job] = {}
        """The jobs of tasks that have not ended."""
        self._due: list[Job] = []
        """The jobs that are passed to their executors at the next `flush`."""

    # ------------------------------------------------------------ starts

    def submit(self, run: ActiveRun, effect: Submit) -> None:
        """Start an attempt of each task of *run* when its turn comes, unless all runs
        must stop.
        """
        run.channels = effect.step.channels
        if self.stopping is not None:
            run.post_all(effect.tasks, Withdrawn())
            return
        for (node, _), tasks in groupby(effect.tasks, _node_and_caller):
            if node.role == "graph":
                for task in tasks:
                    self._nested.start(run, task, effect.step)
            else:
                self._start(run, list(tasks), effect.step)

    def _start(self, run: ActiveRun, tasks: Sequence[Task], step: StepContext) -> None:
        """Start *tasks*, which have the same node and the same caller."""
        node = tasks[0].node
        caller = tasks[0].parent
        run_context = run.run_context
        is_below = caller is not None and caller.node.role != "body"
        times_out = any(map(_timeout_of, tasks))
        try:
            placement = self._placement_of(
                node, run_context.executor, run_context.committer, is_below, times_out
            )
        except Exception as error:  # noqa: BLE001 - the tasks fail with it
            run.post_all(tasks, Raised(error))
            return
        priority = priority_of(tasks[0]) if self._are_ranked else 0
        jobs: list[Job] = []
        for task in tasks:
            variables = run_context.variables
            if task.origin is not None and task.origin.variables is not None:
                variables = task.origin.variables
            job = Job(
                task=task,
                step=step,
                run=run_context,
                key=(task.id, task.attempt.number),
                compares=run_context.has_saver or bool(node.retry),
                variables=variables,
                executor=placement.executor,
                owner=run,
                priority=priority,
            )
            self._jobs[task.id] = job
            jobs.append(job)
            if _fault.points:
                _fault.fault("task.submitted", task.id)
        if placement.limits is not None:
            self._admit(jobs, placement.limits, placement.concurrency)
            return
        if placement.concurrency is not None:
            # A task occupies a slot while it waits for the jobs that it has called, so
            # these jobs go before the other waiting jobs.
            jobs = placement.concurrency.acquire(jobs, first=is_below)
        self._due += jobs

    def _place(
        self,
        node: Node,
        default: Any,
        committer: Committer | None,
        is_below: bool,
        times_out: bool,
    ) -> Placement:
        """Return the placement of tasks of *node*.

        Args:
            node: The node whose tasks need an executor.
            default: The executor of the run, for a node that names none.
            committer: The committer of the run's store, if it has one.
            is_below: True if a task has called these tasks. They go to a pool at once,
                since the caller may occupy room in the pool.
            times_out: True if one of the tasks has a timeout.

        Raises:
            ConfigurationError: The executor cannot stop a task that has a timeout, or
                does not support the resources.
            TypeError: The node is async, and a sync run cannot await it.
        """
        executor = self._executors.of_node(node, default)
        resources = node.resources
        limits = None
        if times_out or resources is not None:
            _check(node, executor, times_out=times_out)
        if resources is not None:
            self._are_ranked = self._are_ranked or resources.priority is not None
            saver = None if committer is None else committer.saver
            limits = _limits_here(node, executor, default, saver)
        if node.contexts:
            self._executors.add_entered(executor)
        if node.role != "leaf":
            return Placement(executor, None, limits)
        if executor.room is None or None in self._limits:
            return Placement(executor, self._limits.get(None), limits)
        if is_below:
            return Placement(executor, None, limits)
        # Tasks with different resources have separate limits, so that a task that waits
        # for a resource does not block tasks that do not need it.
        key = executor, resources
        if key not in self._limits:
            self._limits[key] = ConcurrencyLimit(executor.room, slots_of)
        return Placement(executor, self._limits[key], limits)

    def _admit(
        self,
        jobs: Sequence[Job],
        limits: SharedLimits,
        concurrency: ConcurrencyLimit | None,
    ) -> None:
        """Start *jobs* as soon as their limits and rates allow."""
        if self._admission is None:
            self._admission = AdmissionQueue(self._mailbox, self._free, self._begin)
        self._admission.add(jobs, limits, concurrency)
        self.deadline = self._admission.deadline

    def _begin(self, job: Job) -> None:
        """Pass a job to its executor at the next `flush`."""
        self._due.append(job)

    def is_busy(self, waiting: Collection[str]) -> bool:
        """Return whether a task computes something, so that a test's clock must not
        skip time. Any OS thread may call this.

        Args:
            waiting: The ids of the tasks that only wait for a time or a signal.
        """
        leaves: list[str] = []
        idle = set(waiting)
        for job in list(self._jobs.values()):
            task = job.task
            idle.update(caller.id for caller in callers_of(task))
            if task.node.role == "leaf":
                leaves.append(task.id)
        queues = self._queues()
        for task_id in leaves:
            is_queued = any(queue.has(task_id) for queue in queues)
            if not is_queued and task_id not in idle:
                return True
        return False

    def _queues(self) -> list[AdmissionQueue | ConcurrencyLimit]:
        """Return the queues in which tasks of the run may wait."""
        queues: list[AdmissionQueue | ConcurrencyLimit] = list(self._limits.values())
        if self._admission is not None:
            queues.append(self._admission)
        return queues

    def _free(self, executor: Executor) -> float:
        """Return the number of further jobs that *executor* would start at once."""
        due = [job for job in self._due if job.executor is executor]
        return executor.free() - len(due)

    def write(self, graph_task: GraphTask, value: Any) -> None:
        """Run the writers of a nested graph's node on the *value* that the nested run
        returned.
        """
        task = graph_task.task
        node = replace(
            task.node,
            role="leaf",
            graph=None,
            steps=(),
            executor=self._executors.driver_executor,
        )
        task = replace(task, node=node, input=value)
        self._start(graph_task.run, [task], graph_task.step)

    def flush(self) -> None:
        """Pass the started jobs to their executors."""
        if not self._due:
            return
        due = self._due
        self._due = []
        jobs_of: dict[Executor, list[Job]] = {}
        for job in due:
            jobs_of.setdefault(job.executor, []).append(job)
        try:
            for executor, jobs in jobs_of.items():
                executor.start(jobs, self._mailbox)
        except BaseException as error:
            self._give_up(error)
            raise

    # ------------------------------------------------------------ ends

    def deliver(
        self, events: Sequence[Ended | Request | Emitted], root: ActiveRun
    ) -> None:
        """Give each run its events. The slots of tasks that have ended, or that wait
        for calls, are given to other tasks.

        An event of a task that has already ended goes to the outermost run, *root*. But
        a call, or a saved state, from such a task is cancelled (see `refuse`).

        Args:
            events: Events of tasks, in order.
            root: The outermost run, which gets events of ended tasks.
        """
        released: list[str] = []
        for event in events:
            if isinstance(event, Emitted) and isinstance(event.payload, Spent):
                if self._admission is not None:
                    self._admission.correct_cost(event.task_id, event.payload.tokens)
                continue
            self._route(event, root)
            if isinstance(event, Ended | Call):
                released.append(event.task_id)
        for limit in self._limits.values():
            self._due += limit.release(released)
        if self._admission is not None:
            self._admission.advance(events)
            self.deadline = self._admission.deadline

    def _route(self, event: Ended | Request | Emitted, root: ActiveRun) -> None:
        """Give an event to the run to which the event's task belongs."""
        task_id = event.task_id
        job = self._jobs.get(task_id)
        if isinstance(event, Call | SaveState):
            key = None if job is None else job.key
            if key != (task_id, event.attempt):
                refuse(event)
                return
        run = root if job is None else job.owner
        run.inbox.append(event)
        if isinstance(event, Ended):
            self._jobs.pop(task_id, None)
            if task_id in self._nested.active:
                self._nested.add_span(event)
            if _fault.points:
                _fault.fault("task.ended", task_id)

    def resolve(self, _: ActiveRun, effect: Resolve) -> None:
        """Pass the outcomes of calls to the callers that still run."""
        for call, outcome in effect.outcomes:
            job = self._jobs.get(call.task_id)
            if job is not None:
                job.executor.resolve(call, outcome)
            if _fault.points:
                _fault.fault("task.resolved")

    # ------------------------------------------------------------ cancellation

    def cancel(self, _: ActiveRun, effect: Cancel) -> None:
        """Withdraw a waiting task, or stop a running task or its nested run.

        If all runs must stop, a running task that is not killed is only asked to end.
        """
        nested = self._nested.active.get(effect.task_id)
        if nested is not None and nested.end is None:
            if effect.kill:
                nested.stop(Stopped("the run was stopped", leave=effect.leave))
            return
        self.flush()
        if self._withdraw_waiting(effect.task_id):
            return
        job = self._jobs.get(effect.task_id)
        if job is None:
            return
        if self.stopping is not None and not effect.kill:
            job.executor.warn(job.key)
            return
        job.executor.cancel(job.key, kill=effect.kill)
        if effect.leave and self._executors.leave_behind(job):
            self._mailbox.post(Ended(*job.key, Withdrawn(goes_on=True)))

    def _withdraw_waiting(self, task_id: str) -> bool:
        """Withdraw a task that waits in a queue of the run, and return whether the task
        waited there.
        """
        for queue in self._queues():
            job = queue.withdraw(task_id)
            if job is not None:
                self._mailbox.post(Ended(*job.key, Withdrawn()))
                return True
        return False

    def withdraw(self) -> None:
        """Withdraw the jobs that were not passed to an executor yet."""
        due = self._due
        self._due = []
        for job in due:
            self._mailbox.post(Ended(*job.key, Withdrawn()))

    # ------------------------------------------------------------ the whole run

    def live(self) -> dict[str, Any]:
        """Return the tasks that run or wait at this moment. Any OS thread may call
        this.
        """
        # The dicts are copied, because the run's OS thread may change them.
        jobs = list(self._jobs.values())
        graphs = [
            run.graph_task.task
            for run in list(self._nested.active.values())
            if run.graph_task is not None
        ]
        executors_in_use = {job.executor for job in jobs}
        for key in list(self._limits):
            if key is not None:
                executor, _ = key
                executors_in_use.add(executor)
        return live_state(jobs, graphs, executors_in_use)

    def close(self, failure: BaseException | None) -> None:
        """Stop the tasks of a run that ended with *failure*, and end the executors made
        for it.
        """
        if failure is not None:
            # If the run failed before it could end its tasks, the tasks are cancelled
            # here. Otherwise their bodies would never return.
            for job in list(self._jobs.values()):
                job.executor.cancel(job.key, kill=True)
        self._executors.close(failure)
        if self._admission is not None:
            self._admission.close()


def _check(node: Node, executor: Executor, *, times_out: bool) -> None:
    """Check that *executor* can apply the timeout and the resources of *node*.

    Raises:
        ConfigurationError: The executor cannot stop a task that has a timeout, or does
            not support the resources.
    """
    capabilities = executor.capabilities
    kind = type(executor).__name__
    if times_out and not capabilities.times_out:
        raise ConfigurationError(
            f"node {node.name!r} has a timeout, but {kind} cannot stop a "
            "sync task that takes too long: use executor='processes', or make it async"
        )
    resources = node.resources
    if resources is None or capabilities.admits:
        return
    if capabilities.runs_here and not resources.of_a_process:
        return
    counted = "none of them"
    if capabilities.runs_here:
        counted = "only limit, rate and priority"
    raise ConfigurationError(
        f"task {node.name!r} declares resources (cpus, memory, gpus, limit, rate, "
        f"priority or isolation), but {kind} enforces {counted}: use "
        "executor='processes' and a sync function"
    )


def _limits_here(
    node: Node, executor: Executor, default: Any, saver: Any
) -> SharedLimits | None:
    """Return the limits that tasks of *node*, which has resources, wait for in the run,
    or None if they do not wait in the run.

    Args:
        node: The node of the tasks.
        executor: The executor of the tasks. A pool enforces limits itself.
        default: The executor of the run, whose limits apply to nodes that name no
            executor with limits.
        saver: The saver of the run, or None.

    Raises:
        ConfigurationError: All programs that use the store must share the limits, but
            the store has no lock files.
    """
    resources = node.resources
    capabilities = executor.capabilities
    assert resources is not None
    limits = _limits_of(executor, node.executor, default)
    folder = limits_folder_of(saver)
    if resources.limit and limits.scope == "store" and folder == "":
        raise ConfigurationError(
            f"task {node.name!r} has limit=, and its executor has "
            f"limits_scope='store', but {saver.path} has no lock files: use a store in "
            "LMDB or SQLite, or limits_folder= for the programs of one machine"
        )
    if capabilities.admits:
        return None if resources.rate is None else NO_LIMITS
    if not (resources.limit or resources.rate) or not capabilities.runs_here:
        return None
    return limits.of_store(folder)


def _limits_of(*owners: Any) -> SharedLimits:
    """Return the limits of the first of *owners* that is an executor with limits."""
    for candidate in owners:
        owner = candidate
        if isinstance(owner, ExecutorFactory):
            owner = owner.executor()
        if isinstance(owner, Executor) and owner.shared_limits is not None:
            return owner.shared_limits
    return NO_LIMITS


# -------------------------------------------------------------------- executors


def _body_executor() -> Executor:
    """Return an executor with an OS thread for each body."""
    return ThreadExecutor(1_000_000, name="flowpregel-body")


@dataclass(eq=False)
class RunExecutors:
    """The executors of one outermost run and of the runs nested in it.

    Args:
        inline: The executor for the OS thread that drives the run.
        loop: The running event loop of an async run, or None for a sync run.
        limit: The greatest number of tasks that run at once, or None for no limit.
    """

    inline: InlineExecutor
    loop: Any
    limit: int | None
    _made: dict[object, Executor] = field(default_factory=dict)
    """The executors that were made for the run and end with it, each made when it is
    first needed.
    """
    _unavailable: dict[object, ExecutorUnavailableError] = field(default_factory=dict)
    """The errors of the executors that could not connect. The run does not try again,
    because a connection that fails may take half a minute.
    """
    _left_behind: set[Executor] = field(default_factory=set)
    """The executors with tasks that still run because the tasks could not be stopped.
    """
    _entered: set[Executor] = field(default_factory=set)
    """The executors of nodes that read `Context` channels, and so may have entered the
    contexts of these channels.
    """

    @property
    def driver_executor(self) -> str:
        """The name of the executor for functions that run on the driver's OS thread or
        event loop.
        """
        return "inline" if self.loop is None else "loop"

    def of_node(self, node: Node, default: Any) -> Executor:
        """Return the executor of *node*, or else the *default* of the run.

        Without either, use ``FLOWPREGEL_EXECUTOR``, or else worker processes.

        Raises:
            TypeError: The node is async, and a sync run cannot await it.
        """
        if self._is_awaited(node):
            return self._event_loop(node)
        if node.role == "body":
            # Bodies only make calls and wait for them, so any number of them may run at
            # once.
            return self._once("body", _body_executor)
        executor = default if node.executor is None else node.executor
        if executor is None:
            executor = default_executor()
        match executor:
            case Executor():
                return executor
            case "inline":
                return self.inline
            case "threads":
                return self._threads(node)
            case "processes":
                return executors.default_pool()
        executor = check_executor(executor)
        if isinstance(executor, str):
            return self._connected(executor, partial(executor_named, executor))
        if isinstance(executor, ExecutorFactory):
            return self._connected(executor.key, executor.executor)
        return self._once(executor, lambda: executors.FuturesExecutor(executor))

    def _is_awaited(self, node: Node) -> bool:
        """Return whether tasks of *node* run on an event loop."""
        if node.executor == "loop":
            return True
        is_async = self.loop is not None
        return any(
            step.func is None or (is_async and step.coroutine is not None)
            for step in node.steps
        )

    def _event_loop(self, node: Node) -> Executor:
        """Return the executor for coroutines of *node*."""
        if self.loop is None and node.role == "leaf" and not node.is_task:
            raise async_in_sync_run(node.name)
        # The import is done here, because the module imports asyncio, which sync
        # programs do not need.
        import flowpregel.executors.coroutines as on_loops  # noqa: PLC0415

        return self._once("loop", lambda: on_loops.CoroutineExecutor(self.loop))

    def _threads(self, node: Node) -> Executor:
        """Return the executor with OS threads for *node*.

        A task with a rate must begin as soon as the executor gets it, and must not wait
        for an OS thread that a task without a rate occupies.
        """
        has_rate = node.resources is not None and node.resources.rate is not None
        key = "threads of rates" if has_rate else "threads"
        return self._once(key, lambda: ThreadExecutor(self.limit))

    def _connected(self, key: object, connect: Callable[[], Executor]) -> Executor:
        """Return the executor that *connect* returns.

        Raises:
            ExecutorUnavailableError: *connect* has raised it, for this task or for an
                earlier task of the run.
        """
        known_error = self._unavailable.get(key)
        if known_error is not None:
            raise ExecutorUnavailableError(*known_error.args) from known_error.__cause__
        try:
            return connect()
        except ExecutorUnavailableError as error:
            self._unavailable[key] = error
            raise

    def _once(self, key: object, make: Callable[[], Executor]) -> Executor:
        """Return the run's executor for *key*. If there is none yet, call *make* to
        make it.
        """
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def add_entered(self, executor: Executor) -> None:
        """Note that *executor* must exit contexts at the end, because its tasks may
        enter the contexts of `Context` channels.
        """
        self._entered.add(executor)

    def leave_contexts(
        self, contexts: Sequence[bytes], error: BaseException | None
    ) -> None:
        """Exit the contexts of an ended run in all executors that may have entered
        them.
        """
        for executor in self._entered:
            executor.leave(contexts, error)

    def leave_behind(self, job: Job) -> bool:
        """Return whether the run stops waiting for *job*, because it is running and its
        executor cannot stop it.
        """
        executor = job.executor
        if executor.capabilities.cancels or executor is self.inline:
            return False
        if job.key not in executor.running():
            return False
        self._left_behind.add(executor)
        return True

    def close(self, failure: BaseException | None) -> None:
        """End the executors made for the run, which ended with *failure*."""
        for executor in self._made.values():
            # After a superstep has timed out, the run does not wait for its tasks on OS
            # threads.
            is_left = isinstance(failure, TimeoutError) or executor in self._left_behind
            if isinstance(executor, ThreadExecutor) and is_left:
                executor.abandon()
            else:
                executor.close()
