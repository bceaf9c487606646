"""Leases between processes: one run at a time writes a thread's namespace.

A lease is a lock on a file of its own (``leases/`` in the store's folder), which
the kernel gives up when its owner dies, and a *fence*: a number greater than
that of any lease before. The owner stands in the file, for messages.

A takeover cannot take the kernel's lock from an owner that is stopped. It puts
its own fence into the store, in a transaction, and a new file in the place of
the old one; the old owner's commits, which have a smaller fence, are refused
when it goes on.

Any process can ask the owner to stop::

    who asks                         lease file                     owner
    --------                         ----------                     -----
    ask_to_stop(fence)  ---------->  [holder][fence][fence asked]
                                                  <---- read, five times a second

The request is the fence of the lease it is meant for, so it reaches no later
run. It stays in the file until the owner reads it, however long that is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from flowpregel import _interrupts
from flowpregel._core.records import Address
from flowpregel._lmdb.locks import FileLock, Owner, holder_at, is_locked
from flowpregel.checkpoint.base import Lease, OnConflict, check_on_conflict
from flowpregel.checkpoint.lmdb import keys
from flowpregel.errors import LeaseLostError, StoreError, ThreadBusyError

FOLDER = "leases"
PERIOD: Final = 0.2
"""Seconds between two reads of the requests to stop."""
REASON: Final = "it was cancelled from outside"
_LINGER: Final = 5.0
"""Seconds for which the OS thread waits for the next lease."""
_LONGEST_PAUSE = 0.05

Fences = Callable[[Address, int], int]
"""Returns the fence the store knows of an address; one that is not 0 is put there first."""


class LeaseFiles:
    """The leases that this process holds in one store.

    Args:
        path: The store's folder.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.join(path, FOLDER)
        self._lock = threading.Lock()
        self._held: dict[int, Address] = {}
        """What each lease is of, by its fence."""
        self._newest: dict[Address, int] = {}
        """The same the other way round: with many runs at once, to look is too slow."""
        self._last = 0

    def hold(self, address: Address, on_conflict: OnConflict, fences: Fences) -> HeldLease:
        """Return a context that holds the right to write at *address*.

        Raises:
            ConfigurationError: *on_conflict* is none of its three words.
        """
        check_on_conflict(on_conflict)
        return HeldLease(self, address, on_conflict, fences)

    def check(self, address: Address, fence: int) -> None:
        """Raise unless this process holds the lease that *fence* belongs to.

        Whether another process has taken it over is seen in the transaction.
        """
        held = self._held.get(fence)
        if held is None or held.thread_id != address.thread_id:
            raise LeaseLostError(address.thread_id, address.namespace, "a newer run")

    def note(self, address: Address, at_least: int) -> int:
        """Give a lease its fence: later than every one before, and than *at_least*."""
        with self._lock:
            fence = max(time.time_ns(), at_least + 1, self._last + 1)
            self._last = fence
            self._held.pop(self._newest.get(address, fence), None)
            self._held[fence] = address
            self._newest[address] = fence
            return fence

    def forget(self, fence: int) -> None:
        """End a lease."""
        with self._lock:
            address = self._held.pop(fence, None)
            if address is not None:
                del self._newest[address]

    def is_held(self, address: Address) -> bool:
        """Return whether a run, of this process or another, holds the lease at *address*."""
        return is_locked(self._name(address))

    def _name(self, address: Address) -> str:
        return os.path.join(
            self._path, keys.of_namespace(address.thread_id, address.namespace).hex()
        )

    def owner(self, address: Address) -> Owner | None:
        """Return who holds the lease at *address*; None: nobody does."""
        return holder_at(self._name(address))

    def ask_to_stop(self, address: Address) -> Owner | None:
        """Ask the run that holds the lease at *address* to stop; return whose it is.

        Raises:
            StoreError: This user may not write the store.
        """
        owner = self.owner(address)
        if owner is None:
            return None
        try:
            file = FileLock(self.file(address))
        except PermissionError as error:
            raise StoreError(f"cannot ask {owner} to stop: {error}") from error
        file.ask_to_stop()
        file.close()
        return owner

    def file(self, address: Address) -> str:
        """Return the path of the lock file for *address*."""
        with suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
            os.chmod(self._path, 0o700)  # whatever the umask took away
        return self._name(address)


class HeldLease:
    """The context of `LeaseFiles.hold`."""

    def __init__(
        self, leases: LeaseFiles, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> None:
        self._leases = leases
        self._address = address
        self._on_conflict = on_conflict
        self._fences = fences
        self._file: FileLock | None = None
        self._fence = 0

    @_interrupts.held()
    def __enter__(self) -> Lease:
        pause = 0.001
        while not self._take():
            _interrupts.deliver()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        lease = Lease(self._fence)
        if self._file is not None:
            WATCH.add(self._file, lease)
        return lease

    @_interrupts.held()
    def __exit__(self, *exc_info: object) -> None:
        self._leases.forget(self._fence)
        WATCH.drop(self._fence)
        if self._file is not None:
            file, self._file = self._file, None
            file.remove()

    def _take(self) -> bool:
        """Take the lease; return False if it is held and is to be waited for."""
        path = self._leases.file(self._address)
        file = FileLock(path)
        try:
            # The file may have been removed by its last owner since it was opened.
            if file.acquire(0.0):
                if not file.is_at(path):
                    file.close()
                    return False
                self._begin(file, taken_over=False)
                return True
            owner = file.holder()
            if owner is None:  # it has the lock, and its name is yet to be written
                file.close()
                return False
            return self._dispute(file, owner)
        except BaseException:
            file.close()
            raise

    def _dispute(self, file: FileLock, owner: Owner) -> bool:
        """Do what is to be done when *owner* holds the lease."""
        # A lock outlives its owner only in a process the owner forked.
        if self._on_conflict == "takeover" or not owner.is_alive():
            known = file.fence()
            file.unlink()
            file.close()
            replacement = FileLock(self._leases.file(self._address))
            if not replacement.acquire(0.0):
                replacement.close()
                return False
            self._begin(replacement, taken_over=True, known=known)
            return True
        file.close()
        if self._on_conflict == "raise":
            raise ThreadBusyError(self._address.thread_id, self._address.namespace, str(owner))
        return False

    def _begin(self, file: FileLock, *, taken_over: bool, known: int = 0) -> None:
        known = max(known, file.fence(), self._fences(self._address, 0))
        self._fence = self._leases.note(self._address, known)
        file.keep_fence(self._fence)
        if taken_over:
            self._fences(self._address, self._fence)
        self._file = file


class LeaseWatch:
    """Looks whether an owner in this process is asked to stop; one OS thread for all leases."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: in a fork, nobody here holds anything."""
        self._changed = threading.Condition()
        self._held: dict[int, tuple[FileLock, Lease]] = {}
        self._thread: threading.Thread | None = None

    def add(self, file: FileLock, lease: Lease) -> None:
        """Watch a lease that is held from now on."""
        assert lease.fence is not None
        with self._changed:
            self._held[lease.fence] = file, lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="flowpregel-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def drop(self, fence: int) -> None:
        """Watch a lease no more; its file may be closed when this returns."""
        with self._changed:
            self._held.pop(fence, None)

    def look(self) -> None:
        """Tell the owners that are asked to stop."""
        with self._changed:
            asked = [
                lease
                for fence, (file, lease) in self._held.items()
                if lease.stop is not None and file.asked_to_stop() == fence
            ]
            for lease in asked:
                assert lease.fence is not None
                del self._held[lease.fence]
        for lease in asked:
            if lease.stop is not None:
                lease.stop(REASON)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._held and not self._changed.wait(_LINGER) and not self._held:
                    self._thread = None
                    return
            self.look()
            time.sleep(PERIOD)


WATCH: Final = LeaseWatch()
os.register_at_fork(after_in_child=WATCH.renew)
