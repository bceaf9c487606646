"""Memory for the large results that a coordinator receives."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from pickle import PickleBuffer
from typing import Any, Final

_LIMIT: Final = 256 << 20
"""The default limit on the size of all memory that is reused, in bytes."""

_SMALLEST: Final = 1 << 18
"""The smallest size, in bytes, of memory that is reused. Python's own allocator reuses
smaller blocks.
"""


class ReusedMemory:
    """Blocks of memory of this process, each reused after the last view of it is gone.

    Getting new pages from the kernel takes several times as long as writing to pages
    that the process already has. Only one OS thread may call `writable`.

    Args:
        limit: The limit on the size of all memory that is reused, in bytes.

    Example:
        >>> view = ReusedMemory().writable(b"data")
        >>> view[0] = 68
        >>> view.tobytes()
        b'Data'
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._total = 0
        # Finalizers append free blocks to this list, on any OS thread.
        self._free: list[mmap.mmap] = []

    def writable(self, data: Any) -> memoryview:
        """Return a writable view of a buffer. If the buffer is read-only, it is
        copied.
        """
        view = memoryview(data).cast("B")
        if not view.readonly:
            return view
        size = view.nbytes
        memory = self._memory_for(size)
        if memory is None:
            return memoryview(bytearray(view))
        memory[:size] = view
        buffer: Any = (ctypes.c_char * size).from_buffer(memory)
        weakref.finalize(buffer, self._free.append, memory).atexit = False
        return PickleBuffer(buffer).raw()

    def _memory_for(self, size: int) -> mmap.mmap | None:
        """Return a block of at least *size* bytes, or None if all blocks would then
        exceed the limit.
        """
        for memory in sorted(self._free, key=len):
            if size <= len(memory) <= 2 * size:
                self._free.remove(memory)
                return memory
        if not _SMALLEST <= size <= self._limit:
            return None
        while self._total + size > self._limit:
            if not self._free:
                return None
            self._total -= len(self._free.pop())
        self._total += size
        # The memory is private, so it is not shared with processes that are forked
        # later.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
