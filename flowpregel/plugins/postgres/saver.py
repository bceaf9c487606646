"""The durable saver for many machines: checkpoints and pending writes in PostgreSQL.

One run at a time writes a thread's namespace. The owner of a lease renews it; one that
has died, has lost the network or is stopped does not, and when the lease is out another
run is given the next one. That run puts its own fence into the store, in a transaction,
before it does anything else: the old owner's commits, which have a smaller fence, are
refused when it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowpregel._core.records import Address
from flowpregel._interrupts import deliver, held
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.base import Fences, Lease, OnConflict
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.layout import NamespaceRecord, Tables
from flowpregel.checkpoint.leases import REASON, WATCHED_FOR, LiveState, live_state_in
from flowpregel.checkpoint.lmdb import Codec, Retention, StoreOptions
from flowpregel.checkpoint.records import EncodedBatch
from flowpregel.errors import ConfigurationError, ThreadBusyError
from flowpregel.plugins.postgres.database import Database
from flowpregel.plugins.postgres.leases import LeaseTable, OwnLease, place_of
from flowpregel.plugins.postgres.tables import KINDS
from flowpregel.storage.locks import LockHolder
from flowpregel.storage.records import after

__all__ = ["PostgresSaver"]

_PAUSE = 0.1
"""Seconds before another try to get a lease that is another's."""


class PostgresTables(Tables):
    """The tables of a store in PostgreSQL."""

    def new_prefix(self, transaction: Any) -> bytes:
        # From a sequence, so that runs that begin at once do not wait for each other.
        number: int = transaction.ask("SELECT nextval('flowpregel.numbers')")[0][0]
        return number.to_bytes(8, "big")


class PostgresLeases(LeaseTable):
    """The leases that the runs of this process hold in one store.

    Args:
        store: The store.
        ttl: Seconds after which a lease is out that is not renewed.
    """

    def __init__(self, store: Database, ttl: float) -> None:
        super().__init__(store, ttl)
        self._live = store.table(b"live")
        """Seals what the runs show, as the store's records are."""
        self.held: set[tuple[str, int]] = set()

    @contextmanager
    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> Iterator[Lease]:
        """Hold the right to write at *address*.

        Raises:
            ThreadBusyError: It is held, and *on_conflict* is ``"raise"``.
        """
        lease = Lease()
        takeover = on_conflict == "takeover"
        live = LiveState(lease, self._live, place_of(address))
        wanted = OwnLease(
            address, lambda: lease.stop and lease.stop(REASON), live.sealed
        )
        try:
            with held():
                while (taken := self.take(wanted, takeover=takeover)) is None:
                    if on_conflict == "raise":
                        holder = str(self.owner(address) or "a run that has just ended")
                        raise ThreadBusyError(
                            address.thread_id, address.namespace, holder
                        )
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

    def watch(self, address: Address) -> tuple[LockHolder, dict[str, Any]] | None:
        """Return who holds the lease at *address*, and what its run shows; None:
        nothing yet.
        """
        owner, shown = self.shown(address, WATCHED_FOR)
        state = (
            None
            if shown is None
            else live_state_in(self._live, place_of(address), shown)
        )
        return None if owner is None or state is None else (owner, state)


class PostgresSaver(DurableSaver):
    """Keeps checkpoints, pending writes and deltas in a database of PostgreSQL's.

    A superstep is one transaction and one round trip. Any number of processes, on any
    number of machines, may use the database at once; a run whose process has died,
    another goes on with once its lease is out.

    Args:
        url: The database, as psycopg takes it: ``postgresql://user@host/database``. It
            is connected to when it is first used; what is missing in it is made, in the
            schema ``flowpregel``.
        readonly: Only read; nothing is made or changed.
        codec: Turns values into bytes; by default any Python value, exactly.
        retention: How much history is kept; by default all of it.
        options: The rarely needed; of a folder's options it takes no notice.
        lease_ttl: Seconds after which a run is taken for dead that does not renew its
            lease.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not
            installed.

    Example:
        >>> saver = PostgresSaver("postgresql://me@db.example.org/runs", lease_ttl=5)
        >>> saver.path
        'postgresql://me@db.example.org/runs'
    """

    _leases: PostgresLeases

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        retention: Retention | None = None,
        options: StoreOptions | None = None,
        lease_ttl: float = 10.0,
    ) -> None:
        if not lease_ttl > 0:
            raise ConfigurationError(
                f"lease_ttl is {lease_ttl!r}; give seconds greater than 0"
            )
        opened_as = options or StoreOptions()
        self._ttl = lease_ttl
        store = Database(url, readonly=readonly, codec=codec, options=opened_as)
        leases = PostgresLeases(store, lease_ttl)
        super().__init__(store, PostgresTables(store), leases, opened_as, retention)
        self.location = url

    def opened_to_look(self, codec: Codec) -> tuple[Database, PostgresLeases]:
        store = Database(
            self.location, readonly=True, codec=codec, options=self.options
        )
        return store, PostgresLeases(store, self._ttl)

    def abandoned(self) -> list[Address]:
        """Return where runs have died: their leases are out, and were not given
        back.
        """
        return self._leases.abandoned()

    def backup(self, path: str) -> None:
        """Refuse: the server has tools of its own for that."""
        raise ConfigurationError(
            "back a store in PostgreSQL up with pg_dump --schema=flowpregel"
        )

    def compact(self) -> None:
        """Refuse: the server has tools of its own for that."""
        raise ConfigurationError(
            "PostgreSQL uses free room again by itself; VACUUM FULL makes its files "
            "smaller"
        )

    def change_keys(self, *, encryption_key: bytes | None) -> None:
        """Refuse: it would need that nobody has the store open, on any machine."""
        raise ConfigurationError(
            "a store in PostgreSQL keeps the keys that it was made with"
        )

    def _put(
        self, transaction: Any, batches: Sequence[EncodedBatch]
    ) -> list[NamespaceRecord]:
        """Put batches, and ask what the next superstep has to know: that nothing is
        there yet.
        """
        grown = super()._put(transaction, batches)
        made = [
            batch.checkpoint.id for batch in batches if batch.checkpoint is not None
        ]
        newer = KINDS[b"checkpoints"]
        writes = KINDS[b"writes"]
        for namespace, identifier in zip(grown, made, strict=True):
            key = layout.checkpoint_key(namespace.prefix, identifier)
            kinds = layout.ARGUMENTS, layout.OUTPUT
            places = key, *(layout.beside(kind, key) for kind in kinds)
            left = [(writes + each, writes + after(each)) for each in places]
            later = newer + key + b"\0", newer + after(namespace.prefix)
            transaction.expect_empty(namespace.prefix, [later, *left])
        return grown
