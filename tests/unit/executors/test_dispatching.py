"""What a worker is sent, when two OS threads send to it at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowpregel._core.records import Kind, Node
from flowpregel.context import TaskInfo
from flowpregel.executors.base import Job
from flowpregel.executors.processes import frames
from flowpregel.executors.processes.dispatch import Dispatch
from flowpregel.executors.processes.serialization import SHARE_FROM
from flowpregel.executors.processes.shared_memory import Arena
from flowpregel.executors.processes.slot import Flight, Party, Slot, State, Trip


@dataclass
class Wire:
    """A link that keeps what it is given to send."""

    sent: list[tuple[int, bytes]] = field(default_factory=list)
    has_rest: bool = False

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> bool:
        self.sent.append((kind, body))
        return True

    def flush(self) -> bool:
        return True

    def fileno(self) -> int:
        return 7


@dataclass
class RunClient:
    """The ends of a worker that was never started."""

    tokens_read: int
    tokens_write: int


@dataclass
class Meanwhile:
    """Deadlines; when one is added, something else happens first."""

    happens: list[Callable[[], None]] = field(default_factory=list)

    def add(self, when: float, action: Callable[[float], None]) -> bool:
        if self.happens:
            self.happens.pop()()
        return False


@dataclass
class Owner:
    """The pool, and the hub: notes what was taken back, and who waits to write."""

    taken: list[Flight] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)

    def recalled(self, flights: list[Flight]) -> None:
        self.taken += flights

    def has_spare_cpu(self) -> bool:
        return False

    def watch_writable(self, fd: int, handler: Callable[[], None]) -> None:
        self.writers.append(fd)

    def written(self, fd: int) -> None:
        self.writers = [each for each in self.writers if each != fd]


class Door:
    """Hands nothing over."""

    def send(self, segment: int, fd: int) -> None:
        """Nobody is there."""


class SlotOfNobody(Slot):
    """A slot whose worker was never started."""

    def __init__(self, wire: Any, ends: Any) -> None:
        super().__init__("worker")
        door: Any = Door()
        self.state = State.BUSY
        self._link, self._born, self._door = wire, ends, door


@dataclass
class Desk:
    """A dispatch, and what it works with."""

    dispatch: Dispatch
    slot: Slot
    wire: Wire
    owner: Owner
    meanwhile: Meanwhile
    arena: Arena


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A dispatch with one worker, which never reads."""
    owner, meanwhile, wire, arena = Owner(), Meanwhile(), Wire(), Arena(1 << 22)
    parts: list[Any] = [owner, owner, meanwhile, arena]
    read, write = os.pipe()
    os.set_blocking(read, False)
    slot = SlotOfNobody(wire, RunClient(read, write))
    yield Desk(Dispatch(*parts), slot, wire, owner, meanwhile, arena)
    os.close(read)
    os.close(write)
    arena.close()


def group(desk: Desk, *numbers: int, given: Any = None) -> list[Flight]:
    """Return flights that the desk's slot was given."""
    made = []
    nobody: Any = None
    trip = Trip(desk.slot)
    for number in numbers:
        info = TaskInfo(task_id=f"t{number}", name="n", namespace="", step=0, stop=1)
        job = Job(info=info, kind=Kind.PULL, node=Node(name="n"), input=given)
        each = Flight(job, nobody, Party(True, digest=b"d" * 16), number, trip)
        desk.slot.flights[number] = each
        made.append(each)
    return made


def send(desk: Desk, flights: list[Flight]) -> None:
    """Send flights that were made together."""
    trip = flights[0].trip
    assert trip is not None
    desk.dispatch.send(trip, flights)


def test_a_batch_that_was_taken_back_before_it_left_takes_no_turns_of_the_next(desk: Desk) -> None:
    """Each frame names its own batch, whichever of the two is sent first."""
    first, second = group(desk, 1, 2), group(desk, 3, 4)

    def another_thread() -> None:
        desk.dispatch.recall(desk.slot)
        send(desk, second)

    desk.meanwhile.happens.append(another_thread)
    send(desk, first)

    batches = [body[0] for kind, body in desk.wire.sent if kind == frames.TASKS]
    tokens = os.read(desk.slot.newborn.tokens_read, 9)
    assert 2 == len(set(batches))
    assert bytes([batches[0]]) * 2 == tokens


def test_shared_memory_of_tasks_that_are_taken_back_is_free_again(desk: Desk) -> None:
    """Their worker never looks at it."""
    send(desk, group(desk, 1, 2, given=b"x" * SHARE_FROM))
    assert len(desk.arena) > 0

    desk.dispatch.recall(desk.slot)

    assert 2 == len(desk.owner.taken)
    assert 0 == len(desk.arena)
    assert not desk.slot.reads


def test_what_is_left_over_while_the_rest_is_said_to_be_written_is_written_too(desk: Desk) -> None:
    """Who sends at that moment has asked too early to be told when the link can take more."""
    desk.wire.has_rest = True
    desk.owner.watch_writable(desk.wire.fileno(), lambda: None)

    desk.dispatch.flush(desk.slot)

    assert [desk.wire.fileno()] == desk.owner.writers
