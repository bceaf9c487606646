"""A long-term store in PostgreSQL; its records are those of `flowpregel.store.lmdb`."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import SealedStore
from flowpregel._postgres.opening import OpenDatabase
from flowpregel.store.base import TTLConfig
from flowpregel.store.lmdb import DurableStore
from flowpregel.store.search_index import IndexConfig

__all__ = ["PostgresStore"]


class PostgresStore(DurableStore):
    """Keeps items in a database of PostgreSQL's, for any number of processes and machines.

    Args:
        url: The database; it may be that of a `PostgresSaver`.
        index: How to find items by meaning (``embed``, ``dims``, ``fields``);
            without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        def opening(options: StoreOptions) -> SealedStore:
            return OpenDatabase(url, options=options)

        super().__init__(opening, index, ttl, clock, options)
