"""A cache in PostgreSQL, with the records that `flowpregel.cache.memory` describes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowpregel.cache.base import FullKey
from flowpregel.cache.durable import RecordCache, digest_of_key
from flowpregel.checkpoint.base import Address
from flowpregel.plugins.postgres.database import Database
from flowpregel.plugins.postgres.leases import LeaseTable, OwnLease
from flowpregel.storage import StoreOptions

__all__ = ["PostgresCache"]

_TTL = 10.0
"""Seconds after which the claim of a dead owner expires."""


class PostgresCache(RecordCache):
    """A least-recently-used cache in PostgreSQL, shared by processes and machines.

    Args:
        path: The URL of the database; a `PostgresSaver` may use the same database.
        max_entries: The number of values to keep; the least recently used is deleted
            first.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the store.

    Raises:
        ConfigurationError: The URL is invalid, or the extra ``postgres`` is not
            installed.

    Example:
        >>> cache = PostgresCache("postgresql://localhost/runs")  # doctest: +SKIP
    """

    def _open(self, path: Any, options: StoreOptions | None) -> Database:
        store = Database(path, options=options)
        self._claims = LeaseTable(store, _TTL)
        return store

    @contextmanager
    def claim(self, key: FullKey) -> Iterator[bool]:
        address = Address("", digest_of_key(key).hex())
        grant = self._claims.take(OwnLease(address))
        try:
            yield grant is not None
        finally:
            if grant is not None:
                lease = grant[0]
                self._claims.give_back(lease)
