"""Leases: rows that one process owns until it gives them back, or renews them no more.

All times are the server's. A lease has a *fence*, a number greater than that of any before.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from flowpregel._lmdb.locks import Owner
from flowpregel._postgres.database import Database
from flowpregel.errors import StoreError

_LONGEST_PERIOD = 1.0
"""Seconds between two renewals: so soon an owner finds that it is asked to stop."""
_TAKE = """
    INSERT INTO flowpregel.leases AS old (place, thread, namespace, token, owner, fence, expires)
    VALUES (%s, %s, %s, %s, %s, nextval('flowpregel.fences'),
            clock_timestamp() + %s * interval '1 second')
    ON CONFLICT (place) DO UPDATE SET
        token = excluded.token, owner = excluded.owner, fence = excluded.fence,
        expires = excluded.expires, asked = false
    WHERE %s OR old.expires < clock_timestamp() OR old.token = excluded.token
    RETURNING fence, xmax::text <> '0'
"""
_RENEW = """
    UPDATE flowpregel.leases AS lease SET expires = clock_timestamp() + %s * interval '1 second'
    FROM unnest(%s::bytea[], %s::bigint[]) AS ours(place, fence)
    WHERE lease.place = ours.place AND lease.fence = ours.fence
    RETURNING lease.fence, lease.asked
"""
_OWNER = "SELECT owner FROM flowpregel.leases WHERE place = %s AND expires >= clock_timestamp()"


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
        self._ours: dict[int, tuple[bytes, Callable[[], None]]] = {}
        """By fence: what for, and whom to tell that they are asked to stop."""
        self._thread: threading.Thread | None = None

    def take(
        self, place: bytes, names: tuple[str, str], asked: Callable[[], None], *, takeover: bool
    ) -> tuple[int, bool] | None:
        """Take a lease and renew it from now on; None: it is another's.

        Args:
            place: What for.
            names: What `abandoned` returns if we die.
            asked: Called, from another OS thread, when we are asked to stop.
            takeover: Take it although it is another's.

        Returns:
            Its fence, and whether it was another's who has not given it back.
        """
        texts = [each.encode("utf-8", "surrogatepass") for each in names]
        owner = json.dumps(asdict(Owner.me()))
        # The token makes it ours if the connection is cut and the statement repeated.
        values = (place, *texts, os.urandom(16), owner, self._ttl, takeover)
        rows = self._database.execute(_TAKE, *values)
        if not rows:
            return None
        fence, was_anothers = rows[0]
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="flowpregel-leases", daemon=True)
                thread.start()  # which waits for the lock
                self._thread = thread
            self._ours[fence] = place, asked
        return fence, was_anothers

    def give_back(self, fence: int) -> None:
        """Give a lease back; one that another has taken over stays that one's."""
        with self._lock:
            place, _ = self._ours.pop(fence)
        with suppress(StoreError):  # it is out soon, if the server is away
            self._database.execute(
                "DELETE FROM flowpregel.leases WHERE place = %s AND fence = %s", place, fence
            )

    def owner(self, place: bytes) -> Owner | None:
        """Return who owns a lease; None: nobody does, or it is out."""
        found = self._database.execute(_OWNER, place)
        return Owner(**json.loads(found[0][0])) if found else None

    def ask_to_stop(self, place: bytes) -> None:
        """Ask who owns a lease to stop."""
        self._database.execute("UPDATE flowpregel.leases SET asked = true WHERE place = %s", place)

    def abandoned(self) -> list[tuple[str, str]]:
        """Return the names of leases that are out and were not given back."""
        rows = self._database.execute(
            "SELECT thread, namespace FROM flowpregel.leases WHERE expires < clock_timestamp()"
        )
        return [(_text(thread), _text(namespace)) for thread, namespace in rows]

    def _work(self) -> None:
        """Renew our leases, for as long as there are any."""
        while True:
            time.sleep(min(_LONGEST_PERIOD, self._ttl / 4))
            with self._lock:
                ours = dict(self._ours)
                if not ours:
                    self._thread = None
                    return
            places = [place for place, _ in ours.values()]
            with suppress(StoreError):  # the server may be back before they are out
                for fence, is_asked in self._database.execute(_RENEW, self._ttl, places, [*ours]):
                    if is_asked and fence in self._ours:
                        ours[fence][1]()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
