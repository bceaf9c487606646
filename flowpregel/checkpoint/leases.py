"""Leases inside one process: one run at a time writes a thread's namespace."""

from __future__ import annotations

import threading
from types import TracebackType

from flowpregel._core.records import Address
from flowpregel.checkpoint.shapes import Lease, OnConflict
from flowpregel.errors import ConfigurationError, LeaseLostError, ThreadBusyError


class Leases:
    """Who may write what, with a token for each right that was given.

    Args:
        lock: The lock of whatever is written under the leases.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._changed = threading.Condition(lock)
        self._owners: dict[tuple[str, str], str] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._given = 0

    def hold(self, address: Address, on_conflict: OnConflict) -> _Held:
        """Return a context that holds the right to write at *address*.

        Raises:
            ConfigurationError: *on_conflict* is none of its three words.
        """
        if on_conflict not in ("raise", "wait", "takeover"):
            raise ConfigurationError(
                f"on_conflict is {on_conflict!r}; use 'raise', 'wait' or 'takeover'"
            )
        return _Held(self, address, on_conflict)

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

    def take(self, address: Address, on_conflict: OnConflict) -> int:
        """Give the right to write at *address*; return its token.

        Raises:
            ThreadBusyError: It is held, and *on_conflict* is ``"raise"``.
        """
        key = (address.thread_id, address.namespace)
        with self._changed:
            if on_conflict == "raise" and key in self._owners:
                raise ThreadBusyError(*key, self._owners[key])
            while on_conflict == "wait" and key in self._owners:
                self._changed.wait()
            self._given += 1
            self._fences[key] = self._given
            self._owners[key] = f"a run in OS thread {threading.current_thread().name!r}"
            return self._given

    def give_back(self, address: Address, fence: int) -> None:
        """End a lease, unless another run has taken it over."""
        key = (address.thread_id, address.namespace)
        with self._changed:
            if self._fences.get(key) == fence and self._owners.pop(key, ""):
                self._changed.notify_all()

    def forget(self, thread_id: str) -> None:
        """Drop the tokens of a deleted thread, except of a run that holds its lease.

        A commit with a dropped token is refused, as one that was taken over.
        """
        with self._changed:
            for key in [key for key in self._fences if key[0] == thread_id]:
                if key not in self._owners:
                    del self._fences[key]


class _Held:
    """The context of `Leases.hold`."""

    __slots__ = ("_address", "_leases", "_on_conflict", "_token")

    def __init__(self, leases: Leases, address: Address, on_conflict: OnConflict) -> None:
        self._leases = leases
        self._address = address
        self._on_conflict = on_conflict

    def __enter__(self) -> Lease:
        self._token = self._leases.take(self._address, self._on_conflict)
        return Lease(self._token)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leases.give_back(self._address, self._token)
