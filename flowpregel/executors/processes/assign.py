"""What the pool decides, without I/O: the tasks that it has, and which worker gets which of them.

`assign` is a pure function; the pool does what it returns.

* An idle worker gets the next task. Tasks that are known to be short go several at once:
  as many as keep it busy for `BATCH_SECONDS`, but no more than its share of the queue.
* A busy worker that has little left to do gets its next tasks ahead of time, so that it
  need not wait for a round trip.
* A worker whose task waits for tasks that it called is not counted: its place is free.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.serialization import BufferRef

BATCH_SECONDS: Final = 0.010
"""For how long a batch is to keep a worker busy."""
LARGEST_BATCH: Final = 1024
StopReason: TypeAlias = Literal["cancel", "run", "idle"]


# ------------------------------------------------ tasks


@dataclass(slots=True, eq=False)
class NodeCode:
    """The code of nodes that look alike, as workers are sent it."""

    digest: bytes
    data: bytes
    seconds: float = inf
    """How long its tasks take; infinity: unknown, or they wait for others."""

    def measured(self, seconds: float) -> None:
        """Note how long a task took: a moving average in which outliers count little."""
        if self.seconds == inf:
            self.seconds = seconds
            return
        weight = 0.5 if seconds < self.seconds else 0.2
        self.seconds += weight * (min(seconds, 4 * self.seconds) - self.seconds)


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
        return self.code.seconds if self.job.task.timeout is None else inf

    def ends_at(self, reason: StopReason) -> float:
        """Return when that timeout of its will be over: monotonic seconds."""
        policy: Any = self.job.task.timeout
        limit = policy.run_timeout if reason == "run" else policy.idle_timeout
        return inf if limit is None else limit + (self.sent if reason == "run" else self.alive)

    def stopped(self) -> Outcome:
        """Return how it ended, when it was told to stop."""
        policy: Any = self.job.task.timeout
        name, now = self.job.task.name, time.monotonic()
        if self.stopping == "run":
            return Raised(NodeTimeoutError(name, now - self.sent, "run", policy.run_timeout))
        if self.stopping == "idle":
            return Raised(NodeTimeoutError(name, now - self.alive, "idle", policy.idle_timeout))
        return Withdrawn()


class TaskQueue:
    """Tasks that wait for a worker: called tasks before the siblings of their callers.

    A task that calls another holds its worker until the answer is there. First come,
    first served, a thousand such callers would hold a thousand workers before the first
    called task had its turn. So the most deeply nested tasks go first, and among them
    those that were taken first.
    """

    def __init__(self) -> None:
        self._tasks: list[tuple[int, int, InFlight]] = []

    def __iter__(self) -> Iterator[InFlight]:
        return (task for *_, task in self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: InFlight) -> None:
        """Have *task* wait for its turn."""
        insort(self._tasks, (-task.job.task.depth, task.id, task))

    def discard(self, task: InFlight) -> None:
        """Take out *task*, if it is there."""
        place = -task.job.task.depth, task.id, task
        at = bisect_left(self._tasks, place)
        if self._tasks[at : at + 1] == [place]:
            del self._tasks[at]

    def take(self, count: int) -> list[InFlight]:
        """Take out the first *count* tasks."""
        taken = [task for *_, task in self._tasks[:count]]
        del self._tasks[:count]
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


class PoolLimits(NamedTuple):
    """How many workers and how large batches a pool may have."""

    size: int
    """How many workers run tasks at the same time."""
    keep: int = 0
    """How many workers are there even if no task waits."""
    batch: int = LARGEST_BATCH
    """The most tasks that a worker gets at once."""


def assign(
    queue: TaskQueue, workers: Sequence[WorkerLoad], limits: PoolLimits
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many workers to start, and which ones get the first tasks of *queue*.

    That is, for each of these, its index and how many of the next tasks it gets.
    """
    states = [each.state for each in workers]
    running = states.count(WorkerState.BUSY)
    present = running + states.count(WorkerState.IDLE) + states.count(WorkerState.STARTING)
    wanted = min(limits.size, max(limits.keep, running + len(queue)))
    waiting = (each.seconds for each in queue)
    following = next(waiting, None)

    def take(least: int, most: int) -> int:
        """Return how many of the next tasks make a batch."""
        nonlocal following
        count, total, most = 0, 0.0, min(most, limits.batch)
        while following is not None and count < most:
            total += following
            if total > BATCH_SECONDS and count >= least:
                break
            count += 1
            following = next(waiting, None)
        return count

    idle = (n for n, state in enumerate(states) if state is WorkerState.IDLE)
    free = islice(idle, max(0, limits.size - running))
    sends = [(index, take(1, -(-len(queue) // limits.size))) for index in free]
    for index, (state, seconds) in enumerate(workers):
        if state is WorkerState.BUSY and seconds <= BATCH_SECONDS and limits.batch > 1:
            # Rounded down: the last tasks go to the worker that is free first.
            sends.append((index, take(0, len(queue) // limits.size)))
    return max(0, wanted - present), [each for each in sends if each[1]]
