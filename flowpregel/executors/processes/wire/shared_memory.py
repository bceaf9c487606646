"""Shared memory for the large parts of a message, which would be slow on a link.

::

    writer                                        reader
    ------                                        ------
    pack(value) -> Message --- link ------------> unpack(message)
      Arena: segment === fd, over the FdSocket ==> BufferReader: private mapping
    release(ref id) <-- BufferReader -- link ---- when the last view of it is gone

A segment has no name, so nothing is left behind when both processes are gone. An arena
uses its segments again: fresh pages cost several times what writing them costs. A
reader maps copy-on-write: it may write to what it was given, and no other process sees
that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import socket
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pickle import PickleBuffer
from struct import Struct
from typing import Any, Final
from weakref import WeakSet

from flowpregel.executors.processes.wire.serialization import BufferRef

_ID: Final = Struct("<Q")
_segment_ids: Final = count(1)
_ref_ids: Final = count(1)
_SMALLEST: Final = 1 << 18
MUCH: Final = 256 << 20
"""Bytes of all segments from which it is better to wait for what is in use. A segment
that alone is larger is not kept for other buffers.
"""
_PATIENCE: Final = 0.05
_LOOK_EVERY: Final = 0.002
_FEWEST_SEGMENTS, _MOST_SEGMENTS = 4, 256
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14, which `mmap` does not name."""
_POPULATED_UP_TO: Final = 64 << 20
"""Bytes up to which a buffer is mapped as a whole: of more, only a part may be
wanted.
"""
_KEPT: Final = 256 << 20
"""Bytes of mappings that a reader keeps while nothing views them."""


def new_shared_file(size: int) -> int:
    """Return a descriptor of *size* zero bytes, without a name, that several processes
    can map.
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


class Segment:
    """A file in memory, without a name; it goes with the last reference to it.

    Args:
        size: Its bytes.

    Raises:
        OSError: There is no memory for it.
    """

    def __init__(self, size: int) -> None:
        self.id, self.size, self.fd = next(_segment_ids), size, new_shared_file(size)
        weakref.finalize(self, _drop, self.fd, os.getpid()).atexit = False
        if hasattr(os, "posix_fallocate"):
            # Now: pages that cannot be had later would end the process with SIGBUS.
            os.posix_fallocate(self.fd, 0, size)
        self.memory = mmap.mmap(self.fd, size)
        """All of it, mapped by its writer."""


def _drop(fd: int, owner: int) -> None:
    if os.getpid() == owner:
        # The memory goes now, though readers have the file open; its size shows them
        # that.
        os.ftruncate(fd, 0)
    os.close(fd)


def _exported(memory: mmap.mmap, size: int, origin: Segment | PrivateMapping) -> Any:
    """Return a buffer: *size* bytes of *memory*, which lives for as long as anything
    views them.
    """
    buffer: Any = (ctypes.c_char * size).from_buffer(memory)
    buffer.origin = origin
    return buffer


def origin_of(view: memoryview) -> Segment | PrivateMapping | None:
    """Return where *view* lies in shared memory, if it is a whole buffer there."""
    holder: Any = view.obj
    is_whole = isinstance(holder, ctypes.Array) and ctypes.sizeof(holder) == view.nbytes
    return getattr(holder, "origin", None) if is_whole else None


def allocate_alone(size: int) -> Any:
    """Return a buffer in a segment of its own, freed with the last reference; None: no
    memory.
    """
    with suppress(OSError):
        segment = Segment(size)
        return _exported(segment.memory, size, segment)
    return None


def fill(buffer: Any, data: memoryview) -> None:
    """Write *data* to a buffer that was allocated here."""
    buffer.origin.memory[: data.nbytes] = data


class Arena:
    """Segments that are used again, and the buffers in them that are read.

    Args:
        limit: The most bytes all segments may have together.
        segments: The most segments; each has a descriptor here and one where it is
            read.
        reader: The only reader, to whom `share` hands segments over at once.
    """

    def __init__(
        self,
        limit: int,
        *,
        segments: int = _MOST_SEGMENTS,
        reader: FdSocket | None = None,
    ) -> None:
        self._limit = limit
        self._reader = reader
        self._most = segments
        self._segments: WeakSet[Segment] = WeakSet()
        # The garbage collector puts segments here, anywhere: it may not wait for the
        # lock.
        self._free: list[Segment] = []
        self._read: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.is_full = False
        """Whether something did not fit since this was last set to False."""

    def allocate(self, size: int, wait: float = 0.0) -> Any:
        """Return a buffer of *size* bytes for `fill`, freed with the last reference to
        it.

        None: there is no room for it within *wait* seconds. If there is time, it waits
        a moment for what is in use before there is very much of it.
        """
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            with self._lock:
                segment = self._free_segment(size)
                if segment is None and (
                    self._total() < MUCH or waited >= min(wait, _PATIENCE)
                ):
                    segment = self._new_segment(size)
            if segment is not None:
                buffer = _exported(segment.memory, size, segment)
                if segment.size <= MUCH:
                    weakref.finalize(buffer, self._free.append, segment).atexit = False
                return buffer
            if waited >= wait or size > self._limit:
                self.is_full = True
                return None
            time.sleep(_LOOK_EVERY)

    def share(self, data: memoryview) -> BufferRef | None:
        """Write *data* for one reader, unless it lies in a segment already; None: no
        room.
        """
        buffer: Any = data.obj
        if not isinstance(origin_of(data), Segment):
            buffer = self.allocate(data.nbytes)
            if buffer is None:
                return None
            fill(buffer, data)
        segment = buffer.origin
        if self._reader is not None:
            try:
                self._reader.send(segment.id, segment.fd)
            except OSError:
                return None
        ref = BufferRef(next(_ref_ids), segment.id, data.nbytes)
        self._read[ref.id] = buffer
        return ref

    def release(self, ref_ids: Iterable[int]) -> None:
        """Note that the readers of these buffers are done with them."""
        for ref_id in ref_ids:
            self._read.pop(ref_id, None)

    def __len__(self) -> int:
        """Return how many buffers are being read."""
        return len(self._read)

    def descriptor(self, ref: BufferRef) -> int:
        """Return the descriptor of the segment that *ref* lies in."""
        fd: int = self._read[ref.id].origin.fd
        return fd

    def view(self, ref: BufferRef) -> memoryview:
        """Return the bytes of a buffer that is shared here."""
        return memoryview(self._read[ref.id]).cast("B")[: ref.size]

    def _free_segment(self, size: int) -> Segment | None:
        fitting = [
            segment
            for segment in self._free
            if size <= segment.size <= 2 * max(size, _SMALLEST)
        ]
        best = min(fitting, key=lambda segment: segment.size, default=None)
        if best is not None:
            self._free.remove(best)
        return best

    def _new_segment(self, size: int) -> Segment | None:
        step = max(_SMALLEST, 1 << (size.bit_length() - 3))
        rounded = -(-size // step) * step  # so that similar sizes share segments
        while (
            self._total() + rounded > self._limit or len(self._segments) >= self._most
        ):
            if not self._free:
                return None
            del self._free[0]
        with suppress(OSError):
            segment = Segment(rounded)
            self._segments.add(segment)
            return segment
        return None

    def _total(self) -> int:
        return sum(segment.size for segment in self._segments)

    def close(self) -> None:
        """Give up every segment; readers keep what they have mapped."""
        with self._lock:
            self._read.clear()
            self._free.clear()


def segments_for(writers: int) -> int:
    """Return the segments for each of *writers*: a quarter of all descriptors for all
    of them.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_SEGMENTS
    return max(_FEWEST_SEGMENTS, min(_MOST_SEGMENTS, allowed // (8 * writers)))


def default_limit() -> int:
    """Return a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class FdSocket:
    """Hands descriptors of segments to the other process, over a connected Unix
    socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sent: set[int] = set()

    def send(self, segment: int, fd: int) -> None:
        """Make *segment* known on the other side, if it is not; raise OSError if that
        fails.
        """
        if segment not in self._sent:
            socket.send_fds(self._socket, [_ID.pack(segment)], [fd])
            self._sent.add(segment)

    def receive(self) -> tuple[int, int]:
        """Return the next segment that was sent, and its descriptor; raise OSError at
        the end.
        """
        data, fds, _, _ = socket.recv_fds(self._socket, _ID.size, 1)
        if len(data) != _ID.size or len(fds) != 1:
            raise OSError("the other end of the socket for descriptors is closed")
        return int(_ID.unpack(data)[0]), fds[0]


def released_in(body: bytes) -> Iterator[int]:
    """Yield the ids in the body of such a frame."""
    return (ref_id for (ref_id,) in _ID.iter_unpack(body))


class PrivateMapping(mmap.mmap):
    """A segment, or its first bytes, mapped copy-on-write."""

    fd: int | None
    """The descriptor of the segment; None: its reader has closed it."""
    source: Any = None
    """The object that keeps the content of the segment from changing."""

    def __new__(cls, fd: int, size: int, source: Any = None) -> PrivateMapping:
        """Map *size* bytes of *fd*."""
        mapping = super().__new__(cls, fd, size, access=mmap.ACCESS_COPY)
        mapping.fd, mapping.source = fd, source
        if size <= _POPULATED_UP_TO:
            # Page by page takes twice as long. An older kernel does not know how.
            with suppress(OSError):
                mapping.madvise(_POPULATE_READ)
        return mapping

    def is_untouched(self) -> bool:
        """Return whether nothing was written to it, as far as the kernel tells."""
        page = mmap.PAGESIZE
        address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        try:
            with open("/proc/self/pagemap", "rb", buffering=0) as pages:
                pages.seek(address // page * 8)
                kinds = set(pages.read(-(-len(self) // page) * 8)[7::8])
        except OSError:
            return False
        # Of each page: bit 7 present, 6 swapped, 5 a page of the file. What was written
        # is not.
        return bool(kinds) and all(kind & 0x20 or not kind & 0xC0 for kind in kinds)


def copy_on_write(buffer: Any) -> memoryview:
    """Return the bytes of *buffer* to write to; what lies in shared memory is not
    copied now.
    """
    view = memoryview(buffer)
    origin = origin_of(view)
    if origin is None or origin.fd is None:
        return memoryview(bytearray(view))
    return memoryview(PrivateMapping(origin.fd, view.nbytes, view))


class BufferReader:
    """Opens buffers that the other process has written.

    Args:
        fds: Where descriptors come from.
    """

    def __init__(self, fds: FdSocket) -> None:
        self._fds = fds
        self.released: deque[int] = deque()
        """The ids of buffers that are read no more; the garbage collector puts them
        here.
        """
        self._segments: dict[int, int] = {}
        self._idle: OrderedDict[int, PrivateMapping] = (
            OrderedDict()
        )  # the last used comes last
        self._mapped: WeakSet[PrivateMapping] = WeakSet()

    def open(self, ref: BufferRef) -> memoryview:
        """Return the buffer, to read and to write; raise OSError if its segment was not
        sent.
        """
        mapping = self._idle.pop(ref.segment, None)
        while sum(map(len, [*self._idle.values()])) > _KEPT:
            self._idle.popitem(last=False)
        if mapping is None or len(mapping) < ref.size or not mapping.is_untouched():
            mapping = PrivateMapping(self._descriptor(ref.segment), ref.size)
            self._mapped.add(mapping)
        buffer = _exported(mapping, ref.size, mapping)
        weakref.finalize(buffer, self._gone, ref, mapping).atexit = False
        return PickleBuffer(buffer).raw()

    def _gone(self, ref: BufferRef, mapping: PrivateMapping) -> None:
        """Keep a mapping that nothing views any more; for the garbage collector."""
        self._idle[ref.segment] = mapping
        self.released.append(ref.id)

    def take_released(self) -> bytes:
        """Return the ids in `released`, which are no longer there, as the body of a
        frame.
        """
        ids = b""
        while self.released:
            ids += _ID.pack(self.released.popleft())
        return ids

    def _descriptor(self, segment_id: int) -> int:
        if segment_id not in self._segments:
            # Those of segments that their writer has given up.
            for segment, fd in [*self._segments.items()]:
                if not os.fstat(fd).st_size:
                    del self._segments[segment]
                    self._idle.pop(segment, None)
                    os.close(fd)
        while segment_id not in self._segments:
            segment, fd = self._fds.receive()
            self._segments[segment] = fd
        return self._segments[segment_id]

    def close(self) -> None:
        """Close the descriptors; what is mapped stays readable."""
        for mapping in self._mapped:
            mapping.fd = None
        for fd in self._segments.values():
            os.close(fd)
        self._segments.clear()
        self._idle.clear()
