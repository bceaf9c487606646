"""Leases: rows that one process owns until it gives them back, or renews them no more.

All times are the server's. A lease has a *fence*, a number greater than that of any
before.

Any process can ask to be shown what an owner does: it puts into the row until when. The
owner sees that when it renews the lease; from then on it does so more often, and puts
what it shows beside it. So nothing more is asked of the server while nobody watches.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from flowpregel._core.records import Address
from flowpregel.errors import StoreError, StoreReadOnlyError
from flowpregel.plugins.postgres.database import Database
from flowpregel.storage.locks import LockHolder
from flowpregel.storage.records import labels_digest

_LONGEST_PERIOD = 1.0
"""Seconds between two renewals: so soon an owner finds that it is asked to stop, or
watched.
"""
_SHOWING_PERIOD = 0.2
"""Seconds between two times that a watched owner shows what it does."""
_TAKE = """
    INSERT INTO flowpregel.leases AS old
        (place, thread, namespace, owner, fence, expires)
    VALUES (%s, %s, %s, %s, nextval('flowpregel.fences'),
            clock_timestamp() + %s * interval '1 second')
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
_OWNER = f"SELECT owner, {{}} FROM flowpregel.leases WHERE {_ALIVE}"
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
    """A lease of this process's, or one that it wants."""

    address: Address
    """What for; without a thread it is no run's."""
    stop: Callable[[], object] = lambda: None
    """Called, from another OS thread, when we are asked to stop."""
    shows: Callable[[], bytes | None] = lambda: None
    """Returns what we do, for those who watch; None: as before. Called from another OS
    thread.
    """


class LeaseTable:
    """The leases of one store, of which this process may own some.

    Args:
        database: The store's.
        ttl: Seconds after which a lease is out that is not renewed.
    """

    def __init__(self, database: Database, ttl: float) -> None:
        self._database = database
        self._ttl = ttl
        self._lock = threading.Lock()
        self._ours: dict[int, OwnLease] = {}
        """By fence."""
        self._thread: threading.Thread | None = None

    def take(
        self, wanted: OwnLease, *, takeover: bool = False
    ) -> tuple[int, bool] | None:
        """Take a lease and renew it from now on; None: it is another's.

        Args:
            wanted: The lease.
            takeover: Take it although it is another's.

        Returns:
            Its fence, and whether it was another's who has not given it back.
        """
        names = wanted.address.thread_id, wanted.address.namespace
        texts = [each.encode("utf-8", "surrogatepass") for each in names]
        owner = json.dumps(asdict(LockHolder.me()))
        values = (place_of(wanted.address), *texts, owner, self._ttl, takeover)
        rows = self._database.execute_once(_TAKE, *values)
        if not rows:
            return None
        fence: int = rows[0]["fence"]
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._work, name="flowpregel-leases", daemon=True
                )
                thread.start()  # which waits for the lock
                self._thread = thread
            self._ours[fence] = wanted
        return fence, rows[0]["was_anothers"]

    def give_back(self, fence: int) -> None:
        """Give a lease back; one that another has taken over stays that one's."""
        with self._lock:
            place = place_of(self._ours.pop(fence).address)
        with suppress(StoreError):  # it is out soon, if the server is away
            self._database.execute(
                "DELETE FROM flowpregel.leases WHERE place = %s AND fence = %s",
                place,
                fence,
            )

    def owner(self, address: Address) -> LockHolder | None:
        """Return who owns the lease of *address*; None: nobody does, or it is out."""
        return _owner_from_rows(
            self._database.execute(_OWNER.format("NULL"), place_of(address))
        )

    def ask_to_stop(self, address: Address) -> LockHolder | None:
        """Ask who owns the lease of *address* to stop; return who that is."""
        # Not repeated: it would reach the next run, which has the lease by then.
        rows = self._database.execute_once(_ASK, place_of(address))
        return _owner_from_rows([[row["owner"]] for row in rows])

    def shown(
        self, address: Address, seconds: float
    ) -> tuple[LockHolder | None, bytes | None]:
        """Return who owns a lease, and what that shows; it does so *seconds* from now
        on.
        """
        place = place_of(address)
        with suppress(StoreReadOnlyError):  # who may not write sees what others ask for
            self._database.execute(_WATCH, seconds, place, seconds / 2)
        rows = self._database.execute(_OWNER.format("shown"), place)
        return _owner_from_rows(rows), rows[0][1] if rows else None

    def abandoned(self) -> list[Address]:
        """Return where runs have died: their leases are out, and were not given
        back.
        """
        rows = self._database.execute(_ABANDONED)
        names = (
            [each.decode("utf-8", "surrogatepass") for each in row] for row in rows
        )
        return [Address(thread, namespace) for thread, namespace in names if thread]

    def _work(self) -> None:
        """Renew our leases, for as long as there are any; more often while one is
        watched.
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
            with suppress(StoreError):  # the server may be back before they are out
                watched = self._renew(ours, watched)

    def _renew(self, ours: dict[int, OwnLease], watched: set[int]) -> set[int]:
        """Renew leases, showing what those do that are *watched*; return which are from
        now on.
        """
        shown: list[bytes | None] = [None] * len(ours)
        for at, (fence, own) in enumerate(ours.items()):
            # A run may end meanwhile, or be changing what is read: the next time will
            # do.
            with suppress(Exception):
                shown[at] = own.shows() if fence in watched else None
        places = [place_of(own.address) for own in ours.values()]
        rows = self._database.execute(_RENEW, self._ttl, places, [*ours], shown)
        for fence, is_asked, _ in rows:
            if is_asked and fence in self._ours:
                ours[fence].stop()
        return {fence for fence, _, is_watched in rows if is_watched}


def place_of(address: Address) -> bytes:
    """Return what the lease of *address* is found by."""
    return labels_digest((address.thread_id, address.namespace))


def _owner_from_rows(rows: Sequence[Sequence[Any]]) -> LockHolder | None:
    return LockHolder(**json.loads(rows[0][0])) if rows else None
