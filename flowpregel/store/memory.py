"""A long-term store in this process; its records are those of `flowpregel.store.items`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flowpregel._lmdb.in_memory import MemoryStore
from flowpregel.store.base import TTLConfig
from flowpregel.store.items import ItemStore
from flowpregel.store.search_index import IndexConfig

__all__ = ["InMemoryStore", "IndexConfig"]


class InMemoryStore(ItemStore):
    """Keeps items in this process, until it ends. Any OS thread may use it.

    Args:
        index: How to find items by meaning; without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns the wall clock in seconds.

    Example:
        >>> store = InMemoryStore()
        >>> store.put(("notes",), "a", {"text": "the cat sat"})
        >>> store.put(("notes",), "b", {"text": "a dog ran"})
        >>> [item.key for item in store.search(("notes",), query="dog")]
        ['b', 'a']
    """

    def __init__(
        self,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("", index=index, ttl=ttl, clock=clock)

    def _open(self, path: Any, options: Any) -> MemoryStore:
        return MemoryStore()
