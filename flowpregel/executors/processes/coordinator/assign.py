"""The decisions of the pool, without I/O: which worker gets which waiting tasks.

`assign` is a pure function, and the pool executes the plan that it returns. `assign`
goes through the queue in order:

* A task whose needs (the resources that it takes while it runs) are free gets an idle
  worker, or a worker is started for it. Tasks that are known to be short are sent
  together as a batch, if they have the same needs. A batch has enough tasks to keep the
  worker busy for `BATCH_SECONDS`, but no more than the worker's share of the waiting
  tasks. The tasks of a batch run one after another, so a batch takes only the resources
  of one task.
* If only one task waits, it has no special needs, and a worker is idle, this worker
  gets the task, and no resources are compared. This is the case whenever a program
  waits for each call before it makes the next call.
* A task whose needs are not free reserves the resources that it lacks, so that small
  tasks behind it never starve a large task. Tasks behind it with the same needs are
  skipped. So the resources are compared only once for each combination of needs,
  whatever the number of waiting tasks.
* A busy worker that will soon be idle gets its next tasks ahead of time, so that it
  need not wait for a round trip.
* Of the tasks of a run that have the same needs and the same depth (the number of
  nested calls above them), long ones come first. Otherwise a long task at the end of
  the queue would run alone, while all other workers are idle. Tasks change places only
  with such tasks, which all need the same. So the order has no effect on which
  resources are free for tasks with other needs.
* A task that waits for its calls lends its CPUs to other tasks, and holds its other
  resources. If its calls had to wait for tasks that wait for these resources, none of
  them could continue. So the reservations of other tasks do not apply to calls of a
  task that holds resources. If no task runs and none can start, the first of these
  calls is returned as stuck, and the pool refuses the call.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain, islice
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.crash_report import unreadable_message
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import PLAIN, WorkerKind
from flowpregel.executors.processes.wire.serialization import BufferRef
from flowpregel.policies import TimeLimit

if TYPE_CHECKING:
    from flowpregel.executors.processes.coordinator.io_loop import Timer

BATCH_SECONDS: Final = 0.010
"""Seconds for which a batch of short tasks, sent together, should keep a worker
busy.
"""
LARGEST_BATCH: Final = 1024
OLDEST_EVERY: Final = 4
"""The number of turns of the queue after which the task that has waited longest comes
first, if the waiting tasks have different priorities. A turn ends when tasks are taken
from the queue.

Likewise, in every `OLDEST_EVERY`-th turn of a run, its tasks come in order of arrival.
"""
_MOST_NAMES: Final = 32
"""The maximum number of lines (lists of waiting tasks with the same name) of a run. The
limit bounds the cost of a decision if each task has a name of its own.
"""
_OTHERS: Final = ""
"""The name of the line (list of waiting tasks) for all tasks beyond the limit
`_MOST_NAMES`.
"""
ROUNDING: Final = 1e-6
"""The amount of a resource that a task may lack and still start. It allows for rounding
errors in the sums of amounts.
"""
StopReason: TypeAlias = TimeLimit | Literal["cancel"]
"""The reason why a task is stopped: the time limit that it has reached, or ``"cancel"``
if its run cancels it.
"""


# ------------------------------------------------ tasks


@dataclass(slots=True, eq=False)
class Needs:
    """The resources that a task needs while it runs."""

    amounts: dict[str, float]
    """The amounts of ``cpus``, ``memory`` (in bytes) and ``gpus``, and the numbers of
    slots of named limits.
    """
    threads: int | None = None
    rate: str | None = None
    """The name of the rate that limits how often such tasks start, or None."""
    is_measured: bool = False
    """True if the user has set no memory, so that the amount is an estimate from
    earlier calls. No task is refused because of an estimate.
    """
    is_below: bool = False
    """True if the task was called by a task that holds resources while it waits."""
    is_fresh: bool = False
    """True if the task needs a new worker, which ends after the task."""
    is_exclusive: bool = False
    """True if the task needs all CPUs, because no other task may run beside it."""

    @property
    def is_alone(self) -> bool:
        """True if a task with these needs must be sent to a worker alone, not in a
        batch.
        """
        return self.is_fresh or self.rate is not None


ONE_CPU: Final = Needs({"cpus": 1.0})
"""The needs of a task without `Resources`."""


@dataclass(slots=True, eq=False)
class Execution:
    """One execution of a task on a worker. It begins when the task is sent to the
    worker, and ends with the task, or when the pool takes the task back.
    """

    worker: Any = None
    """The worker that has the task: a `WorkerProcess`, or the record of a worker on
    another machine. None if no worker has the task any more.
    """
    number: int = 0  # no mutant: The task gets another number when it is sent.
    """The number that identifies the task in the messages (frames) on the worker's
    link. Each execution has a new number.
    """
    sent: float = 0.0
    """The time at which the task was sent, in monotonic seconds."""
    alive: float = 0.0
    """The time of the task's last sign of life, in monotonic seconds."""
    calls: set[int] = field(default_factory=set)
    """The numbers of the requests, on the link, with which the task has made the calls
    for which it waits.
    """
    stopping: StopReason | None = None
    """The reason why the task must stop, or None if it need not stop."""
    timer: Timer | None = None
    """The timer that checks the task's timeout or, after the stop signal, kills the
    worker.
    """
    unreadable: str | None = None
    """A description of the problem if the task has sent a message that its run could
    not unpickle, or else None.
    """

    def note_unreadable(self, error: BaseException) -> None:
        """Note that unpickling a message of the task raised *error*."""
        # The end of the task may already have been posted to the run. So the
        # description is stored here, where the run finds it when it unpickles the end.
        self.unreadable = unreadable_message(error)

    def release(self) -> None:
        """Note that no worker has the task any more, and cancel the timer."""
        self.worker = None
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True, eq=False)
class InFlight:
    """The pool's record of a job, from the time at which the pool accepts the job until
    its end is posted.
    """

    id: int
    """The id among the pool's jobs. It is greater than the ids of all earlier jobs."""
    job: Job
    mailbox: Mailbox
    code: NodeCode
    contexts: Collection[bytes] = ()
    """The tokens (unique ids) of the `Context` channels that the task reads."""
    body: bytes = b""
    """The packed job, or empty bytes after the job has ended."""
    refs: Sequence[BufferRef] = ()
    """The references to large buffers of the job that are in shared memory, not in
    *body*.
    """
    execution: Execution = field(default_factory=Execution)
    """The latest execution of the task. While the task waits, `Execution.worker` is
    None.
    """
    failed_starts: int = 0
    """The number of times that a worker got the task and died before it began any
    task.
    """
    priority: int = 0
    needs: Needs | None = None
    """The needs of the task, or None if it needs one worker and nothing else."""
    gpus: Sequence[str] = ()
    """The names of the task's GPUs, if an engine (Dask, Ray) has assigned them."""

    @property
    def seconds(self) -> float:
        """The expected duration of the task in seconds, or infinity if the task must
        not share a batch.
        """
        if self.job.task.timeout is not None or (
            self.needs is not None and self.needs.is_alone
        ):
            return inf
        return self.code.seconds

    def next_limit(self) -> TimeLimit:
        """Return the time limit that the task, which has a timeout, reaches first. Its
        time is in monotonic seconds.
        """
        policy: Any = self.job.task.timeout
        limit: TimeLimit = policy.next_limit(self.execution.sent, self.execution.alive)
        return limit

    def stopped(self) -> Outcome:
        """Return the outcome of the task, which was stopped for the reason
        `Execution.stopping`.
        """
        limit = self.execution.stopping
        if not isinstance(limit, TimeLimit):
            return Withdrawn()
        elapsed = time.monotonic() - (limit.at - limit.seconds)
        return Raised(limit.error(self.job.task.name, elapsed))


_Lines: TypeAlias = dict[tuple[Needs | None, int, str], list[InFlight]]
"""The waiting tasks of one run, by needs, by depth (the number of nested calls above
them) and by name. Each list (a line) is sorted by id, so in order of arrival.
"""
_Turn: TypeAlias = tuple[int, InFlight]
"""A turn of a task: the id that determines its position among the turns, and the task.
After a reordering, the id may be that of another task.
"""
_Head: TypeAlias = tuple[int, int, Needs | None, InFlight, Iterator[_Turn]]
"""The next turn among the tasks with the same needs and depth, as an item of a heap:
the negative depth, the id of the turn, the needs, the task, and the iterator of further
turns. No two heads of a run have the same id, so the heap never compares needs or
tasks.
"""
_id_of: Final = attrgetter("id")


@dataclass(slots=True, eq=False)
class _RunTasks:
    """The waiting tasks of one run."""

    lines: _Lines = field(default_factory=dict)
    turns: int = 1
    """The number of the run's next turn. A turn of a run is one in which tasks of the
    run are taken from the queue.
    """
    changed: int = 0
    """The number of the latest turn of the queue in which a task of the run was
    taken.
    """


class TaskQueue:
    """A queue of the tasks that wait for a worker. Tasks are ordered by priority. Runs
    with the same priority take turns, and called tasks come before their callers.

    A task that calls another task occupies its worker until the answer arrives. If
    tasks started in order of arrival, a thousand such callers would occupy a thousand
    workers before the first called task had its turn. So the most deeply nested tasks
    of a run come first, and tasks of the same depth come in order of arrival. The runs
    take turns, so that a run of two tasks does not wait for a run of two hundred tasks.
    If priorities differ, the oldest task of all comes first in every `OLDEST_EVERY`-th
    turn, so that every task starts eventually.

    If a task cannot start, all tasks with the same needs are skipped at once. Among the
    tasks with the same needs and depth, the one whose earlier calls took longest comes
    first (see `_longest_first`). But in every `OLDEST_EVERY`-th turn of a run, its
    tasks come in order of arrival, so that a short task starts eventually.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[object, _RunTasks]] = {}
        """The waiting tasks, by priority and run. Within a priority, the run that has
        waited longest for its turn is the first.
        """
        self._turns = 1
        self.count: int = 0
        self.counts: dict[Needs | None, int] = {}
        """The number of waiting tasks, by their needs."""

    def __iter__(self) -> Iterator[InFlight]:
        return self.waiting(())

    def waiting(self, blocked: Collection[Needs | None]) -> Iterator[InFlight]:
        """Yield the tasks in the order of their turns, except tasks whose needs are in
        *blocked*.

        The caller may add needs to *blocked* between two tasks. The iterator ends when
        *blocked* contains all needs.
        """
        priorities = sorted(self._levels, reverse=True)
        levels = [self._levels[priority] for priority in priorities]
        oldest = None
        if len(levels) > 1 and self._turns % OLDEST_EVERY == 0:
            oldest = _oldest_of(levels)
            yield oldest
        for level in levels:
            for task in _in_turns(level, blocked):
                if task is not oldest:
                    yield task
                if len(blocked) == len(self.counts):
                    return

    def only_task(self) -> InFlight:
        """Return the task of a queue that contains exactly one task."""
        (runs,) = self._levels.values()
        (run,) = runs.values()
        ((task,),) = run.lines.values()
        return task

    def add(self, task: InFlight) -> None:
        """Add *task* to the queue."""
        planned = task.job.task
        self.count += 1
        self.counts[task.needs] = self.counts.get(task.needs, 0) + 1
        runs = self._levels.setdefault(task.priority, {})
        run_id = task.job.run.run_id
        run = runs.get(run_id)
        if run is None:
            run = _RunTasks()
            runs[run_id] = run
        key = (task.needs, planned.depth, planned.node.name)
        if key not in run.lines and len(run.lines) >= _MOST_NAMES:
            key = (task.needs, planned.depth, _OTHERS)
        line = run.lines.setdefault(key, [])
        insort(line, task, key=_id_of)

    def remove(self, tasks: Iterable[InFlight]) -> None:
        """Remove *tasks* from the queue, if they are in it, and move their runs behind
        the other runs.
        """
        self._turns += 1
        for task in tasks:
            run_id = task.job.run.run_id
            level = self._levels.get(task.priority, {})
            run = level.pop(run_id, None)
            if run is None:
                continue
            self._discard(task, run.lines)
            if run.changed != self._turns:
                run.changed = self._turns
                run.turns += 1
            if run.lines:
                level[run_id] = run
            elif not level:
                del self._levels[task.priority]

    def _discard(self, task: InFlight, lines: _Lines) -> None:
        """Remove *task* from *lines*, the waiting tasks of one run, if it is in
        them.
        """
        needs = task.needs
        planned = task.job.task
        for name in (planned.node.name, _OTHERS):
            key = (needs, planned.depth, name)
            line = lines.get(key, [])
            position = bisect_left(line, task.id, key=_id_of)
            if line[position : position + 1] != [task]:
                continue
            del line[position]
            if not line:
                del lines[key]
            task.code.has_begun = True
            self.count -= 1
            self.counts[needs] -= 1
            if not self.counts[needs]:
                del self.counts[needs]
            break

    def take(self, count: int) -> list[InFlight]:
        """Remove the first *count* tasks from the queue, and return them."""
        tasks = [*islice(self, count)]
        self.remove(tasks)
        return tasks


def _oldest_of(levels: Iterable[Mapping[object, _RunTasks]]) -> InFlight:
    """Return the waiting task that arrived first."""
    heads: list[InFlight] = []
    for runs in levels:
        for run in runs.values():
            heads += [line[0] for line in run.lines.values()]
    return min(heads, key=_id_of)


def _in_turns(
    level: Mapping[object, _RunTasks], blocked: Collection[Needs | None]
) -> Iterator[InFlight]:
    """Yield the first task of each run, then the second task of each run, and so on."""
    runs = deque[Iterator[InFlight]]()
    for run_tasks in level.values():
        run = _in_order(run_tasks, blocked)
        for task in islice(run, 1):
            yield task
            runs.append(run)
    while runs:
        run = runs.popleft()
        for task in islice(run, 1):
            yield task
            runs.append(run)


def _in_order(run: _RunTasks, blocked: Collection[Needs | None]) -> Iterator[InFlight]:
    """Yield the tasks of a run. The most deeply nested tasks come first. Tasks of the
    same depth and with different needs take turns in order of arrival.
    """
    heads = _heads_of(run)
    heapify(heads)
    while heads:
        negative_depth, _, needs, task, turns = heads[0]
        if needs in blocked:
            heappop(heads)
            continue
        yield task
        turn = next(turns, None)
        if turn is None:
            heappop(heads)
            continue
        number, task = turn
        heapreplace(heads, (negative_depth, number, needs, task, turns))


def _heads_of(run: _RunTasks) -> list[_Head]:
    """Return a heap of the next turns of a run, one for each combination of needs and
    depth.
    """
    is_by_arrival = run.turns % OLDEST_EVERY == 0
    kinds: dict[tuple[Needs | None, int], list[list[InFlight]]] = {}
    for (needs, depth, _), line in run.lines.items():
        kinds.setdefault((needs, depth), []).append(line)
    heads: list[_Head] = []
    for (needs, depth), lines in kinds.items():
        if is_by_arrival or len(lines) == 1:
            turns = _by_arrival(lines)
        else:
            turns = _longest_first(lines)
        number, task = next(turns)
        heads.append((-depth, number, needs, task, turns))
    return heads


def _by_arrival(lines: Collection[Iterable[InFlight]]) -> Iterator[_Turn]:
    """Return the turns of all tasks in *lines*, in order of arrival."""
    tasks = merge(*lines, key=_id_of)
    return ((task.id, task) for task in tasks)


def _longest_first(lines: Collection[list[InFlight]]) -> Iterator[_Turn]:
    """Return waiting tasks with the same needs and depth, long tasks first, each with
    its turn (its position among the waiting tasks).

    * If no call of a task function has ended, so that its duration is unknown, its
      calls keep their turns. Only the very first one comes before all others, so that
      the duration becomes known.
    * In the other turns, the calls with the longest expected duration come first. Calls
      of the same function keep their order.
    * Calls that take less than `BATCH_SECONDS` come last, in order of arrival. They are
      sent in batches, and would gain nothing from another order.

    Args:
        lines: The tasks, as one list for each name, in order of arrival.
    """
    first_calls: list[InFlight] = []
    long: list[list[InFlight]] = []
    short: list[list[InFlight]] = []
    unknown: list[Iterator[InFlight]] = []
    for line in lines:
        code = line[0].code
        if code.seconds <= BATCH_SECONDS:
            short.append(line)
        elif code.seconds < inf:
            long.append(line)
        elif code.has_begun:
            unknown.append(iter(line))
        else:
            first_calls.append(line[0])
            unknown.append(islice(line, 1, None))
    if not (long or first_calls):
        return _by_arrival(lines)
    first_calls.sort(key=_id_of)
    long.sort(key=_seconds_of_first, reverse=True)
    movable = chain(first_calls, *long, merge(*short, key=_id_of))
    numbers = map(_id_of, merge(first_calls, *long, *short, key=_id_of))
    turns = zip(numbers, movable, strict=True)
    return merge(_by_arrival(unknown), turns)


def _seconds_of_first(line: Sequence[InFlight]) -> float:
    """Return the expected duration of the first task of *line*."""
    return line[0].code.seconds


# ------------------------------------------------ workers


class WorkerLoad(NamedTuple):
    """The load of a worker, as far as `assign` needs to know it."""

    state: WorkerState
    seconds: float = 0.0
    """The expected number of seconds until the worker has run its present tasks."""
    kind: WorkerKind = PLAIN
    held: Mapping[str, float] = MappingProxyType({})
    """The amounts that the worker's tasks take, by the name of the resource."""
    needs: Needs | None = None
    """The needs of the worker's tasks, which all have the same, or None if they need
    one worker and nothing else.
    """


class PoolLimits(NamedTuple):
    """The limits of a pool on its workers, batches and resources."""

    size: int
    """The number of workers that run tasks at the same time."""
    keep: int = 0
    """The number of workers that the pool keeps running even if no task waits."""
    batch: int = LARGEST_BATCH
    """The maximum number of tasks that are sent to a worker at once."""
    amounts: Mapping[str, float] = MappingProxyType({"cpus": inf})
    """The amount of each resource. For a rate, this is the number of tasks that may
    start now.
    """
    gpus: tuple[str, ...] = ()


@dataclass(slots=True)
class Assignment:
    """The plan of `assign`: the workers to start, and the tasks to send."""

    starts: list[WorkerKind] = field(default_factory=list)
    """The workers to start: the kind of each (see `WorkerKind`)."""
    sends: list[tuple[int, list[InFlight]]] = field(default_factory=list)
    """The tasks to send: pairs of a worker's index and the tasks for this worker."""
    lacking: set[str] = field(default_factory=set)
    """The names of the resources for which tasks wait."""
    stuck: tuple[InFlight, str] | None = None
    """A task that can never start, and the name of the resource that it lacks, which is
    held by tasks that wait for their calls. None if there is no such task.
    """


class RemainingResources:
    """The resources and workers of a pool that `assign` has not assigned yet.

    Args:
        workers: The loads of the workers.
        limits: The limits of the pool.
    """

    def __init__(self, workers: Sequence[WorkerLoad], limits: PoolLimits) -> None:
        self.workers = workers
        self.limits = limits
        self.amounts: dict[str, float] = dict(limits.amounts)
        self._gpus = [*limits.gpus]
        for worker in workers:
            if worker.held:
                self._subtract(worker)
        states = [worker.state for worker in workers]
        self._kinds: dict[int, WorkerKind] = {}
        """The kinds of the workers that have no task, by the index of the worker. Idle
        workers come before those that are still starting.
        """
        for state in (WorkerState.IDLE, WorkerState.STARTING):
            for index, worker in enumerate(workers):
                if worker.state is state:
                    self._kinds[index] = worker.kind
        self.slots: int = limits.size - states.count(WorkerState.BUSY)
        """The number of further workers that may run tasks now."""
        self.is_quiet: bool = WorkerState.BUSY not in states
        """True if no worker runs a task."""
        gone = states.count(WorkerState.WAITING) + states.count(WorkerState.STOPPING)
        self.missing: int = min(limits.size, limits.keep) - (len(states) - gone)
        """The number of workers to start even without waiting tasks (see
        `PoolLimits.keep`).
        """
        self.reserved: set[str] = set()
        """The names of the resources that are reserved, because a task waits for them.
        """
        self.blocked: dict[Needs | None, tuple[InFlight, set[str]]] = {}
        """The needs that cannot be met now, each with the first task that has them and
        the names of the resources that this task lacks.
        """

    def _subtract(self, worker: WorkerLoad) -> None:
        """Subtract the amounts that the tasks of *worker* take. A worker whose task
        waits for calls lends its CPUs.
        """
        for name, amount in worker.held.items():
            if name != "cpus" or worker.state is WorkerState.BUSY:
                self.amounts[name] -= amount
        self._use_gpus(worker.kind)

    def _use_gpus(self, kind: WorkerKind) -> None:
        self._gpus = [gpu for gpu in self._gpus if gpu not in kind.gpus]

    def take(self, task: InFlight) -> bool:
        """Take the resources that *task* needs, and return True.

        If some of them are not free, take nothing, reserve the resources that the task
        lacks, and return False.
        """
        needs = task.needs or ONE_CPU
        amounts = needs.amounts
        if needs.rate is not None:
            amounts = {**amounts, needs.rate: 1}
        reserved = set() if needs.is_below else self.reserved
        lacking = {
            name
            for name, amount in amounts.items()
            if name in reserved or amount > self.amounts[name] + ROUNDING
        }
        # An estimate of the memory that a task needs must not prevent the task from
        # running if no other task runs.
        is_guess = self.is_quiet and needs.is_measured and lacking == {"memory"}
        if lacking and not is_guess:
            self.reserved |= lacking
            self.blocked[task.needs] = task, lacking
            return False
        self.slots -= 1
        self.is_quiet = False
        for name, amount in amounts.items():
            self.amounts[name] -= amount
        return True

    def take_worker(self, task: InFlight) -> int | WorkerKind:
        """Return the index of a worker without a task that suits *task*, or the kind of
        worker to start for it.
        """
        needs = task.needs or ONE_CPU
        count = int(needs.amounts.get("gpus", 0))
        free = task.gpus or self._gpus
        for index, kind in self._kinds.items():
            is_alike = kind.threads == needs.threads and kind.is_fresh == needs.is_fresh
            has_gpus = len(kind.gpus) == count and {*kind.gpus} <= {*free}
            if is_alike and has_gpus:
                del self._kinds[index]
                self._use_gpus(kind)
                return index
        kind = WorkerKind(needs.threads, tuple(free[:count]), needs.is_fresh)
        self._use_gpus(kind)
        return kind

    def most_ahead(
        self, worker: WorkerLoad, waiting: Mapping[Needs | None, int]
    ) -> int:
        """Return the number of tasks that may be sent to *worker* ahead of time.

        Args:
            worker: The load of the worker.
            waiting: The number of waiting tasks, by their needs.
        """
        if worker.state is not WorkerState.BUSY or worker.seconds > BATCH_SECONDS:
            return 0
        if self.slots < 0:
            # The pool was made smaller, so some workers must stop. A worker stops only
            # when it is idle, so busy ones get no more tasks.
            return 0
        if self.amounts["cpus"] < -ROUNDING:
            # More CPUs are taken than exist, because a task that had lent its CPUs
            # while it waited runs again. A worker frees its CPUs when its tasks have
            # ended, so it gets no more tasks.
            return 0
        needs = worker.needs or ONE_CPU
        if not needs.is_below and not self.reserved.isdisjoint(needs.amounts):
            # An earlier task waits for resources that the next tasks for this worker
            # would take, so it gets none ahead of time.
            return 0
        count = waiting.get(worker.needs, 0)
        return min(count // self.limits.size, self.limits.batch)


def assign(
    queue: TaskQueue,
    workers: Sequence[WorkerLoad],
    limits: PoolLimits,
    passing: Collection[str] = (),
) -> Assignment:
    """Decide which tasks of *queue* to send to which workers, and which workers to
    start.

    Args:
        queue: The tasks that wait.
        workers: The loads of the workers.
        limits: The limits of the pool.
        passing: The names of the resources that may become free without the end of a
            task in this pool: rates, and limits of which other programs hold slots.
    """
    only_send = _only_send(queue, workers, limits)
    if only_send is not None:
        return Assignment(sends=[only_send])
    free = RemainingResources(workers, limits)
    result = Assignment(lacking=free.reserved)
    waiting = queue.waiting(free.blocked)
    unsent = _assign_free_workers(queue, waiting, free, result)
    if limits.batch > 1 and unsent:
        result.sends += _ahead(queue, chain(unsent, waiting), free)
    result.starts += [PLAIN] * (free.missing - len(result.starts))
    if free.blocked and free.is_quiet:
        result.stuck = stuck_task(free.blocked.values(), passing)
    return result


def _only_send(
    queue: TaskQueue, workers: Sequence[WorkerLoad], limits: PoolLimits
) -> tuple[int, list[InFlight]] | None:
    """Return the index of an idle worker and the only waiting task in the simple case:
    `assign` would only send this task to this worker. Otherwise, return None.

    Without this shortcut, `assign` would return the same, but would compare resources.
    """
    if queue.count != 1 or limits.keep > len(workers) or limits.amounts["cpus"] != inf:
        return None
    index = _first_idle(workers, limits.size)
    task = queue.only_task()
    if index is None or task.needs is not None:
        return None
    return index, [task]


def _first_idle(workers: Sequence[WorkerLoad], size: int) -> int | None:
    """Return the index of the first idle worker for tasks without special needs.

    Return None if no worker is idle, or if *size* workers are busy already. Return None
    also if a worker is neither idle nor busy, such as one that starts or ends: then
    `assign` must decide whether to start another worker.
    """
    idle: int | None = None
    busy = 0
    for index, worker in enumerate(workers):
        if worker.state is WorkerState.BUSY:
            busy += 1
        elif worker.state is not WorkerState.IDLE:
            return None
        elif idle is None and worker.kind == PLAIN:
            idle = index
    return idle if busy < size else None


def _assign_free_workers(
    queue: TaskQueue,
    waiting: Iterator[InFlight],
    free: RemainingResources,
    result: Assignment,
) -> list[InFlight]:
    """Assign the tasks of *waiting* to idle workers, and to new workers that must be
    started.

    The assignments are added to *result*.

    Returns:
        The tasks that were taken from the iterator *waiting*, but not assigned to an
        idle worker.
    """
    unsent: list[InFlight] = []
    task = next(waiting, None)
    while task is not None and free.slots > 0:
        if not free.take(task):
            task = next(waiting, None)
            continue
        worker = free.take_worker(task)
        if isinstance(worker, WorkerKind):
            result.starts.append(worker)
        elif free.workers[worker].state is WorkerState.IDLE:
            share = -(-queue.counts[task.needs] // free.limits.size)
            most = min(share, free.limits.batch)
            batch, task = _batch_of(task.needs, chain((task,), waiting), 1, most)
            result.sends.append((worker, batch))
            continue
        unsent.append(task)
        task = next(waiting, None)
    if task is not None:
        unsent.append(task)
    return unsent


def _batch_of(
    needs: Needs | None, tasks: Iterator[InFlight], least: int, most: int
) -> tuple[list[InFlight], InFlight | None]:
    """Return a batch of the first of *tasks*, all with the needs *needs*, and the task
    after the batch. The batch has at most *most* tasks, which take at most
    `BATCH_SECONDS` together. The first *least* tasks are taken even if they take
    longer.
    """
    batch: list[InFlight] = []
    seconds = 0.0
    for task in tasks:
        seconds += task.seconds
        is_long = seconds > BATCH_SECONDS and len(batch) >= least
        if is_long or len(batch) == most or task.needs is not needs:
            return batch, task
        batch.append(task)
    return batch, None


def _ahead(
    queue: TaskQueue, tasks: Iterator[InFlight], free: RemainingResources
) -> Iterator[tuple[int, list[InFlight]]]:
    """Yield the indices of busy workers, and the tasks to send to each ahead of time.

    A worker gets no more than its share of the queue, so some tasks are left for
    whichever worker becomes idle first.
    """
    for index, worker in enumerate(free.workers):
        most = free.most_ahead(worker, queue.counts)
        if not most:
            continue
        batch, task = _batch_of(worker.needs, tasks, 0, most)
        if task is not None:
            tasks = chain((task,), tasks)
        if batch:
            yield index, batch


def stuck_task(
    blocked: Iterable[tuple[InFlight, set[str]]], passing: Collection[str]
) -> tuple[InFlight, str] | None:
    """Return the first task that lacks a resource which tasks that wait for their calls
    may hold, and the name of that resource. Return None if there is no such task.

    This is called only if no task runs.

    Args:
        blocked: The first task with each combination of needs that cannot be met, and
            the names of the resources that it lacks.
        passing: The names of the resources that may become free although no task ends.
    """
    lasting = [(task, lacking - {*passing}) for task, lacking in blocked]
    if all(lacking for _, lacking in lasting):
        for task, lacking in lasting:
            if task.needs is not None and task.needs.is_below:
                return task, min(lacking)
    return None
