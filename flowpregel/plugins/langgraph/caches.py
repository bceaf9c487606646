"""LangGraph's caches as caches of flowpregel."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from flowpregel.cache.base import BaseCache, FullKey, Namespace
from flowpregel.errors import ValueEncodingError
from flowpregel.plugins.langgraph.conversion import from_foreign, to_foreign

_REQUIRED: Final = ("get", "set", "clear", "aget", "aset", "aclear")


def is_foreign_cache(candidate: Any) -> bool:
    """Return whether *candidate* has the methods of a cache of LangGraph."""
    return all(callable(getattr(candidate, name, None)) for name in _REQUIRED)


class ForeignCache(BaseCache):
    """A LangGraph cache, such as its `SqliteCache`, as a cache of flowpregel.

    The cache's own serializer decides the form of values: a tuple inside of a result
    becomes a list. The keys are digests, because a cache may join the parts of a key
    with a character that occurs in flowpregel's keys. Such a cache has no claims, so
    two runs may compute the same result at the same time.

    Args:
        cache: The cache to use; closing it is left to its owner.

    Example:
        >>> from flowpregel.cache.memory import InMemoryCache
        >>> cache = ForeignCache(InMemoryCache())
        >>> cache.set({(("square",), "3"): ([("__return__", 9)], None)})
        >>> cache.get([(("square",), "3"), (("square",), "4")])
        {(('square',), '3'): [('__return__', 9)]}
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        by_digest = {_digest_key(key): key for key in keys}
        values: dict[FullKey, Any] = {}
        for digest_key, writes in self.cache.get([*by_digest]).items():
            namespace, name = digest_key
            key = by_digest[(tuple(namespace), name)]
            values[key] = [(channel, from_foreign(value)) for channel, value in writes]
        return values

    def set(self, pairs: Any) -> None:
        entries = {}
        for key, (writes, ttl) in pairs.items():
            stored = [[channel, to_foreign(value)] for channel, value in writes]
            # The time to live is rounded, because LangGraph's caches accept only whole
            # seconds.
            seconds = None if ttl is None else max(1, round(ttl))
            entries[_digest_key(key)] = stored, seconds
        try:
            self.cache.set(entries)
        except (TypeError, ValueError) as error:
            raise ValueEncodingError(
                f"a result cannot be stored by {self.cache!r}: {error}"
            ) from error

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        if namespaces is None:
            self.cache.clear()
        else:
            self.cache.clear([*map(_digest_namespace, namespaces)])


def _digest_key(key: FullKey) -> FullKey:
    """Return the key under which a LangGraph cache stores the result of *key*."""
    namespace, name = key
    return _digest_namespace(namespace), sha256(name.encode()).hexdigest()


def _digest_namespace(namespace: Namespace) -> Namespace:
    return ("flowpregel", sha256(repr(namespace).encode()).hexdigest())
