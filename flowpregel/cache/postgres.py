"""A cache in PostgreSQL; its records are those of `flowpregel.cache.lmdb`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from flowpregel._postgres.leases import LeaseTable
from flowpregel._postgres.opening import OpenDatabase
from flowpregel.cache.base import FullKey
from flowpregel.cache.lmdb import DurableCache, place_of

__all__ = ["PostgresCache"]

_TTL = 10.0
"""Seconds after which a claim is out whose owner has died."""


class PostgresCache(DurableCache):
    """Keeps the values that were used last, for any number of processes and machines.

    Args:
        path: The URL of the database; it may be that of a `PostgresSaver`.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        ConfigurationError: It is no such URL, or the extra ``postgres`` is not installed.
    """

    _open = staticmethod(OpenDatabase)

    @cached_property
    def _claims(self) -> LeaseTable:
        return LeaseTable(self._store.environment, _TTL)

    @contextmanager
    def claim(self, key: FullKey) -> Iterator[bool]:
        taken = self._claims.take(b"cache" + place_of(key), ("", ""), _go_on, takeover=False)
        try:
            yield taken is not None
        finally:
            if taken is not None:
                self._claims.give_back(taken[0])


def _go_on() -> None:
    """Nobody asks for a claim to be given up."""
