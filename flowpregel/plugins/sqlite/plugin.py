"""The plug-in for the URLs of SQLite databases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import ClassVar

from flowpregel.plugins import StoreCheck, StorePlugin
from flowpregel.plugins.sqlite import files
from flowpregel.plugins.sqlite.cache import SQLiteCache
from flowpregel.plugins.sqlite.saver import SQLiteSaver
from flowpregel.plugins.sqlite.store import SQLiteStore
from flowpregel.storage import Codec, StoreOptions

_LEAST_DISK = 256 << 20
"""The free disk space, in bytes, that a database should have."""


class SQLitePlugin(StorePlugin):
    """The stores in SQLite: ``sqlite:///runs.db``."""

    example: ClassVar[str] = files.EXAMPLE
    classes: ClassVar[tuple[str, ...]] = ("SQLiteSaver", "SQLiteStore", "SQLiteCache")

    def open_saver(
        self,
        location: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> SQLiteSaver:
        return SQLiteSaver(location, readonly=readonly, codec=codec, options=options)

    def open_store(
        self,
        location: str,
        *,
        options: StoreOptions | None = None,
    ) -> SQLiteStore:
        return SQLiteStore(location, options=options)

    def open_cache(
        self,
        location: str,
        *,
        options: StoreOptions | None = None,
    ) -> SQLiteCache:
        return SQLiteCache(location, options=options)

    def full_location(self, location: str) -> str:
        return files.url_of(files.path_in(location))

    def exists(self, location: str) -> bool:
        return os.path.exists(files.path_in(location))

    def is_lockable(self, location: str) -> bool:
        return os.access(files.path_in(location), os.W_OK)

    def is_local(self, location: str) -> bool:
        return True

    def checks(self, location: str) -> Iterator[StoreCheck]:
        """Check the folder of the database: its disk, and the rights of this user."""
        folder = os.path.dirname(files.path_in(location))
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        free = shutil.disk_usage(folder).free
        room = f"{free >> 20:,} MiB free"
        yield StoreCheck("store's disk", free >= _LEAST_DISK, room)
        is_writable = os.access(folder, os.W_OK)
        rights = "writable" if is_writable else f"{folder} is read-only"
        yield StoreCheck("store's rights", is_writable, rights)
