"""Shared memory for the large parts of a message, which a link would transfer slowly.

::

    writer                                        reader
    ------                                        ------
    pack(value) -> Message --- link ------------> unpack(message)
      Arena: segment === fd, over the FdSocket ==> BufferReader: private mapping
    release(ref id) <-- BufferReader -- link ---- when the last view of it is gone

A segment (an unnamed file in memory) has no path, so nothing remains when both
processes have ended. An arena (the segments of one writer) reuses them, because
allocating pages takes several times as long as writing to them. A reader maps a segment
copy-on-write, so it may write to a buffer without any other process seeing the change.
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

from flowpregel import _linux
from flowpregel.executors.processes.wire.serialization import BufferRef

_ID: Final = Struct("<Q")
_FD: Final = Struct("i")
_CLOSE_ON_EXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""The flag that keeps a received descriptor from being inherited even by a program that
another OS thread starts at the same moment. macOS does not have it.
"""
_segment_ids: Final = count(1)
_ref_ids: Final = count(1)
_SMALLEST: Final = 1 << 18
MUCH: Final = 256 << 20
"""The total size, in bytes, of an arena's segments at which it waits a moment for one
of them to become free, before it creates a new one. A single segment that is larger
than this is not reused for other buffers.
"""
_PATIENCE: Final = 0.05
"""The maximum number of seconds for which an arena waits for a free segment (see
`MUCH`).
"""
_RETRY_EVERY: Final = 0.002
_FEWEST_SEGMENTS, _MOST_SEGMENTS = 4, 256
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14, which the `mmap` module does not define."""
_POPULATED_UP_TO: Final = 64 << 20
"""The size, in bytes, up to which all pages of a buffer are mapped at once. A task may
read only a part of a larger buffer.
"""
_PAGE_ENTRY: Final = 8
"""The size, in bytes, of the entry of a page in ``/proc/self/pagemap``."""
_PAGE_EXISTS: Final = 0xC0
"""The flags, in the last byte of a page's entry, that the page is in memory or swapped
out.
"""
_PAGE_OF_FILE: Final = 0x20
"""The flag, in the last byte of a page's entry, that the page belongs to a file."""
_KEPT: Final = 256 << 20
"""The total size, in bytes, of the unused mappings that a reader keeps for reuse."""


def new_shared_file(size: int) -> int:
    """Return the descriptor of an unnamed file of *size* zero bytes that several
    processes can map.
    """
    fd = _linux.unnamed_file()
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


class Segment:
    """An unnamed file in memory, freed with the last reference to the object.

    Args:
        size: The size in bytes.

    Raises:
        OSError: There is not enough memory.
    """

    def __init__(self, size: int) -> None:
        self.id: int = next(_segment_ids)
        self.size: int = size
        self.fd: int = new_shared_file(size)
        weakref.finalize(self, _drop, self.fd, os.getpid()).atexit = False
        if hasattr(os, "posix_fallocate"):
            # All pages are allocated now, so that a lack of memory raises an error
            # here. Later, SIGBUS would end the process.
            os.posix_fallocate(self.fd, 0, size)
        self.memory: mmap.mmap = mmap.mmap(self.fd, size)
        """The whole segment, mapped by its writer."""


def _drop(fd: int, owner: int) -> None:
    if os.getpid() == owner:
        # Truncating the file frees the memory at once, even if readers have the file
        # open. By the size 0, they notice that the segment was freed.
        os.ftruncate(fd, 0)
    os.close(fd)


def _exported(memory: mmap.mmap, size: int, origin: Segment | PrivateMapping) -> Any:
    """Return a buffer with the first *size* bytes of *memory*.

    The buffer keeps *origin* alive as long as any view of the buffer exists.
    """
    buffer: Any = (ctypes.c_char * size).from_buffer(memory)
    buffer.origin = origin
    return buffer


def origin_of(view: memoryview) -> Segment | PrivateMapping | None:
    """Return the segment or mapping that contains *view*, or None if *view* is not a
    whole buffer in shared memory.
    """
    holder: Any = view.obj
    is_whole = isinstance(holder, ctypes.Array) and ctypes.sizeof(holder) == view.nbytes
    return getattr(holder, "origin", None) if is_whole else None


def allocate_alone(size: int) -> Any:
    """Return a buffer in a new segment, or None if there is not enough memory.

    The segment is freed with the last reference to the buffer.
    """
    with suppress(OSError):
        segment = Segment(size)
        return _exported(segment.memory, size, segment)
    return None


def fill(buffer: Any, data: memoryview) -> None:
    """Copy *data* to a buffer that was allocated in this process."""
    buffer.origin.memory[: data.nbytes] = data


class Arena:
    """A set of reusable segments, in which one process writes buffers for others to
    read.

    Args:
        limit: The limit on the size of all segments together, in bytes.
        segments: The greatest number of segments. Each uses a descriptor in this
            process and in the reader.
        reader: The socket to the reader if there is only one: `share` sends the
            descriptors of segments over it. None if the caller sends them.
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
        # Finalizers append free segments to this list without taking the lock: they may
        # run at any point, even while their own OS thread holds the lock.
        self._free: list[Segment] = []
        self._read: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.is_full: bool = False
        """True if there was no room for a buffer since a caller last set this to
        False.
        """

    def allocate(self, size: int, wait: float = 0.0) -> Any:
        """Return a buffer of *size* bytes for `fill`, or None if there is no room
        within *wait* seconds.

        The buffer is freed with the last reference to it. If the segments already have
        the total size `MUCH`, the method first waits a moment for one of them to become
        free, before it creates a new one.
        """
        started = time.monotonic()
        patience = min(wait, _PATIENCE)
        waited = 0.0
        while (segment := self._segment_for(size, reuse=waited < patience)) is None:
            if waited >= wait or size > self._limit:
                self.is_full = True
                return None
            time.sleep(_RETRY_EVERY)
            waited = time.monotonic() - started
        buffer = _exported(segment.memory, size, segment)
        if segment.size <= MUCH:
            weakref.finalize(buffer, self._free.append, segment).atexit = False
        return buffer

    def _segment_for(self, size: int, *, reuse: bool) -> Segment | None:
        """Return a free segment for *size* bytes, or a new one. Return None if there is
        neither.

        If *reuse* is true, and the segments already have the total size `MUCH`, no new
        segment is created, because one in use may soon be free.
        """
        with self._lock:
            segment = self._free_segment(size)
            if segment is not None:
                return segment
            if reuse and self._total() >= MUCH:
                return None
            return self._new_segment(size)

    def share(self, data: memoryview) -> BufferRef | None:
        """Make *data* available to a reader: copy it to a segment, unless it is in one
        already.

        Returns:
            The reference to the buffer, or None if there is no room.
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
        """Release the buffers with these ids, which their readers no longer use."""
        for ref_id in ref_ids:
            self._read.pop(ref_id, None)

    def __len__(self) -> int:
        """Return the number of buffers that have a reader."""
        return len(self._read)

    def descriptor(self, ref: BufferRef) -> int:
        """Return the descriptor of the segment that contains *ref*."""
        fd: int = self._read[ref.id].origin.fd
        return fd

    def view(self, ref: BufferRef) -> memoryview:
        """Return the bytes of a buffer that this arena has made available to a
        reader.
        """
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
        # The size is rounded up, so that the segment fits other buffers of a similar
        # size too.
        rounded = -(-size // step) * step
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
        """Drop all segments. The mappings of readers stay valid."""
        with self._lock:
            self._read.clear()
            self._free.clear()


def segments_for(writers: int) -> int:
    """Return the maximum number of segments of an arena if there are *writers* arenas.

    Each segment uses a descriptor. Together the arenas may use an eighth of the
    process's descriptors, unless that is too few.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_SEGMENTS
    return max(_FEWEST_SEGMENTS, min(_MOST_SEGMENTS, allowed // (8 * writers)))


def default_limit() -> int:
    """Return a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class FdSocket:
    """A connected Unix socket over which one process sends segments, as descriptors, to
    the other.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sent: set[int] = set()

    def send(self, segment: int, fd: int) -> None:
        """Send the descriptor of *segment*, unless it was sent before.

        Raises:
            OSError: The descriptor cannot be sent.
        """
        if segment not in self._sent:
            socket.send_fds(self._socket, [_ID.pack(segment)], [fd])
            self._sent.add(segment)

    def receive(self) -> tuple[int, int]:
        """Return the id and the descriptor of the next segment.

        Raises:
            OSError: The other end is closed.
        """
        # `socket.recv_fds` ignores its argument *flags*, so `recvmsg` is called here.
        data, items, _, _ = self._socket.recvmsg(
            _ID.size, socket.CMSG_LEN(_FD.size), _CLOSE_ON_EXEC
        )
        if len(data) != _ID.size or len(items) != 1:
            raise OSError("the other end of the socket for descriptors is closed")
        ((_, _, packed_fd),) = items
        (fd,) = _FD.unpack(packed_fd)
        # Programs that are started without closing all descriptors, as by `os.system`,
        # would inherit a received descriptor.
        os.set_inheritable(fd, False)
        (segment,) = _ID.unpack(data)
        return int(segment), fd


def released_in(body: bytes) -> Iterator[int]:
    """Yield the buffer ids in the body of a FREED or RETURNED frame."""
    return (ref_id for (ref_id,) in _ID.iter_unpack(body))


class PrivateMapping(mmap.mmap):
    """A segment, or its first bytes, mapped copy-on-write."""

    fd: int | None
    """The descriptor of the segment, or None if the `BufferReader` has closed it."""
    source: Any = None
    """An object that is referenced because its deletion would free the segment for
    other buffers.
    """

    def __new__(cls, fd: int, size: int, source: Any = None) -> PrivateMapping:
        """Map the first *size* bytes of the segment *fd* copy-on-write."""
        mapping = super().__new__(cls, fd, size, access=mmap.ACCESS_COPY)
        mapping.fd, mapping.source = fd, source
        if _linux.IS_USED and size <= _POPULATED_UP_TO:
            # All pages are mapped at once, because mapping each at its first use takes
            # twice as long. Older kernels do not support this `madvise`, and map them
            # one by one.
            with suppress(OSError):
                mapping.madvise(_POPULATE_READ)
        return mapping

    def is_untouched(self) -> bool:
        """Return True if no page was written to. Return False also if the kernel does
        not report that.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        first_page = address // mmap.PAGESIZE
        page_count = -(-len(self) // mmap.PAGESIZE)
        file = _linux.open_proc("self/pagemap")
        if file is None:
            return False
        try:
            entries = os.pread(file, page_count * _PAGE_ENTRY, first_page * _PAGE_ENTRY)
        except OSError:
            return False
        finally:
            os.close(file)
        # The file is the page map of this process: an entry for each page of memory,
        # with the flags of the page in the last byte. Each combination of flags is
        # examined once.
        flags_of_pages = set(entries[_PAGE_ENTRY - 1 :: _PAGE_ENTRY])
        written = [flags for flags in flags_of_pages if _is_written(flags)]
        return bool(flags_of_pages) and not written


def _is_written(flags: int) -> bool:
    """Return whether a page of a `PrivateMapping` was written to: it exists, and no
    longer belongs to the file.
    """
    return bool(flags & _PAGE_EXISTS) and not flags & _PAGE_OF_FILE


def copy_on_write(buffer: Any) -> memoryview:
    """Return a writable copy of *buffer*.

    A buffer in shared memory is not copied now, but mapped copy-on-write.
    """
    view = memoryview(buffer)
    origin = origin_of(view)
    if origin is None or origin.fd is None:
        return memoryview(bytearray(view))
    return memoryview(PrivateMapping(origin.fd, view.nbytes, view))


class BufferReader:
    """A reader of the buffers that the other process has written.

    Args:
        fds: The socket from which the descriptors are received.
    """

    def __init__(self, fds: FdSocket) -> None:
        self._fds = fds
        self.released: deque[int] = deque()
        """The ids of the buffers that this process no longer uses, appended by their
        finalizers.
        """
        self._segments: dict[int, int] = {}
        # The unused mappings, by the id of the segment. The most recently used one is
        # the last.
        self._idle: OrderedDict[int, PrivateMapping] = OrderedDict()
        self._mapped: WeakSet[PrivateMapping] = WeakSet()

    def open(self, ref: BufferRef) -> memoryview:
        """Map the buffer that *ref* names, and return it. It is readable and writable.

        Raises:
            OSError: The segment of the buffer was not sent.
        """
        mapping = self._reusable_mapping(ref)
        if mapping is None:
            fd = self._descriptor(ref.segment)
            mapping = PrivateMapping(fd, ref.size)
            self._mapped.add(mapping)
        buffer = _exported(mapping, ref.size, mapping)
        weakref.finalize(buffer, self._keep_idle, ref, mapping).atexit = False
        return PickleBuffer(buffer).raw()

    def _reusable_mapping(self, ref: BufferRef) -> PrivateMapping | None:
        """Return an unused mapping of the segment that contains *ref*, or None if there
        is none, or if a task has written to it.
        """
        mapping = self._idle.pop(ref.segment, None)
        while sum(map(len, [*self._idle.values()])) > _KEPT:
            self._idle.popitem(last=False)
        if mapping is None or len(mapping) < ref.size:
            return None
        return mapping if mapping.is_untouched() else None

    def _keep_idle(self, ref: BufferRef, mapping: PrivateMapping) -> None:
        """Keep a mapping for reuse, and note that its buffer is no longer used. This is
        the finalizer of the buffer.
        """
        self._idle[ref.segment] = mapping
        self.released.append(ref.id)

    def take_released(self) -> bytes:
        """Remove all ids from `released`, and return them as the body of a frame."""
        ids = b""
        while self.released:
            ids += _ID.pack(self.released.popleft())
        return ids

    def _descriptor(self, segment_id: int) -> int:
        if segment_id not in self._segments:
            # The descriptors of segments that their writer has freed (their size is 0)
            # are closed.
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
        """Close the descriptors. Mapped buffers remain readable."""
        for mapping in self._mapped:
            mapping.fd = None
        for fd in self._segments.values():
            os.close(fd)
        self._segments.clear()
        self._idle.clear()
