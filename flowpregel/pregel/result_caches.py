"""The cache in which the runs of a workflow share results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.naming import as_cache, cache_at

if TYPE_CHECKING:
    from flowpregel.cache.memory import InMemoryCache
    from flowpregel.checkpoint.memory import InMemorySaver

_CACHES: WeakKeyDictionary[InMemorySaver, InMemoryCache] = WeakKeyDictionary()
"""The cache that all runs with the same `InMemorySaver` share, by saver."""


def cache_of_saver(
    saver: BaseCheckpointSaver, resources: ExitStack
) -> BaseCache | None:
    """Return the cache in the store of a saver, or None if that store has none.

    Args:
        saver: The saver of the runs.
        resources: The exit stack that closes a cache opened by this call.
    """
    # The imports are kept out of `import flowpregel`, because no worker needs
    # savers and caches.
    from flowpregel.cache.memory import InMemoryCache  # noqa: PLC0415
    from flowpregel.checkpoint.memory import InMemorySaver  # noqa: PLC0415

    if isinstance(saver, InMemorySaver):
        return _CACHES.setdefault(saver, InMemoryCache())
    # `DurableSaver` is imported only here, because its module imports many modules that
    # a program with an `InMemorySaver` does not need.
    from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415

    if not isinstance(saver, DurableSaver):
        return None
    return _closed_by(resources, cache_at(saver.location, saver.options))


@contextmanager
def cache_of_value(value: Any) -> Iterator[BaseCache]:
    """Yield the cache for the value that a user passed to `clear_cache`.

    Args:
        value: A cache, a path or URL of one, or the saver of the runs.

    Raises:
        ConfigurationError: The value is none of these, or its store has no cache.
    """
    with ExitStack() as resources:
        if isinstance(value, BaseCheckpointSaver):
            cache = cache_of_saver(value, resources)
        else:
            cache = as_cache(value)
            if isinstance(value, str | os.PathLike):
                cache = _closed_by(resources, cache)
        if cache is None:
            raise ConfigurationError(
                f"{value!r} has no cache: give the cache, its path or URL, or the "
                "checkpointer of the runs"
            )
        yield cache


def _closed_by(resources: ExitStack, cache: BaseCache | None) -> BaseCache | None:
    """Return *cache*, which *resources* closes if it can be closed."""
    if isinstance(cache, AbstractContextManager):
        resources.enter_context(cache)
    return cache
