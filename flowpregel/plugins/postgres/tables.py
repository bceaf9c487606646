"""The tables of a store in PostgreSQL, with the same records as a store on disk.

Everything is in the schema ``flowpregel``::

    flowpregel.records   kind, key ► record    all that LMDB keeps in databases
    flowpregel.scopes    scope ► revision      see `transactions`
    flowpregel.leases    key ► lease           owner, fence, expiry, and live state
    flowpregel.fences    a sequence            a later lease has a greater fence
    flowpregel.numbers   a sequence            the numbers of new namespaces
    flowpregel.landed    slot ► number         the last commit that landed, see `once`
    flowpregel.change    a function            writes records, if no scope has another
                                               revision than expected

Each record is sealed: it has a checksum that is made with the store's key. A record is
one row, even if it is large, because PostgreSQL itself splits large values. The key of
the row begins with the kind of the record (1 byte).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowpregel.errors import ValueEncodingError
from flowpregel.plugins.postgres.once import TABLE
from flowpregel.plugins.postgres.transactions import CACHE, DELTAS, META, STORE, THREADS
from flowpregel.storage import Seal, Table, after

KINDS = {
    b"meta": META,
    b"threads": THREADS,
    b"checkpoints": b"c",
    b"values": b"v",
    b"deltas": DELTAS,
    b"writes": b"w",
    b"store": STORE,
    b"cache": CACHE,
    b"live": b"l",
}
_LARGEST = 1_000_000_000
"""The greatest size of a payload in bytes, a little below PostgreSQL's own limit."""
_FIRST_PAGE, _LARGEST_PAGE = 16, 256
# The statement that creates the tables takes an advisory lock. Otherwise two processes
# that create the store at the same time would conflict in the server's catalogs.
MAKE = (
    """
    SELECT pg_advisory_xact_lock(1718382455);
    CREATE SCHEMA IF NOT EXISTS flowpregel;
    CREATE SEQUENCE IF NOT EXISTS flowpregel.fences;
    CREATE SEQUENCE IF NOT EXISTS flowpregel.numbers;
    CREATE TABLE IF NOT EXISTS flowpregel.records (
        key bytea PRIMARY KEY, record bytea NOT NULL
    );
    ALTER TABLE flowpregel.records ALTER COLUMN record SET STORAGE EXTERNAL;
    CREATE TABLE IF NOT EXISTS flowpregel.scopes (
        scope bytea PRIMARY KEY, revision bytea NOT NULL
    ) WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS flowpregel.leases (
        place bytea PRIMARY KEY, thread bytea NOT NULL, namespace bytea NOT NULL,
        fence bigint NOT NULL, owner text NOT NULL,
        expires timestamptz NOT NULL, asked bool NOT NULL DEFAULT false,
        watched timestamptz, shown bytea
    ) WITH (fillfactor = 50);
    """
    + TABLE
    + """
    CREATE OR REPLACE FUNCTION flowpregel.change(
        token bytea, slot bytea, number bigint, places bytea[], revisions bytea[],
        keys bytea[], records bytea[], lows bytea[], highs bytea[]
    ) RETURNS bool[] LANGUAGE plpgsql SET enable_seqscan = off AS $$
    #variable_conflict use_column
    DECLARE are_empty bool[] := '{{}}';
    BEGIN
        IF number > 0 THEN PERFORM flowpregel.land(slot, number, NULL); END IF;
        FOR n IN 1 .. cardinality(places) LOOP
            UPDATE flowpregel.scopes SET revision = token
                WHERE scope = places[n] AND revision = revisions[n];
            IF NOT FOUND THEN RAISE serialization_failure; END IF;
        END LOOP;
        FOR n IN 1 .. cardinality(lows) LOOP
            are_empty := are_empty || NOT EXISTS (
                SELECT FROM flowpregel.records WHERE key >= lows[n] AND key < highs[n]
            );
        END LOOP;
        FOR n IN 1 .. cardinality(keys) LOOP
            IF records[n] IS NULL THEN
                DELETE FROM flowpregel.records WHERE key = keys[n];
            ELSE
                INSERT INTO flowpregel.records VALUES (keys[n], records[n])
                    ON CONFLICT (key) DO UPDATE SET record = excluded.record;
            END IF;
        END LOOP;
        RETURN are_empty;
    END $$;
    INSERT INTO flowpregel.records VALUES (decode('{}', 'hex'), decode('{}', 'hex'))
        ON CONFLICT DO NOTHING;
"""
)


class PostgresTable(Table):
    """The records of one kind, as a table. Each method takes the transaction that it
    uses.

    Args:
        name: The name of the kind of records.
        path: The database, for messages.
        seal: The keys of the store.
    """

    def __init__(self, name: bytes, path: str, seal: Seal) -> None:
        super().__init__(name, path, seal)
        self._kind = KINDS[name]

    def record(self, transaction: Any, key: bytes) -> bytes | None:
        record: bytes | None = transaction.get(self._kind + key)
        return record

    def expect(self, transaction: Any, keys: list[bytes]) -> None:
        transaction.expect([self._kind + key for key in keys])

    def expect_prefixes(self, transaction: Any, prefixes: list[bytes]) -> None:
        transaction.prefetch([(*self._range(prefix), False) for prefix in prefixes])

    def put(self, transaction: Any, key: bytes, payload: bytes) -> None:
        if len(payload) > _LARGEST:
            raise ValueEncodingError(
                f"a value of {len(payload):,} bytes is too large for PostgreSQL, "
                "which stores at most 1 GB: keep it in a file, and store the path"
            )
        super().put(transaction, key, payload)

    def put_record(self, transaction: Any, key: bytes, record: bytes) -> None:
        transaction.put(self._kind + key, record)

    def discard(self, transaction: Any, key: bytes) -> bool:
        was_there = transaction.get(self._kind + key) is not None
        if was_there:
            transaction.put(self._kind + key, None)
        return was_there

    def records(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        low, high = self._range(prefix)
        if start and backwards:
            high = self._kind + start
        elif start:
            low = self._kind + start
        rows = _paged_rows(transaction, low, high, backwards=backwards)
        for key, record in rows:
            yield key[1:], record

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        low, high = self._range(prefix)
        low = self._kind + start if start else low
        return [key[1:] for (key,) in transaction.page(low, high, limit, "ASC", "key")]

    def drop(self, transaction: Any, prefix: bytes) -> None:
        transaction.drop(*self._range(prefix))

    def _range(self, prefix: bytes) -> tuple[bytes, bytes]:
        """Return the first key with *prefix*, and the first key after all those with
        *prefix*.
        """
        return self._kind + prefix, after(self._kind + prefix)


def _paged_rows(
    transaction: Any, low: bytes, high: bytes, *, backwards: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows from the key *low* on, below *high*. They are read page by page.

    Args:
        transaction: An open transaction of the store.
        low: The first key.
        high: The key after the last one.
        backwards: True to yield the greatest key first.
    """
    limit = _FIRST_PAGE
    order = "DESC" if backwards else "ASC"
    while page := transaction.page(low, high, limit, order):
        yield from page
        if len(page) < limit:
            return
        last_key, _ = page[-1]
        limit = _LARGEST_PAGE
        if backwards:
            high = last_key
        else:
            low = last_key + b"\0"
