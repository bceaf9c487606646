"""Locks between processes: files that the kernel unlocks when their holder dies.

A lock between processes must end with its holder, however that dies; a waiter needs a
deadline; and an error should name the holder. No single mechanism gives all three:

* A POSIX lock (``fcntl``), which LMDB and SQLite use, belongs to the process. It is
  lost without notice when the process opens and closes the locked file once more, as
  any copy of the folder does.
* `flock` belongs to the open file. It survives that, and the kernel releases it when
  the last descriptor is closed. So `FileLock` uses it, and polls: `flock` waits with a
  deadline only by a signal, which belongs to the user's program.
* The holder writes its name into the file, after it has the lock. Between the two the
  file names the previous holder, or none; so a name is for messages only, and no
  decision that must be right depends on it.

Who sees what when::

    process A                     the file                    process B
    ---------                     --------                    ---------
    flock(LOCK_EX)                [locked by A]               flock ► BlockingIOError
    pwrite(its name)              [A's name]                  reads A's name
    dies, or flock(LOCK_UN)       [A's name], unlocked        flock ► the lock is B's
                                                              pwrite(its name)

A descriptor is inherited by a fork, and the lock with it: it would outlive its holder.
So a forked child first closes all locks of the parent. Some milliseconds may pass until
then, which `LockHolder.has_ended` is for.

The file may also be removed and made again under its name. Two processes would hold a
lock then, on two files: `FileLock.is_current` detects that, and a user of the lock that
removes files must ask it after `acquire`.

Behind the name a lease keeps four numbers of 8 bytes (`FENCE`, `STOP_REQUEST`,
`WATCHED_UNTIL`, `STATE_SIZE`) and the state of the run. They are read without the lock,
so a reader may meet half of a state: it is sealed, and half of it is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass

from flowpregel import _interrupts
from flowpregel.errors import StoreError
from flowpregel.storage.errors import of_system

FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.01
"""Seconds between two attempts to take a lock: they double from the one to the other.
"""
NAME_SIZE = 256
"""The bytes at the beginning of a lock's file that name its holder."""
FENCE = NAME_SIZE
STOP_REQUEST = NAME_SIZE + 8
WATCHED_UNTIL = NAME_SIZE + 16
STATE_SIZE = NAME_SIZE + 24
"""The positions of the numbers of a lease in its file; the state follows the last."""
_STATE = STATE_SIZE + 8
_DEAD_STATES = ("Z", "X")
_STOPPED_STATES = ("T", "t")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, as it stands in the lock's file."""

    host: str
    pid: int
    namespace: int = 0
    """The pid namespace in which *pid* is valid; 0: the system has only one."""

    @classmethod
    def me(cls) -> LockHolder:
        """Return this process."""
        namespace = 0
        with suppress(OSError):
            namespace = os.stat("/proc/self/ns/pid").st_ino
        return cls(socket.gethostname(), os.getpid(), namespace)

    def __str__(self) -> str:
        is_here = self.host == socket.gethostname()
        if is_here and self.namespace != self.me().namespace:
            return f"process {self.pid} of another pid namespace on {self.host}"
        text = f"process {self.pid} on {self.host}"
        if is_here and self.state in _STOPPED_STATES:
            text += " (it is stopped: SIGCONT lets it go on)"
        return text

    @property
    def state(self) -> str:
        """The letter for the state of the process with this pid; empty: unknown."""
        with suppress(OSError), open(f"/proc/{self.pid}/stat", "rb") as file:
            _, _, rest = file.read().rpartition(b")")
            return rest.split()[0].decode()
        return ""

    def has_ended(self) -> bool:
        """Return True if this process is known to be gone, though its lock may not be.

        A process that it forked just before it died holds its locks too, until the
        child has closed them or become another program: some milliseconds, or more on
        a busy machine.
        """
        me = self.me()
        if (self.host, self.namespace) != (me.host, me.namespace):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.state in _DEAD_STATES


def _holder_in(data: bytes) -> LockHolder | None:
    """Return the holder that a lock's file names, or None if it names none."""
    with suppress(ValueError, TypeError):
        return LockHolder(**json.loads(data))
    return None


def open_file(path: str, flags: int) -> int:
    """Return a descriptor of a store's file; it is made with mode 0600.

    Raises:
        StoreError: The file, or its folder, is a link, or it is no regular file.
        OSError: It cannot be opened.
    """
    folder, name = os.path.split(path)
    inherited = os.O_CLOEXEC | os.O_NOFOLLOW
    # The folder may be one that this user may enter and not list.
    entered = getattr(os, "O_PATH", os.O_RDONLY)
    folder_file = -1
    try:
        folder_file = os.open(folder, entered | os.O_DIRECTORY | inherited)
        # Not blocking: the file may be a pipe that no other process opens.
        flags |= os.O_NONBLOCK | inherited
        file = os.open(name, flags, 0o600, dir_fd=folder_file)
    except OSError as error:
        suspect = path if folder_file >= 0 else folder
        if os.path.islink(suspect):
            raise StoreError(
                f"{suspect} is a symbolic link, and a store has none; nothing was "
                "changed: remove the link if you know who made it"
            ) from error
        raise
    finally:
        if folder_file >= 0:
            os.close(folder_file)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreError(f"{path} is no plain file, as all of a store are")
    return file


class FileLock:
    """A lock between processes, with the holder's name in the file.

    A forked child does not inherit it. One OS thread may close it while another uses
    it: the other one gets an error, and never uses the file that has got the descriptor
    since.

    Args:
        path: The file; it is made with mode 0600 if it is not there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._use = threading.Lock()
        """Guards the descriptor, for one system call at a time."""
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)
        _OPEN.add(self)
        os.fchmod(self._file, 0o600)  # the umask may have removed bits

    def acquire(self, timeout: float) -> bool:
        """Take the lock; return False if it is not free within *timeout* seconds."""
        deadline = time.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            try:
                with self._use, suppress(BlockingIOError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.pread(self._file, NAME_SIZE, 0) != _holder_name:
                        os.pwrite(self._file, _holder_name, 0)
                    return True
            except OSError as error:
                self.release()
                raise of_system(error, self.path) from error
            except ValueError as error:  # the descriptor is -1
                raise StoreError(
                    f"{self.path} is closed; open the store again"
                ) from error
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            _interrupts.deliver()
            time.sleep(min(pause, remaining))
            pause = min(pause * 2, LONGEST_PAUSE)

    def release(self) -> None:
        """Release the lock, if this has not been closed."""
        with self._use, suppress(ValueError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def holder(self) -> LockHolder | None:
        """Return the last holder that the file names; None if this is closed."""
        with self._use, suppress(OSError):
            return _holder_in(os.pread(self._file, NAME_SIZE, 0))
        return None

    def read(self, position: int) -> int:
        """Return the number at *position* (0: none was written)."""
        with self._use:
            return int.from_bytes(os.pread(self._file, 8, position), "big")

    def write(
        self,
        position: int,
        number: int,
    ) -> None:
        """Write a number at `FENCE`, `STOP_REQUEST` or `WATCHED_UNTIL`, or 0 at
        `STATE_SIZE` for no state.
        """
        with self._use:
            os.pwrite(self._file, number.to_bytes(8, "big"), position)

    def write_state(self, state: bytes) -> None:
        """Write the state of the holder; those who read it now may see half of it."""
        size = len(state).to_bytes(8, "big")
        with self._use:
            os.pwrite(self._file, size + state, STATE_SIZE)

    def is_current(self) -> bool:
        """Return True if the path still names this file."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        return False

    def close(self, *, remove: bool = False) -> None:
        """Close the file, which releases the lock; may be called again.

        Args:
            remove: Remove the file first, if the path still names it. Only the holder
                of the lock may ask for that, and only where no other process puts
                another file there.
        """
        if remove and self._file >= 0 and self.is_current():
            with suppress(FileNotFoundError):
                os.unlink(self.path)
        with self._use:
            file = self._file
            self._file = -1
            if file >= 0:
                os.close(file)

    def close_after_fork(self) -> None:
        """Close the file in a forked child: the parent's OS threads may have held
        `_use`.
        """
        self._use = threading.Lock()
        self.close()


_OPEN: weakref.WeakSet[FileLock] = weakref.WeakSet()
_holder_name = b""
"""The name that this process writes into the file of a lock it has taken."""


def _begin_process() -> None:
    global _holder_name
    for lock in _OPEN:  # the parent's
        lock.close_after_fork()
    name = json.dumps(asdict(LockHolder.me()))
    _holder_name = name.encode().ljust(NAME_SIZE)


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def holder_and_state(path: str) -> tuple[LockHolder | None, bytes]:
    """Return the holder of the lock on the file at *path*, and its state.

    The holder is None if the lock is free.
    """
    with suppress(OSError), open(open_file(path, os.O_RDONLY), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            data = file.read()
            size = int.from_bytes(data[STATE_SIZE:_STATE], "big")
            return _holder_in(data[:NAME_SIZE]), data[_STATE:][:size]
    return None, b""
