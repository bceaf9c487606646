"""A slot: the coordinator's end of one worker, and the tasks it has been given."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from flowpregel._core.effects import Ended
from flowpregel._core.ran import Span
from flowpregel._core.records import Outcome, Returned
from flowpregel.executors.base import Job, Mailbox
from flowpregel.executors.processes import frames
from flowpregel.executors.processes.birth import STOP_SIGNAL
from flowpregel.executors.processes.brief import Result
from flowpregel.executors.processes.frames import Frame
from flowpregel.executors.processes.link import Link
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.shared_memory import (
    BufferReader,
    FdSocket,
    ReleaseQueue,
)
from flowpregel.executors.processes.spawner import Newborn
from flowpregel.policies import TimeoutPolicy

Reason = Literal["cancel", "run", "idle"]


@dataclass(slots=True, eq=False)
class Party:
    """What flights of one run and one node have in common."""

    attended: bool
    """Whether the run's own OS thread comes to read."""
    depth: int = 0
    """How many tasks wait for each of them, each for the next."""
    digest: bytes = b""
    """Names their node's code."""
    code: bytes = b""
    timeout: TimeoutPolicy | None = None


@dataclass(slots=True, eq=False)
class Trip:
    """What flights have in common that a worker was given together."""

    slot: Slot
    started: float = 0.0
    """When it was given them: monotonic seconds."""
    batch: int = 0
    """Names them on the tokens; 0: they have none, it began at once."""


@dataclass(slots=True, eq=False)
class Flight:
    """A job on its way through the pool.

    There is one for each of very many small tasks: what several have in common stands
    elsewhere.
    """

    job: Job
    mailbox: Mailbox
    party: Party
    number: int
    trip: Trip | None = None
    """None: it waits for a worker."""
    stopping: Reason | None = None
    """Why it was told to stop, if it was."""
    calls: Set[int] | None = None
    """Its calls that are not answered; None: it made none."""
    leases: Sequence[int] = ()
    """What it was given in shared memory."""
    requeued: int = 0
    """How often its worker ended before it had begun."""
    started: float = 0.0
    """If it has a timeout: when its time began, in monotonic seconds."""
    alive: float = 0.0
    """If it has a timeout: when it last showed a sign of life."""

    @property
    def slot(self) -> Slot | None:
        """The slot of the worker that has it."""
        trip = self.trip
        return None if trip is None else trip.slot

    def ended(
        self, outcome: Outcome, span: Span | None, caught: Collection[str] | None = None
    ) -> Ended:
        """Return what its run is told."""
        info = self.job.info
        return Ended(info.task_id, info.attempt, outcome, span, caught)


Landing: TypeAlias = tuple[Flight, Ended]
"""A flight that has ended, and what its run is told."""


class State(Enum):
    """What a slot's worker is doing."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"
    """Told to stop, or killed: it takes no more tasks."""


class Slot:
    """One worker process, its link, and the tasks in flight on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.STARTING
        self.flights: dict[int, Flight] = {}
        """The tasks it has, in the order in which it runs them."""
        self.known: set[bytes] = set()
        """Digests of the nodes its worker has."""
        self.is_held = False
        """Whether its link is left unread, since its run is behind."""
        self.is_garbled = False
        """Whether it has sent what cannot be read: nothing after that is listened to."""
        self.has_ended = False
        """Whether its worker is gone; what it has sent may still be read."""
        self.has_contexts = False
        """Whether it was given a task that reads `Context` channels."""
        self.runs: set[int] = set()
        """Numbers of the runs its worker knows."""
        self.served = 0
        self.open_calls = 0
        """How many calls of its tasks are not answered."""
        self.round = 0
        """Names its batch on the tokens: 1 to 255."""
        self.idle_since = time.monotonic()
        self.killed: str | None = None
        """Why we killed it, if we did."""
        self.failure: BaseException | None = None
        """What its initializer raised."""
        self.reads: set[int] = set()
        """Buffers of the pool's arena that the worker reads."""
        self.arrived: deque[Frame] = deque()
        """What it has sent and nobody has acted on."""
        self.returned: list[bytes] = []
        """What it said it reads no more, until that is acted on."""
        self.returns = ReleaseQueue()
        """Buffers of the worker's arena that we read no more."""
        self._born: Newborn | None = None
        self._link: Link | None = None
        self._door: FdSocket | None = None
        self._reader: BufferReader | None = None

    def born(self, newborn: Newborn) -> None:
        """Take the ends of the worker that was started."""
        self._link = Link(newborn.link, newborn.mark)
        self._door = FdSocket(newborn.door)
        self._reader = BufferReader(self._door, self.returns)
        self._born = newborn

    @property
    def door(self) -> FdSocket:
        """Where descriptors are handed over."""
        assert self._door is not None
        return self._door

    def landings(self, results: Iterable[Result]) -> list[Landing]:
        """Return how those of its tasks ended that made but one small write."""
        flights, pid = self.flights, self.pid
        return [
            (
                flight,
                Ended(
                    (info := flight.job.info).task_id,
                    info.attempt,
                    Returned(((channel, value),)),
                    (began, seconds, "processes", pid),
                ),
            )
            for number, seconds, began, channel, value in results
            if (flight := flights.get(number)) is not None
        ]

    def open(self, ref: BufferRef) -> memoryview:
        """Return a buffer of the worker's arena."""
        assert self._reader is not None
        return self._reader.open(ref)

    @property
    def newborn(self) -> Newborn:
        """The worker's ends."""
        assert self._born is not None
        return self._born

    @property
    def link(self) -> Link:
        """The link to the worker."""
        assert self._link is not None
        return self._link

    @property
    def is_born(self) -> bool:
        """Whether its process was started."""
        return self._born is not None

    @property
    def pid(self) -> int:
        """The worker's pid; 0 before it was started."""
        return self._born.pid if self._born else 0

    @property
    def is_waiting(self) -> bool:
        """Whether its task waits for tasks it called: its worker is held, not used."""
        return self.open_calls > 0

    def is_last(self, flight: Flight) -> bool:
        """Return whether *flight* is on this worker, and none behind it: it runs, or has ended."""
        return flight.slot is self and next(reversed(self.flights), None) == flight.number

    def running(self) -> Flight | None:
        """Return the task that its worker has begun and not ended."""
        return self.flights.get(self.newborn.board.running)

    def signal_stop(self, flight: Flight) -> None:
        """Make *flight*'s code raise, if it is still the one that runs."""
        self.newborn.board.ask_to_stop(flight.number)
        self._signal(STOP_SIGNAL)

    def kill(self, why: str) -> None:
        """Kill the worker now; its end is noticed like any other."""
        self.state = State.LEAVING
        if self._born is None or (self._signal(signal.SIGKILL) and self.killed is None):
            self.killed = why

    def signal_flush(self) -> None:
        """Make the worker send the results it holds back."""
        self._signal(STOP_SIGNAL)

    def _signal(self, number: int) -> bool:
        born = self.newborn
        try:
            if born.pidfd is not None:
                signal.pidfd_send_signal(born.pidfd, number)
            else:
                os.kill(born.pid, number)
        except OSError:
            return False
        return True

    def end_family(self) -> None:
        """Kill what the worker's tasks have started and left behind."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def dismiss(self) -> None:
        """Ask the idle worker to leave."""
        self.state = State.LEAVING
        self.link.send(frames.STOP)

    def close(self) -> None:
        """Close every end that is held."""
        born, self._born = self._born, None
        if born is None:
            return
        self.link.close()
        self.door.close()
        if self._reader is not None:
            self._reader.close()
        born.board.close()
        for fd in (born.tokens_read, born.tokens_write, born.stdout, born.stderr, born.pidfd):
            if fd is not None:
                os.close(fd)


def span_of(flight: Flight) -> Span | None:
    """Return when *flight* ran whose worker did not live to say so."""
    trip = flight.trip
    if trip is None:
        return None
    seconds = time.monotonic() - (flight.started or trip.started)
    return time.time_ns() - int(seconds * 1e9), seconds, "processes", trip.slot.pid
