"""A cache in this process, of bounded size."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from flowpregel._core.copies import bring_back, keep
from flowpregel.cache.base import BaseCache, FullKey, Namespace
from flowpregel.errors import ConfigurationError

__all__ = ["InMemoryCache"]


class InMemoryCache(BaseCache):
    """Keeps the values that were used last, in this process. Any OS thread may use it.

    Values are copied when they are kept and when they are read.

    Args:
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns seconds that only grow.

    Example:
        >>> cache = InMemoryCache()
        >>> cache.set({(("square",), "3"): (9, None)})
        >>> cache.get([(("square",), "3"), (("square",), "4")])
        {(('square',), '3'): 9}
    """

    answers_at_once: ClassVar[bool] = True

    def __init__(
        self, *, max_entries: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries is {max_entries}; use at least 1")
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[FullKey, tuple[Any, float]] = OrderedDict()
        """The value as it is kept and when it expires; used last comes last."""
        self._claimed: set[FullKey] = set()

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._clock()
        found: dict[FullKey, Any] = {}
        with self._lock:
            for key in keys:
                value, until = self._kept.get(key, (None, now))
                if until > now:
                    self._kept.move_to_end(key)
                    found[key] = value
                else:
                    self._kept.pop(key, None)
        return {key: bring_back(value, f"the cached {key!r}") for key, value in found.items()}

    def set(self, pairs: Mapping[FullKey, tuple[Any, float | None]]) -> None:
        now = self._clock()
        kept = {
            key: (keep(value, f"the value of {key!r}"), math.inf if ttl is None else now + ttl)
            for key, (value, ttl) in pairs.items()
        }
        with self._lock:
            for key, entry in kept.items():
                self._kept[key] = entry
                self._kept.move_to_end(key)
            while len(self._kept) > self._max_entries:
                self._kept.popitem(last=False)

    @contextmanager
    def claim(self, key: FullKey) -> Iterator[bool]:
        with self._lock:
            is_free = key not in self._claimed
            self._claimed.add(key)
        try:
            yield is_free
        finally:
            if is_free:
                self._claimed.discard(key)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        with self._lock:
            gone = None if namespaces is None else {tuple(each) for each in namespaces}
            for key in [key for key in self._kept if gone is None or key[0] in gone]:
                del self._kept[key]
