"""What the pool decides, without I/O: the tasks that it has, and which worker gets
which of them.

`assign` is a pure function; the pool does what it returns.

* An idle worker gets the next task. Tasks that are known to be short go several at
  once: as many as keep it busy for `BATCH_SECONDS`, but no more than its share of the
  queue.
* A busy worker that has little left to do gets its next tasks ahead of time, so that it
  need not wait for a round trip.
* A worker whose task waits for tasks that it called is not counted: its place is free.

`assign_by_needs` takes its place while tasks are there that say what they take. It goes
through the queue in its order. A task whose needs are free starts; one whose needs are
not keeps what it lacks from those behind it, so that small tasks never starve a large
one. A task that waits for its calls lends its CPUs, as it does its worker, and holds
the rest. So that nobody waits for ever for what its own caller holds, the calls of a
task that holds something are not kept from anything by those before them; and when
nothing runs and nothing can start, the first of them is named, to be refused.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.protocol import PLAIN, WorkerKind
from flowpregel.executors.processes.serialization import BufferRef

BATCH_SECONDS: Final = 0.010
"""For how long a batch is to keep a worker busy."""
LARGEST_BATCH: Final = 1024
OLDEST_EVERY: Final = 4
"""Where priorities differ: every how many turns the longest wait counts instead."""
_ROUNDING: Final = 1e-6
StopReason: TypeAlias = Literal["cancel", "run", "idle"]


# ------------------------------------------------ tasks


@dataclass(slots=True, eq=False, weakref_slot=True)
class NodeCode:
    """The code of nodes that look alike, as workers are sent it."""

    digest: bytes
    data: bytes
    seconds: float = inf
    """How long its tasks take; infinity: unknown, or they wait for others."""

    def measured(self, seconds: float) -> None:
        """Note how long a task took: a moving average in which outliers count
        little.
        """
        if self.seconds == inf:
            self.seconds = seconds
            return
        # no mutant: what is equal changes nothing
        weight = 0.5 if seconds < self.seconds else 0.2
        self.seconds += weight * (min(seconds, 4 * self.seconds) - self.seconds)


@dataclass(slots=True, eq=False)
class Needs:
    """What a task takes of the pool while it runs."""

    amounts: dict[str, float]
    """Of ``cpus``, ``memory``, ``gpus``, and of limits by their names."""
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


ONE_CPU: Final = Needs({"cpus": 1.0})
"""What a task takes that says nothing."""


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
    body: bytes | None = None
    """The packed job; None: it is packed when it is sent."""
    refs: Sequence[BufferRef] = ()
    """What *body* names in shared memory."""
    worker: Any = None
    """The `WorkerProcess` that has it; None: it waits."""
    number: int = 0  # no mutant: it has another when it is sent
    """Names it on the link of its worker, each time it is sent anew."""
    sent: float = 0.0
    """When its worker got it: monotonic seconds."""
    alive: float = 0.0
    """When it last showed a sign of life."""
    stopping: StopReason | None = None
    """Why it was told to stop, if it was."""
    calls: set[int] = field(default_factory=set)
    """Its calls that are not answered."""
    lost_starts: int = 0
    """How often its worker ended before it began any task."""
    unreadable: str | None = None
    """What is wrong with something that it sent, once its run has found that it cannot
    be read.
    """
    priority: int = 0
    needs: Needs | None = None
    """What it takes while it runs; None: one worker, as any task."""

    def note_unreadable(self, error: BaseException) -> None:
        """Note that something that it sent raised *error* when it was to be read."""
        # Its end, which its run reads later, may be on its way.
        cause = f"{type(error).__name__}: {error}"
        self.unreadable = f"what it sent cannot be read in the coordinator ({cause})"

    @property
    def seconds(self) -> float:
        """How long it is expected to run; infinity if it must not share a batch."""
        is_plain = self.job.task.timeout is None and self.needs is None
        return self.code.seconds if is_plain else inf

    def ends_at(self, reason: StopReason) -> float:
        """Return when that timeout of its will be over: monotonic seconds."""
        policy: Any = self.job.task.timeout
        limit = policy.run_timeout if reason == "run" else policy.idle_timeout
        return (
            inf
            if limit is None
            else limit + (self.sent if reason == "run" else self.alive)
        )

    def stopped(self) -> Outcome:
        """Return how it ended, when it was told to stop."""
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


class TaskQueue:
    """Tasks that wait for a worker: by priority, the runs in turn, called tasks before
    callers.

    A task that calls another holds its worker until the answer is there. First come,
    first served, a thousand such callers would hold a thousand workers before the first
    called task had its turn. So of a run the most deeply nested tasks go first, and
    among them those that were taken first. The runs take turns: a run of two tasks does
    not wait for one of two hundred. Where priorities differ, each `OLDEST_EVERY`-th
    turn is that of the task that was taken first of all, so that none waits for ever.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[object, list[tuple[int, int, InFlight]]]] = {}
        """By priority and run; the run that has waited for its turn longest is the
        first.
        """
        self._turns = 1
        self.count = 0

    def __iter__(self) -> Iterator[InFlight]:
        levels, oldest = (
            [self._levels[priority] for priority in sorted(self._levels)],
            None,
        )
        if len(levels) > 1 and self._turns % OLDEST_EVERY == 0:
            tasks = (
                task for level in levels for run in level.values() for *_, task in run
            )
            oldest = min(tasks, key=attrgetter("id"))
            yield oldest
        for level in reversed(levels):
            for nth in range(max(map(len, level.values()))):
                for run in level.values():
                    if nth < len(run) and run[nth][2] is not oldest:
                        yield run[nth][2]

    def add(self, task: InFlight) -> None:
        """Have *task* wait for its turn."""
        self.count += 1
        runs = self._levels.setdefault(task.priority, {})
        insort(
            runs.setdefault(task.job.run.run_id, []),
            (-task.job.task.depth, task.id, task),
        )

    def remove(self, tasks: Iterable[InFlight]) -> None:
        """Take out those of *tasks* that are there; the other runs are next."""
        self._turns += 1
        for task in tasks:
            run_id, place = task.job.run.run_id, (-task.job.task.depth, task.id, task)
            level = self._levels.get(task.priority, {})
            run = level.pop(run_id, [])
            at = bisect_left(run, place)
            if run[at : at + 1] == [place]:
                del run[at]
                self.count -= 1
            if run:
                level[run_id] = run
            elif not level:
                self._levels.pop(task.priority, None)

    def take(self, count: int) -> list[InFlight]:
        """Take out the first *count* tasks."""
        taken = [*islice(self, count)]
        self.remove(taken)
        return taken


# ------------------------------------------------ workers


class WorkerState(Enum):
    """What a worker is doing."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    WAITING = auto()
    """Its task waits for calls."""
    LEAVING = auto()
    """Told to stop, killed or gone: it gets no more tasks."""


class WorkerLoad(NamedTuple):
    """What one worker is doing."""

    state: WorkerState
    seconds: float = 0.0
    """How long its tasks are expected to run."""
    kind: WorkerKind = PLAIN
    held: Mapping[str, float] = MappingProxyType({})
    """What its task takes."""


class PoolLimits(NamedTuple):
    """How many workers and how large batches a pool may have."""

    size: int
    """How many workers run tasks at the same time."""
    keep: int = 0
    """How many workers are there even if no task waits."""
    batch: int = LARGEST_BATCH
    """The most tasks that a worker gets at once."""
    amounts: Mapping[str, float] = MappingProxyType({})
    """What there is of each resource; of a rate, how many may start now."""
    gpus: tuple[str, ...] = ()


def assign(
    queue: TaskQueue, workers: Sequence[WorkerLoad], limits: PoolLimits
) -> tuple[int, list[tuple[int, list[InFlight]]]]:
    """Return how many workers to start, and which ones get the first tasks of *queue*.

    That is, for each of these, its index and its tasks.
    """
    states = [each.state for each in workers]
    running = states.count(WorkerState.BUSY)
    present = (
        running + states.count(WorkerState.IDLE) + states.count(WorkerState.STARTING)
    )
    wanted = min(limits.size, max(limits.keep, running + queue.count))
    share, rest = divmod(queue.count, limits.size)
    idle = [n for n, state in enumerate(states) if state is WorkerState.IDLE]
    places = [(n, 1, share + bool(rest)) for n in idle[: max(0, limits.size - running)]]
    if limits.batch > 1 and running:
        # The last tasks go to the worker that is free first.
        places += [
            (n, 0, share)
            for n, each in enumerate(workers)
            if each.state is WorkerState.BUSY and each.seconds <= BATCH_SECONDS
        ]
    sends: list[tuple[int, list[InFlight]]] = []
    waiting = iter(queue)
    task = next(waiting, None)
    for index, least, most in places:
        batch: list[InFlight] = []
        seconds = 0.0
        while task is not None and len(batch) < min(most, limits.batch):
            # Where it gets its task in any case, and no other, it does not matter how
            # long that is.
            if least < most:
                seconds += task.seconds
                if seconds > BATCH_SECONDS and len(batch) >= least:
                    break
            batch.append(task)
            task = next(waiting, None)
        if batch:
            sends.append((index, batch))
    return max(0, wanted - present), sends


# ------------------------------------------------ tasks that say what they take


@dataclass(slots=True)
class Assignment:
    """What the pool is to do now."""

    starts: list[WorkerKind] = field(default_factory=list)
    """The workers to start."""
    sends: list[tuple[int, InFlight]] = field(default_factory=list)
    """The index of a worker, and the task that it gets."""
    lacking: set[str] = field(default_factory=set)
    """The names of what tasks wait for."""
    stuck: tuple[InFlight, str] | None = None
    """A task, and the name of what it lacks, which tasks hold that wait for their
    calls.
    """


class _Free:
    """What has not been given away yet."""

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
        states = [each.state for each in workers]
        self._kinds = {
            index: workers[index].kind
            for state in (WorkerState.IDLE, WorkerState.STARTING)
            for index in range(len(workers))
            if states[index] is state
        }
        """Of the workers that have no task."""
        self.places = limits.size - states.count(WorkerState.BUSY)
        self.is_quiet = WorkerState.BUSY not in states
        """Whether nothing runs."""
        self.kept: set[str] = set()
        """The names of what nobody gets, because tasks before lack it."""

    def _use(self, kind: WorkerKind) -> None:
        self._gpus = [gpu for gpu in self._gpus if gpu not in kind.gpus]

    def take(self, needs: Needs) -> set[str]:
        """Give away what a task needs; or return the names of what it cannot have
        now.
        """
        wanted = (
            needs.amounts if needs.rate is None else {**needs.amounts, needs.rate: 1}
        )
        kept = set() if needs.is_below else self.kept
        lacking = {
            name
            for name, amount in wanted.items()
            if name in kept or amount > self.amounts[name] + _ROUNDING
        }
        # A guess keeps no task from running alone.
        if lacking and not (
            self.is_quiet and needs.is_measured and lacking == {"memory"}
        ):
            return lacking
        self.places -= 1
        self.is_quiet = False
        for name, amount in wanted.items():
            self.amounts[name] -= amount
        return set()

    def take_worker(self, needs: Needs) -> int | WorkerKind:
        """Return the index of the worker that a task gets, or the kind of one to
        start.
        """
        count = int(needs.amounts.get("gpus", 0))
        found: int | WorkerKind
        found = kind = WorkerKind(
            needs.threads, tuple(self._gpus[:count]), needs.is_fresh
        )
        for index, each in self._kinds.items():
            is_free = len(each.gpus) == count and {*each.gpus} <= {*self._gpus}
            is_alike = (each.threads, each.is_fresh) == (needs.threads, needs.is_fresh)
            if is_alike and is_free:
                found, kind = index, self._kinds.pop(index)
                break
        if count:
            self._use(kind)
        return found


def assign_by_needs(
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
    free, result = _Free(workers, limits), Assignment()
    blocked: list[tuple[InFlight, set[str]]] = []
    for task in queue:
        if free.places < 1:
            break
        needs = task.needs or ONE_CPU
        if lacking := free.take(needs):
            free.kept |= lacking
            blocked.append((task, lacking))
            continue
        worker = free.take_worker(needs)
        if isinstance(worker, WorkerKind):
            result.starts.append(worker)
        elif workers[worker].state is WorkerState.IDLE:
            result.sends.append((worker, task))
    result.lacking = free.kept
    lasting = [(task, lacking - {*passing}) for task, lacking in blocked]
    if free.is_quiet and all(lacking for _, lacking in lasting):
        below = (each for each in lasting if each[0].needs and each[0].needs.is_below)
        result.stuck = next(((task, min(lacking)) for task, lacking in below), None)
    return result
