"""Memory for large results, which is reused when the user has dropped them."""

from __future__ import annotations

import os

import pytest

from flowpregel.executors.cluster.reused_memory import ReusedMemory

SIZE = 1 << 18


def address_of(view: memoryview) -> int:
    """Return the address of the first byte."""
    numpy = pytest.importorskip("numpy")
    return int(numpy.frombuffer(view, "u1").ctypes.data)


def test_a_copy_is_writable_and_the_data_do_not_change() -> None:
    """Neither for small data nor for large ones, whose memory is reused."""
    memory = ReusedMemory()
    for size in (3, SIZE):
        data = bytes(size)
        copy = memory.writable(data)
        copy[0] = 1

        assert bytes(size) == data
        assert bytes([1, *data[1:]]) == copy


def test_a_writable_buffer_is_not_copied() -> None:
    """The engine has copied it."""
    data = bytearray(SIZE)

    assert data is ReusedMemory().writable(data).obj


def test_memory_is_reused_when_the_last_view_of_it_is_gone() -> None:
    """A part of the copy is a view of it, too."""
    memory = ReusedMemory()
    copy = memory.writable(b"1" * SIZE)
    first = address_of(copy)
    part = copy[:1]
    del copy
    other = memory.writable(b"2" * SIZE)

    assert b"1" == part
    assert first != address_of(other)
    del part
    assert first == address_of(memory.writable(b"3" * SIZE))
    assert b"2" * SIZE == other


def test_memory_beyond_the_limit_is_not_reused() -> None:
    """The user may keep as many results as the machine has memory for."""
    memory = ReusedMemory(limit=2 * SIZE)
    copies = [memory.writable(bytes([number]) * SIZE) for number in range(5)]

    assert [bytes([number]) * SIZE for number in range(5)] == copies
    copies.clear()
    assert 2 * SIZE == memory.writable(bytes(2 * SIZE)).nbytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_does_not_change_a_result() -> None:
    """The memory is private."""
    copy = ReusedMemory().writable(bytes(SIZE))
    child = os.fork()
    if not child:
        copy[0] = 1
        os._exit(0)
    os.waitpid(child, 0)

    assert 0 == copy[0]
