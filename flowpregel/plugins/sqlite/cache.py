"""A cache in SQLite, with the records that `flowpregel.cache.memory` describes."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from flowpregel.cache.base import FullKey
from flowpregel.cache.durable import RecordCache, digest_of_key
from flowpregel.plugins.sqlite import files
from flowpregel.plugins.sqlite.database import SQLiteDatabase
from flowpregel.storage import ClaimFiles, StoreOptions

__all__ = ["SQLiteCache"]


class SQLiteCache(RecordCache):
    """A least-recently-used cache in SQLite, shared by OS threads and processes.

    Args:
        path: The URL or the path of the file; a `SQLiteSaver` may use the same file.
        max_entries: The number of values to keep; the least recently used is deleted
            first.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        ConfigurationError: The URL names no file.
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with SQLiteCache(folder + "/cache.db") as cache:
        ...         cache.set({(("lengths",), "ada"): (3, None)})
        ...         cache.get([(("lengths",), "ada")])
        {(('lengths',), 'ada'): 3}
    """

    def _open(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions | None,
    ) -> SQLiteDatabase:
        store = SQLiteDatabase(path, options=options)
        self._claims = ClaimFiles(files.locks_of(store.path))
        return store

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        return self._claims.claim(digest_of_key(key))
