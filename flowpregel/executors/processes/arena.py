"""The arena: shared memory for what is too large for a link.

::

    writer                                     reader
    ------                                     ------
    share(bytes) -> lease --- parcel --------> open(lease) -> read-only view
       segment   === descriptor, over the door ==> mapped
    release(lease) <-------- when the last view of it is gone

A segment has no name, only descriptors, so that nothing is left when both ends
are gone, however they went. Segments are used again: fresh pages cost twenty
times what writing them costs. A lease has its segment for itself.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from struct import Struct
from typing import Any, Final

from flowpregel.executors.processes.board import new_shared_file
from flowpregel.executors.processes.parcel import Lease

_ID: Final = Struct("<Q")
_SMALLEST: Final = 1 << 18
_MOST_SEGMENTS: Final = 256
_FEWEST_SEGMENTS: Final = 4
_SAMPLES: Final = 256
_SAMPLE: Final = 8
"""Words of eight bytes in a sample."""
_EDGE: Final = 4096


@dataclass(slots=True, eq=False)
class _Segment:
    id: int
    fd: int
    size: int
    memory: mmap.mmap
    lease: int | None = None


@dataclass(slots=True, eq=False)
class _Shared:
    """A lease, and what it was written for."""

    lease: Lease
    segment: _Segment
    source: Any
    """The object whose bytes these are, kept alive so that its id stays its own."""
    readers: int = 0
    """Who may still look at it."""
    uses: int = 0
    """Tasks that were given it and have not ended."""


class Arena:
    """The writer's side: segments, and who reads what in them.

    Args:
        limit: The most bytes all segments may have together.
        remember: Whether one object is written once for several readers.
        segments: The most segments; each holds descriptors here and where it is read.
    """

    def __init__(
        self, limit: int, *, remember: bool = False, segments: int = _MOST_SEGMENTS
    ) -> None:
        self._limit = limit
        self._most = segments
        self._remember = remember
        self._segments: dict[int, _Segment] = {}
        self._shared: dict[int, _Shared] = {}
        self._by_source: dict[int, _Shared] = {}
        self._total = 0
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.is_full = False
        """Whether something did not fit since it was last looked at."""

    def share(self, data: memoryview, source: Any) -> Lease | None:
        """Write *data*, for one reader; return None when there is no room.

        Args:
            data: The bytes.
            source: Whose bytes they are. While an earlier lease of the same object
                is read, and the object has not changed, that lease is used again.
        """
        with self._lock:
            known = self._by_source.get(id(source)) if source is not None else None
            if known is not None and _looks_the_same(data, known):
                known.readers += 1
                known.uses += 1
                return known.lease
            segment = self._segment_for(data.nbytes)
            if segment is None:
                self.is_full = True
                return None
            segment.memory[: data.nbytes] = data
            lease = Lease(next(self._numbers), segment.id, data.nbytes)
            segment.lease = lease.id
            shared = _Shared(lease, segment, source if self._remember else None, 1, 1)
            self._shared[lease.id] = shared
            if shared.source is not None:
                self._by_source[id(source)] = shared
            return lease

    def release(self, lease_id: int, readers: int = 1) -> None:
        """Note that *readers* of a lease are done with it."""
        with self._lock:
            shared = self._shared.get(lease_id)
            if shared is None:
                return
            shared.readers -= readers
            if shared.readers > 0:
                return
            del self._shared[lease_id]
            shared.segment.lease = None
            self._forget_source(shared)

    def ended(self, lease_id: int) -> None:
        """Note that a task that was given a lease has ended.

        Once all have, its object may be changed, and is written anew when it is
        sent again, though somebody may still look at the old bytes.
        """
        with self._lock:
            shared = self._shared.get(lease_id)
            if shared is None:
                return
            shared.uses -= 1
            if shared.uses <= 0:
                self._forget_source(shared)

    def _forget_source(self, shared: _Shared) -> None:
        source, shared.source = shared.source, None
        if source is not None and self._by_source.get(id(source)) is shared:
            del self._by_source[id(source)]

    @property
    def leased(self) -> int:
        """How many leases are out."""
        return len(self._shared)

    def descriptor(self, segment_id: int) -> int:
        """Return the descriptor of a segment."""
        return self._segments[segment_id].fd

    def _segment_for(self, size: int) -> _Segment | None:
        free = [each for each in self._segments.values() if each.lease is None]
        fitting = [each for each in free if size <= each.size <= 2 * max(size, _SMALLEST)]
        if fitting:
            return min(fitting, key=lambda each: each.size)
        wanted = _rounded(size)
        for victim in free:
            if self._fits(wanted):
                break
            # Its memory goes now, though readers have it open, and its size tells them.
            os.ftruncate(victim.fd, 0)
            self._drop(victim)
        return self._create(wanted) if self._fits(wanted) else None

    def _fits(self, size: int) -> bool:
        return self._total + size <= self._limit and len(self._segments) < self._most

    def _create(self, size: int) -> _Segment | None:
        try:
            fd = new_shared_file(size)
        except OSError:
            return None
        try:
            # Asked for now: pages that cannot be had later would end us with SIGBUS.
            os.posix_fallocate(fd, 0, size)
            memory = mmap.mmap(fd, size)
        except (OSError, ValueError):
            os.close(fd)
            return None
        segment = _Segment(next(self._numbers), fd, size, memory)
        self._segments[segment.id] = segment
        self._total += size
        return segment

    def _drop(self, segment: _Segment) -> None:
        del self._segments[segment.id]
        self._total -= segment.size
        segment.memory.close()
        os.close(segment.fd)

    def close(self) -> None:
        """Give up every segment; readers keep what they have mapped."""
        with self._lock:
            for segment in [*self._segments.values()]:
                self._drop(segment)
            self._shared.clear()
            self._by_source.clear()


def _rounded(size: int) -> int:
    """Return *size* rounded up so that similar sizes share segments."""
    step = max(_SMALLEST, 1 << (size.bit_length() - 3))
    return -(-size // step) * step


def _looks_the_same(data: memoryview, shared: _Shared) -> bool:
    """Return whether *data* still is what was written, as far as samples can tell.

    Nobody may change what a running task was given, so this only has to catch
    mistakes; a buffer that is filled anew changes everywhere.
    """
    size = data.nbytes
    if size != shared.lease.size:
        return False
    if data.readonly:
        return True
    written = memoryview(shared.segment.memory)
    # As bytes: views are compared item by item, which takes eight times as long.
    edges = slice(0, _EDGE), slice(max(0, size - _EDGE), size)
    if any(bytes(data[edge]) != bytes(written[edge]) for edge in edges):
        return False
    # The n-th words of all samples at once: a third of the time that sample by sample takes.
    whole = size // 8 * 8
    words, written_words = data[:whole].cast("Q"), written[:whole].cast("Q")
    stride = max(_SAMPLE, size // 8 // _SAMPLES)
    return all(words[nth::stride] == written_words[nth::stride] for nth in range(_SAMPLE))


class Door:
    """Hands descriptors of segments to the other process.

    Args:
        connection: A connected Unix stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._handed: set[int] = set()

    def hand_over(self, segment: int, fd: int) -> None:
        """Make *segment* known on the other side, if it is not.

        Raises:
            OSError: It cannot be handed over now.
        """
        if segment not in self._handed:
            socket.send_fds(self._socket, [_ID.pack(segment)], [fd])
            self._handed.add(segment)

    def take_in(self) -> tuple[int, int]:
        """Return the next segment handed over, and its descriptor here.

        Raises:
            OSError: Nothing was handed over, or nothing will be.
        """
        data, fds, _, _ = socket.recv_fds(self._socket, _ID.size, 1)
        if len(data) != _ID.size or len(fds) != 1:
            raise OSError("the other end of the door is closed")
        return int(_ID.unpack(data)[0]), fds[0]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


_READ: Final = Struct("<QI")


class Returns:
    """Leases that are read no more, until somebody has time to say so."""

    def __init__(self) -> None:
        self._done: deque[tuple[int, int]] = deque()

    def __call__(self, lease_id: int, readers: int) -> None:
        # Called by the garbage collector, anywhere: it may only note.
        self._done.append((lease_id, readers))

    def take(self) -> bytes:
        """Return what was noted, as the body of a frame; empty if nothing was."""
        if not self._done:
            return b""
        parts = []
        while self._done:
            parts.append(_READ.pack(*self._done.popleft()))
        return b"".join(parts)


def returns_in(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the lease ids in the body of such a frame, and how many readers are done."""
    return _READ.iter_unpack(body)


def segments_for(writers: int) -> int:
    """Return how many segments each of *writers* may have, so that descriptors do not run out.

    All of them together take at most about a quarter of those this process may open:
    two for each segment, in the process that writes it and in the one that reads.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_SEGMENTS
    return max(_FEWEST_SEGMENTS, min(_MOST_SEGMENTS, allowed // (8 * writers)))


def default_limit() -> int:
    """Return a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
