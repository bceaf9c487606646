"""Connections to a SQLite database, and the translation of SQLite's errors into
flowpregel's.

Every connection has the same settings. ``journal_mode=WAL`` lets readers continue while
a commit is written. With ``synchronous=FULL`` the log is synced at each commit. With
``NORMAL``, which many programs use, commits that have succeeded could be lost in a
power cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from flowpregel.errors import (
    CommitUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)
from flowpregel.storage import HEADER, TABLE_NAMES, is_disk_full

APPLICATION_ID = 0x666C6F77
"""The application id of a store's database, which spells ``flow``. The command ``file``
shows it.
"""
_SETTINGS = """
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;
    PRAGMA checkpoint_fullfsync = ON;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
"""
_MOST_STATEMENTS = 64
_FULL = sqlite3.SQLITE_FULL
_IO_ERROR = sqlite3.SQLITE_IOERR
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = sqlite3.SQLITE_CORRUPT
_NO_DATABASE = sqlite3.SQLITE_NOTADB
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_PUT_HEADER = "INSERT OR REPLACE INTO meta VALUES (?, ?)"


def connect(
    path: str,
    *,
    timeout: float,
    readonly: bool = False,
    immutable: bool = False,
) -> sqlite3.Connection:
    """Return a connection to the database at *path*, which must exist.

    Args:
        path: The file.
        timeout: Seconds to wait for locks of other programs.
        readonly: True to open the database for reading only.
        immutable: True to acquire no locks. In this case, no process may write to the
            database.
    """
    mode = "ro" if readonly else "rw"
    uri = f"file:{quote(path)}?mode={mode}"
    if immutable:
        uri += "&immutable=1"
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=timeout,
        # With ``isolation_level=None``, the module `sqlite3` begins no transactions by
        # itself. They begin only where this package begins them.
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_MOST_STATEMENTS,
    )
    # SQLite's values of type TEXT are returned as bytes. So if a record in the database
    # was replaced by a string, the checksum fails, not the decoding of the string.
    connection.text_factory = bytes
    try:
        connection.executescript(_SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection


def make_tables(connection: sqlite3.Connection, header: bytes) -> None:
    """Create the tables of a store in an empty database, and store its header."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for name in TABLE_NAMES:
        # WITHOUT ROWID stores the records in the B-tree of the keys. So a commit
        # changes one page for each record, and not two.
        connection.execute(
            f'CREATE TABLE "{name.decode()}" '
            "(key BLOB PRIMARY KEY NOT NULL, record BLOB NOT NULL) WITHOUT ROWID"
        )
    connection.execute(_PUT_HEADER, (HEADER, header))


def header_of(connection: sqlite3.Connection) -> bytes:
    """Return the record of the store's header, or empty bytes if there is none."""
    statement = "SELECT record FROM meta WHERE key = ?"
    row = connection.execute(statement, (HEADER,)).fetchone()
    is_there = row is not None and isinstance(row[0], bytes)
    return row[0] if is_there else b""


def check_application(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database of another program.

    Raises:
        StoreVersionError: The database was created by another program.
    """
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    if number != APPLICATION_ID:
        raise StoreVersionError(
            f"{path} is an SQLite database, but not a flowpregel store; it was not "
            "changed: give another path"
        )


def refuse_damaged_pages(connection: sqlite3.Connection, path: str) -> None:
    """Raise `StoreCorruptError` if a page of the database is damaged."""
    problems = damaged_pages(connection)
    if problems:
        raise StoreCorruptError(
            f"{path} is damaged: {problems[0]} ({len(problems)} problems); restore a "
            "backup"
        )


def damaged_pages(connection: sqlite3.Connection) -> list[str]:
    """Return descriptions of a database's damaged pages."""
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    return [text.decode() for (text,) in rows if text != b"ok"]


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll the transaction back, unless SQLite has already done so after an error."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def undo_commit(
    connection: sqlite3.Connection,
    error: sqlite3.Error,
    path: str,
) -> None:
    """Undo a commit that failed, so that its changes never become visible.

    Args:
        connection: The connection that could not commit.
        error: The error of the commit.
        path: The file, for messages.

    Raises:
        CommitUnknownError: The changes may still be in SQLite's log, from which a
            reader would take them after a crash.
    """
    roll_back(connection)
    if result_code(error) != _IO_ERROR:
        return
    try:
        _write_header_again(connection)
    except sqlite3.Error:
        raise CommitUnknownError(path, str(error)) from error


def _write_header_again(connection: sqlite3.Connection) -> None:
    """Commit the unchanged header of the store. The pages (frames) that this commit
    writes to SQLite's log overwrite those of the commit that failed.
    """
    record = header_of(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("DELETE FROM meta WHERE key = ?", (HEADER,))
        connection.execute(_PUT_HEADER, (HEADER, record))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def our_errors(path: str, timeout: float) -> Iterator[None]:
    """Raise flowpregel's errors in place of SQLite's while the context is open.

    Args:
        path: The file.
        timeout: Seconds for which a connection waited for other programs.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise of_sqlite(error, path, timeout) from error


def result_code(error: sqlite3.Error) -> int:
    """Return the kind of SQLite's *error*, such as ``sqlite3.SQLITE_FULL``, or 0."""
    # The low byte of the code is the kind of the error. The other bytes, which give
    # details, are dropped.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Return True if *error* means that another connection uses the database."""
    return result_code(error) in _BUSY


def of_sqlite(
    error: sqlite3.Error,
    path: str,
    timeout: float,
) -> StoreError:
    """Convert SQLite's *error* on the database at *path* to one of flowpregel's
    errors.
    """
    code = result_code(error)
    is_full = code == _FULL
    # SQLite reports an I/O error if a sync fails because the disk is full, so the free
    # space is checked.
    if code == _IO_ERROR:
        is_full = is_disk_full(path)
    if is_full:
        return StoreFullError(
            f"there is no room to write to {path} ({error}); nothing of this commit "
            "was stored, but earlier commits stay readable: make room and try again"
        )
    if code in _BUSY:
        return StoreBusyError(path, "another program that uses the database", timeout)
    if code == _NO_DATABASE:
        # SQLite recognizes a database by the first bytes of the file. So it cannot tell
        # a file of another kind from a database whose first page is damaged.
        return StoreCorruptError(
            f"{path} is not an SQLite database, or its first page is damaged: give the "
            "path of a store, or restore a backup"
        )
    if code == _DAMAGED:
        return StoreCorruptError(f"{path} is damaged ({error}); restore a backup")
    if code in _READ_ONLY:
        return StoreReadOnlyError(
            f"{path} cannot be written: {error}; check its permissions"
        )
    return StoreError(
        f"{path} could not be used: {error}; nothing of this commit was stored"
    )
