"""Leases between processes: one run at a time writes a thread's namespace.

A lease consists of a lock and a *fence*. The lock is on a file of the lease, in
``leases/`` in the store's folder, and the kernel releases it when the owner dies. The
fence is a number greater than the fence of any earlier lease. The file also names the
owner, for messages.

A takeover cannot take the kernel's lock from an owner that is stopped (SIGSTOP). It
stores a greater fence in a transaction, then unlinks the old file and creates a new one
under the same name. If the old owner resumes, its commits are refused, since they have
a smaller fence. The order of these steps matters: once the file is unlinked, any run
can acquire the lease, even before the run that takes over.

A takeover may meet a run that has locked the file but has not written its fence yet.
Neither run waits for the other, because the other run may be stopped. Each writes a
number, and then reads the number of the other::

    a run that acquires the lease               a run that takes it over
    -----------------------------               ------------------------
    locks the file                              finds the file locked
    writes its fence                            writes "taken over"
    reads "taken over"                          reads the fence
        0: it owns the lease                    stores a greater fence
        1: it unlinks the file, and             unlinks the file
           acquires the lease again

If the run reads 0, its fence was written before the takeover reads it, and the store
refuses its commits after the takeover. If the process that takes over dies after this
write, the 1 stays in the file of an owner that continues. The next run that locks this
file unlinks it.

An owner may die inside a commit, when all of it is in the store, but LMDB has not yet
noted its number for readers. The next write does so. So the run that inherits the lease
of a dead owner begins with a write: it stores the fence of the dead owner. If it read
first, it could continue from the checkpoint before that commit, and repeat work that is
recorded.

The file is unlinked by an owner that ends, by a takeover, or by a run that detects one.
Each first checks that the name still refers to the file that it has open. The process
holds one lock (``leases.lock``) while it checks and unlinks, so no other process can
create another file in between. If that lock cannot be acquired, because its holder is
stopped, the file is not unlinked, and an owner that ends marks the file as released
(fence 0).

Any process can ask the owner to stop::

    who asks                         lease file                     owner
    --------                         ----------                     -----
    ask_to_stop(fence)  ---------->  [holder][fence][fence asked]
                                                  <---- read, five times a second

The request is the fence of the lease that must end, so it cannot stop a later run. It
stays in the file until the owner reads it, however long the owner is stopped.

Any process can watch the run. The watcher writes into the file the time until which it
watches. The owner writes the state of the run next to it. The owner does so as often as
it reads requests, but spends no more than one percent of the time on it. The file is
locked as long as the owner is alive. If it is not locked, the state in it was left by a
dead owner and is ignored.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from flowpregel._core.records import Address
from flowpregel._fault import fault
from flowpregel._interrupts import defer_interrupts, raise_pending_interrupts
from flowpregel._loggers import store_log
from flowpregel.checkpoint.base import Fences, Lease, Leases, OnConflict
from flowpregel.checkpoint.layout import namespace_key
from flowpregel.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    ThreadBusyError,
)
from flowpregel.storage.errors import of_system
from flowpregel.storage.locks import (
    FENCE,
    STATE_SIZE,
    STOP_REQUEST,
    TAKEN_OVER,
    WATCHED_UNTIL,
    FileLock,
    LockHolder,
    dead_holder,
    holder_and_state,
)
from flowpregel.storage.tables import Table

FOLDER = "leases"
NAMES_LOCK: Final = "leases.lock"
"""The file whose lock a process holds while it unlinks the file of a lease."""
PERIOD: Final = 0.2
"""Seconds between two reads of the requests to stop."""
WATCHED_FOR: Final = 5
"""Seconds for which one call of `LeaseFiles.watch` watches a run."""
_SHARE: Final = 100
"""The ratio of a run's time to the time that the run may spend on reporting its state
to watchers.
"""
_LONGEST_PAUSE = 0.05
_RELEASE_TIMEOUT: Final = 1.0
"""Seconds that a run waits at its end for the lock under which the lease's file is
unlinked.
"""
_FORK_LASTS: Final = 5.0
"""Seconds to wait until the lock of a dead owner is free. A child that the owner forked
just before it died may have inherited the lock, and releases it within this time.
"""


class LeaseRegistry(Leases, Protocol):
    """The leases in a store that other processes use too."""

    def owner(self, address: Address) -> LockHolder | None:
        """Return the holder of the lease at *address*, or None if it is free."""

    def owners(self, addresses: Sequence[Address]) -> dict[Address, LockHolder]:
        """Return the holders of those leases at *addresses* that are not free."""

    def ask_to_stop(self, address: Address) -> LockHolder | None:
        """Ask the run that holds the lease at *address* to stop, and return its holder.

        None is returned if the lease is free.
        """

    def dead_owner(self, address: Address) -> LockHolder | None:
        """Return the process that died while it held the lease at *address*, or None
        if the lease is held, or was released.
        """

    def watch(self, address: Address) -> tuple[LockHolder, dict[str, Any]] | None:
        """Return the holder of the lease at *address* and the state of the run.

        None is returned if the lease is free, or if no state has been written yet.
        """


class LeaseFiles:
    """The leases that this process holds in one store.

    Args:
        path: The store's folder.
        table: The table that adds a checksum to the states of runs, and encrypts them,
            as it does with the store's records.
        lock_timeout: Seconds that a takeover waits for another process that is
            unlinking the file of a lease.

    Example:
        >>> from os import getpid
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.base import Address
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.storage import PythonCodec
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     store, _ = saver.opened_to_look(PythonCodec())
        ...     leases = LeaseFiles(folder, store.table(b"live"))
        ...     with leases.hold(Address("1"), "raise", lambda address, fence: fence):
        ...         saver.owner("1").pid == getpid()
        ...     store.close()
        True
    """

    def __init__(self, path: str, table: Table, lock_timeout: float = 30.0) -> None:
        self._store_path = path
        self._path = os.path.join(path, FOLDER)
        self._table = table
        self._lock_timeout = lock_timeout
        self.held: set[tuple[str, int]] = set()
        """The thread and the fence of each lease. A lease that another run has taken
        over is not removed, since the next transaction detects the takeover.
        """

    @contextmanager
    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> Iterator[Lease]:
        """Hold the right to write at *address*.

        Args:
            address: The thread and the namespace.
            on_conflict: As `BaseCheckpointSaver.lease` takes it.
            fences: A function that returns the fence (the number of the newest lease)
                of an address. If its second argument is not 0, that number is stored as
                the fence first.

        Raises:
            ThreadBusyError: Another run holds this right, and *on_conflict* is
                ``"raise"``.
        """
        file = None
        fence = 0
        try:
            with defer_interrupts():
                request = _LeaseRequest(address, on_conflict, fences)
                file, fence, dead_fence = self._own(request)
                self.held.add((address.thread_id, fence))
                file.write(STATE_SIZE, 0)
                is_inherited = request.replaced is None and dead_fence > 0
                lease = Lease(fence, is_inherited=is_inherited)
                key = os.path.basename(file.path).encode()
                WATCH.add(file, LiveState(lease, self._table, key))
            yield lease
        finally:
            with defer_interrupts():
                self.held.discard((address.thread_id, fence))
                if file is not None:
                    WATCH.drop(file)
                    self._release(file)

    def owner(self, address: Address) -> LockHolder | None:
        """Return the holder of the lease at *address*, or None if it is free."""
        return holder_and_state(self.file(address))[0]

    def owners(self, addresses: Sequence[Address]) -> dict[Address, LockHolder]:
        """Return the holders of those leases at *addresses* that are not free.

        Args:
            addresses: The threads and namespaces of the leases.
        """
        owners: dict[Address, LockHolder] = {}
        for address in addresses:
            owner = self.owner(address)
            if owner is not None:
                owners[address] = owner
        return owners

    def ask_to_stop(self, address: Address) -> LockHolder | None:
        """Ask the run that holds the lease at *address* to stop, and return its holder.

        None is returned if the lease is free.

        Raises:
            StoreError: This user may not write to the store.
        """
        owner = self.owner(address)
        if owner is not None:
            try:
                with closing(FileLock(self.file(address))) as file:
                    file.write(STOP_REQUEST, file.read(FENCE))
            except OSError as error:
                raise StoreError(f"cannot ask {owner} to stop: {error}") from error
        return owner

    def dead_owner(self, address: Address) -> LockHolder | None:
        """Return the process that died while it held the lease at *address*.

        None is returned if the lease is held, or was released.
        """
        return dead_holder(self.file(address))

    def watch(self, address: Address) -> tuple[LockHolder, dict[str, Any]] | None:
        """Return the holder of the lease at *address*, and the last state of the run.

        This also makes the run write its state for the next few seconds.

        Returns:
            The holder and the state, or None if the lease is free or if no state has
            been written yet.
        """
        path = self.file(address)
        owner, data = holder_and_state(path)
        if owner is None:
            return None
        # A process that may not write to the file cannot request the state, but can
        # read the states that other watchers request.
        with suppress(PermissionError), closing(FileLock(path)) as file:
            file.write(WATCHED_UNTIL, time.time_ns() + WATCHED_FOR * 10**9)
        key = os.path.basename(path).encode()
        state = LiveState.read(self._table, key, data)
        return None if state is None else (owner, state)

    def file(self, address: Address) -> str:
        """Return the path of the lock file for *address*."""
        name = namespace_key(address.thread_id, address.namespace).hex()
        return os.path.join(self._path, name)

    def _release(self, file: FileLock) -> None:
        """Release a lease, and unlink its *file* if the file's name still refers to
        it.
        """
        with closing(file):
            fault("lease.release")
            # If the file cannot be unlinked, fence 0 shows the next run that this
            # owner has released the lease and did not die.
            file.write(FENCE, 0)
            # The file is left in place if `leases.lock` cannot be acquired, because the
            # process that holds it is stopped.
            with suppress(StoreBusyError):
                self._remove(file, _RELEASE_TIMEOUT)

    def _remove(
        self, file: FileLock, timeout: float, reject: Callable[[], None] = lambda: None
    ) -> None:
        """Unlink a lease's file, unless the file's name now refers to another file.

        Args:
            file: The file of the lease.
            timeout: Seconds to wait for another process that is unlinking a lease.
            reject: A function that makes the store refuse the commits of an owner that
                is still alive. It is called before the file is unlinked, since any run
                can acquire the lease after that.

        Raises:
            StoreBusyError: Another process was unlinking a lease for *timeout* seconds.
        """
        names_path = os.path.join(self._store_path, NAMES_LOCK)
        with closing(FileLock(names_path)) as names:
            if not names.acquire(timeout):
                holder = str(names.holder() or "another process")
                raise StoreBusyError(self._store_path, holder, timeout)
            if file.is_current():
                reject()
                fault("lease.remove")
                os.unlink(file.path)

    def _own(self, request: _LeaseRequest) -> tuple[FileLock, int, int]:
        """Acquire a lease, and write its fence into its file, where a takeover finds
        it.

        Returns:
            The locked file of the lease, the fence of the lease, and the fence of an
            owner that died, or 0.

        Raises:
            ThreadBusyError: Another run holds the lease, and the request does not ask
                to wait for it.
            StoreBusyError: A process that was taking the lease over, or that was
                removing another lease, did not finish in time.
        """
        dead_fence = 0
        while True:
            file = self._acquire(request)
            with ExitStack() as resources:
                resources.callback(file.close)
                # An owner that releases its lease unlinks the file, or writes fence 0.
                # Any other fence in the file was left by an owner that died.
                dead_fence = max(dead_fence, file.read(FENCE))
                fault("lease.locked")
                if dead_fence:
                    # The owner may have died inside a commit that LMDB shows to readers
                    # only after the next write. So there is a write before this lease
                    # reads anything.
                    request.fences(request.address, dead_fence)
                known = request.fences(request.address, 0)
                fence = _mark(file, max(request.replaced or 0, known))
                if file.read(TAKEN_OVER):
                    # The lease is given up and acquired again. A takeover may have read
                    # the fence in the file before this lease wrote its own, so the
                    # store would not refuse this lease's commits.
                    self._remove(file, self._lock_timeout)
                elif file.is_current():
                    resources.pop_all()
                    return file, fence, dead_fence

    def _acquire(self, request: _LeaseRequest) -> FileLock:
        """Wait until a lease is free or taken over, and return its locked file.

        Raises:
            ThreadBusyError: Another run holds the lease, and the request does not ask
                to wait for it.
        """
        pause = 0.001
        try:
            with suppress(FileExistsError):
                os.mkdir(self._path, 0o700)
                # The umask may have removed bits of the mode, so the mode is set again.
                os.chmod(self._path, 0o700)
            while (file := self._try_to_acquire(request)) is None:
                raise_pending_interrupts()
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        except OSError as error:
            raise of_system(error, self._path) from error
        return file

    def _try_to_acquire(self, request: _LeaseRequest) -> FileLock | None:
        """Return the locked file of a lease, or None if it cannot be locked yet."""
        file = FileLock(self.file(request.address))
        with ExitStack() as resources:
            resources.callback(file.close)
            if not file.acquire(0.0):
                self._resolve_conflict(file, request)
                return None
            if not file.is_current():
                # The last owner unlinked the file after this process had opened it, so
                # a lock on it excludes no other run.
                return None
            resources.pop_all()
            return file

    def _resolve_conflict(self, file: FileLock, request: _LeaseRequest) -> None:
        """Take the lease over from its owner, raise an error, or do nothing.

        Raises:
            ThreadBusyError: The request does not ask to wait for the owner.
        """
        owner = file.holder()
        if owner is None:
            # The owner has acquired the lock, but has not written its name into the
            # file yet. The caller tries again.
            return
        if request.on_conflict == "takeover":
            request.replaced = max(request.replaced or 0, file.read(FENCE))
            reject = partial(_reject_owner, file, request.address, request.fences)
            self._remove(file, self._lock_timeout, reject)
            fault("lease.replaced")
            store_log.warning(
                "thread %r is taken over from %s", request.address.thread_id, owner
            )
        elif request.on_conflict == "raise" and not request.may_inherit(owner):
            address = request.address
            raise ThreadBusyError(address.thread_id, address.namespace, str(owner))


@dataclass(slots=True, eq=False)
class _LeaseRequest:
    """A run's request for a lease, until the lease is acquired."""

    address: Address
    on_conflict: OnConflict
    fences: Fences
    replaced: int | None = None
    """The greatest fence of the leases that this request has taken over, or None."""
    patience: float = field(default_factory=lambda: time.monotonic() + _FORK_LASTS)
    """The time until which the run waits for the lock of a dead owner, in monotonic
    seconds.
    """

    def may_inherit(self, owner: LockHolder) -> bool:
        """Return whether *owner* is dead and its lock will soon be free."""
        return owner.has_ended() and time.monotonic() < self.patience


def _mark(file: FileLock, known: int) -> int:
    """Write a new fence (the number of the lease) into a lease's file, and return it.

    The new fence is greater than *known* and than the old fence in the file.
    """
    before = file.read(FENCE)
    fence = max(time.time_ns(), 1 + known, 1 + before)
    file.write(FENCE, fence)
    return fence


def _reject_owner(file: FileLock, address: Address, fences: Fences) -> None:
    """Make the store refuse all further commits by the owner of *file*."""
    # Another run may just have locked the file. It writes its fence (the number of the
    # lease) before it reads the flag `TAKEN_OVER`. This function writes the flag before
    # it reads the fence. So either it reads the run's fence, and the store refuses the
    # run's commits, or the run sees the flag and acquires the lease again.
    file.write(TAKEN_OVER, 1)
    fault("lease.taken_over")
    known = max(file.read(FENCE), fences(address, 0))
    fences(address, max(time.time_ns(), 1 + known))


@dataclass(slots=True, eq=False)
class LiveState:
    """The live state of a run that owns a lease. Computing it takes at most one percent
    of the run's time.
    """

    lease: Lease
    """The lease."""
    table: Table
    """The table that adds a checksum to the state, and encrypts it, as it does with the
    store's records.
    """
    key: bytes
    """The record key that the checksum of the state covers: the name of the lease's
    file.
    """
    started: int = field(default_factory=time.time_ns)
    """The time at which the lease was acquired, in wall-clock nanoseconds."""
    due: float = 0.0
    """The earliest time to compute the state again, in monotonic seconds."""

    def sealed(self) -> bytes | None:
        """Return the owner's current state with its checksum, encrypted if the store
        is.

        None is returned if the owner reports no state, or if the last state was
        computed too recently.
        """
        if self.lease.live is None or time.monotonic() < self.due:
            return None
        began = time.thread_time()
        lease = self.lease
        drawing = None if lease.drawing is None else lease.drawing()
        pools = None if lease.pools is None else lease.pools()
        state = {
            **self.lease.live(),
            "drawing": drawing,
            "pools": pools,
            "started": self.started,
            "at": time.time_ns(),
        }
        text = json.dumps(state).encode()
        data = self.table.sealed(self.key, 0, text)
        self.due = time.monotonic() + _SHARE * (time.thread_time() - began)
        return data

    @staticmethod
    def read(table: Table, key: bytes, data: bytes) -> dict[str, Any] | None:
        """Return the state in *data*, which `sealed` returned in the owner's process.

        None is returned if the state is only partly written, or its checksum does not
        match *key*.

        Args:
            table: The table that verifies the checksums of states, and decrypts them.
            key: The record key that the checksum of the state covers.
            data: The state with its checksum.
        """
        with suppress(StoreCorruptError):
            _, text = table.opened(key, data)
            # Python's encoder writes infinite numbers, although JSON has none. They are
            # read as None.
            state: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
            return state
        return None


class LeaseWatch:
    """An OS thread that serves all leases of this process: it checks for requests to
    stop, and writes the states of watched runs.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Remove all leases. A forked child calls this, because it holds none."""
        self._lock = threading.Lock()
        self._held: dict[FileLock, LiveState] = {}
        self._thread: threading.Thread | None = None

    def add(self, file: FileLock, live: LiveState) -> None:
        """Add a lease that this process has acquired by the lock on *file*."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._work, name="flowpregel-leases", daemon=True
                )
                # `self._lock` may be held while the OS thread is started, because the
                # OS thread first sleeps, and takes this lock only after that.
                thread.start()
                self._thread = thread
            self._held[file] = live

    def drop(self, file: FileLock) -> None:
        """Remove the lease of *file*. After this returns, *file* may be closed."""
        with self._lock:
            self._held.pop(file, None)

    def look(self) -> None:
        """Stop the owners for which a request to stop was made, and write the states of
        watched owners.
        """
        requested: list[Lease] = []
        with self._lock:
            held = [*self._held.items()]
            for file, live in held:
                lease = live.lease
                can_stop = lease.stop is not None
                if can_stop and file.read(STOP_REQUEST) == lease.fence:
                    requested.append(lease)
                    del self._held[file]
        for lease in requested:
            lease.request_stop()
        for file, live in held:
            # A run may end or change its state while the state is read. In this case,
            # the state is written in the next round.
            with suppress(Exception):
                is_watched = file.read(WATCHED_UNTIL) > time.time_ns()
                data = live.sealed() if is_watched else None
                if data is not None:
                    file.write_state(data)

    def _work(self) -> None:
        while True:
            time.sleep(PERIOD)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
            self.look()


WATCH: Final = LeaseWatch()
os.register_at_fork(after_in_child=WATCH.renew)
