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
from typing import Any

from flowpregel._core.records import Address
from flowpregel._interrupts import deliver, held
from flowpregel._lmdb.locks import Owner
from flowpregel._postgres.leases import LeaseTable, OwnLease, place_of
from flowpregel._postgres.opening import OpenDatabase
from flowpregel.checkpoint.base import Fences, Lease, OnConflict
from flowpregel.checkpoint.live import WATCHED_FOR, LiveState, opened
from flowpregel.checkpoint.lmdb.leases import REASON
from flowpregel.errors import ThreadBusyError

_PAUSE = 0.1
"""Seconds before another try to get a lease that is another's."""


class PostgresLeases(LeaseTable):
    """The leases that the runs of this process hold in one store.

    Args:
        store: The store.
        ttl: Seconds after which a lease is out that is not renewed.
    """

    def __init__(self, store: OpenDatabase, ttl: float) -> None:
        super().__init__(store.environment, ttl)
        self._live = store.table(b"live")
        """Seals what the runs show, as the store's records are."""
        self.held: set[tuple[str, int]] = set()

    @contextmanager
    def hold(self, address: Address, on_conflict: OnConflict, fences: Fences) -> Iterator[Lease]:
        """Hold the right to write at *address*.

        Raises:
            ThreadBusyError: It is held, and *on_conflict* is ``"raise"``.
        """
        lease, takeover = Lease(), on_conflict == "takeover"
        live = LiveState(lease, self._live, place_of(address))
        wanted = OwnLease(address, lambda: lease.stop and lease.stop(REASON), live.sealed)
        try:
            with held():
                while (taken := self.take(wanted, takeover=takeover)) is None:
                    if on_conflict == "raise":
                        holder = str(self.owner(address) or "a run that has just ended")
                        raise ThreadBusyError(address.thread_id, address.namespace, holder)
                    deliver()
                    time.sleep(_PAUSE)
                live.started = time.time_ns()
                lease.fence, was_anothers = taken
                lease.is_inherited = was_anothers and not takeover
                self.held.add((address.thread_id, lease.fence))
                if was_anothers:
                    fences(address, lease.fence)
            yield lease
        finally:
            with held():
                if lease.fence is not None:
                    self.held.discard((address.thread_id, lease.fence))
                    self.give_back(lease.fence)

    def watch(self, address: Address) -> tuple[Owner, dict[str, Any]] | None:
        """Return who holds the lease at *address*, and what its run shows; None: nothing yet."""
        owner, shown = self.shown(address, WATCHED_FOR)
        state = None if shown is None else opened(self._live, place_of(address), shown)
        return None if owner is None or state is None else (owner, state)
