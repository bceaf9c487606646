"""Starts tasks: where each runs, how many at once, and what it is given."""

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
    """Starts the tasks of one outermost run and of the runs nested in it.

    Args:
        mailbox: Where the events of all its tasks arrive.
        inline: Runs what is to run on the OS thread that drives the run.
        loop: The running event loop of an async run; None in a sync one.
        limit: How many tasks may run at once; bodies, nested graphs and tasks
            that made a call of their own do not count.
        give_up: Called with what kept a task from being started, which will never end.
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
        """Under None that of the whole run, if it has one; else those of executors with
        `room`.
        """
        if limit is not None:
            self._limits[None] = ConcurrencyLimit(limit)
        self._admission: AdmissionQueue | None = None
        """The tasks that wait for limits and rates, and no pool decides when they
        start; None: there were none so far.
        """
        self.deadline: int | None = None
        """Monotonic nanoseconds at which one of these may start without any event."""
        self._are_ranked = False
        """Whether a task had a priority so far."""
        self._jobs: dict[str, Job] = {}
        """The jobs of tasks that have not ended."""
        self.nested: dict[str, ActiveRun] = {}
        """The nested runs that have not ended, by the id of the task that each of them
        is.
        """
        self.ready: deque[ActiveRun] = deque()
        """The runs that can be moved; the others wait for events."""
        self.turns: dict[tuple[str | None, str], deque[ActiveRun]] = {}
        """By thread and namespace: runs of a graph with a memory, of which the first
        runs.

        Their tasks have the same ids if they go on from the same checkpoint.
        """
        self._due: dict[Executor, list[Job]] = {}
        """Jobs that each executor is about to be given, all at once."""
        self._left_behind: set[Executor] = set()
        """Where tasks go on that could not be stopped."""
        self._entered: set[Executor] = set()
        """Where nodes ran that read `Context` channels."""

    def start(
        self,
        run: ActiveRun,
        tasks: Iterable[Task],
        place: StepContext,
        stopping: Stopped | None = None,
    ) -> None:
        """Start an attempt of each task of *run* when its turn comes, unless all is
        *stopping*.
        """
        around = run.around
        for (node, parent), group in groupby(tasks, attrgetter("node", "parent")):
            alike = [*group]
            if stopping is not None or node.role == "graph":
                self._nest(run, alike, place, stopping)
                continue
            is_below = parent is not None and parent.node.role != "body"
            try:
                executor, limit = self._place_of(node, around.executor, is_below)
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
            jobs = _jobs_of(run, alike, place, executor, priority)
            for job in jobs:
                self._jobs[job.task.id] = job
                fault("task.submitted", job.task.id)
            if node.resources is not None:
                jobs = self._without_waiting(jobs, limit)
            # Before those that wait: these would all wait for what waits behind them.
            for job in jobs if limit is None else limit.acquire(jobs, first=is_below):
                self._due.setdefault(job.executor, []).append(job)

    def _without_waiting(
        self, jobs: list[Job], limit: ConcurrencyLimit | None
    ) -> list[Job]:
        """Return *jobs*, of one node, but for those that wait for limits and rates
        here.
        """
        node, executor = jobs[0].task.node, jobs[0].executor
        resources = node.resources
        if resources is None or not (resources.limit or resources.rate):
            return jobs
        if not executor.capabilities.runs_here:
            return jobs  # its pool decides
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
        """Have the executor of *job* start it at the next `flush`."""
        self._due.setdefault(job.executor, []).append(job)

    def _free(self, executor: Executor) -> float:
        """Return how many more jobs *executor* would start at once."""
        return executor.free() - len(self._due.get(executor, ()))

    def _nest(
        self,
        run: ActiveRun,
        tasks: Iterable[Task],
        place: StepContext,
        stopping: Stopped | None,
    ) -> None:
        """Begin the nested runs that these tasks of *run* are, unless all is
        *stopping*.
        """
        for task in tasks:
            if stopping is not None or run.depth >= DEEPEST:
                run.post(task, Withdrawn() if stopping else Raised(too_deep(task.name)))
                continue
            try:
                steps, around = task.node.graph.nested_run(task, place, run.around)
                inner = ActiveRun(steps, around, run, task, place, run.depth + 1)
                self.nested[task.id] = inner
                turns: deque[ActiveRun] = deque()
                if around.namespace and ":" not in around.namespace.rpartition("|")[2]:
                    # It has a memory, with which another task may be busy.
                    turns = self.turns.setdefault(
                        (around.thread_id, around.namespace), turns
                    )
                turns.append(inner)
                if turns[0] is inner:
                    self.ready.append(inner)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                run.post(task, Raised(error))
            fault("task.submitted", task.id)

    def write(self, run: ActiveRun, value: Any) -> None:
        """Run the writers of the node that nested *run* is on the *value* that it
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
        """Return where tasks of *node* run, and what decides when they go there; None:
        at once.

        Those below another task go to a pool at once: that one perhaps runs there.
        """
        executor = self._executor_for(node, default)
        if node.role != "leaf":
            return executor, None
        if executor.room is None or None in self._limits:
            return executor, self._limits.get(None)
        if is_below:
            return executor, None
        # What waits for a resource is in no other task's way.
        limit = ConcurrencyLimit(executor.room, places_of)
        return executor, self._limits.setdefault((executor, node.resources), limit)

    def _executor_for(self, node: Node, default: Any) -> Executor:
        """Return where an attempt of *node* runs, by *default* where the run says.

        Without either it is ``FLOWPREGEL_EXECUTOR``, or worker processes.

        Raises:
            TypeError: An async node, in a sync run that cannot await it.
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
            # They orchestrate and wait, so there may be any number.
            return self._once(
                "body", lambda: ThreadExecutor(1_000_000, name="flowpregel-body")
            )
        wanted = node.executor if node.executor is not None else default
        if wanted is None:
            wanted = default_executor()
        match wanted:
            case Executor():
                return wanted
            case "inline":
                return self._inline
            case "threads":
                # A task with a rate must begin when it is given away, not wait for an
                # OS thread.
                has_rate = (
                    node.resources is not None and node.resources.rate is not None
                )
                key = "threads of rates" if has_rate else "threads"
                return self._once(key, lambda: ThreadExecutor(self._threads_limit))
            case "processes":
                return executors.default_pool()
        check_executor(wanted)
        if isinstance(wanted, str):
            return executor_named(wanted)
        return self._once(wanted, lambda: executors.FuturesExecutor(wanted))

    def _once(self, key: object, make: Callable[[], Executor]) -> Executor:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def flush(self) -> None:
        """Give the executors the jobs that were started."""
        due, self._due = self._due, {}
        try:
            for executor, jobs in due.items():
                executor.start(jobs, self._mailbox)
        except BaseException as error:
            self._give_up(error)
            raise

    def withdraw(self) -> None:
        """End the jobs that no executor was given yet."""
        due, self._due = self._due, {}
        for jobs in due.values():
            self._mailbox.post(*(Ended(*job.key, Withdrawn()) for job in jobs))

    def deliver(self, events: Iterable[Event], root: ActiveRun) -> Stopped | None:
        """Give each run its events; tasks that ended, or wait for calls, make room for
        others.

        The event of a task that has ended before goes to the outermost run, *root*.

        Returns:
            How all runs are to end, if that was asked.
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
        """Withdraw a task that waits, or stop one that runs, or the nested run that it
        is.

        Args:
            effect: Which task, and how.
            warn: Whether one that runs, and is not killed, is told that the run is to
                end.
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
        """Wait no longer for a job that runs where nothing can stop it."""
        executor = job.executor
        if executor.capabilities.cancels or executor is self._inline:
            return
        if job.key in executor.running():
            self._left_behind.add(executor)
            self._mailbox.post(Ended(*job.key, Withdrawn(goes_on=True)))

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Hand the caller of a call its outcome, if it still runs."""
        if (job := self._jobs.get(call.task_id)) is not None:
            job.executor.resolve(call, outcome)
        fault("task.resolved")

    def live(self) -> dict[str, Any]:
        """Return what runs and what waits at this moment; may be called on any OS
        thread.
        """
        jobs = [*self._jobs.values()]
        graphs = [run.task for run in [*self.nested.values()] if run.task is not None]
        idle = [kind[0] for kind in [*self._limits] if kind is not None]
        return live_state(jobs, graphs, {*idle, *(job.executor for job in jobs)})

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have the contexts of a run that ended left wherever its nodes have entered
        them.
        """
        for executor in self._entered:
            executor.leave(contexts, error)

    def close(self, failure: BaseException | None) -> None:
        """Stop what a run that ended with *failure* left, and end the executors made
        for it.
        """
        if failure is not None:
            # It may have failed without a chance to end its tasks: bodies would wait
            # for ever.
            for job in [*self._jobs.values()]:
                job.executor.cancel(job.key, kill=True)
        for executor in self._made.values():
            # After a step timeout there is no waiting for tasks on OS threads.
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
    run_context = run.around
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
    """Refuse a timeout that cannot be kept, and resources that nobody counts.

    Raises:
        ConfigurationError: The executor cannot stop a task, or keep it waiting for
            them.
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
    """Return the limits that tasks of *node* count for: its executor's, or the run's;
    or None.
    """
    for executor in (node.executor, default):
        if isinstance(executor, Executor) and executor.shared_limits is not None:
            return executor.shared_limits
    return None
