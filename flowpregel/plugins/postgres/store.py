"""A long-term store in PostgreSQL, with the records that `flowpregel.store.memory`
describes.
"""

from __future__ import annotations

from typing import Any

from flowpregel.plugins.postgres.database import Database
from flowpregel.storage import StoreOptions
from flowpregel.store.durable import ItemStore

__all__ = ["PostgresStore"]


class PostgresStore(ItemStore):
    """A store in a PostgreSQL database, for any number of processes and machines.

    Args:
        path: The URL of the database; a `PostgresSaver` may use the same one.
        index: The index of embeddings for queries (``embed``, ``dims``, ``fields``);
            without an index, a query ranks items by shared words.
        ttl: The time to live of items that are put without one.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        ConfigurationError: The URL is invalid, or the extra ``postgres`` is not
            installed.

    Example:
        >>> store = PostgresStore("postgresql://localhost/runs")  # doctest: +SKIP
        >>> store.put(("users", "ada"), "food", {"likes": "pizza"})  # doctest: +SKIP
    """

    def _open(self, path: Any, options: StoreOptions | None) -> Database:
        return Database(path, options=options)
