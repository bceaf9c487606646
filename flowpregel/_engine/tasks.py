"""The start of tasks: their executors, their limits and their jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from flowpregel import executors
from flowpregel._core.calls import DEEPEST, too_deep
from flowpregel._core.effects import (
    Call,
    Cancel,
    Ended,
    Event,
    SaveState,
    StepContext,
    Stopped,
)
from flowpregel._core.records import Node, Outcome, Raised, Task, Withdrawn
from flowpregel._engine.admission import AdmissionQueue, ConcurrencyLimit, places_of
from flowpregel._engine.nested import ActiveRun, live_state
from flowpregel._fault import fault
from flowpregel.context import Job
from flowpregel.errors import ConfigurationError
from flowpregel.executors.attempt import async_in_sync_run
from flowpregel.executors.base import Executor, Mailbox, default_executor
from flowpregel.executors.by_name import check_executor, executor_named
from flowpregel.executors.local import InlineExecutor, ThreadExecutor
from flowpregel.executors.resources import SharedLimits, priority_of
from flowpregel.policies import Resources

# -------------------------------------------------------------------- starting them


class TaskStarter:
    """The starter of the tasks of one outermost run and of the runs nested in it.

    Args:
        mailbox: The mailbox that receives the events of all tasks.
        inline: The executor for the OS thread that drives the run.
        loop: The running event loop of an async run; None in a sync one.
        limit: The most tasks that run at once; bodies, nested graphs and tasks that
            made a call of their own do not count.
        give_up: Called with the error if a task could not be started and will never
            end.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        inline: InlineExecutor,
        loop: Any,
        limit: int | None,
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._mailbox = mailbox
        self._inline = inline
        self._loop = loop
        self._give_up = give_up
        self._made: dict[object, Executor] = {}
        """The executors that end with the run, made when first needed."""
        self._place_of = lru_cache(self._place_for)
        self._threads_limit = limit
        self._limits: dict[
            tuple[Executor, Resources | None] | None, ConcurrencyLimit
        ] = {}
        """The limit of the whole run, if it has one, under None; otherwise the limits
        of executors with `room`.
        """
        if limit is not None:
            self._limits[None] = ConcurrencyLimit(limit)
        self._admission: AdmissionQueue | None = None
        """The tasks outside pools that wait for limits and rates; None if there were
        none so far.
        """
        self.deadline: int | None = None
        """Monotonic nanoseconds at which such a waiting task may start without any
        event.
        """
        self._are_ranked = False
        """True once a task has had a priority."""
        self._jobs: dict[str, Job] = {}
        """The jobs of tasks that have not ended."""
        self.nested: dict[str, ActiveRun] = {}
        """The nested runs that have not ended, by the id of their task."""
        self.ready: deque[ActiveRun] = deque()
        """The runs that can be moved; the others wait for events."""
        self.turns: dict[tuple[str | None, str], deque[ActiveRun]] = {}
        """The runs of each graph with a memory, by thread and namespace; only the first
        one runs.

        The tasks of two such runs would have the same ids if both resumed from the same
        checkpoint.
        """
        self._due: dict[Executor, list[Job]] = {}
        """The jobs to hand to each executor at the next `flush`."""
        self._left_behind: set[Executor] = set()
        """The executors with tasks that still run because they could not be stopped."""
        self._entered: set[Executor] = set()
        """The executors of nodes that read `Context` channels."""

    def start(
        self,
        run: ActiveRun,
        tasks: Iterable[Task],
        step: StepContext,
        stopping: Stopped | None = None,
    ) -> None:
        """Start an attempt of each task of *run* when its turn comes, unless all runs
        are *stopping*.
        """
        for (node, parent), group in groupby(tasks, attrgetter("node", "parent")):
            alike = [*group]
            if stopping is not None or node.role == "graph":
                self._nest(run, alike, step, stopping)
                continue
            is_below = parent is not None and parent.node.role != "body"
            try:
                executor, limit = self._place_of(
                    node, run.run_context.executor, is_below
                )
                times_out = any(task.timeout for task in alike)
                if times_out or node.resources is not None:
                    _check(node, executor, times_out=times_out)
            except Exception as error:  # noqa: BLE001 - the tasks fail with it
                for task in alike:
                    run.post(task, Raised(error))
                continue
            if node.contexts:
                self._entered.add(executor)
            is_ranked = self._are_ranked or node.resources is not None
            priority = self._priority_of(alike[0]) if is_ranked else 0
            jobs = _jobs_of(run, alike, step, executor, priority)
            for job in jobs:
                self._jobs[job.task.id] = job
                fault("task.submitted", job.task.id)
            if node.resources is not None:
                jobs = self._without_waiting(jobs, limit)
            # Jobs below a task go before those that wait: the task, which holds a
            # place, waits for them.
            for job in jobs if limit is None else limit.acquire(jobs, first=is_below):
                self._due.setdefault(job.executor, []).append(job)

    def _without_waiting(
        self, jobs: list[Job], limit: ConcurrencyLimit | None
    ) -> list[Job]:
        """Return *jobs*, of one node, without those that wait for limits and rates
        here.
        """
        node, executor = jobs[0].task.node, jobs[0].executor
        resources = node.resources
        if resources is None or not (resources.limit or resources.rate):
            return jobs
        if not executor.capabilities.runs_here:
            return jobs  # the pool counts limits and rates
        if self._admission is None:
            self._admission = AdmissionQueue(self._mailbox, self._free, self._begin)
        self._admission.add(jobs, _limits_of(node, jobs[0].run.executor), limit)
        self.deadline = self._admission.deadline
        return []

    def _priority_of(self, task: Task) -> int:
        """Return the priority of *task*; 0 as long as no task had one."""
        resources = task.node.resources
        if resources is not None and resources.priority is not None:
            self._are_ranked = True
        return priority_of(task) if self._are_ranked else 0

    def _begin(self, job: Job) -> None:
        """Hand *job* to its executor at the next `flush`."""
        self._due.setdefault(job.executor, []).append(job)

    def _free(self, executor: Executor) -> float:
        """Return the number of further jobs that *executor* would start at once."""
        return executor.free() - len(self._due.get(executor, ()))

    def _nest(
        self,
        run: ActiveRun,
        tasks: Iterable[Task],
        step: StepContext,
        stopping: Stopped | None,
    ) -> None:
        """Start the nested runs of these tasks of *run*, unless all runs are
        *stopping*.
        """
        for task in tasks:
            if stopping is not None or run.depth >= DEEPEST:
                run.post(task, Withdrawn() if stopping else Raised(too_deep(task.name)))
                continue
            try:
                steps, context = task.node.graph.nested_run(task, step, run.run_context)
                inner = ActiveRun(steps, context, run, task, step, run.depth + 1)
                self.nested[task.id] = inner
                turns: deque[ActiveRun] = deque()
                namespace = context.namespace
                if namespace and ":" not in namespace.rpartition("|")[2]:
                    # The graph has a memory, which another task may be using.
                    turns = self.turns.setdefault((context.thread_id, namespace), turns)
                turns.append(inner)
                if turns[0] is inner:
                    self.ready.append(inner)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                run.post(task, Raised(error))
            fault("task.submitted", task.id)

    def write(self, run: ActiveRun, value: Any) -> None:
        """Run the writers of a nested graph's node on the *value* that its *run*
        returned.
        """
        parent, task, setting = run.parent, run.task, run.setting
        assert parent is not None
        assert task is not None
        assert setting is not None
        where = "inline" if self._loop is None else "loop"
        node = replace(task.node, role="leaf", graph=None, steps=(), executor=where)
        self.start(parent, [replace(task, node=node, input=value)], setting)

    def _place_for(
        self, node: Node, default: Any, is_below: bool
    ) -> tuple[Executor, ConcurrencyLimit | None]:
        """Return the executor of tasks of *node*, and the limit they wait for, or None
        if they go to the executor at once.

        Tasks that another task called go to a pool at once, since the caller may hold
        room in the pool.
        """
        executor = self._executor_for(node, default)
        if node.role != "leaf":
            return executor, None
        if executor.room is None or None in self._limits:
            return executor, self._limits.get(None)
        if is_below:
            return executor, None
        # One limit for each kind of resources: a task that waits for a resource does
        # not block others.
        limit = ConcurrencyLimit(executor.room, places_of)
        return executor, self._limits.setdefault((executor, node.resources), limit)

    def _executor_for(self, node: Node, default: Any) -> Executor:
        """Return the executor of *node*, or else the *default* of the run.

        Without either, use ``FLOWPREGEL_EXECUTOR``, or else worker processes.

        Raises:
            TypeError: The node is async, and a sync run cannot await it.
        """
        if node.executor == "loop" or any(
            step.func is None or (self._loop is not None and step.coroutine is not None)
            for step in node.steps
        ):
            if self._loop is None and node.role == "leaf" and not node.is_task:
                raise async_in_sync_run(node.name)
            import flowpregel.executors.coroutines as on_loops  # noqa: PLC0415 - imports asyncio

            return self._once("loop", lambda: on_loops.CoroutineExecutor(self._loop))
        if node.role == "body":
            # Bodies orchestrate and wait, so any number of them may run.
            return self._once(
                "body", lambda: ThreadExecutor(1_000_000, name="flowpregel-body")
            )
        executor = node.executor if node.executor is not None else default
        if executor is None:
            executor = default_executor()
        match executor:
            case Executor():
                return executor
            case "inline":
                return self._inline
            case "threads":
                # A task with a rate must begin when it is handed over, and not wait for
                # an OS thread.
                has_rate = (
                    node.resources is not None and node.resources.rate is not None
                )
                key = "threads of rates" if has_rate else "threads"
                return self._once(key, lambda: ThreadExecutor(self._threads_limit))
            case "processes":
                return executors.default_pool()
        check_executor(executor)
        if isinstance(executor, str):
            return executor_named(executor)
        return self._once(executor, lambda: executors.FuturesExecutor(executor))

    def _once(self, key: object, make: Callable[[], Executor]) -> Executor:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def flush(self) -> None:
        """Hand the started jobs to their executors."""
        due, self._due = self._due, {}
        try:
            for executor, jobs in due.items():
                executor.start(jobs, self._mailbox)
        except BaseException as error:
            self._give_up(error)
            raise

    def withdraw(self) -> None:
        """Withdraw the jobs that were not handed to an executor yet."""
        due, self._due = self._due, {}
        for jobs in due.values():
            self._mailbox.post(*(Ended(*job.key, Withdrawn()) for job in jobs))

    def deliver(self, events: Iterable[Event], root: ActiveRun) -> Stopped | None:
        """Give each run its events; tasks that ended, or wait for calls, make room for
        others.

        The event of a task that has ended before goes to the outermost run, *root*.

        Returns:
            The request to stop all runs, if there was one.
        """
        done: list[str] = []
        stopped = None
        for event in events:
            if isinstance(event, Stopped):
                stopped = event if stopped is None or event.kill else stopped
                continue
            task_id = event.task_id
            job = self._jobs.get(task_id)
            (root if job is None else job.owner).inbox.append(event)
            if isinstance(event, Ended):
                self._jobs.pop(task_id, None)
                if self._admission is not None:
                    self._admission.release(task_id)
                if (nested := self.nested.pop(task_id, None)) is not None:
                    event.span = nested.watch.stop("graph")
                fault("task.ended", task_id)
            if isinstance(event, Ended | Call):
                done.append(task_id)
        for limit in self._limits.values():
            for job in limit.release(done):
                self._due.setdefault(job.executor, []).append(job)
        if self._admission is not None:
            self._admission.start_ready()
            self.deadline = self._admission.deadline
        return stopped

    def cancel(self, effect: Cancel, *, warn: bool = False) -> None:
        """Withdraw a waiting task, or stop a running one or its nested run.

        Args:
            effect: The task, and the way to stop it.
            warn: Whether a running task that is not killed gets a warning that the run
                ends.
        """
        task_id, kill = effect.task_id, effect.kill
        nested = self.nested.get(task_id)
        if nested is not None and nested.end is None:
            if kill:
                nested.stop(Stopped("the run was stopped", leave=effect.leave))
            return
        self.flush()
        queues: list[AdmissionQueue | ConcurrencyLimit] = [*self._limits.values()]
        if self._admission is not None:
            queues.append(self._admission)
        for limit in queues:
            if (waiting := limit.withdraw(task_id)) is not None:
                self._mailbox.post(Ended(*waiting.key, Withdrawn()))
                return
        if (job := self._jobs.get(task_id)) is None:
            return
        if warn and not kill:
            job.executor.warn(job.key)
        else:
            job.executor.cancel(job.key, kill=kill)
            if effect.leave:
                self._leave_behind(job)

    def _leave_behind(self, job: Job) -> None:
        """Stop waiting for a job that its executor cannot stop."""
        executor = job.executor
        if executor.capabilities.cancels or executor is self._inline:
            return
        if job.key in executor.running():
            self._left_behind.add(executor)
            self._mailbox.post(Ended(*job.key, Withdrawn(goes_on=True)))

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Hand the outcome of a call to the caller, if the caller still runs."""
        if (job := self._jobs.get(call.task_id)) is not None:
            job.executor.resolve(call, outcome)
        fault("task.resolved")

    def live(self) -> dict[str, Any]:
        """Return the running and waiting tasks at this moment; any OS thread may call
        this.
        """
        jobs = [*self._jobs.values()]
        graphs = [run.task for run in [*self.nested.values()] if run.task is not None]
        idle = [kind[0] for kind in [*self._limits] if kind is not None]
        return live_state(jobs, graphs, {*idle, *(job.executor for job in jobs)})

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have all executors that entered the contexts of an ended run exit them."""
        for executor in self._entered:
            executor.leave(contexts, error)

    def close(self, failure: BaseException | None) -> None:
        """Stop the tasks of a run that ended with *failure*, and end the executors made
        for it.
        """
        if failure is not None:
            # The run may have failed without a chance to end its tasks, and then bodies
            # would never return.
            for job in [*self._jobs.values()]:
                job.executor.cancel(job.key, kill=True)
        for executor in self._made.values():
            # After a step timeout, tasks on OS threads are not waited for.
            is_left = isinstance(failure, TimeoutError) or executor in self._left_behind
            if isinstance(executor, ThreadExecutor) and is_left:
                executor.abandon()
            else:
                executor.close()
        if self._admission is not None:
            self._admission.close()


def _jobs_of(
    run: ActiveRun,
    tasks: Iterable[Task],
    step: StepContext,
    executor: Executor,
    priority: int,
) -> list[Job]:
    """Return the jobs of *tasks*, which all call the same node."""
    run_context = run.run_context
    jobs: list[Job] = []
    for task in tasks:
        variables = run_context.variables
        if task.origin is not None and task.origin.variables is not None:
            variables = task.origin.variables
        job = Job(
            task,
            step,
            run_context,
            (task.id, task.attempt.number),
            run_context.has_saver or bool(task.node.retry),
            variables,
            executor,
            run,
            priority,
        )
        jobs.append(job)
    return jobs


def _check(node: Node, executor: Executor, *, times_out: bool) -> None:
    """Check that *executor* can apply the timeout and the resources of *node*.

    Raises:
        ConfigurationError: The executor cannot stop a task, or does not count the
            resources.
    """
    capabilities, kind = executor.capabilities, type(executor).__name__
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
    counted = (
        "limit, rate and priority alone" if capabilities.runs_here else "none of it"
    )
    raise ConfigurationError(
        f"task {node.name!r} says what it takes (cpus, memory, gpus, limit, rate, "
        f"priority or isolation), but {kind} counts {counted}: use "
        "executor='processes', and a function that is not async"
    )


def _limits_of(node: Node, default: Any) -> SharedLimits | None:
    """Return the limits that tasks of *node* count for: those of the node's executor,
    or of the run's; None if there are none.
    """
    for executor in (node.executor, default):
        if isinstance(executor, Executor) and executor.shared_limits is not None:
            return executor.shared_limits
    return None
