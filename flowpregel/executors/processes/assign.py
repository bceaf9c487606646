"""What the pool decides, without I/O: the life of a worker, and which worker gets which tasks.

`TRANSITIONS` is the life of a worker. `assign` is a pure function; the pool does what it
returns.

* An idle worker gets the next task. Tasks that are known to be short go several at once:
  as many as keep it busy for `BATCH_SECONDS`, but no more than its share of the queue.
* A busy worker that has little left to do gets its next tasks ahead of time, so that it
  need not wait for a round trip.
* A worker whose task waits for tasks that it called is not counted: its place is free.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.serialization import BufferRef

BATCH_SECONDS: Final = 0.010
"""For how long a batch is to keep a worker busy."""
LARGEST_BATCH: Final = 1024


StopReason: TypeAlias = Literal["cancel", "run", "idle"]


class WorkerState(Enum):
    """What a worker is doing."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    LEAVING = auto()
    """Told to stop, or killed: it gets no more tasks."""
    GONE = auto()


class WorkerEvent(Enum):
    """What can happen to a worker."""

    READY = auto()
    SENT = auto()
    """It was sent tasks."""
    EMPTIED = auto()
    """It has no tasks left."""
    DISMISSED = auto()
    """It was told to stop when it has nothing to do."""
    KILLED = auto()
    EXITED = auto()


_S, _E = WorkerState, WorkerEvent
TRANSITIONS: Final = {
    (_S.STARTING, _E.READY): _S.IDLE,
    (_S.STARTING, _E.KILLED): _S.LEAVING,
    (_S.STARTING, _E.EXITED): _S.GONE,
    (_S.IDLE, _E.SENT): _S.BUSY,
    (_S.IDLE, _E.DISMISSED): _S.LEAVING,
    (_S.IDLE, _E.KILLED): _S.LEAVING,
    (_S.IDLE, _E.EXITED): _S.GONE,
    (_S.BUSY, _E.SENT): _S.BUSY,
    (_S.BUSY, _E.EMPTIED): _S.IDLE,
    (_S.BUSY, _E.KILLED): _S.LEAVING,
    (_S.BUSY, _E.EXITED): _S.GONE,
    (_S.LEAVING, _E.READY): _S.LEAVING,
    (_S.LEAVING, _E.EMPTIED): _S.LEAVING,
    (_S.LEAVING, _E.KILLED): _S.LEAVING,
    (_S.LEAVING, _E.EXITED): _S.GONE,
}
"""The life of a worker. What is not here cannot happen."""


def next_state(state: WorkerState, event: WorkerEvent) -> WorkerState:
    """Return the state of a worker after *event*.

    Raises:
        RuntimeError: That cannot happen in *state*.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise RuntimeError(f"a worker that is {state.name} cannot be {event.name}")
    return after


class Waiting(Protocol):
    """A task that waits for a worker, as far as `assign` has to know it."""

    @property
    def seconds(self) -> float:
        """How long it is expected to run; infinity if it must not share a batch."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one worker is doing."""

    state: WorkerState
    seconds: float = 0.0
    """How long its tasks are expected to run."""
    is_waiting: bool = False
    """Whether its task waits for calls."""


class PoolLimits(NamedTuple):
    """How many workers and how large batches a pool may have."""

    size: int
    """How many workers run tasks at the same time."""
    keep: int = 0
    """How many workers are there even if no task waits."""
    batch: int = LARGEST_BATCH
    """The most tasks that a worker gets at once."""


class Assignment(NamedTuple):
    """What the pool is to do."""

    starts: int
    """How many workers to start."""
    sends: list[tuple[int, int]]
    """(index of a worker, how many of the next tasks in the queue it gets)."""


def assign(
    queue: Collection[Waiting], workers: Sequence[WorkerLoad], limits: PoolLimits
) -> Assignment:
    """Return which workers get the first tasks of *queue*, and how many workers to start."""
    running = sum(each.state is WorkerState.BUSY and not each.is_waiting for each in workers)
    present = sum(each.state is not WorkerState.LEAVING and not each.is_waiting for each in workers)
    wanted = min(limits.size, max(limits.keep, running + len(queue)))
    waiting = (each.seconds for each in queue)
    following = next(waiting, None)

    def take(least: int, most: int) -> int:
        """Return how many of the next tasks make a batch."""
        nonlocal following
        count, total = 0, 0.0
        while following is not None and count < most:
            total += following
            if total > BATCH_SECONDS and count >= least:
                break
            count += 1
            following = next(waiting, None)
        return count

    share = -(-len(queue) // limits.size)
    idle = (n for n, each in enumerate(workers) if each.state is WorkerState.IDLE)
    free = islice(idle, max(0, limits.size - running))
    sends = [(index, take(1, min(share, limits.batch))) for index in free]
    # Rounded down: the last tasks go to the worker that is free first.
    share = len(queue) // limits.size
    for index, each in enumerate(workers):
        has_room = each.state is WorkerState.BUSY and each.seconds <= BATCH_SECONDS
        if has_room and not each.is_waiting and limits.batch > 1:
            sends.append((index, take(0, min(share, limits.batch))))
    return Assignment(max(0, wanted - present), [each for each in sends if each[1]])


@dataclass(slots=True, eq=False, weakref_slot=True)
class NodeCode:
    """The code of nodes that look alike, as workers are sent it."""

    digest: bytes
    data: bytes
    seconds: float = float("inf")
    """How long its tasks take; infinity: unknown, or they wait for others."""

    def measured(self, seconds: float) -> None:
        """Note how long a task took: a moving average in which outliers count little."""
        if self.seconds == float("inf"):
            self.seconds = seconds
            return
        weight = 0.5 if seconds < self.seconds else 0.2
        self.seconds += weight * (min(seconds, 4 * self.seconds) - self.seconds)


@dataclass(slots=True, eq=False, weakref_slot=True)
class InFlight:
    """A job with the pool: from when it is taken until its end is posted."""

    id: int
    """Names it among the jobs of the pool."""
    job: Job
    mailbox: Mailbox
    code: NodeCode
    depth: int
    """How many tasks wait for it, each for the next."""
    contexts: Collection[bytes] = ()
    """Tokens of the `Context` channels that it reads."""
    body: bytes | None = None
    """The packed job; None: it is packed when it is sent."""
    refs: Sequence[BufferRef] = ()
    """What *body* names in shared memory."""
    worker: Any = None
    """The `WorkerProcess` that has it; None: it waits."""
    number: int = 0
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

    @property
    def seconds(self) -> float:
        """How long it is expected to run; infinity if it must not share a batch."""
        return self.code.seconds if self.job.task.timeout is None else float("inf")

    def stopped(self) -> Outcome:
        """Return how it ended, when it was told to stop."""
        policy, since = self.job.task.timeout, self.sent
        if policy is None or self.stopping is None or self.stopping == "cancel":
            return Withdrawn()
        limit = policy.run_timeout
        if self.stopping == "idle":
            limit, since = policy.idle_timeout, self.alive
        seconds, name = time.monotonic() - since, self.job.task.name
        return Raised(NodeTimeoutError(name, seconds, self.stopping, cast("float", limit)))


class TaskQueue:
    """Tasks that wait for a worker: called tasks before the siblings of their callers.

    A task that calls another holds its worker until the answer is there. First come,
    first served, a thousand such callers would hold a thousand workers before the first
    called task had its turn. So the most deeply nested tasks go first.
    """

    def __init__(self) -> None:
        self._by_depth: defaultdict[int, dict[int, InFlight]] = defaultdict(dict)

    def __iter__(self) -> Iterator[InFlight]:
        return chain.from_iterable(tasks.values() for tasks in self._by_depth.values())

    def add(self, task: InFlight) -> None:
        """Put *task* behind those of its depth."""
        self._by_depth[task.depth][task.id] = task

    def add_first(self, tasks: Sequence[InFlight]) -> None:
        """Put *tasks*, in their order, before those of their depth."""
        if tasks:
            waiting = [*tasks, *self]
            self._by_depth.clear()
            for task in waiting:
                self.add(task)

    def discard(self, task: InFlight) -> None:
        """Take out *task*, if it is there."""
        self._by_depth[task.depth].pop(task.id, None)

    def first(self) -> Collection[InFlight]:
        """Return the tasks whose turn it is: the most deeply nested ones, in their order."""
        deepest = max((depth for depth, tasks in self._by_depth.items() if tasks), default=0)
        return self._by_depth[deepest].values()

    def take(self, count: int) -> list[InFlight]:
        """Take out the first *count* tasks of `first`."""
        taken = [*islice(self.first(), count)]
        for task in taken:
            del self._by_depth[task.depth][task.id]
        return taken
