"""Leases: rows by which a process has the right to write to a thread, until it releases
the lease or stops renewing it.

All times are those of the server. A lease has a *fence*: a number that is greater than
the fences of all earlier leases.

Any process can watch the owner of a lease: it writes the time until which it watches
into the row. When the owner renews the lease, it reads that time. While it is watched,
it renews the lease more often, and stores its live state (what the run does at present)
in the row.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from flowpregel.checkpoint.base import Address
from flowpregel.errors import StoreError, StoreReadOnlyError
from flowpregel.plugins.postgres.database import Database
from flowpregel.storage import LockHolder, labels_digest

_LONGEST_PERIOD = 1.0
"""The longest time between two renewals, in seconds. At a renewal, an owner also reads
requests to stop or to show its state.
"""
_SHOWING_PERIOD = 0.2
"""Seconds between two updates of the live state of a watched owner."""
# The fence is chosen under an advisory lock for the lease's key (the column `place`).
# Otherwise, a run that is delayed after it has got its fence could take the lease after
# a run with a greater fence. The store would then accept the writes of the wrong one of
# the two.
_TAKE = """
    WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(%s))
    INSERT INTO flowpregel.leases AS old
        (place, thread, namespace, owner, fence, expires)
    SELECT %s, %s, %s, %s, nextval('flowpregel.fences'),
            clock_timestamp() + %s * interval '1 second' FROM turn
    ON CONFLICT (place) DO UPDATE SET
        owner = excluded.owner, fence = excluded.fence,
        expires = excluded.expires, asked = false, shown = NULL
    WHERE %s OR old.expires < clock_timestamp()
    RETURNING fence, xmax::text <> '0' AS was_anothers
"""
_RENEW = """
    UPDATE flowpregel.leases AS lease SET
        expires = clock_timestamp() + %s * interval '1 second',
        shown = CASE WHEN watched > clock_timestamp()
            THEN coalesce(ours.shown, lease.shown) END
    FROM unnest(%b::bytea[], %s::bigint[], %b::bytea[]) AS ours(place, fence, shown)
    WHERE lease.place = ours.place AND lease.fence = ours.fence
    RETURNING lease.fence, asked, coalesce(watched > clock_timestamp(), false)
"""
_ALIVE = "place = %s AND expires >= clock_timestamp()"
_SHOWN = f"SELECT owner, shown FROM flowpregel.leases WHERE {_ALIVE}"
_ASK = f"UPDATE flowpregel.leases SET asked = true WHERE {_ALIVE} RETURNING owner"
_WATCH = """
    UPDATE flowpregel.leases SET watched = clock_timestamp() + %s * interval '1 second'
    WHERE place = %s AND
        coalesce(watched < clock_timestamp() + %s * interval '1 second', true)
"""
_ABANDONED = (
    "SELECT thread, namespace FROM flowpregel.leases WHERE expires < clock_timestamp()"
)


class OwnLease(NamedTuple):
    """A lease that this process owns or requests."""

    address: Address
    """The address (thread and namespace) that the lease is for. If the lease is a claim
    of a cache, the address has no thread.
    """
    stop: Callable[[], object] = lambda: None
    """A function that is called, on another OS thread, when the owner must stop."""
    shows: Callable[[], bytes | None] = lambda: None
    """A function that returns the owner's live state, or None if the state has not
    changed. It is called on another OS thread.
    """


class LeaseTable:
    """The leases of one store. Those of this process are renewed by an OS thread.

    Args:
        database: The database of the store.
        ttl: Seconds after which a lease that is not renewed expires.
    """

    def __init__(self, database: Database, ttl: float) -> None:
        self._database = database
        self._ttl = ttl
        self._lock = threading.Lock()
        self._ours: dict[int, OwnLease] = {}
        """The leases of this process, by fence."""
        self._thread: threading.Thread | None = None

    def take(
        self, lease: OwnLease, *, takeover: bool = False
    ) -> tuple[int, bool] | None:
        """Take a lease, and renew it regularly from now on.

        Args:
            lease: The lease to take.
            takeover: True to take the lease even if another run owns it.

        Returns:
            The fence, and True if an earlier owner had not released the lease. None if
            another run owns the lease.
        """
        address = lease.address
        names = (address.thread_id, address.namespace)
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        owner = json.dumps(asdict(LockHolder.me()))
        key = lease_key(address)
        turn = int.from_bytes(key[:8], "big", signed=True)
        values = (turn, key, *encoded, owner, self._ttl, takeover)
        rows = self._database.execute_once(_TAKE, *values)
        if not rows:
            return None
        fence: int = rows[0]["fence"]
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._work, name="flowpregel-leases", daemon=True
                )
                # The OS thread can be started while the lock is held, because it first
                # sleeps, and takes the lock only after that.
                thread.start()
                self._thread = thread
            self._ours[fence] = lease
        return fence, rows[0]["was_anothers"]

    def let_expire(self, fence: int) -> bytes:
        """Stop renewing a lease, so that it expires, and return its key."""
        with self._lock:
            return lease_key(self._ours.pop(fence).address)

    def give_back(self, fence: int) -> None:
        """Release a lease, unless another run has taken it over."""
        key = self.let_expire(fence)
        # If the server is unavailable, the lease cannot be deleted, but it expires
        # soon.
        with suppress(StoreError):
            self._database.execute(
                "DELETE FROM flowpregel.leases WHERE place = %s AND fence = %s",
                key,
                fence,
            )

    def owner(self, address: Address) -> LockHolder | None:
        """Return the owner of the lease of *address*, or None if the lease is free."""
        key = lease_key(address)
        return _owner_in_state(self._database.leases([key])[key], is_alive=True)

    def dead_owner(self, address: Address) -> LockHolder | None:
        """Return the owner whose lease of *address* has expired, or None."""
        key = lease_key(address)
        return _owner_in_state(self._database.leases([key])[key], is_alive=False)

    def owners(self, addresses: Sequence[Address]) -> dict[Address, LockHolder]:
        """Return the owners of those leases of *addresses* that are not free.

        In a shared snapshot, later calls of `owner` and `dead_owner` for these
        addresses need no round trip.
        """
        keys = [lease_key(address) for address in addresses]
        leases = self._database.leases(keys)
        owners: dict[Address, LockHolder] = {}
        for address, key in zip(addresses, keys, strict=True):
            holder = _owner_in_state(leases[key], is_alive=True)
            if holder is not None:
                owners[address] = holder
        return owners

    def ask_to_stop(self, address: Address) -> LockHolder | None:
        """Ask the owner of the lease of *address* to stop, and return the owner."""
        # The statement must take effect exactly once. If it were repeated after an
        # error, the next run might own the lease by then, and would be stopped too.
        rows = self._database.execute_once(_ASK, lease_key(address))
        return _owner_from_rows([[row["owner"]] for row in rows])

    def shown(
        self, address: Address, seconds: float
    ) -> tuple[LockHolder | None, bytes | None]:
        """Return the owner of a lease and the owner's live state, and watch the owner
        for *seconds*.
        """
        key = lease_key(address)
        # A process watches the owner by writing a time into the row of the lease. A
        # database user who may only read cannot do this, but gets the owner's live
        # state as long as another process watches the owner.
        with suppress(StoreReadOnlyError):
            self._database.execute(_WATCH, seconds, key, seconds / 2)
        rows = self._database.execute(_SHOWN, key)
        return _owner_from_rows(rows), rows[0][1] if rows else None

    def abandoned(self) -> list[Address]:
        """Return the addresses of runs whose process has died, so that their lease has
        expired.
        """
        addresses: list[Address] = []
        for names in self._database.execute(_ABANDONED):
            thread, namespace = (
                name.decode("utf-8", "surrogatepass") for name in names
            )
            if thread:
                addresses.append(Address(thread, namespace))
        return addresses

    def _work(self) -> None:
        """Renew the leases of this process as long as there are any, and more often
        while one of them is watched.
        """
        watched = set[int]()
        period = min(_LONGEST_PERIOD, self._ttl / 4)
        while True:
            time.sleep(min(period, _SHOWING_PERIOD) if watched else period)
            with self._lock:
                ours = dict(self._ours)
                if not ours:
                    self._thread = None
                    return
            # Errors of a renewal are ignored, because the server may be available again
            # before the leases expire.
            with suppress(StoreError):
                watched = self._renew(ours, watched)

    def _renew(self, ours: dict[int, OwnLease], watched: set[int]) -> set[int]:
        """Renew leases, and store the live states of the runs whose leases are
        *watched*.

        Returns:
            The fences of the leases that are watched now.
        """
        states: list[bytes | None] = [None] * len(ours)
        for index, (fence, lease) in enumerate(ours.items()):
            # The run may end or change its state while the state is read, which may
            # raise an error. The next update then has the state.
            with suppress(Exception):
                states[index] = lease.shows() if fence in watched else None
        keys = [lease_key(lease.address) for lease in ours.values()]
        rows = self._database.execute(_RENEW, self._ttl, keys, [*ours], states)
        for fence, is_asked, _ in rows:
            if is_asked and fence in self._ours:
                ours[fence].stop()
        return {fence for fence, _, is_watched in rows if is_watched}


def lease_key(address: Address) -> bytes:
    """Return the key of the lease of *address*."""
    return labels_digest((address.thread_id, address.namespace))


def _owner_in_state(
    leases: Sequence[tuple[Any, ...]], *, is_alive: bool
) -> LockHolder | None:
    """Return the owner of the lease if it is alive (or, without *is_alive*, if it has
    expired), or None.
    """
    return _owner_from_rows([lease for lease in leases if lease[1] == is_alive])


def _owner_from_rows(rows: Sequence[Sequence[Any]]) -> LockHolder | None:
    return LockHolder(**json.loads(rows[0][0])) if rows else None
