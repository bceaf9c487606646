"""The decisions of the pool, without I/O: which worker gets which of the tasks that
wait.

`assign` is a pure function; the pool does what it returns. It goes through the queue in
its order:

* A task whose needs are free gets an idle worker, or one is started. Tasks that are
  known to be short go several at once, if they need the same: as many as keep the
  worker busy for `BATCH_SECONDS`, but no more than its share of those that wait. They
  run one after the other, so together they take what one of them takes.
* A task whose needs are not free keeps what it lacks from those behind it, so that
  small tasks never starve a large one. Those behind it that need the same are passed
  over: one check of each kind of needs is enough, however many tasks wait.
* A busy worker that has little left to do gets its next tasks ahead of time, so that it
  need not wait for a round trip.
* A task that waits for tasks that it called lends its worker and its CPUs, and holds
  the rest. So that no task waits for what its own caller holds, the calls of a task
  that holds something are not kept from anything by those before them; and when nothing
  runs and nothing can start, the first of them is named, to be refused.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import PLAIN, WorkerKind
from flowpregel.executors.processes.wire.serialization import BufferRef

BATCH_SECONDS: Final = 0.010
"""Seconds for which a batch of tasks keeps a worker busy."""
LARGEST_BATCH: Final = 1024
OLDEST_EVERY: Final = 4
"""The turn, where priorities differ, that belongs to the task that has waited longest.
"""
_ROUNDING: Final = 1e-6
StopReason: TypeAlias = Literal["cancel", "run", "idle"]


# ------------------------------------------------ tasks


@dataclass(slots=True, eq=False)
class Needs:
    """The needs of a task while it runs."""

    amounts: dict[str, float]
    """The amounts of ``cpus``, ``memory``, ``gpus``, and of limits by their names."""
    threads: int | None = None
    rate: str | None = None
    """The name of the rate that its start counts for."""
    is_measured: bool = False
    """Whether the memory is that of earlier calls: a guess, which nothing is refused
    for.
    """
    is_below: bool = False
    """Whether a task that waits for it holds something."""
    is_fresh: bool = False
    """Whether it takes a worker for itself, which ends with it."""

    @property
    def is_alone(self) -> bool:
        """Whether a task that takes it must not share a batch: its start counts."""
        return self.is_fresh or self.rate is not None


ONE_CPU: Final = Needs({"cpus": 1.0})
"""The needs of a task without `Resources`."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A job with the pool: from when it is taken until its end is posted."""

    id: int
    """Names it among the jobs of the pool; the later it was taken, the greater."""
    job: Job
    mailbox: Mailbox
    code: NodeCode
    contexts: Collection[bytes] = ()
    """Tokens of the `Context` channels that it reads."""
    body: bytes = b""
    """The packed job, until it has ended."""
    refs: Sequence[BufferRef] = ()
    """The buffers of *body* that are in shared memory."""
    worker: Any = None
    """The `WorkerProcess` that has it; None: it waits."""
    number: int = 0  # no mutant: it has another when it is sent
    """The number of the task on the link of a worker, a new one each time it is sent.
    """
    sent: float = 0.0
    """The time at which its worker got it: monotonic seconds."""
    alive: float = 0.0
    """The time of the last sign of life: monotonic seconds."""
    stopping: StopReason | None = None
    """The reason for which it was asked to stop; None: it was not."""
    calls: set[int] = field(default_factory=set)
    """The numbers of the calls that it waits for."""
    failed_starts: int = 0
    """The number of workers that had the task and died before they began any."""
    unreadable: str | None = None
    """The problem with a message of the task that its run could not read."""
    priority: int = 0
    needs: Needs | None = None
    """The needs of the task; None: one worker, as any task."""

    def note_unreadable(self, error: BaseException) -> None:
        """Note that reading a message of the task raised *error*."""
        # Its end, which its run reads later, may be on its way.
        cause = f"{type(error).__name__}: {error}"
        self.unreadable = f"what it sent cannot be read in the coordinator ({cause})"

    @property
    def seconds(self) -> float:
        """Seconds that it is expected to run; infinity if it must not share a batch."""
        if self.job.task.timeout is not None or (
            self.needs is not None and self.needs.is_alone
        ):
            return inf
        return self.code.seconds

    def ends_at(self, reason: StopReason) -> float:
        """Return when a timeout of the task ends: monotonic seconds."""
        policy: Any = self.job.task.timeout
        limit = policy.run_timeout if reason == "run" else policy.idle_timeout
        return (
            inf
            if limit is None
            else limit + (self.sent if reason == "run" else self.alive)
        )

    def stopped(self) -> Outcome:
        """Return the outcome of the task after the pool has stopped it."""
        policy: Any = self.job.task.timeout
        name, now = self.job.task.name, time.monotonic()
        if self.stopping == "run":
            return Raised(
                NodeTimeoutError(name, now - self.sent, "run", policy.run_timeout)
            )
        if self.stopping == "idle":
            return Raised(
                NodeTimeoutError(name, now - self.alive, "idle", policy.idle_timeout)
            )
        return Withdrawn()


_Lines: TypeAlias = dict[tuple[Needs | None, int], list[InFlight]]
"""The tasks of one run that wait, by their needs and their depth; in each line, by
their ids.
"""
_id_of: Final = attrgetter("id")


class TaskQueue:
    """Tasks that wait for a worker: by priority, the runs in turn, called tasks before
    callers.

    A task that calls another holds its worker until the answer is there. First come,
    first served, a thousand such callers would hold a thousand workers before the first
    called task had its turn. So of a run the most deeply nested tasks go first, and
    among them those that were taken first. The runs take turns: a run of two tasks does
    not wait for one of two hundred. Where priorities differ, each `OLDEST_EVERY`-th
    turn is that of the task that was taken first of all, so that each task has its turn
    some day.

    Tasks of a run that are alike wait in a line of their own: it is passed over at once
    when the first of them cannot start.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[object, _Lines]] = {}
        """The lines of waiting tasks, by priority and run; the run that has waited for
        its turn longest is the first.
        """
        self._turns = 1
        self.count = 0
        self.counts: dict[Needs | None, int] = {}
        """The number of tasks that wait, by their needs."""

    def __iter__(self) -> Iterator[InFlight]:
        return self.waiting(())

    def waiting(self, blocked: Collection[Needs | None]) -> Iterator[InFlight]:
        """Yield the tasks in their order, without those whose needs are in *blocked*.

        The caller may add needs to *blocked* between two tasks. When it has all needs,
        the iterator ends.
        """
        levels = [
            self._levels[priority] for priority in sorted(self._levels, reverse=True)
        ]
        oldest = None
        if len(levels) > 1 and self._turns % OLDEST_EVERY == 0:
            runs = (lines for level in levels for lines in level.values())
            oldest = min(
                (line[0] for lines in runs for line in lines.values()), key=_id_of
            )
            yield oldest
        for level in levels:
            for task in _in_turns(level, blocked):
                if task is not oldest:
                    yield task
                if len(blocked) == len(self.counts):
                    return

    def add(self, task: InFlight) -> None:
        """Have *task* wait for its turn."""
        self.count += 1
        self.counts[task.needs] = self.counts.get(task.needs, 0) + 1
        runs = self._levels.setdefault(task.priority, {})
        lines = runs.setdefault(task.job.run.run_id, {})
        insort(
            lines.setdefault((task.needs, task.job.task.depth), []), task, key=_id_of
        )

    def remove(self, tasks: Iterable[InFlight]) -> None:
        """Take out those of *tasks* that are there; the other runs are next."""
        self._turns += 1
        for task in tasks:
            run_id, kind = task.job.run.run_id, (task.needs, task.job.task.depth)
            level = self._levels.get(task.priority, {})
            lines = level.pop(run_id, {})
            line = lines.get(kind, [])
            position = bisect_left(line, task.id, key=_id_of)
            if line[position : position + 1] == [task]:
                del line[position]
                self._uncount(task.needs)
                if not line:
                    del lines[kind]
            if lines:
                level[run_id] = lines
            elif not level:
                self._levels.pop(task.priority, None)

    def _uncount(self, needs: Needs | None) -> None:
        self.count -= 1
        self.counts[needs] -= 1
        if not self.counts[needs]:
            del self.counts[needs]

    def take(self, count: int) -> list[InFlight]:
        """Take out the first *count* tasks."""
        tasks = [*islice(self, count)]
        self.remove(tasks)
        return tasks


def _in_turns(
    level: Mapping[object, _Lines], blocked: Collection[Needs | None]
) -> Iterator[InFlight]:
    """Yield a task of each run, then a second one of each, and so on."""
    runs = deque[Iterator[InFlight]]()
    for lines in level.values():
        run = _in_order(lines, blocked)
        for task in islice(run, 1):
            yield task
            runs.append(run)
    while runs:
        run = runs.popleft()
        for task in islice(run, 1):
            yield task
            runs.append(run)


def _in_order(lines: _Lines, blocked: Collection[Needs | None]) -> Iterator[InFlight]:
    """Yield the tasks of a run: the most deeply nested first, then those that were
    taken first.
    """
    heads = [
        (-depth, line[0].id, 0, needs, line) for (needs, depth), line in lines.items()
    ]
    heapify(heads)
    while heads:
        depth, _, position, needs, line = heads[0]
        if needs in blocked:
            heappop(heads)
            continue
        yield line[position]
        position += 1
        if position < len(line):
            heapreplace(heads, (depth, line[position].id, position, needs, line))
        else:
            heappop(heads)


# ------------------------------------------------ workers


class WorkerLoad(NamedTuple):
    """The tasks of one worker, as `assign` must know them."""

    state: WorkerState
    seconds: float = 0.0
    """Seconds for which the tasks are expected to run."""
    kind: WorkerKind = PLAIN
    held: Mapping[str, float] = MappingProxyType({})
    """The amounts that its tasks take."""
    needs: Needs | None = None
    """The needs that its tasks have in common; None: one worker, as any task."""


class PoolLimits(NamedTuple):
    """The limits of a pool: workers, batches, and resources."""

    size: int
    """The number of workers that run tasks at the same time."""
    keep: int = 0
    """The number of workers that are kept even if no task waits."""
    batch: int = LARGEST_BATCH
    """The most tasks that a worker gets at once."""
    amounts: Mapping[str, float] = MappingProxyType({"cpus": inf})
    """The amount of each resource; of a rate, the number of tasks that may start now.
    """
    gpus: tuple[str, ...] = ()


@dataclass(slots=True)
class Assignment:
    """The next steps of the pool."""

    starts: list[WorkerKind] = field(default_factory=list)
    """The workers to start."""
    sends: list[tuple[int, list[InFlight]]] = field(default_factory=list)
    """The index of a worker, and the tasks that it gets."""
    lacking: set[str] = field(default_factory=set)
    """The names of the resources that tasks wait for."""
    stuck: tuple[InFlight, str] | None = None
    """A task, and the resource it lacks, which tasks hold that wait for their calls."""


class RemainingResources:
    """The resources and workers that no task has been given yet."""

    def __init__(self, workers: Sequence[WorkerLoad], limits: PoolLimits) -> None:
        self.amounts = dict(limits.amounts)
        self._gpus = [*limits.gpus]
        for worker in workers:
            is_busy = worker.state is WorkerState.BUSY
            for name, amount in worker.held.items():
                if is_busy or name != "cpus":
                    self.amounts[name] -= amount
            if "gpus" in worker.held:
                self._use(worker.kind)
        states = [worker.state for worker in workers]
        self._kinds = {
            index: workers[index].kind
            for state in (WorkerState.IDLE, WorkerState.STARTING)
            for index in range(len(workers))
            if states[index] is state
        }
        """The kinds of the workers that have no task, by index."""
        self.places = limits.size - states.count(WorkerState.BUSY)
        self.is_quiet = WorkerState.BUSY not in states
        """True if no worker runs a task."""
        self.kept: set[str] = set()
        """The resources that no other task gets, because a task before it waits for
        them.
        """

    def _use(self, kind: WorkerKind) -> None:
        self._gpus = [gpu for gpu in self._gpus if gpu not in kind.gpus]

    def take(self, needs: Needs) -> set[str]:
        """Give away what a task needs; or return the names of what it cannot have
        now.
        """
        amounts = (
            needs.amounts if needs.rate is None else {**needs.amounts, needs.rate: 1}
        )
        reserved = set() if needs.is_below else self.kept
        lacking = {
            name
            for name, amount in amounts.items()
            if name in reserved or amount > self.amounts[name] + _ROUNDING
        }
        # A guess keeps no task from running alone.
        if lacking and not (
            self.is_quiet and needs.is_measured and lacking == {"memory"}
        ):
            return lacking
        self.places -= 1
        self.is_quiet = False
        for name, amount in amounts.items():
            self.amounts[name] -= amount
        return set()

    def is_kept(self, needs: Needs) -> bool:
        """Return whether a task before lacks some of what a task needs."""
        return not needs.is_below and not self.kept.isdisjoint(needs.amounts)

    def take_worker(self, needs: Needs) -> int | WorkerKind:
        """Return the index of the worker that a task gets, or the kind of one to
        start.
        """
        count = int(needs.amounts.get("gpus", 0))
        worker: int | WorkerKind
        worker = kind = WorkerKind(
            needs.threads, tuple(self._gpus[:count]), needs.is_fresh
        )
        for index, kind_of_worker in self._kinds.items():
            is_free = len(kind_of_worker.gpus) == count and {*kind_of_worker.gpus} <= {
                *self._gpus
            }
            is_alike = (kind_of_worker.threads, kind_of_worker.is_fresh) == (
                needs.threads,
                needs.is_fresh,
            )
            if is_alike and is_free:
                worker, kind = index, self._kinds.pop(index)
                break
        if count:
            self._use(kind)
        return worker


def assign(
    queue: TaskQueue,
    workers: Sequence[WorkerLoad],
    limits: PoolLimits,
    passing: Collection[str] = (),
) -> Assignment:
    """Return what to do next with the tasks of *queue*.

    Args:
        queue: The tasks that wait.
        workers: What the workers do.
        limits: How many there may be, and what there is of each resource.
        passing: The names of what comes without a task's end: rates, places that other
            programs hold.
    """
    free = RemainingResources(workers, limits)
    result = Assignment()
    blocked: dict[Needs | None, tuple[InFlight, set[str]]] = {}
    unsent: list[InFlight] = []
    waiting = queue.waiting(blocked)
    task = next(waiting, None)
    while task is not None and free.places > 0:
        if lacking := free.take(task.needs or ONE_CPU):
            free.kept |= lacking
            blocked[task.needs] = task, lacking
            task = next(waiting, None)
            continue
        worker = free.take_worker(task.needs or ONE_CPU)
        if isinstance(worker, WorkerKind):
            result.starts.append(worker)
        elif workers[worker].state is WorkerState.IDLE:
            share = -(-queue.counts[task.needs] // limits.size)
            most = min(share, limits.batch)
            batch, task = _batch_of(task.needs, chain((task,), waiting), 1, most)
            result.sends.append((worker, batch))
            continue
        unsent.append(task)
        task = next(waiting, None)
    if task is not None:
        unsent.append(task)
    if limits.batch > 1 and unsent:
        result.sends += _ahead(workers, limits, queue, free, chain(unsent, waiting))
    result.starts += _missing(workers, limits, len(result.starts))
    result.lacking = free.kept
    if blocked and free.is_quiet:
        result.stuck = _stuck(blocked.values(), passing)
    return result


def _batch_of(
    needs: Needs | None, tasks: Iterator[InFlight], least: int, most: int
) -> tuple[list[InFlight], InFlight | None]:
    """Return the first of *tasks*, as many as go together, and the task behind them."""
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
    workers: Sequence[WorkerLoad],
    limits: PoolLimits,
    queue: TaskQueue,
    free: RemainingResources,
    tasks: Iterator[InFlight],
) -> Iterator[tuple[int, list[InFlight]]]:
    """Yield busy workers, and the tasks that are sent to them ahead of time.

    The last tasks are left to the worker that is free first.
    """
    for index, worker in enumerate(workers):
        if worker.state is not WorkerState.BUSY or worker.seconds > BATCH_SECONDS:
            continue
        most = min(queue.counts.get(worker.needs, 0) // limits.size, limits.batch)
        if most and not free.is_kept(worker.needs or ONE_CPU):
            batch, task = _batch_of(worker.needs, tasks, 0, most)
            tasks = tasks if task is None else chain((task,), tasks)
            if batch:
                yield index, batch


def _missing(
    workers: Sequence[WorkerLoad], limits: PoolLimits, starts: int
) -> list[WorkerKind]:
    """Return the workers to start, so that the pool has as many as it keeps."""
    gone = WorkerState.WAITING, WorkerState.STOPPING
    present = starts + sum(worker.state not in gone for worker in workers)
    return [PLAIN] * (min(limits.size, limits.keep) - present)


def _stuck(
    blocked: Iterable[tuple[InFlight, set[str]]], passing: Collection[str]
) -> tuple[InFlight, str] | None:
    """Return the first task that its callers may block, and the resource it lacks.

    No task runs.
    """
    lasting = [(task, lacking - {*passing}) for task, lacking in blocked]
    if all(lacking for _, lacking in lasting):
        for task, lacking in lasting:
            if task.needs is not None and task.needs.is_below:
                return task, min(lacking)
    return None
