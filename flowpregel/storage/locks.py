"""Locks between processes: files that the kernel unlocks when their holder dies.

A lock between processes must be released when its holder dies, however it dies; a
waiter needs a deadline; and an error should name the holder. No single mechanism meets
these three demands:

* A POSIX lock (``fcntl``), which LMDB and SQLite use, belongs to the process. It is
  silently lost when the process opens the locked file a second time and closes it, for
  example to copy the folder.
* A lock by `flock` belongs to the open file. A second open and close does not release
  this lock. The kernel releases it when the last descriptor is closed. So `FileLock`
  uses `flock`, and polls: only a signal could end a blocking `flock` at a deadline, and
  signals belong to the user's program.
* The holder writes its name into the file after it has acquired the lock. Until then
  the file names the previous holder, or none. So the name is used in messages only, and
  never for a decision that must be right.

Who sees what when::

    process A                     the file                    process B
    ---------                     --------                    ---------
    flock(LOCK_EX)                [locked by A]               flock ► BlockingIOError
    pwrite(its name)              [A's name]                  reads A's name
    dies, or flock(LOCK_UN)       [A's name], unlocked        flock ► the lock is B's
                                                              pwrite(its name)

A forked child inherits the descriptor and with it the lock, which would then outlive
its holder. So a forked child first closes all locks of the parent. Until it has done
so, some milliseconds later, the lock of a dead parent is still taken;
`LockHolder.has_ended` detects that the parent is gone.

The file may also be unlinked and created again under the same name. Then two processes
could hold the lock at once, on two files. `FileLock.is_current` detects that: code that
unlinks lock files must call it after `acquire`.

In the file of a lease, five numbers of 8 bytes follow the name (`FENCE`,
`STOP_REQUEST`, `WATCHED_UNTIL`, `TAKEN_OVER`, `STATE_SIZE`), and then the state of the
run. `flowpregel.checkpoint.leases` explains the numbers; the fence of a lease is
greater than that of any earlier lease. All of this is read without the lock, so a
reader may see a partly written state. The state has a checksum, which does not match if
the state is only partly written.
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

from flowpregel import _interrupts, _linux
from flowpregel.errors import StoreError
from flowpregel.storage.errors import of_system

FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.01
"""The shortest and the longest pause between two attempts to acquire a lock, in
seconds. Each pause is twice as long as the pause before.
"""
NAME_SIZE = 256
"""The number of bytes at the beginning of a lock's file that hold the holder's name."""
FENCE = NAME_SIZE
STOP_REQUEST = NAME_SIZE + 8
WATCHED_UNTIL = NAME_SIZE + 16
TAKEN_OVER = NAME_SIZE + 24
STATE_SIZE = NAME_SIZE + 32
"""The positions of a lease's numbers in its file. The state follows the last number."""
_STATE = STATE_SIZE + 8
_DEAD_STATES = ("Z", "X")
_STOPPED_STATES = ("T", "t")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, as the lock's file names it."""

    host: str
    """The name of the machine."""
    pid: int
    """The id of the process."""
    namespace: int = 0
    """The pid namespace in which *pid* is valid; 0 if the system has no namespaces."""

    @classmethod
    def me(cls) -> LockHolder:
        """Return this process."""
        namespace = 0
        with suppress(OSError):
            namespace = os.stat(_linux.PID_NAMESPACE).st_ino
        return cls(socket.gethostname(), os.getpid(), namespace)

    def __str__(self) -> str:
        is_here = self.host == socket.gethostname()
        if is_here and self.namespace != self.me().namespace:
            return f"process {self.pid} in another pid namespace on {self.host}"
        text = f"process {self.pid} on {self.host}"
        if is_here and self.state in _STOPPED_STATES:
            text += " (it is stopped; SIGCONT resumes it)"
        return text

    @property
    def state(self) -> str:
        """The letter that Linux uses for the state of the process, or an empty string
        if the state is unknown.
        """
        _, _, rest = _linux.read_proc(f"{self.pid}/stat").rpartition(")")
        return rest.split()[0] if rest else ""

    def has_ended(self) -> bool:
        """Return True if the process is known to have ended.

        Its lock may still be taken: a child that it forked just before it died holds
        the lock until it has closed the inherited file or has executed another program.
        That takes some milliseconds, or longer on a busy machine.
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
    """Return the holder in *data*, the contents of a lock's file, or None if there is
    none.
    """
    with suppress(ValueError, TypeError):
        return LockHolder(**json.loads(data))
    return None


def open_file(path: str, flags: int) -> int:
    """Open a file of a store, and return its descriptor.

    If *flags* allow the file to be created, it gets mode 0600.

    Raises:
        StoreError: The file or its folder is a symbolic link, or the file is not a
            regular file.
        OSError: The file cannot be opened.
    """
    folder, name = os.path.split(path)
    inherited = os.O_CLOEXEC | os.O_NOFOLLOW
    # O_PATH is used where it exists, because it also opens a folder that this user may
    # enter but not list.
    entered = getattr(os, "O_PATH", os.O_RDONLY)
    folder_file = -1
    try:
        folder_file = os.open(folder, entered | os.O_DIRECTORY | inherited)
        # O_NONBLOCK is set, because otherwise the opening of a named pipe would wait
        # for another process.
        flags |= os.O_NONBLOCK | inherited
        file = os.open(name, flags, 0o600, dir_fd=folder_file)
    except OSError as error:
        suspect = path if folder_file >= 0 else folder
        if os.path.islink(suspect):
            raise StoreError(
                f"{suspect} is a symbolic link, which a store must not contain; "
                "nothing was changed: remove the link if you know who made it"
            ) from error
        raise
    finally:
        if folder_file >= 0:
            os.close(folder_file)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreError(
            f"{path} is not a regular file; a store contains only regular files"
        )
    return file


class FileLock:
    """A lock between processes, with the holder's name in its file.

    A forked child does not inherit the lock. One OS thread may close the lock while
    another uses it. The other OS thread then gets an error. It never uses a file that
    was opened later under the same descriptor.

    Args:
        path: The file. If it does not exist, it is created with mode 0600.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     lock = FileLock(folder + "/lock")
        ...     lock.acquire(timeout=10)
        ...     lock.close()
        True
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._use = threading.Lock()
        """A lock that is held during each system call on the descriptor."""
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)
        _OPEN.add(self)
        try:
            # The umask may have removed bits of the mode, so the mode is set again.
            os.fchmod(self._file, 0o600)
        except OSError:
            self.close()
            raise

    def acquire(self, timeout: float) -> bool:
        """Acquire the lock and return True, or return False if it is not free within
        *timeout* seconds.
        """
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
            # A ValueError means that the descriptor is -1, because the lock is closed.
            except ValueError as error:
                raise StoreError(
                    f"{self.path} is closed; open the store again"
                ) from error
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            _interrupts.raise_pending_interrupts()
            time.sleep(min(pause, remaining))
            pause = min(pause * 2, LONGEST_PAUSE)

    def release(self) -> None:
        """Release the lock, unless it is closed."""
        with self._use, suppress(ValueError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def holder(self) -> LockHolder | None:
        """Return the holder that the file names, or None if it names none."""
        with self._use, suppress(OSError):
            return _holder_in(os.pread(self._file, NAME_SIZE, 0))
        return None

    def read(self, position: int) -> int:
        """Return the number at *position*, or 0 if none was written."""
        with self._use:
            return int.from_bytes(os.pread(self._file, 8, position), "big")

    def write(
        self,
        position: int,
        number: int,
    ) -> None:
        """Write a number at *position*.

        Args:
            position: `FENCE`, `STOP_REQUEST`, `WATCHED_UNTIL` or `TAKEN_OVER`; or
                `STATE_SIZE` to erase the holder's state.
            number: The number; 0 at `STATE_SIZE`.
        """
        with self._use:
            os.pwrite(self._file, number.to_bytes(8, "big"), position)

    def write_state(self, state: bytes) -> None:
        """Write the state of the holder. A concurrent reader may see a part of it.

        Args:
            state: The state, with a checksum that the caller has added.
        """
        size = len(state).to_bytes(8, "big")
        with self._use:
            os.pwrite(self._file, size + state, STATE_SIZE)

    def is_current(self) -> bool:
        """Return True if the path still names this file."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        return False

    def close(self, *, remove: bool = False) -> None:
        """Close the file, which releases the lock. It is safe to call this twice.

        Args:
            remove: Unlink the file first, if the path still names it. Only the holder
                of the lock may pass True, and only if no other process can replace the
                file.
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
        """Close the file in a forked child. The parent keeps the lock."""
        # `_use` gets a new lock, because an OS thread of the parent may have held the
        # old one during the fork.
        self._use = threading.Lock()
        self.close()


_OPEN: weakref.WeakSet[FileLock] = weakref.WeakSet()
_holder_name = b""
"""The name that this process writes into the file of a lock after acquiring it."""


def _begin_process() -> None:
    global _holder_name
    # After a fork, the open locks belong to the parent process, so this process only
    # closes its copies of the descriptors.
    for lock in _OPEN:
        lock.close_after_fork()
    name = json.dumps(asdict(LockHolder.me()))
    _holder_name = name.encode().ljust(NAME_SIZE)


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def holder_and_state(path: str) -> tuple[LockHolder | None, bytes]:
    """Return the holder of the lock on the file at *path*, and the holder's state.

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


def dead_holder(path: str) -> LockHolder | None:
    """Return the process that died while it held the lease in the file at *path*.

    None is returned if the lease is held now, or was released.
    """
    with suppress(OSError), open(open_file(path, os.O_RDONLY), "rb") as file:
        # If the lease is held, `flock` raises BlockingIOError, which is an OSError, and
        # None is returned.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        data = file.read(FENCE + 8)
        # The fence is 0, or the file is unlinked, if the owner has released its lease.
        # Any other fence means that the owner has died.
        if any(data[FENCE:]):
            return _holder_in(data[:NAME_SIZE])
    return None
