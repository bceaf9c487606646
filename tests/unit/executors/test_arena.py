"""Shared memory: what is written is read, and used again only when nobody reads it."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from flowpregel.executors.processes.arena import (
    Arena,
    Door,
    Returns,
    returns_in,
    segments_for,
)
from flowpregel.executors.processes.parcel import Lease, pack, unpack
from flowpregel.executors.processes.reader import TaskReader

SIZE = 1 << 20


class Pair:
    """A writer and a reader in one process."""

    def __init__(self, limit: int = 8 * SIZE) -> None:
        near, far = socket.socketpair()
        self.arena = Arena(limit, remember=True)
        self.door = Door(near)
        self.returns = Returns()
        self.reader = TaskReader(Door(far), self.returns)
        self._sockets = near, far

    def share(self, data: memoryview, source: object) -> Lease | None:
        lease = self.arena.share(data, source)
        if lease is not None:
            self.door.hand_over(lease.segment, self.arena.descriptor(lease.segment))
        return lease

    def release(self, lease_id: int, readers: int = 1) -> None:
        self.arena.release(lease_id, readers)

    def close(self) -> None:
        self.reader.close()
        self.arena.close()
        for each in self._sockets:
            each.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A pair with room for a few segments."""
    pair = Pair()
    yield pair
    pair.close()


def test_large_bytes_are_read_where_they_lie(pair: Pair) -> None:
    """And cannot be written there."""
    data = os.urandom(SIZE)
    parcel, leases = pack(data, pair)

    assert 1 == len(leases)
    assert len(parcel) < 100
    assert data == unpack(parcel, pair.reader.open)
    assert pair.reader.open(leases[0]).readonly


def test_a_segment_is_used_again_when_its_last_view_is_gone(pair: Pair) -> None:
    """And not before."""
    first = pair.share(memoryview(bytes(SIZE)), None)
    assert first is not None
    view = pair.reader.open(first)
    second = pair.share(memoryview(bytes(SIZE)), None)
    assert second is not None
    assert first.segment != second.segment

    del view
    pair.reader.task_ended()
    for lease_id, readers in returns_in(pair.returns.take()):
        pair.arena.release(lease_id, readers)
    third = pair.share(memoryview(bytes(SIZE)), None)

    assert third is not None
    assert first.segment == third.segment


def test_a_segment_that_made_room_for_another_is_closed_by_its_reader(pair: Pair) -> None:
    """Its memory was given back before."""
    first = pair.share(memoryview(bytes(5 * SIZE)), None)
    assert first is not None
    pair.reader.open(first)
    before = len(os.listdir("/proc/self/fd"))
    for size in (8, 5, 8, 5):
        pair.reader.task_ended()
        for lease_id, readers in returns_in(pair.returns.take()):
            pair.arena.release(lease_id, readers)
        lease = pair.share(memoryview(bytes(size * SIZE)), None)
        assert lease is not None
        pair.reader.open(lease)

    assert before == len(os.listdir("/proc/self/fd"))


def test_one_object_for_two_tasks_is_written_once(pair: Pair) -> None:
    """While the first has not ended."""
    source = bytearray(SIZE)

    assert pair.share(memoryview(source), source) == pair.share(memoryview(source), source)


def test_an_object_is_written_anew_after_its_tasks_have_ended(pair: Pair) -> None:
    """It may have changed in a place where no sample was taken."""
    source = bytearray(SIZE)
    first = pair.share(memoryview(source), source)
    assert first is not None
    pair.arena.ended(first.id)

    assert first != pair.share(memoryview(source), source)


def test_an_object_that_was_filled_anew_is_written_anew(pair: Pair) -> None:
    """Though its first task still runs."""
    source = bytearray(SIZE)
    first = pair.share(memoryview(source), source)
    source[:] = b"x" * SIZE

    assert first != pair.share(memoryview(source), source)


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_an_object_that_was_changed_is_written_anew(pair: Pair, place: int) -> None:
    """At its edges to the byte, in between where as much as the distance of two samples changed."""
    source = bytearray(SIZE)
    first = pair.share(memoryview(source), source)
    width = SIZE // 256 if 0 < place < SIZE - 1 else 1
    source[place : place + width] = b"x" * width

    assert first != pair.share(memoryview(source), source)


def test_what_does_not_fit_stays_in_the_parcel() -> None:
    """A full arena makes things slower, not impossible."""
    pair = Pair(limit=SIZE)
    data = os.urandom(4 * SIZE)
    parcel, leases = pack(data, pair)

    assert [] == leases
    assert pair.arena.is_full
    assert data == unpack(parcel, pair.reader.open)
    pair.close()


def test_a_value_that_cannot_be_pickled_leaves_no_lease(pair: Pair) -> None:
    """What was written for it is free again."""
    import numpy as np

    with pytest.raises(TypeError):
        pack([np.zeros(SIZE), (each for each in ())], pair)

    assert 0 == pair.arena.leased


def test_segments_leave_most_descriptors_to_the_program() -> None:
    """However few it may open, and however many write."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        found = [segments_for(writers) for writers in (1, 2, 16, 1000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert [128, 64, 8, 4] == found
