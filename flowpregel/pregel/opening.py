"""Savers and caches by what a user names: the path of a folder, or the URL of a database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flowpregel._postgres import is_url
from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.langgraph_methods import is_overridden
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._lmdb.options import StoreOptions
    from flowpregel.cache.memory import RecordCache


def as_checkpointer(value: Any) -> BaseCheckpointSaver | bool | None:
    """Return what a user passed as ``checkpointer=`` as a saver; a path opens an `LMDBSaver`,
    a URL a `PostgresSaver`.

    Raises:
        ConfigurationError: It is none of what can be one.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, BaseCheckpointSaver) and not is_overridden(value):
        return value
    if is_url(value):
        from flowpregel.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - an extra

        return PostgresSaver(value)
    if isinstance(value, str | os.PathLike):
        from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - imports lmdb

        return LMDBSaver(value)
    from flowpregel.integrations.langgraph.foreign import as_saver  # noqa: PLC0415 - seldom needed

    return as_saver(value)


def as_cache(value: Any) -> BaseCache | None:
    """Return what a user passed as ``cache=``; a path opens an `LMDBCache`, a URL the other.

    Raises:
        ConfigurationError: It is no cache.
    """
    if isinstance(value, str | os.PathLike):
        return cache_at(value)
    if value is None or isinstance(value, BaseCache):
        return value
    raise ConfigurationError(f"Invalid cache {value!r}: give a cache, or a path")


def cache_at(place: str | os.PathLike[str], options: StoreOptions | None = None) -> RecordCache:
    """Open the cache in a folder, or in a database."""
    if isinstance(place, str) and is_url(place):
        from flowpregel.cache.postgres import PostgresCache  # noqa: PLC0415 - an extra

        return PostgresCache(place, options=options)
    from flowpregel.cache.lmdb import LMDBCache  # noqa: PLC0415 - imports lmdb

    return LMDBCache(place, options=options)
