"""The plug-in for the URLs of PostgreSQL databases."""

from __future__ import annotations

from typing import ClassVar

from flowpregel.cache.base import BaseCache
from flowpregel.plugins import StorePlugin
from flowpregel.plugins.postgres.cache import PostgresCache
from flowpregel.plugins.postgres.saver import PostgresSaver
from flowpregel.plugins.postgres.store import PostgresStore
from flowpregel.storage import Codec, StoreOptions


class PostgresPlugin(StorePlugin):
    """The stores in PostgreSQL: ``postgresql://user@host/database``."""

    example: ClassVar[str] = "postgresql://user@host/database"
    classes: ClassVar[tuple[str, ...]] = (
        "PostgresSaver",
        "PostgresStore",
        "PostgresCache",
    )

    def open_saver(
        self,
        location: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> PostgresSaver:
        return PostgresSaver(location, readonly=readonly, codec=codec, options=options)

    def open_store(
        self, location: str, *, options: StoreOptions | None = None
    ) -> PostgresStore:
        return PostgresStore(location, options=options)

    def open_cache(
        self, location: str, *, options: StoreOptions | None = None
    ) -> BaseCache:
        return PostgresCache(location, options=options)
