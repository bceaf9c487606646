"""A long-term store in SQLite, with the records that `flowpregel.store.memory`
describes.
"""

from __future__ import annotations

import os

from flowpregel.plugins.sqlite.database import SQLiteDatabase
from flowpregel.storage import StoreOptions
from flowpregel.store.durable import ItemStore

__all__ = ["SQLiteStore"]


class SQLiteStore(ItemStore):
    """A store in a SQLite database, for any OS thread and several processes.

    Args:
        path: The URL or the path of the file; a `SQLiteSaver` may use the same one.
        index: The index of embeddings for queries (``embed``, ``dims``, ``fields``);
            without an index, a query ranks items by shared words.
        ttl: The time to live of items that are put without one.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        ConfigurationError: The URL names no file.
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with SQLiteStore(folder + "/items.db") as store:
        ...         store.put(("users", "ada"), "food", {"likes": "pizza"})
        ...         store.get(("users", "ada"), "food").value
        {'likes': 'pizza'}
    """

    def _open(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions | None,
    ) -> SQLiteDatabase:
        return SQLiteDatabase(path, options=options)
