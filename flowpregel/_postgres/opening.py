"""How a store in PostgreSQL is opened, or made: its tables, its header, and the key that seals it.

Everything is in a schema of its own::

    flowpregel.records   kind, key ► record    sealed; what an LMDB store has in its databases
    flowpregel.scopes    scope ► revision      see `transactions`
    flowpregel.leases    place ► whose it is, its fence, when it is out, and what it shows
    flowpregel.fences    a sequence            each lease has a greater one
    flowpregel.numbers   a sequence            of namespaces
    flowpregel.change    a function            puts records, if the scopes have these revisions
"""

from __future__ import annotations

import psycopg

from flowpregel._lmdb.codec import Codec, ValueCodec
from flowpregel._lmdb.options import Header, StoreOptions, seal_for
from flowpregel._lmdb.records import HEADER, Seal, Table
from flowpregel._postgres.database import Database
from flowpregel._postgres.tables import KINDS, PostgresTable
from flowpregel.errors import StoreError

# Two who make one at once would meet in the server's catalogs.
_MAKE = """
    SELECT pg_advisory_xact_lock(1718382455);
    CREATE SCHEMA IF NOT EXISTS flowpregel;
    CREATE SEQUENCE IF NOT EXISTS flowpregel.fences;
    CREATE SEQUENCE IF NOT EXISTS flowpregel.numbers;
    CREATE TABLE IF NOT EXISTS flowpregel.records (key bytea PRIMARY KEY, record bytea NOT NULL);
    ALTER TABLE flowpregel.records ALTER COLUMN record SET STORAGE EXTERNAL;
    CREATE TABLE IF NOT EXISTS flowpregel.scopes (scope bytea PRIMARY KEY, revision bytea NOT NULL)
        WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS flowpregel.leases (
        place bytea PRIMARY KEY, thread bytea NOT NULL, namespace bytea NOT NULL,
        fence bigint NOT NULL, token bytea NOT NULL, owner text NOT NULL,
        expires timestamptz NOT NULL, asked bool NOT NULL DEFAULT false,
        watched timestamptz, shown bytea
    ) WITH (fillfactor = 50);
    CREATE OR REPLACE FUNCTION flowpregel.change(
        token bytea, places bytea[], revisions bytea[], keys bytea[], records bytea[],
        lows bytea[], highs bytea[]
    ) RETURNS bool[] LANGUAGE plpgsql SET enable_seqscan = off AS $$
    #variable_conflict use_column
    DECLARE are_empty bool[] := '{{}}';
    BEGIN
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
_HEADER = KINDS[b"meta"] + HEADER


class OpenDatabase:
    """A store in PostgreSQL. It is opened when it is first used; `close` gives it back.

    Args:
        url: As psycopg takes it.
        readonly: Only read; there must be a store.
        codec: Encodes values; None is `PythonCodec`.
        options: The rarely needed.

    Raises:
        ConfigurationError: It is no URL.
    """

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self._options = options = options or StoreOptions()
        self.environment = Database(
            url, readonly=readonly, patience=options.lock_timeout, opening=self._open
        )
        self.read, self.write = self.environment.read, self.environment.write
        self.codec = ValueCodec(codec, options.compression)
        self._seal = Seal.__new__(Seal)
        """Gets its keys when the store is opened."""

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""
        return PostgresTable(name, self.environment.path, self._seal)

    def close(self) -> None:
        """Close the connections; may be called again."""
        self.environment.close()

    def _open(self) -> None:
        """Read the header, which is made if there is none, and check it.

        Raises:
            StoreForeignError: It is sealed, or encrypted, under another key.
            StoreError: The server refuses; or there is no store, and none may be made.
        """
        database, options = self.environment, self._options
        record = _header_of(database)
        if record is None and database.readonly:
            raise StoreError(f"there is no store at {database.path}, and readonly=True makes none")
        if record is None:
            _make(database, options)
            record = _header_of(database) or b""
        header = Header.read(record, database.path)
        seal = seal_for(options, header)
        header.check(record, database.path, seal, readonly=database.readonly)
        vars(self._seal).update(vars(seal))


def _header_of(database: Database) -> bytes | None:
    try:
        rows = database.execute("SELECT record FROM flowpregel.records WHERE key = %s", _HEADER)
    except StoreError as error:
        missing = psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName
        if isinstance(error.__cause__, missing):
            return None
        raise
    return rows[0][0] if rows else None


def _make(database: Database, options: StoreOptions) -> None:
    """Make the tables and the header, unless another process does so first."""
    seal = seal_for(options)
    header = Header.new(seal).to_bytes(seal)
    database.execute(_MAKE.format(_HEADER.hex(), header.hex()))
