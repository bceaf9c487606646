"""The change of the secret keys of a SQLite store, which are used for checksums and for
optional encryption. No program may have the store open during the change.

::

    old records ──► draft, a new database ──► one transaction, which replaces every page

Every process that has the store open has the old keys in memory. So the keys are
changed under SQLite's exclusive lock, which cannot be acquired while another program
has the file open. Programs that open the file later wait until the lock is released.

The old records must not remain readable in free pages. So all records are written with
the new keys to a draft, which has no free pages, and SQLite's own backup copies the
draft's pages over those of the store. The copy is one transaction, so a crash leaves
either all old pages or all new pages. The draft is not renamed over the file, because
SQLite would then apply the old file's log to the new file.

After the commit, the new pages are in the log, and the old pages are still in the file.
So the log is copied into the file at once. If a crash prevents that, SQLite does it
when the store is closed the next time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from flowpregel.errors import StoreBusyError, StoreError
from flowpregel.plugins.sqlite import connections, files
from flowpregel.plugins.sqlite.connections import our_errors
from flowpregel.plugins.sqlite.tables import SQLiteTable
from flowpregel.storage import (
    HEADER,
    TABLE_NAMES,
    Header,
    Seal,
    SealedRecords,
    StoreOptions,
    draft_in,
    fault,
    seal_for,
    translate_os_errors,
)

ENGINES = ("sqlite 3",)
"""The name of this storage engine in a store's header."""


def accepted_header(
    record: bytes,
    path: str,
    options: StoreOptions,
    *,
    readonly: bool,
) -> tuple[Header, Seal]:
    """Check a store's header. Return it with the secret keys that the records must
    have.

    Args:
        record: The record of the header.
        path: The file, for messages.
        options: The options with which the store is opened.
        readonly: True if nothing will be written.
    """
    header = Header.read(record, path, ENGINES)
    seal = seal_for(options, header)
    header.check(record, path, seal, readonly=readonly, trusting=options.trusts_all)
    return header, seal


@contextmanager
def sole_connection(path: str) -> Iterator[sqlite3.Connection]:
    """Open the only connection to the database at *path*. Programs that open the
    database wait until the context ends.

    Raises:
        StoreBusyError: The database is open, in this process or in another.
    """
    lock = files.write_lock(path)
    try:
        if not lock.acquire(0.0):
            raise StoreBusyError(path, str(lock.holder()), 0.0)
        with our_errors(path, 0.0), closing(_exclusive(path)) as connection:
            yield connection
    finally:
        lock.close()


def _exclusive(path: str) -> sqlite3.Connection:
    """Return a connection that holds SQLite's exclusive lock until it is closed."""
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(
                closing(connections.connect(path, timeout=0.0))
            )
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # In the locking mode EXCLUSIVE, SQLite keeps the lock of a transaction
            # after the transaction has ended.
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not connections.is_busy(error):
                raise
            holder = "a program that has it open, here or in another process"
            raise StoreBusyError(path, holder, 0.0) from error
        stack.pop_all()
        return connection


def seal_as_ours(path: str, options: StoreOptions) -> None:
    """Give all records of a store that *options* trust checksums of our own key.

    The old checksums cannot be checked, since the key of the store is unknown. After
    that, the records are unpickled as if this user had written them.

    Raises:
        StoreBusyError: The store is open, in this process or in another.
    """
    with sole_connection(path) as connection:
        record = connections.header_of(connection)
        header, seal = accepted_header(record, path, options, readonly=False)
        # Another process may have written the new checksums in the meantime. Then
        # nothing needs to be done.
        if header.key != seal.id:
            reseal(connection, path, header.under(seal), seal, None)


def reseal(
    connection: sqlite3.Connection,
    path: str,
    header: Header,
    seal: Seal,
    old: Seal | None,
) -> None:
    """Rewrite all records of a store with the secret keys in *seal*, in one
    transaction.

    Args:
        connection: The sole connection to the store.
        path: The file of the store.
        header: The new header.
        seal: The new secret keys.
        old: The old secret keys, with which the records are checked. If they are
            unknown (None), the records are not checked.

    Raises:
        StoreForeignError: A record is encrypted under another key than that of *old*.
        StoreCorruptError: A record or a page is damaged.
        StoreFullError: There is not enough space.
        StoreError: The database has a table, view or trigger that is not part of a
            store, or the old records could not be overwritten.
    """
    _refuse_other_tables(connection, path)
    connections.refuse_damaged_pages(connection, path)
    folder, name = os.path.split(path)
    with (
        translate_os_errors(path),
        draft_in(folder, f".{name}.keys.", 0.0) as draft,
        closing(_draft_database(connection, os.path.join(draft, "draft"))) as database,
    ):
        connections.make_tables(database, header.to_bytes(seal))
        database.execute("BEGIN")
        for table_name in TABLE_NAMES:
            table = SQLiteTable(table_name, path, seal)
            old_records = None
            if old is not None:
                old_records = SealedRecords(table_name, path, old)
            _move_records(connection, database, table, old_records)
        database.execute("COMMIT")
        fault("store.keys.before")
        try:
            database.backup(connection)
        except sqlite3.Error as error:
            connections.undo_commit(connection, error, path)
            raise
        fault("store.keys.after")
        _overwrite_old_pages(connection, path)


def _refuse_other_tables(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database in which another program has tables, views or triggers, because
    the draft would not have them.
    """
    rows = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    others = [
        name.decode(errors="replace")
        for (name,) in rows
        if name not in TABLE_NAMES and not name.startswith(b"sqlite_")
    ]
    if others:
        raise StoreError(
            f"{path} also has {', '.join(sorted(others))}, which would be lost with "
            "the old keys; nothing was changed: move it to another database"
        )


def _draft_database(source: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Return a connection to a new database at *path*, with pages as large as those of
    *source*.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = connections.connect(path, timeout=0.0)
    (size,) = source.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA page_size = {size}")
    # If there is a crash, the draft is deleted and never used. So it needs no journal
    # and no sync.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _move_records(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    table: SQLiteTable,
    old_records: SealedRecords | None,
) -> None:
    """Copy the records of a table, without the header, and write them with the new
    keys.

    Args:
        source: The connection to the store.
        target: The connection to the draft.
        table: The table, with the new secret keys.
        old_records: The table with the old secret keys, or None if they are unknown.
    """
    for key, record in table.records(source, b""):
        if table.name + key != b"meta" + HEADER:
            table.put_record(target, key, table.resealed(key, record, old_records))


def _overwrite_old_pages(connection: sqlite3.Connection, path: str) -> None:
    """Copy SQLite's log into the database file, so that the old pages are overwritten,
    and empty the log.

    Raises:
        StoreError: The log could not be copied, so the old records may still be in the
            file.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} has its new keys, but the old records could not be overwritten "
            f"yet ({error}): make room, and open and close the store"
        ) from error
