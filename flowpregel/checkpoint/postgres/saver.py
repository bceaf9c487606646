"""The durable saver for many machines: checkpoints and pending writes in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowpregel._core.records import Address
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import after
from flowpregel._postgres.opening import OpenDatabase
from flowpregel._postgres.tables import KINDS
from flowpregel.checkpoint.arguments import arguments_key
from flowpregel.checkpoint.base import EncodedBatch
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.checkpoint.output import output_key
from flowpregel.checkpoint.postgres.leases import PostgresLeases
from flowpregel.checkpoint.retention import Retention
from flowpregel.checkpoint.tables import Tables, checkpoint_key
from flowpregel.checkpoint.writer import put
from flowpregel.errors import ConfigurationError


class PostgresSaver(DurableSaver):
    """Keeps checkpoints, pending writes and deltas in a database of PostgreSQL's.

    A superstep is one transaction and one round trip. Any number of processes, on any number
    of machines, may use the database at once; a run whose process has died, another goes on
    with once its lease is out.

    Args:
        url: The database, as psycopg takes it: ``postgresql://user@host/database``. It is
            connected to when it is first used; what is missing in it is made, in the schema
            ``flowpregel``.
        readonly: Only read; nothing is made or changed.
        codec: Turns values into bytes; by default any Python value, exactly.
        retention: How much history is kept; by default all of it.
        options: The rarely needed; of a folder's options it takes no notice.
        lease_ttl: Seconds after which a run is taken for dead that does not renew its lease.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not installed.

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
            raise ConfigurationError(f"lease_ttl is {lease_ttl!r}; give seconds greater than 0")
        opened_as = options or StoreOptions()
        self._url, self._ttl = url, lease_ttl
        store = OpenDatabase(url, readonly=readonly, codec=codec, options=opened_as)
        leases = PostgresLeases(store, lease_ttl)
        super().__init__(store, PostgresTables(store), leases, opened_as, retention)
        self._put = self._put_and_ask

    @property
    def location(self) -> str:
        return self._url

    def opened_to_look(self, codec: Codec) -> tuple[OpenDatabase, PostgresLeases]:
        store = OpenDatabase(self._url, readonly=True, codec=codec, options=self.options)
        return store, PostgresLeases(store, self._ttl)

    def abandoned(self) -> list[Address]:
        """Return where runs have died: their leases are out, and were not given back."""
        return self._leases.abandoned()

    def backup(self, path: str) -> None:
        """Refuse: the server has tools of its own for that."""
        raise ConfigurationError("back a store in PostgreSQL up with pg_dump --schema=flowpregel")

    def compact(self) -> None:
        """Refuse: the server has tools of its own for that."""
        raise ConfigurationError(
            "PostgreSQL uses free room again by itself; VACUUM FULL makes its files smaller"
        )

    def change_keys(self, *, encryption_key: bytes | None) -> None:
        """Refuse: it would need that nobody has the store open, on any machine."""
        raise ConfigurationError("a store in PostgreSQL keeps the keys that it was made with")

    def _put_and_ask(self, transaction: Any, batches: Sequence[EncodedBatch]) -> None:
        """Put batches, and ask what the next superstep has to know: that nothing is there yet."""
        put(self._tables, transaction, batches)
        for batch in batches:
            if batch.checkpoint is not None:
                place = batch.address.thread_id, batch.address.namespace
                namespace = self._tables.namespace(transaction, *place)
                assert namespace is not None
                key = checkpoint_key(namespace.prefix, batch.checkpoint.id)
                newer, writes = KINDS[b"checkpoints"], KINDS[b"writes"]
                given = writes + arguments_key(key)
                printed = writes + output_key(namespace.prefix, batch.checkpoint.id)
                transaction.expect_empty(
                    namespace.prefix,
                    [
                        (newer + key + b"\0", newer + after(namespace.prefix)),
                        (writes + key, writes + after(key)),
                        (given, after(given)),
                        (printed, after(printed)),
                    ],
                )


class PostgresTables(Tables):
    """The tables of a store in PostgreSQL."""

    def new_prefix(self, transaction: Any) -> bytes:
        # From a sequence, so that runs that begin at once do not wait for each other.
        number: int = transaction.ask("SELECT nextval('flowpregel.numbers')")[0][0]
        return number.to_bytes(8, "big")
