"""The reader's side of an arena: opens leases, and tells when the last view of one is gone.

A worker is asked after each of its tasks (`TaskReader`), so it may keep a segment mapped
although nobody looks at it: to map 50 MB takes longer than to read them. The coordinator's
views go at any time (`Reader`): they are told by the end of a mapping that each lease has
for itself.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flowpregel.executors.processes.arena import Door
from flowpregel.executors.processes.parcel import Lease

_MAP_NOW: Final[int] = getattr(mmap, "MAP_POPULATE", 0)
_MAP_NOW_UP_TO: Final = 64 << 20
"""Bytes up to which a lease is mapped as a whole: page by page takes twice as long (50 MB: 6 ms
instead of 3), but who wants one row of a large table should not wait for the rest."""
_KEPT: Final = 256 << 20
"""Bytes of mappings that a worker keeps while nobody looks at them."""


class _Descriptors:
    """The segments that were handed over.

    Args:
        door: Where descriptors come from.
        dropped: Told of each that its writer has given up.
    """

    def __init__(self, door: Door, dropped: Callable[[int], object] = lambda segment: None) -> None:
        self._door = door
        self._dropped = dropped
        self._fds: dict[int, int] = {}

    def map(self, lease: Lease) -> mmap.mmap:
        """Return the bytes of *lease*, mapped to be read.

        Raises:
            OSError: Its segment was not handed over.
        """
        if lease.segment not in self._fds:
            self._forget_dropped()
        while lease.segment not in self._fds:
            segment, fd = self._door.take_in()
            self._fds[segment] = fd
        flags = mmap.MAP_SHARED | (_MAP_NOW if lease.size <= _MAP_NOW_UP_TO else 0)
        return mmap.mmap(self._fds[lease.segment], lease.size, flags, mmap.PROT_READ)

    def _forget_dropped(self) -> None:
        """Close the descriptors of segments that their writer has given up for others."""
        for segment, fd in [*self._fds.items()]:
            if not os.fstat(fd).st_size:
                del self._fds[segment]
                self._dropped(segment)
                os.close(fd)

    def close(self) -> None:
        """Close the descriptors; what is mapped stays readable."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


class Reader:
    """The coordinator's: a lease is done with when the last view of it goes, whenever that is.

    Args:
        door: Where descriptors come from.
        done: Called, from wherever the last view goes, with a lease id and how
            often it had been opened.
    """

    def __init__(self, door: Door, done: Callable[[int, int], None]) -> None:
        self._descriptors = _Descriptors(door)
        self._done = done
        self._open: dict[int, tuple[weakref.ref[mmap.mmap], list[int]]] = {}

    def open(self, lease: Lease) -> memoryview:
        """Return the bytes of *lease*, read-only.

        Raises:
            OSError: Its segment was not handed over.
        """
        known = self._open.get(lease.id)
        memory = known[0]() if known is not None else None
        if known is not None and memory is not None:
            known[1][0] += 1
            return memoryview(memory)
        # One mapping a lease: when numpy and all others have let go of it, it goes,
        # and that is how we know.
        memory = self._descriptors.map(lease)
        opened = [1]
        self._open[lease.id] = (weakref.ref(memory), opened)
        weakref.finalize(memory, self._gone, lease.id, opened).atexit = False
        return memoryview(memory)

    def _gone(self, lease_id: int, opened: list[int]) -> None:
        self._open.pop(lease_id, None)
        self._done(lease_id, opened[0])

    def close(self) -> None:
        """Close the descriptors; what is mapped stays readable."""
        self._descriptors.close()


@dataclass(slots=True, eq=False)
class _Opened:
    """A lease that tasks were given."""

    memory: mmap.mmap
    times: int = 0


class TaskReader:
    """A worker's: after each task it is looked which leases nobody views any more.

    Args:
        door: Where descriptors come from.
        done: Called by `task_ended`, with a lease id and how often it had been opened.
    """

    def __init__(self, door: Door, done: Callable[[int, int], None]) -> None:
        self._done = done
        self._open: dict[int, _Opened] = {}
        self._mapped: OrderedDict[int, mmap.mmap] = OrderedDict()
        """By segment, which has one lease at a time; those that were used last are last."""
        self._descriptors = _Descriptors(door, lambda segment: self._mapped.pop(segment, None))

    def open(self, lease: Lease) -> memoryview:
        """Return the bytes of *lease*, read-only.

        Raises:
            OSError: Its segment was not handed over.
        """
        opened = self._open.get(lease.id)
        if opened is None:
            opened = self._open[lease.id] = _Opened(self._memory(lease))
        opened.times += 1
        view = memoryview(opened.memory)
        return view if view.nbytes == lease.size else view[: lease.size]

    def _memory(self, lease: Lease) -> mmap.mmap:
        memory = self._mapped.pop(lease.segment, None)
        if memory is None or len(memory) < lease.size:
            memory = self._descriptors.map(lease)
        self._mapped[lease.segment] = memory
        return memory

    def task_ended(self) -> None:
        """Tell of leases that nobody looks at any more."""
        if not self._open:
            return
        for lease_id, opened in [*self._open.items()]:
            if not _is_viewed(opened.memory):
                del self._open[lease_id]
                self._done(lease_id, opened.times)
        kept = sum(map(len, self._mapped.values()))
        while kept > _KEPT:
            # Who still looks at it holds it; we only do not use it for the next lease.
            _, memory = self._mapped.popitem(last=False)
            kept -= len(memory)

    def close(self) -> None:
        """Close the descriptors; what is mapped stays readable."""
        self._descriptors.close()


def _is_viewed(memory: mmap.mmap) -> bool:
    """Return whether anybody looks at *memory*, which was mapped to be read."""
    try:
        memory.resize(len(memory))
    except BufferError:
        return True
    except TypeError:
        # No such mapping can be resized; the views would have been complained of first.
        return False
    return True
