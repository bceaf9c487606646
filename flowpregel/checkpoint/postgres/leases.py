"""Leases between machines: one run at a time writes a thread's namespace.

The owner of a lease renews it; one that has died, has lost the network or is stopped does not,
and when the lease is out another run is given the next one. That run puts its own fence into
the store, in a transaction, before it does anything else: the old owner's commits, which have
a smaller fence, are refused when it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowpregel._core.records import Address
from flowpregel._interrupts import deliver, held
from flowpregel._lmdb.locks import Owner
from flowpregel._postgres.database import Database
from flowpregel._postgres.leases import LeaseTable
from flowpregel.checkpoint.base import Fences, Lease, OnConflict
from flowpregel.checkpoint.lmdb.leases import REASON
from flowpregel.checkpoint.tables import namespace_key
from flowpregel.errors import ThreadBusyError

_PAUSE = 0.1
"""Seconds before another try to get a lease that is another's."""


class PostgresLeases:
    """The leases that the runs of this process hold in one store.

    Args:
        database: The store's.
        ttl: Seconds after which a lease is out that is not renewed.
    """

    def __init__(self, database: Database, ttl: float) -> None:
        self._table = LeaseTable(database, ttl)
        self.held: set[tuple[str, int]] = set()

    @contextmanager
    def hold(self, address: Address, on_conflict: OnConflict, fences: Fences) -> Iterator[Lease]:
        """Hold the right to write at *address*.

        Raises:
            ThreadBusyError: It is held, and *on_conflict* is ``"raise"``.
        """
        lease = Lease()
        try:
            with held():
                lease.fence, was_anothers = self._take(address, on_conflict, lease)
                lease.is_inherited = was_anothers and on_conflict != "takeover"
                self.held.add((address.thread_id, lease.fence))
                if was_anothers:
                    fences(address, lease.fence)
            yield lease
        finally:
            with held():
                if lease.fence is not None:
                    self.held.discard((address.thread_id, lease.fence))
                    self._table.give_back(lease.fence)

    def owner(self, address: Address) -> Owner | None:
        """Return who holds the lease at *address*; None: nobody does."""
        return self._table.owner(_place(address))

    def ask_to_stop(self, address: Address) -> Owner | None:
        """Ask the run that holds the lease at *address* to stop; return whose it is."""
        owner = self.owner(address)
        if owner is not None:
            self._table.ask_to_stop(_place(address))
        return owner

    def watch(self, address: Address) -> None:
        """Return nothing: what a run does at this moment is not shown through a database."""

    def abandoned(self) -> list[Address]:
        """Return where runs have died: their leases are out, and were not given back."""
        # A claim of a cache has no thread.
        return [Address(*names) for names in self._table.abandoned() if names[0]]

    def _take(self, address: Address, on_conflict: OnConflict, lease: Lease) -> tuple[int, bool]:
        """Return the fence of a lease that is ours now, and whether it was another's before."""

        def stop() -> None:
            if lease.stop is not None:
                lease.stop(REASON)

        place, names = _place(address), (address.thread_id, address.namespace)
        takeover = on_conflict == "takeover"
        while (taken := self._table.take(place, names, stop, takeover=takeover)) is None:
            if on_conflict == "raise":
                holder = str(self.owner(address) or "a run that has just ended")
                raise ThreadBusyError(*names, holder)
            deliver()
            time.sleep(_PAUSE)
        return taken


def _place(address: Address) -> bytes:
    return namespace_key(address.thread_id, address.namespace)
