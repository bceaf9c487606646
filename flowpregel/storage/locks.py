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
import random
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from flowpregel import _interrupts
from flowpregel.errors import StoreBusyError, StoreError
from flowpregel.storage.errors import of_system

_FIRST_PAUSE = 0.00005
_LONGEST_PAUSE = 0.01
_NAME_SIZE = 256
FENCE, ASKED, WATCHED, SHOWN = (_NAME_SIZE + 8 * number for number in range(4))
"""Where numbers stand in a lock's file, after the holder's name, and what the holder
shows.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lock: one that is held is held by a living process."""

    host: str
    pid: int
    namespace: int = 0
    """Where its pid means this process; 0: there is but one such place."""

    @classmethod
    def me(cls) -> Owner:
        """Return this process."""
        namespace = 0
        with suppress(OSError):
            namespace = os.stat("/proc/self/ns/pid").st_ino
        return cls(socket.gethostname(), os.getpid(), namespace)

    def __str__(self) -> str:
        if self.namespace != self.me().namespace and self.host == socket.gethostname():
            return f"process {self.pid} of another pid namespace on {self.host}"
        text = f"process {self.pid} on {self.host}"
        if self.state in ("T", "t") and self.host == socket.gethostname():
            text += " (it is stopped: SIGCONT lets it go on)"
        return text

    @property
    def state(self) -> str:
        """The letter by which the kernel says how the process of this id is; empty: not
        known.
        """
        with suppress(OSError), open(f"/proc/{self.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
        return ""

    def has_ended(self) -> bool:
        """Return whether this process is known to be gone, though its lock may not be.

        What it had just forked when it died holds its locks too, until that has become
        another program: some milliseconds, or more on a busy machine.
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
        return self.state in ("Z", "X")


def _owner_in(data: bytes) -> Owner | None:
    """Return the owner that stands in a lock's file, if there is one to be read."""
    with suppress(ValueError, TypeError):
        return Owner(**json.loads(data))
    return None


def open_file(path: str, flags: int) -> int:
    """Return a descriptor of a store's file, which is made with mode 0600 if *flags*
    say so.

    Raises:
        StoreError: It, or the folder it is in, is a link, or it is no file.
        OSError: It cannot be opened.
    """
    folder, name = os.path.split(path)
    kept = os.O_CLOEXEC | os.O_NOFOLLOW
    place = getattr(os, "O_PATH", os.O_RDONLY)  # it may be one that must not be listed
    inside = -1
    try:
        inside = os.open(folder, place | os.O_DIRECTORY | kept)
        # Not blocking: it may be a pipe, which nobody else opens.
        file = os.open(name, flags | os.O_NONBLOCK | kept, 0o600, dir_fd=inside)
    except OSError as error:
        linked = path if inside >= 0 else folder
        if os.path.islink(linked):
            raise StoreError(
                f"{linked} is a symbolic link, and a store has none; nothing was "
                "changed: "
                "remove the link if you know who made it"
            ) from error
        raise
    finally:
        if inside >= 0:
            os.close(inside)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreError(f"{path} is no plain file, as all of a store are")
    return file


class FileLock:
    """A lock between processes, with the name of its holder in the file.

    A process that this one forks does not inherit it: else the lock would outlive its
    owner. One OS thread may close it while another uses it: that one finds it closed,
    and never the file that has got its descriptor since.

    Args:
        path: The file; created with mode 0600 if it is not there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._use = threading.Lock()  # of the descriptor; held for one system call
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)
        _OPEN.add(self)
        os.fchmod(self._file, 0o600)  # whatever the umask took away

    def acquire(self, timeout: float) -> bool:
        """Take the lock; return False if it is not free within *timeout* seconds."""
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            try:
                with self._use, suppress(BlockingIOError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.pread(self._file, _NAME_SIZE, 0) != _holder_name:
                        os.pwrite(self._file, _holder_name, 0)
                    return True
            except OSError as error:
                self.release()
                raise of_system(error, self.path) from error
            except ValueError as error:  # it has no descriptor any more
                raise StoreError(
                    f"{self.path} is closed; open the store again"
                ) from error
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            _interrupts.deliver()
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def release(self) -> None:
        """Give the lock up, unless it was closed meanwhile."""
        with self._use, suppress(ValueError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def holder(self) -> Owner | None:
        """Return who took the lock last, as the file tells; None once this is
        closed.
        """
        with self._use, suppress(OSError):
            return _owner_in(os.pread(self._file, _NAME_SIZE, 0))
        return None

    def read(self, place: int) -> int:
        """Return the number that was written last at *place* (0: none)."""
        with self._use:
            return int.from_bytes(os.pread(self._file, 8, place), "big")

    def write(self, place: int, number: int) -> None:
        """Write a number at `FENCE`, `ASKED`, `WATCHED` or, to show nothing,
        `SHOWN`.
        """
        with self._use:
            os.pwrite(self._file, number.to_bytes(8, "big"), place)

    def show(self, data: bytes) -> None:
        """Write what the holder shows: not at once for those who read it meanwhile."""
        with self._use:
            os.pwrite(self._file, len(data).to_bytes(8, "big") + data, SHOWN)

    def is_current(self) -> bool:
        """Return whether the file is the one that its path names now."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        return False

    def close(self, *, remove: bool = False) -> None:
        """Close the file, by which the lock is given up; may be called again.

        Args:
            remove: Remove its name before, if that is still this one's. Only the holder
                of the lock may ask for that, and only where nobody else puts another
                file there.
        """
        if remove and self._file >= 0 and self.is_current():
            with suppress(FileNotFoundError):
                os.unlink(self.path)
        with self._use:
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)

    def leave(self) -> None:
        """Close it in a process that was forked: another OS thread may have been using
        it.
        """
        self._use = threading.Lock()
        self.close()


_OPEN: weakref.WeakSet[FileLock] = weakref.WeakSet()
_holder_name = b""
"""What this process writes into the file of a lock that it has taken."""


def _begin_process() -> None:
    global _holder_name
    for lock in _OPEN:  # the parent's
        lock.leave()
    _holder_name = json.dumps(asdict(Owner.me())).encode().ljust(_NAME_SIZE)


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def held_at(path: str) -> tuple[Owner | None, bytes]:
    """Return who holds the lock on the file at *path*, and what that shows; None:
    nobody does.
    """
    with suppress(OSError), open(open_file(path, os.O_RDONLY), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            data = file.read()
            size = int.from_bytes(data[SHOWN : SHOWN + 8], "big")
            return _owner_in(data[:_NAME_SIZE]), data[SHOWN + 8 :][:size]
    return None, b""


class Presence:
    """Tells others that this process has a store open: a shared lock on a file.

    In it stands which file they have open: another may be put in its place meanwhile.

    Args:
        path: The file. Where it cannot be made, nobody can write there either.
        data: The file that is open.
        create: Make it if it is not there.
    """

    def __init__(self, path: str, data: str, *, create: bool = True) -> None:
        self._path, self._data = path, data
        self._file = -1
        for flags in (
            (os.O_RDWR | os.O_CREAT, os.O_RDONLY) if create else (os.O_RDONLY,)
        ):
            with suppress(OSError):
                self._file = open_file(path, flags)
                break
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep others from opening the store; give False if another has it open."""
        if self._file < 0:
            yield not os.path.lexists(self._path)
            return
        is_only = False
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_only = True
        try:
            yield is_only
        finally:
            with suppress(OSError):  # it may be one we can only read
                if is_only:
                    os.pwrite(self._file, self._identity(), 0)
            # Also where the attempt has failed: it has given up the shared lock.
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def agree(self, timeout: float) -> None:
        """Wait until nobody has another file open, whose place ours has taken.

        Two files would share LMDB's lock file, which tells what is the newest in one of
        them.

        Raises:
            StoreBusyError: Somebody still has, after *timeout* seconds.
        """
        deadline = time.monotonic() + timeout
        while self._file >= 0:
            with self.alone() as is_only:
                pass
            if is_only or os.pread(self._file, _NAME_SIZE, 0) in (
                b"",
                self._identity(),
            ):
                break
            if time.monotonic() > deadline:
                holder = (
                    "a process that has another file open, whose place this one took"
                )
                raise StoreBusyError(os.path.dirname(self._data), holder, timeout)
            # Not counted meanwhile: of several who open it at once one is to be the
            # only one.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            _interrupts.deliver()
            time.sleep(random.uniform(_FIRST_PAUSE, _LONGEST_PAUSE))

    def _identity(self) -> bytes:
        """Return what the file is known by, as long as anybody has it open."""
        return str(os.stat(self._data).st_ino).encode().ljust(_NAME_SIZE)

    def close(self) -> None:
        """Not to have it open any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Gate:
    """Let many OS threads in together, or one alone; those who want it alone go
    first.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep newcomers out, wait until nobody is inside, and be alone.

        Must not be called by an OS thread that is inside.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            try:
                self._changed.wait_for(lambda: not self._inside)
                yield
            finally:
                self._closed = False
                self._changed.notify_all()
