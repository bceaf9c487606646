"""A lock between processes: `flock` on a file of its own.

LMDB's own lock is a POSIX lock, which a process loses without notice when it
opens and closes the lock file once more (a copy of the folder does). `flock`
belongs to the open file and is not lost that way; the kernel gives it up when
its holder dies; and it can be waited for with a deadline.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flowpregel._lmdb.owner import Owner, this_process
from flowpregel.errors import StoreError

_FIRST_PAUSE = 0.00005
_LONGEST_PAUSE = 0.01
_NAME_SIZE = 256


class FileLock:
    """A lock between processes, with the name of its holder in the file.

    Args:
        path: The file; created with mode 0600 if it is not there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._file, 0o600)  # whatever the umask took away
        self._me = this_process().to_bytes().ljust(_NAME_SIZE)

    def acquire(self, timeout: float) -> bool:
        """Take the lock; return False if it is not free within *timeout* seconds."""
        if not self._try():
            deadline = time.monotonic() + timeout
            pause = _FIRST_PAUSE
            while not self._try():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(pause, left))
                pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            if os.pread(self._file, _NAME_SIZE, 0) != self._me:
                os.pwrite(self._file, self._me, 0)
        except OSError as error:
            self.release()
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}; nothing was done, try again"
            ) from error
        return True

    def release(self) -> None:
        """Give the lock up."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def holder(self) -> Owner | None:
        """Return who took the lock last, as the file tells."""
        return Owner.from_bytes(os.pread(self._file, _NAME_SIZE, 0))

    def keep_fence(self, fence: int) -> None:
        """Write a number beside the holder's name."""
        os.pwrite(self._file, fence.to_bytes(8, "big"), _NAME_SIZE)

    def fence(self) -> int:
        """Return the number that was kept last (0: none)."""
        return int.from_bytes(os.pread(self._file, 8, _NAME_SIZE), "big")

    def ask_to_stop(self) -> None:
        """Write beside the fence that its holder is asked to stop."""
        os.pwrite(self._file, os.pread(self._file, 8, _NAME_SIZE), _NAME_SIZE + 8)

    def asked_to_stop(self) -> int:
        """Return the fence of the holder that was asked to stop last (0: none)."""
        return int.from_bytes(os.pread(self._file, 8, _NAME_SIZE + 8), "big")

    def is_at(self, path: str) -> bool:
        """Return whether the file is the one that *path* names now."""
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file))

    def unlink(self) -> None:
        """Remove the file's name, if it is still this one's."""
        if self.is_at(self.path):
            with suppress(FileNotFoundError):
                os.unlink(self.path)

    def remove(self) -> None:
        """Remove the file and give the lock up."""
        self.unlink()
        self.close()

    def close(self) -> None:
        """Close the file; the lock is given up with it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def not_written(path: str) -> Iterator[bool]:
    """Keep others from taking the lock on the file at *path*; tell whether that is so.

    It is not where somebody has the lock, or it may not be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True  # nobody has ever written
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(file)


def is_locked(path: str) -> bool:
    """Return whether someone holds the lock on the file at *path*."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def holder_at(path: str) -> Owner | None:
    """Return who holds the lock on the file at *path*; None: nobody, or its name is not told."""
    if not is_locked(path):
        return None
    try:
        with open(path, "rb") as file:
            return Owner.from_bytes(file.read(_NAME_SIZE))
    except OSError:
        return None


class Presence:
    """Tells others that this process has a store open: a shared lock on a file.

    Args:
        path: The file. Where it cannot be made, nobody can write there either.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self._file = -1
        self.be_one_of_many()

    def be_one_of_many(self) -> None:
        """Wait until nobody replaces the store, and be counted."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def become_only(self) -> bool:
        """Keep others from opening the store; return False if another has it open."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # The attempt has given up the shared lock.
            self.be_one_of_many()
            return False
        return True

    def close(self) -> None:
        """Not to have it open any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
