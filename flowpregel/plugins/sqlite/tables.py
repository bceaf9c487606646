"""The tables of a store in SQLite. The connection itself serves as the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from flowpregel.errors import ValueEncodingError
from flowpregel.storage import Seal, Table, after

_LARGEST = 999_000_000
"""The limit on the size of a record, in bytes. SQLite's own limit is a little higher.
"""


class SQLiteTable(Table):
    """One table of a database.

    Args:
        name: The name of the table.
        path: The file, for messages.
        seal: The keys of the store, for checksums and encryption.
    """

    def __init__(
        self,
        name: bytes,
        path: str,
        seal: Seal,
    ) -> None:
        super().__init__(name, path, seal)
        table = f'"{name.decode()}"'
        inside = "key >= ? AND key < ?"
        self._get = f"SELECT record FROM {table} WHERE key = ?"
        self._put = f"INSERT OR REPLACE INTO {table} VALUES (?, ?)"
        self._delete = f"DELETE FROM {table} WHERE key = ?"
        self._drop = f"DELETE FROM {table} WHERE {inside}"
        self._ascending = f"SELECT * FROM {table} WHERE {inside} ORDER BY key"
        self._descending = f"{self._ascending} DESC"
        self._keys = f"SELECT key FROM {table} WHERE {inside} ORDER BY key LIMIT ?"

    def record(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        row = transaction.execute(self._get, (key,)).fetchone()
        return None if row is None else self._blob(row[0], key)

    def put_record(
        self,
        transaction: Any,
        key: bytes,
        record: bytes,
    ) -> None:
        if len(record) > _LARGEST:
            raise ValueEncodingError(
                f"a value of {len(record):,} bytes is too large for SQLite, which "
                "stores at most 1 GB: keep it in a file, and store the path"
            )
        transaction.execute(self._put, (key, record))

    def discard(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        return bool(transaction.execute(self._delete, (key,)).rowcount)

    def records(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        low = prefix
        high = after(prefix)
        statement = self._descending if backwards else self._ascending
        if start and backwards:
            high = min(high, start)
        elif start:
            low = start
        cursor = transaction.execute(statement, (low, high))
        try:
            # `fetchone` is used instead of iterating over the cursor: if a reader stops
            # early, Python would close that iterator, perhaps after the connection was
            # closed.
            yield from map(self._checked, iter(cursor.fetchone, None))
        finally:
            # The cursor is closed, because an unfinished statement would keep its
            # snapshot open.
            with suppress(sqlite3.ProgrammingError):
                cursor.close()

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        most = -1 if limit is None else limit
        rows = transaction.execute(self._keys, (start or prefix, after(prefix), most))
        return [self._blob(key) for (key,) in rows]

    def _checked(self, row: tuple[Any, Any]) -> tuple[bytes, bytes]:
        """Verify the checksum of a row, and return its key and record."""
        key = self._blob(row[0])
        return key, self._blob(row[1], key)

    def _blob(self, value: object, key: bytes = b"") -> bytes:
        """Return the bytes in a column of a row.

        Raises:
            StoreCorruptError: The value has another type, because a page is damaged.
        """
        if not isinstance(value, bytes):
            raise self.corrupt(key, f"has a {type(value).__name__} where bytes were")
        return value

    def drop(
        self,
        transaction: Any,
        prefix: bytes,
    ) -> None:
        transaction.execute(self._drop, (prefix, after(prefix)))
