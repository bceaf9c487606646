"""Locks: between processes, and between the OS threads of one.

LMDB's own lock is a POSIX lock, which a process loses without notice when it
opens and closes the lock file once more (a copy of the folder does). `flock`
belongs to the open file and is not lost that way; the kernel releases it when
its holder dies; and one can wait for it with a deadline.

LMDB's map must not be resized while any transaction of the process is open:
readers would die with errors, and a writer deadlocks. Each transaction passes
the `Gate`; a resize or a close holds it alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache

from flowpregel import _interrupts
from flowpregel.errors import StoreError

_FIRST_PAUSE = 0.00005
_LONGEST_PAUSE = 0.01
_NAME_SIZE = 256


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: its host, the boot of that host, its pid, and when it started.

    A pid is used again after its process ended, so the start time belongs to
    it; and pids start anew with each boot.
    """

    host: str
    boot: str
    pid: int
    start: int
    """Clock ticks since the boot, 0 where the system does not tell."""

    def is_alive(self) -> bool:
        """Return whether the process still runs, as far as this host can know.

        A process of another host counts as alive: nothing here can tell.
        """
        here = this_process()
        if self.host != here.host:
            return True
        if self.boot != here.boot:
            return False
        if not _exists(self.pid):
            return False
        started = _status(self.pid)[1]
        return not (self.start and started) or started == self.start

    def __str__(self) -> str:
        text = f"process {self.pid} on {self.host}"
        if self.host == this_process().host and self.is_alive():
            if _status(self.pid)[0] in ("T", "t"):
                text += " (it is stopped: SIGCONT lets it go on)"
        elif self.host == this_process().host:
            text += " (it has ended)"
        return text

    def to_bytes(self) -> bytes:
        """Return the owner as `from_bytes` reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Owner | None:
        """Return the owner in *data*, or None if there is none to be read."""
        try:
            found = json.loads(data)
            return cls(
                str(found["host"]), str(found["boot"]), int(found["pid"]), int(found["start"])
            )
        except (ValueError, TypeError, KeyError):
            return None


def this_process() -> Owner:
    """Return the owner that this process is."""
    return _owner(os.getpid())


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), _boot(), pid, _status(pid)[1])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and belongs to someone else
    return _status(pid)[0] not in ("Z", "X")


def _status(pid: int) -> tuple[str, int]:
    """Return the state letter and the start time of a process ("" and 0: not told)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode("ascii"), int(fields[19])


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
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
            _interrupts.deliver()
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


class Gate:
    """Let many OS threads in together, or one alone; those who want it alone go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._lock:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep newcomers out, wait until nobody is inside, and be alone.

        Must not be called by an OS thread that is inside.
        """
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            try:
                while self._inside:
                    self._changed.wait()
            except BaseException:
                self._closed = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
