"""A long-term store in PostgreSQL; its records are those of
`flowpregel.store.memory`.
"""

from __future__ import annotations

from typing import Any

from flowpregel._lmdb.options import StoreOptions
from flowpregel._postgres.database import Database
from flowpregel.store.memory import ItemStore

__all__ = ["PostgresStore"]


class PostgresStore(ItemStore):
    """Keeps items in a database of PostgreSQL's, for any number of processes and
    machines.

    Args:
        path: The URL of the database; it may be that of a `PostgresSaver`.
        index: How to find items by meaning (``embed``, ``dims``, ``fields``);
            without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not
            installed.
    """

    def _open(self, path: Any, options: StoreOptions | None) -> Database:
        return Database(path, options=options)
