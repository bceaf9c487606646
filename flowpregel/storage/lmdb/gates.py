"""Locks that protect the map and the file of a store while they are used.

LMDB's map must not be resized while any transaction of the process is open: a reader
would fail, and a writer would deadlock. Each transaction of this process shares the
`SharedExclusiveLock`; a resize or a close holds it exclusively.

The data file must not be replaced while a process has it open, since the old and the
new file would share LMDB's lock file. Each process holds an `OpenStoreLock` as long as
it has a store open.
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

    The lock's file contains the identity of the open data file, because that file may
    be replaced by another under the same name.

    Args:
        path: The lock's file. If it cannot be created, nothing is locked, since no
            process can write to the folder then.
        data: The data file that is open.
        create: True to create the lock's file if it does not exist.
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

    def is_deleted(self) -> bool:
        """Return whether the lock's file was deleted, with the store's folder."""
        return self._file >= 0 and os.fstat(self._file).st_nlink == 0

    def is_at_path(self) -> bool:
        """Return whether the lock's file is still at its path: the store's folder was
        neither deleted nor moved.
        """
        if self._file < 0:
            return True
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self._file))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other processes from opening the store while the context is open.

        Yield True, or False if another process has the store open, in which case no
        process is kept from opening it.
        """
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
            # The identity of the data file is not written if this user may only read
            # the lock's file.
            with suppress(OSError):
                if is_alone:
                    os.pwrite(self._file, self._identity(), 0)
            # The shared lock is acquired again even if the exclusive lock was not free,
            # because the attempt to get it has released the shared lock.
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def await_one_file(self, timeout: float) -> None:
        """Wait until no process has an older data file open that the present data file
        has replaced.

        Otherwise both data files would share LMDB's lock file, which stores the number
        of the newest transaction of only one of them.

        Raises:
            StoreBusyError: After *timeout* seconds, a process still has the other data
                file open.
        """
        deadline = time.monotonic() + timeout
        while self._file >= 0:
            with self.alone() as is_alone:
                pass
            if is_alone or self._named() in (b"", self._identity()):
                break
            if time.monotonic() > deadline:
                holder = "a process that still has the replaced file open"
                raise StoreBusyError(os.path.dirname(self._data), holder, timeout)
            # If several processes open the store at once, each waits for the others'
            # shared locks. So the lock is released for a moment, and one of the
            # processes can get the exclusive lock.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            _interrupts.raise_pending_interrupts()
            time.sleep(random.uniform(FIRST_PAUSE, LONGEST_PAUSE))

    def _named(self) -> bytes:
        """Return the content of the lock's file: the identity of a data file."""
        return os.pread(self._file, NAME_SIZE, 0)

    def _identity(self) -> bytes:
        """Return the identity of our data file: its inode number, which no other file
        can get as long as a process has our file open.
        """
        inode = os.stat(self._data).st_ino
        return str(inode).encode().ljust(NAME_SIZE)

    def close(self) -> None:
        """Release the lock. It is safe to call this twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SharedExclusiveLock:
    """A lock that many OS threads can share, or that one OS thread can hold
    exclusively.

    An OS thread that waits for the exclusive lock takes precedence over OS threads that
    want to share the lock.
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
        """Hold the lock exclusively while the context is open.

        From the call on, no other OS thread can begin to share the lock. An OS thread
        that already holds the lock must not call this.
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
