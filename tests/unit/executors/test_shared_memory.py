"""Shared memory: a reader gets what was written, and memory is used again when nobody
reads it.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowpregel.executors.processes.wire import shared_memory
from flowpregel.executors.processes.wire.serialization import BufferRef, pack, unpack
from flowpregel.executors.processes.wire.shared_memory import (
    MUCH,
    Arena,
    BufferReader,
    FdSocket,
    fill,
    new_shared_file,
    released_in,
    segments_for,
)

SIZE = 1 << 20


class Pair:
    """A writer and a reader in one process."""

    def __init__(self, limit: int = 8 * SIZE) -> None:
        near, far = socket.socketpair()
        self.arena = Arena(limit)
        self.fds = FdSocket(near)
        self.reader = BufferReader(FdSocket(far))
        self._sockets = near, far

    def share(self, data: memoryview) -> BufferRef | None:
        ref = self.arena.share(data)
        if ref is not None:
            self.fds.send(ref.segment, self.arena.descriptor(ref))
        return ref

    def share_zeros(self, size: int) -> BufferRef:
        ref = self.share(memoryview(bytes(size)))
        assert ref is not None
        return ref

    def release(self, ref_id: int) -> None:
        self.arena.release([ref_id])

    def deliver_releases(self) -> None:
        self.arena.release(released_in(self.reader.take_released()))

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


def test_large_bytes_go_through_shared_memory(pair: Pair) -> None:
    """The message itself stays small."""
    data = os.urandom(SIZE)
    message = pack(data, pair.share)

    assert 1 == len(message.refs)
    assert len(message.data) < 100
    assert data == unpack(message.data, pair.reader.open)


@pytest.mark.parametrize("size", [1_000, 10_000_000])
def test_what_a_reader_writes_reaches_nobody_else(size: int) -> None:
    """Neither the writer nor a second reader of the same message, at any size."""
    pair = Pair(limit=2 * 10_000_000)
    array = np.zeros(size, np.uint8)
    message = pack(array, pair.share)

    first = unpack(message.data, pair.reader.open)
    first[:] = 1
    second = unpack(message.data, pair.reader.open)

    assert (size, 0, 0) == (first.sum(), second.sum(), array.sum())
    assert second.flags.writeable
    del first, second
    pair.close()


def test_a_segment_is_used_again_when_its_last_view_is_gone(pair: Pair) -> None:
    """And not before."""
    first = pair.share_zeros(SIZE)
    view = pair.reader.open(first)
    second = pair.share_zeros(SIZE)
    assert first.segment != second.segment

    del view
    pair.deliver_releases()

    assert first.segment == pair.share_zeros(SIZE).segment


def test_a_segment_that_made_room_for_another_is_closed_by_its_reader(
    pair: Pair,
) -> None:
    """Its memory was given back before."""
    pair.reader.open(pair.share_zeros(5 * SIZE))
    before = len(os.listdir("/proc/self/fd"))
    for size in (8, 5, 8, 5):
        pair.deliver_releases()
        pair.reader.open(pair.share_zeros(size * SIZE))

    assert before == len(os.listdir("/proc/self/fd"))


def test_no_program_that_a_reader_starts_inherits_a_segment() -> None:
    """Not even one that `os.system` starts, which closes no descriptors."""
    near, far = socket.socketpair()
    sent = new_shared_file(SIZE)
    FdSocket(near).send(7, sent)

    segment, received = FdSocket(far).receive()

    assert 7 == segment
    assert os.path.samestat(os.fstat(sent), os.fstat(received))
    assert not os.get_inheritable(received)
    for end in (near, far):
        end.close()
    for fd in (sent, received):
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack the flag")
def test_no_program_of_another_thread_inherits_a_segment_that_arrives() -> None:
    """Not even if the program is started as soon as the descriptor exists."""
    near, far = socket.socketpair()
    sent = new_shared_file(SIZE)
    FdSocket(near).send(7, sent)
    inheritable: dict[int, bool] = {}

    def look(_: Any, event: str, function: Any) -> None:
        if event == "c_return" and function.__name__ == "recvmsg":
            sys.setprofile(None)
            for fd in map(int, os.listdir("/proc/self/fd")):
                with suppress(OSError):  # the descriptor of the folder is closed
                    if os.path.samestat(os.fstat(sent), os.fstat(fd)):
                        inheritable[fd] = os.get_inheritable(fd)

    sys.setprofile(look)
    try:
        _, received = FdSocket(far).receive()
    finally:
        sys.setprofile(None)

    assert {sent: False, received: False} == inheritable
    for end in (near, far):
        end.close()
    for fd in (sent, received):
        os.close(fd)


def test_each_message_has_what_its_array_was_then(pair: Pair) -> None:
    """Though it is the same array, and nobody has read the first message yet."""
    array = np.zeros(SIZE, np.uint8)
    before = pack(array, pair.share)
    array[77_777] = 1
    after = pack(array, pair.share)

    sums = [int(unpack(each.data, pair.reader.open).sum()) for each in (before, after)]
    assert [0, 1] == sums


def test_what_does_not_fit_stays_in_the_message() -> None:
    """A full arena makes things slower, not impossible."""
    pair = Pair(limit=SIZE)
    data = os.urandom(4 * SIZE)
    message = pack(data, pair.share)

    assert not message.refs
    assert pair.arena.is_full
    assert data == unpack(message.data, pair.reader.open)
    pair.close()


def test_room_is_waited_for() -> None:
    """Until whoever holds the memory lets go of it."""
    arena = Arena(SIZE)
    held = [arena.allocate(SIZE)]
    assert arena.allocate(SIZE) is None
    timer = threading.Timer(0.01, held.clear)
    timer.start()

    assert arena.allocate(SIZE, wait=30) is not None
    timer.join()


@pytest.mark.parametrize(
    ("size", "wait", "is_reused"),
    [(MUCH, 5.0, True), (MUCH, 0.0, False), (SIZE, 5.0, False)],
    ids=["large", "large_at_once", "small"],
)
def test_a_segment_in_use_is_waited_for_only_if_the_segments_are_large(
    size: int, wait: float, is_reused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh memory costs more than a moment, but is not short."""
    arena = Arena(4 * MUCH)
    buffers = [arena.allocate(size)]
    segment = buffers[0].origin.id
    # The buffer is freed while the arena waits.
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: buffers.clear())
    monkeypatch.setattr(shared_memory, "time", clock)

    buffer = arena.allocate(size, wait)

    assert is_reused is (buffer.origin.id == segment)


def test_memory_that_lies_in_a_segment_is_not_written_again(pair: Pair) -> None:
    """It is read where it is, by each reader."""
    memory = pair.arena.allocate(SIZE)
    assert memory is not None
    fill(memory, memoryview(b"here"))

    refs = [pair.share(memoryview(memory)) for _ in range(2)]

    assert [memory.origin.id] * 2 == [ref.segment for ref in refs if ref]
    assert [b"here"] * 2 == [bytes(pair.reader.open(ref)[:4]) for ref in refs if ref]


def test_a_value_that_cannot_be_pickled_leaves_nothing_behind(pair: Pair) -> None:
    """What was written for it is free again."""
    with pytest.raises(TypeError):
        pack([np.zeros(SIZE), (each for each in ())], pair.share)

    assert 0 == len(pair.arena)


def test_a_closed_arena_holds_no_descriptor(pair: Pair) -> None:
    """However much of it was in use."""
    before = len(os.listdir("/proc/self/fd"))
    arena = Arena(8 * SIZE)
    for _ in range(3):
        arena.share(memoryview(bytes(SIZE)))
    arena.close()
    del arena

    assert before == len(os.listdir("/proc/self/fd"))


def test_segments_leave_most_descriptors_to_the_program() -> None:
    """However few it may open, and however many write."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        found = [segments_for(writers) for writers in (1, 2, 16, 1000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert [128, 64, 8, 4] == found


def test_a_buffer_that_is_too_large_to_keep_is_freed_at_once() -> None:
    """Its memory is not held for later buffers."""
    arena = Arena(2 * MUCH)
    large = arena.allocate(MUCH + 1)
    fd = os.dup(large.origin.fd)

    del large

    assert 0 == os.fstat(fd).st_size
    os.close(fd)


def test_a_mapping_that_nobody_wrote_to_is_used_again(pair: Pair) -> None:
    """One that somebody wrote to is not."""
    seen = []
    for number in range(3):
        ref = pair.share_zeros(SIZE)
        view = pair.reader.open(ref)
        seen.append(bytes(view[:1]))
        if number == 1:
            view[:1] = b"x"
        del view
        pair.deliver_releases()

    assert [b"\0"] * 3 == seen
