"""A cache in PostgreSQL; its records are those of `flowpregel.cache.memory`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowpregel._core.records import Address
from flowpregel._lmdb.options import StoreOptions
from flowpregel._postgres.database import Database
from flowpregel._postgres.leases import LeaseTable, OwnLease
from flowpregel.cache.base import FullKey
from flowpregel.cache.memory import RecordCache, place_of

__all__ = ["PostgresCache"]

_TTL = 10.0
"""Seconds after which a claim is out whose owner has died."""


class PostgresCache(RecordCache):
    """Keeps the values that were used last, for any number of processes and machines.

    Args:
        path: The URL of the database; it may be that of a `PostgresSaver`.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not
            installed.
    """

    def _open(self, path: Any, options: StoreOptions | None) -> Database:
        store = Database(path, options=options)
        self._claims = LeaseTable(store, _TTL)
        return store

    @contextmanager
    def claim(self, key: FullKey) -> Iterator[bool]:
        taken = self._claims.take(OwnLease(Address("", place_of(key).hex())))
        try:
            yield taken is not None
        finally:
            if taken is not None:
                self._claims.give_back(taken[0])
