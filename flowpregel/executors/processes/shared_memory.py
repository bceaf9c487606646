"""Shared memory for the large parts of a message, which would be slow on a link.

::

    writer                                        reader
    ------                                        ------
    pack(value) -> Message --- link ------------> unpack(message)
      Arena: segment === fd, over the FdSocket ==> BufferReader: private mapping
    release(ref id) <-- ReleaseQueue -- link ---- when the last view of it is gone

A segment has no name, only descriptors, so nothing is left behind when both processes
are gone. An arena uses its segments again: fresh pages cost twenty times what
writing them costs. A reader maps copy-on-write: it may write to what it was given, and
neither the writer nor another reader sees that.
"""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from flowpregel.executors.processes.serialization import dumps, loads

SHARE_FROM: Final = 128 << 10
"""Bytes from which a buffer goes through shared memory: a link is faster below.

Measured, a round trip with one array, link and shared memory in turns: 165 and 200 µs with
64 KiB, 185 and 207 with 96, 250 and 210 with 128, 420 and 240 with 256, 1,040 and 420 with 1,024.
"""
_COUNT: Final = Struct("<HB")
_REF: Final = Struct("<QQQ")
_ID: Final = Struct("<Q")
_MOST_REFS: Final = 64
"""More buffers than that stay in the pickle: each may need a descriptor handed over."""
_SMALLEST: Final = 1 << 18
_MOST_SEGMENTS: Final = 256
_FEWEST_SEGMENTS: Final = 4
_POPULATE: Final[int] = getattr(mmap, "MAP_POPULATE", 0)
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14, which `mmap` does not name."""
_POPULATED_UP_TO: Final = 64 << 20
"""Bytes up to which a buffer is mapped as a whole: a reader that wants one row of a large
table should not wait for the rest."""


# ------------------------------------------------ messages


class BufferRef(NamedTuple):
    """A buffer in shared memory that was written for one reader."""

    id: int
    """Names it, once in the life of its writer."""
    segment: int
    """The segment it lies in."""
    size: int


class Message(NamedTuple):
    """A pickle, and the buffers in shared memory that belong to it::

    count of refs | ref, ref, ... | the pickle, unless it is itself the first ref
    """

    data: bytes
    refs: Sequence[BufferRef] = ()


class BufferWriter(Protocol):
    """Where `pack` puts large buffers."""

    def share(self, data: memoryview) -> BufferRef | None:
        """Put *data* into shared memory; None: there is no room."""

    def release(self, ref_id: int) -> None:
        """Take back what nobody will read."""


Open: TypeAlias = Callable[[BufferRef], memoryview]
"""Returns a buffer in shared memory."""


def pack(value: Any, share: BufferWriter | None = None) -> Message:
    """Return *value* as a message.

    Raises:
        Exception: *value* cannot be pickled.
    """
    refs: list[BufferRef] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        ref = None
        if share is not None and raw.nbytes >= SHARE_FROM and len(refs) < _MOST_REFS:
            ref = share.share(raw)
        if ref is not None:
            refs.append(ref)
        return ref is None

    def take_back() -> None:
        while refs and share is not None:
            share.release(refs.pop().id)

    try:
        data, whole = dumps(value, stays, take_back), None
        if share is not None and len(data) >= SHARE_FROM:
            whole = share.share(memoryview(data))
    except BaseException:
        take_back()
        raise
    if whole is not None:
        refs.insert(0, whole)
        data = b""
    head = _COUNT.pack(len(refs), whole is not None)
    return Message(b"".join((head, *(_REF.pack(*ref) for ref in refs), data)), refs)


def unpack(data: bytes | memoryview, open_ref: Open | None = None, at: int = 0) -> Any:
    """Return the value that `pack` was given.

    Args:
        data: Has the message's data at its end.
        open_ref: Opens buffers in shared memory.
        at: Where the message begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    number, whole = _COUNT.unpack_from(data, at)
    start = at + _COUNT.size
    end = start + number * _REF.size
    if not number:
        return loads(memoryview(data)[end:])
    if open_ref is None:
        raise ValueError("the message names shared memory, and this end has none")
    views = [open_ref(BufferRef(*each)) for each in _REF.iter_unpack(data[start:end])]
    if whole:
        return loads(views[0], views[1:])
    return loads(memoryview(data)[end:], views)


# ------------------------------------------------ the writer's side


@dataclass(slots=True, eq=False, weakref_slot=True)
class Segment:
    """A file in memory, without a name; it goes with the last reference to it."""

    id: int
    fd: int
    size: int


_segment_ids: Final = count(1)
_ref_ids: Final = count(1)


def new_shared_file(size: int) -> int:
    """Return a descriptor of *size* zero bytes that several processes can map.

    It has no name, so nothing can be left behind.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("flowpregel", os.MFD_CLOEXEC)
    else:
        import tempfile  # noqa: PLC0415 - only where there is no memfd

        fd, name = tempfile.mkstemp(prefix="flowpregel-")
        os.unlink(name)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def new_segment(size: int) -> Segment | None:
    """Return a segment of *size* bytes; None: there is no memory for it."""
    try:
        fd = new_shared_file(size)
    except OSError:
        return None
    try:
        # Now: pages that cannot be had later would end the process with SIGBUS.
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        return None
    segment = Segment(next(_segment_ids), fd, size)
    weakref.finalize(segment, _drop, fd, os.getpid()).atexit = False
    return segment


def _drop(fd: int, owner: int) -> None:
    if os.getpid() == owner:
        # The memory goes now, though readers have the file open; its size shows them that.
        os.ftruncate(fd, 0)
    os.close(fd)


class Allocation(mmap.mmap):
    """The first bytes of a segment, mapped by its writer."""

    segment: Segment

    @property
    def fd(self) -> int:
        """The descriptor of the segment."""
        return self.segment.fd

    def __new__(cls, segment: Segment, size: int) -> Allocation:
        """Map *size* bytes of *segment*."""
        # Populated: to fault its pages in one by one takes as long as to write them thrice.
        made = super().__new__(cls, segment.fd, size, mmap.MAP_SHARED | _POPULATE)
        made.segment = segment
        return made


def allocate_alone(size: int) -> Allocation | None:
    """Return a segment of its own, which goes with the last reference; None: there is no memory."""
    segment = new_segment(size)
    return None if segment is None else Allocation(segment, size)


class Arena:
    """Segments that are used again, and the buffers in them that are read.

    Args:
        limit: The most bytes all segments may have together.
        segments: The most segments; each has a descriptor here and one where it is read.
        exceeds: Whether a single buffer may be larger than *limit*.
    """

    def __init__(
        self, limit: int, *, segments: int = _MOST_SEGMENTS, exceeds: bool = False
    ) -> None:
        self._limit = limit
        self._most = segments
        self._exceeds = exceeds
        self._count = self._total = 0
        self._free: list[Segment] = []
        # The garbage collector puts segments here, anywhere: it may not wait for the lock.
        self._freed: SimpleQueue[Segment] = SimpleQueue()
        self._read: dict[int, Allocation] = {}
        self._lock = threading.Lock()
        self.is_full = False
        """Whether something did not fit since this was last set to False."""

    def allocate(self, size: int, wait: float = 0.0) -> Allocation | None:
        """Return *size* bytes to write to, freed with the last reference to them.

        Args:
            size: How many bytes.
            wait: Seconds to wait for room.

        Returns:
            None: There is no room.
        """
        deadline = time.monotonic() + wait
        while True:
            with self._lock:
                self._collect()
                segment = self._segment_for(size)
            if segment is not None:
                made = Allocation(segment, size)
                weakref.finalize(made, self._freed.put, segment).atexit = False
                return made
            left = deadline - time.monotonic()
            if left <= 0 or (size > self._limit and not self._exceeds):
                self.is_full = True
                return None
            with suppress(Empty):
                self._freed.put(self._freed.get(timeout=left))

    def share(self, data: memoryview) -> BufferRef | None:
        """Write *data* for one reader, unless it lies in a segment already; None: no room."""
        memory: Any = data.obj
        if not (isinstance(memory, Allocation) and len(memory) == data.nbytes):
            memory = self.allocate(data.nbytes)
            if memory is None:
                return None
            memory[:] = data
        ref = BufferRef(next(_ref_ids), memory.segment.id, data.nbytes)
        self._read[ref.id] = memory
        return ref

    def release(self, ref_id: int) -> None:
        """Note that the reader of a buffer is done with it."""
        self._read.pop(ref_id, None)

    @property
    def in_use(self) -> int:
        """How many buffers are being read."""
        return len(self._read)

    def descriptor(self, ref: BufferRef) -> int:
        """Return the descriptor of the segment that *ref* lies in."""
        return self._read[ref.id].fd

    def _collect(self) -> None:
        """Take in the segments that are free again."""
        with suppress(Empty):
            while True:
                self._free.append(self._freed.get_nowait())

    def _segment_for(self, size: int) -> Segment | None:
        fitting = [each for each in self._free if size <= each.size <= 2 * max(size, _SMALLEST)]
        if fitting:
            best = min(fitting, key=lambda each: each.size)
            self._free.remove(best)
            return best
        wanted = _rounded(size)
        while self._free and not self._fits(wanted):
            self._total -= self._free.pop(0).size
            self._count -= 1
        segment = new_segment(wanted) if self._fits(wanted) else None
        if segment is not None:
            self._total += wanted
            self._count += 1
        return segment

    def _fits(self, size: int) -> bool:
        if self._exceeds and not self._count:
            return True
        return self._total + size <= self._limit and self._count < self._most

    def close(self) -> None:
        """Give up every segment; readers keep what they have mapped."""
        with self._lock:
            self._read.clear()
            self._collect()
            self._free.clear()


def _rounded(size: int) -> int:
    """Return *size* rounded up so that similar sizes share segments."""
    step = max(_SMALLEST, 1 << (size.bit_length() - 3))
    return -(-size // step) * step


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


# ------------------------------------------------ between them


class FdSocket:
    """Hands descriptors of segments to the other process.

    Args:
        connection: A connected Unix stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sent: set[int] = set()

    def send(self, segment: int, fd: int) -> None:
        """Make *segment* known on the other side, if it is not.

        Raises:
            OSError: It cannot be sent now.
        """
        if segment not in self._sent:
            socket.send_fds(self._socket, [_ID.pack(segment)], [fd])
            self._sent.add(segment)

    def receive(self) -> tuple[int, int]:
        """Return the next segment that was sent, and its descriptor here.

        Raises:
            OSError: Nothing was sent, or nothing will be.
        """
        data, fds, _, _ = socket.recv_fds(self._socket, _ID.size, 1)
        if len(data) != _ID.size or len(fds) != 1:
            raise OSError("the other end of the socket for descriptors is closed")
        return int(_ID.unpack(data)[0]), fds[0]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class ReleaseQueue:
    """Ids of buffers that are read no more, until there is time to send them."""

    def __init__(self) -> None:
        self._ids: deque[int] = deque()

    def __call__(self, ref_id: int) -> None:
        """Note an id; for the garbage collector, which may do nothing else here."""
        self._ids.append(ref_id)

    def take(self) -> bytes:
        """Return the ids as the body of a frame; empty if there are none."""
        ids = [self._ids.popleft() for _ in range(len(self._ids))]
        return b"".join(map(_ID.pack, ids))


def released_in(body: bytes) -> Iterator[int]:
    """Yield the ids in the body of such a frame."""
    for (ref_id,) in _ID.iter_unpack(body):
        yield ref_id


# ------------------------------------------------ the reader's side


class PrivateMapping(mmap.mmap):
    """A buffer in shared memory, mapped copy-on-write."""

    fd: int
    """The descriptor of its segment, for as long as it is mapped."""
    source: Any = None
    """What keeps the buffer as it is."""

    def __new__(cls, fd: int, size: int, source: Any = None) -> PrivateMapping:
        """Map *size* bytes of *fd*."""
        made = super().__new__(cls, fd, size, access=mmap.ACCESS_COPY)
        made.fd, made.source = fd, source
        if size <= _POPULATED_UP_TO:
            # Page by page takes twice as long. An older kernel does not know how.
            with suppress(OSError):
                made.madvise(_POPULATE_READ)
        return made


def copy_on_write(buffer: Any) -> memoryview:
    """Return the bytes of *buffer* to write to; what lies in shared memory is not copied now."""
    view = memoryview(buffer)
    memory: Any = view.obj
    if isinstance(memory, Allocation | PrivateMapping) and len(memory) == view.nbytes:
        return memoryview(PrivateMapping(memory.fd, view.nbytes, memory))
    return memoryview(bytearray(view))


class BufferReader:
    """Opens buffers that the other process has written.

    Args:
        fds: Where descriptors come from.
        released: Called with the id of each buffer whose last view is gone.
    """

    def __init__(self, fds: FdSocket, released: Callable[[int], None]) -> None:
        self._fds = fds
        self._released = released
        self._segments: dict[int, int] = {}

    def open(self, ref: BufferRef) -> memoryview:
        """Return the buffer, to read and to write; what is written stays here.

        Raises:
            OSError: Its segment was not sent.
        """
        if ref.segment not in self._segments:
            self._forget_dropped()
        while ref.segment not in self._segments:
            segment, fd = self._fds.receive()
            self._segments[segment] = fd
        memory = PrivateMapping(self._segments[ref.segment], ref.size)
        # When numpy and all others have let go of it, it goes, and its writer is told.
        weakref.finalize(memory, self._released, ref.id).atexit = False
        return memoryview(memory)

    def _forget_dropped(self) -> None:
        """Close the descriptors of segments that their writer has given up."""
        for segment, fd in [*self._segments.items()]:
            if not os.fstat(fd).st_size:
                del self._segments[segment]
                os.close(fd)

    def close(self) -> None:
        """Close the descriptors; what is mapped stays readable."""
        for fd in self._segments.values():
            os.close(fd)
        self._segments.clear()
