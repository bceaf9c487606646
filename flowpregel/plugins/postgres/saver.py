"""A durable saver for many machines: checkpoints and pending writes in PostgreSQL.

One run at a time writes to a namespace of a thread: the owner of the namespace's lease,
which renews the lease regularly. If the owner has died, has lost the network or is
stopped, the lease expires, and another run can get the next lease. The new owner first
stores the lease's fence (a number that is greater than that of all earlier leases). If
the old owner continues, its commits have a smaller fence, and are refused.

A lease that its owner has released is free at once, and the next owner need not store
its fence. So an owner releases its lease only if no commit of its own or of an earlier
owner can still arrive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from flowpregel.checkpoint.base import Address, Fences, Lease, OnConflict
from flowpregel.checkpoint.durable import (
    DurableSaver,
    LiveState,
    NamespaceRecord,
    Retention,
    Tables,
)
from flowpregel.errors import ConfigurationError, StoreError, ThreadBusyError
from flowpregel.plugins.postgres.database import Database
from flowpregel.plugins.postgres.leases import LeaseTable, OwnLease, lease_key
from flowpregel.plugins.postgres.tables import KINDS
from flowpregel.storage import (
    Codec,
    LockHolder,
    StoreOptions,
    defer_interrupts,
    raise_pending_interrupts,
)

__all__ = ["PostgresSaver"]

_PAUSE = 0.1
"""Seconds between two attempts to get a lease that another run owns."""
_WATCHED_SECONDS = 5.0
"""Seconds for which one call of `PostgresLeases.watch` watches a run."""
_log: Final = logging.getLogger("flowpregel.store")


class PostgresTables(Tables):
    """The tables of a store in PostgreSQL."""

    looks_ahead = True
    # A record never refers to a value in another record, because a reader would need
    # another round trip for that value.
    shares_values = False

    def new_prefix(self, transaction: Any) -> bytes:
        # The number comes from a sequence, so that runs that start at the same time do
        # not wait for each other.
        number: int = transaction.ask("SELECT nextval('flowpregel.numbers')")[0][0]
        return number.to_bytes(8, "big")

    def look_ahead(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> None:
        """Make the commit also report which of the key ranges that the next superstep
        will read are empty, so that the next superstep need not read these.
        """
        ranges = []
        for table, low, high in self.ranges_after(namespace, checkpoint_id):
            ranges.append((KINDS[table] + low, KINDS[table] + high))
        transaction.expect_empty(namespace.prefix, ranges)


class PostgresLeases(LeaseTable):
    """The leases that the runs of this process hold in one store.

    Args:
        store: The open store.
        ttl: Seconds after which a lease that is not renewed expires.
    """

    def __init__(self, store: Database, ttl: float) -> None:
        super().__init__(store, ttl)
        self._live = store.table(b"live")
        """The table by which the live states of runs get a checksum (made with the
        store's key).
        """
        self.held: set[tuple[str, int]] = set()

    @contextmanager
    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> Iterator[Lease]:
        """Hold the lease for *address*, the right to write to that namespace, while the
        context is open.

        Raises:
            ThreadBusyError: Another run holds this right, and *on_conflict* is
                ``"raise"``.
        """
        lease = Lease()
        takeover = on_conflict == "takeover"
        unknown_before = self._database.unknown_outcomes
        is_only_writer = False
        live = LiveState(lease, self._live, lease_key(address))
        request = OwnLease(address, lease.request_stop, live.sealed)
        try:
            with defer_interrupts():
                while (grant := self.take(request, takeover=takeover)) is None:
                    if on_conflict == "raise":
                        holder = str(self.owner(address) or "a run that has just ended")
                        raise ThreadBusyError(
                            address.thread_id, address.namespace, holder
                        )
                    raise_pending_interrupts()
                    time.sleep(_PAUSE)
                live.started = time.time_ns()
                lease.fence, was_anothers = grant
                lease.is_inherited = was_anothers and not takeover
                self.held.add((address.thread_id, lease.fence))
                if was_anothers:
                    fences(address, lease.fence)
                if was_anothers and takeover:
                    _log.warning(
                        "thread %r is taken over from its last owner", address.thread_id
                    )
                is_only_writer = True
            yield lease
        finally:
            with defer_interrupts():
                if lease.fence is not None:
                    self.held.discard((address.thread_id, lease.fence))
                    has_unknown = self._database.unknown_outcomes > unknown_before
                    if is_only_writer and not has_unknown:
                        self.give_back(lease.fence)
                    else:
                        self._give_back_fenced(address, lease.fence, fences)

    def _give_back_fenced(self, address: Address, fence: int, fences: Fences) -> None:
        """Release a lease although a commit of this owner or of an earlier one may
        still arrive.

        A greater fence is stored first, so that the store refuses such commits. If that
        fails, the lease is not released but expires, and the next owner stores its
        fence.
        """
        is_fenced = False
        try:
            with suppress(StoreError):
                fences(address, fence + 1)
                is_fenced = True
        finally:
            if is_fenced:
                self.give_back(fence)
            else:
                self.let_expire(fence)

    def watch(self, address: Address) -> tuple[LockHolder, dict[str, Any]] | None:
        """Return the owner of the lease at *address* and the run's live state.

        Return None if the lease is free, or if there is no state yet.
        """
        owner, sealed_state = self.shown(address, _WATCHED_SECONDS)
        if owner is None or sealed_state is None:
            return None
        state = LiveState.read(self._live, lease_key(address), sealed_state)
        return None if state is None else (owner, state)


class PostgresSaver(DurableSaver):
    """A saver that keeps checkpoints, pending writes and deltas in PostgreSQL.

    A superstep is one transaction and one round trip. Any number of processes, on any
    number of machines, may use the database at once. If the process of a run dies,
    another process can resume the run once the lease has expired.

    Args:
        url: The database, as psycopg takes it: ``postgresql://user@host/database``. The
            saver connects at the first use, and makes its tables in the schema
            ``flowpregel`` if they are missing.
        readonly: True to read only, and create and change nothing.
        codec: The codec of values; the default encodes any Python value exactly.
        retention: The history to keep; by default all of it.
        options: The options of the store; those that concern folders have no effect.
        lease_ttl: Seconds after which a run that does not renew its lease is regarded
            as dead.

    Raises:
        ConfigurationError: The URL is invalid, or the extra ``postgres`` is not
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
        return self._leases.abandoned()

    def backup(self, path: str) -> None:
        """Refuse: PostgreSQL has tools of its own for this.

        Args:
            path: Not used.

        Raises:
            ConfigurationError: In any case. The message names the tool.

        Example:
            >>> PostgresSaver("postgresql://me@db.example.org/runs").backup("copy")
            Traceback (most recent call last):
            flowpregel.errors.ConfigurationError: back up a store in PostgreSQL with ...
        """
        raise ConfigurationError(
            "back up a store in PostgreSQL with pg_dump --schema=flowpregel"
        )

    def compact(self) -> None:
        """Refuse: PostgreSQL has tools of its own for this."""
        raise ConfigurationError(
            "PostgreSQL reuses free space by itself; VACUUM FULL shrinks its files"
        )

    def change_keys(
        self, *, encryption_key: bytes | None, key: bytes | None = None
    ) -> None:
        """Refuse: while keys are changed, no process on any machine may have the store
        open, which this class cannot ensure.

        Args:
            encryption_key, key: Not used.

        Raises:
            ConfigurationError: In any case.

        Example:
            >>> saver = PostgresSaver("postgresql://me@db.example.org/runs")
            >>> saver.change_keys(encryption_key=None)
            Traceback (most recent call last):
            flowpregel.errors.ConfigurationError: a store in PostgreSQL keeps ...
        """
        raise ConfigurationError(
            "a store in PostgreSQL keeps the keys with which it was created"
        )
