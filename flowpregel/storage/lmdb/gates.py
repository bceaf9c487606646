"""Locks that keep the map of a store in place while an OS thread or process uses it.

LMDB's map must not be resized while any transaction of the process is open: readers
would die with errors, and a writer deadlocks. Each transaction of this process holds
the `SharedExclusiveLock`; a resize or a close holds it alone.

A file must not take another's place while a process has the other open, as both would
share LMDB's lock file. Each process holds an `OpenStoreLock` for as long as it has a
store open.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flowpregel import _interrupts
from flowpregel.errors import StoreBusyError
from flowpregel.storage.locks import FIRST_PAUSE, LONGEST_PAUSE, NAME_SIZE, open_file


class OpenStoreLock:
    """A shared lock that this process holds while it has a store open.

    The file of the lock names the data file that is open: another one may be put in its
    place.

    Args:
        path: The file of the lock. If it cannot be made, no process can write there.
        data: The data file that is open.
        create: Make the file of the lock if it is not there.
    """

    def __init__(
        self,
        path: str,
        data: str,
        *,
        create: bool = True,
    ) -> None:
        self._path = path
        self._data = data
        self._file = -1
        attempts = [os.O_RDONLY]
        if create:
            attempts.insert(0, os.O_RDWR | os.O_CREAT)
        for flags in attempts:
            with suppress(OSError):
                self._file = open_file(path, flags)
                break
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep others from opening the store; yield False if another has it open."""
        if self._file < 0:
            yield not os.path.lexists(self._path)
            return
        is_alone = False
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        try:
            yield is_alone
        finally:
            with suppress(OSError):  # this user may only read the file
                if is_alone:
                    os.pwrite(self._file, self._identity(), 0)
            # An attempt that failed has released the shared lock too.
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def await_one_file(self, timeout: float) -> None:
        """Wait until no process has another data file open, whose place ours has taken.

        Two data files would share LMDB's lock file, which holds the newest transaction
        of one of them.

        Raises:
            StoreBusyError: A process still has, after *timeout* seconds.
        """
        deadline = time.monotonic() + timeout
        while self._file >= 0:
            with self.alone() as is_alone:
                pass
            if is_alone or self._named() in (b"", self._identity()):
                break
            if time.monotonic() > deadline:
                holder = (
                    "a process that has another file open, whose place this one took"
                )
                raise StoreBusyError(os.path.dirname(self._data), holder, timeout)
            # Without the lock for a moment: of several processes that open the store
            # at once, one must be able to be alone.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            _interrupts.deliver()
            time.sleep(random.uniform(FIRST_PAUSE, LONGEST_PAUSE))

    def _named(self) -> bytes:
        """Return the identity that the file of the lock holds."""
        return os.pread(self._file, NAME_SIZE, 0)

    def _identity(self) -> bytes:
        """Return bytes that name the data file as long as any process has it open."""
        inode = os.stat(self._data).st_ino
        return str(inode).encode().ljust(NAME_SIZE)

    def close(self) -> None:
        """Release the lock; may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SharedExclusiveLock:
    """A lock that many OS threads hold together, or one alone.

    Those that want it alone go first.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._count = 0
        self._is_closed = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._count += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep newcomers out, wait until no other OS thread holds it, and hold it.

        An OS thread that already holds it must not call this.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            try:
                self._changed.wait_for(lambda: not self._count)
                yield
            finally:
                self._is_closed = False
                self._changed.notify_all()
