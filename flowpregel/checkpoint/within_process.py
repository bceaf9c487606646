"""What the runs of one process have to do with each other: leases, and signals sent to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowpregel._core.copies import bring_back, keep
from flowpregel._core.records import Address
from flowpregel.checkpoint.base import Lease, OnConflict, check_on_conflict
from flowpregel.errors import LeaseLostError, ThreadBusyError


class MemoryLeases:
    """The leases of one process, with a fencing token for each that was given.

    Args:
        lock: The lock of whatever is written under the leases.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._changed = threading.Condition(lock)
        self._owners: dict[tuple[str, str], str] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._last_fence = 0

    @contextmanager
    def hold(self, address: Address, on_conflict: OnConflict) -> Iterator[Lease]:
        """Hold the right to write at *address* while the context is open.

        Raises:
            ConfigurationError: *on_conflict* is none of its three words.
            ThreadBusyError: It is held, and *on_conflict* is ``"raise"``.
        """
        check_on_conflict(on_conflict)
        key = (address.thread_id, address.namespace)
        with self._changed:
            if on_conflict == "raise" and key in self._owners:
                raise ThreadBusyError(*key, self._owners[key])
            while on_conflict == "wait" and key in self._owners:
                self._changed.wait()
            self._last_fence = fence = self._last_fence + 1
            self._fences[key] = fence
            self._owners[key] = f"a run in OS thread {threading.current_thread().name!r}"
        try:
            yield Lease(fence)
        finally:
            with self._changed:
                if self._fences.get(key) == fence and self._owners.pop(key, ""):
                    self._changed.notify_all()

    def check(self, address: Address, fence: int) -> None:
        """Raise unless *fence* belongs to the last lease that was given at *address*.

        Raises:
            LeaseLostError: Another run was given the lease since.
        """
        key = (address.thread_id, address.namespace)
        with self._changed:
            if self._fences.get(key) != fence:
                owner = self._owners.get(key, "another run, which has ended")
                raise LeaseLostError(*key, owner)

    def forget(self, thread_id: str) -> None:
        """Drop the fences of a deleted thread, except of a run that holds its lease.

        A commit with a dropped fence is refused, as one that was taken over.
        """
        with self._changed:
            for key in [key for key in self._fences if key[0] == thread_id]:
                if key not in self._owners:
                    del self._fences[key]


class MemorySignals:
    """Values by thread and name; each is received by one call, which gets it again if it asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], list[tuple[Any, str | None]]] = {}
        """Each value, and whose it is."""

    def send(self, thread_id: str, name: str, value: Any) -> None:
        """Keep a copy of *value* behind those that were sent before."""
        copied = keep(value, f"signal {name!r}")
        with self._lock:
            self._kept.setdefault((thread_id, name), []).append((copied, None))

    def receive(self, thread_id: str, name: str, receiver: str) -> tuple[Any] | None:
        """Return what is *receiver*'s by now, or from now on; None: nothing is left."""
        with self._lock:
            kept = self._kept.get((thread_id, name), [])
            owners = [owner for _, owner in kept]
            for whose in (receiver, None):
                if whose in owners:
                    index = owners.index(whose)
                    kept[index] = kept[index][0], receiver
                    return (bring_back(kept[index][0], f"signal {name!r}"),)
        return None

    def forget(self, thread_id: str) -> None:
        """Forget what was sent to a thread."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == thread_id]:
                del self._kept[key]
