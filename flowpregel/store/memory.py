"""A store that keeps everything in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from flowpregel._core.copies import bring_back, keep
from flowpregel.store.base import GetOp, Op, PutOp, TTLConfig
from flowpregel.store.items import ItemKey, ItemStore, StoredItem
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
        super().__init__(index, ttl, clock)
        self._lock = threading.RLock()
        self._items: dict[ItemKey, StoredItem] = {}
        self._expiring: list[tuple[float, int, StoredItem]] = []
        """A heap with one entry for each item that ends: when to look at it."""
        self._entries = 0

    def _exchange(
        self, ops: Sequence[Op], puts: Mapping[ItemKey, StoredItem | None], now: float
    ) -> list[list[StoredItem]]:
        with self._lock:
            self._drop_ended(now)
            found = [self._candidates(op) for op in ops]
            for place, item in puts.items():
                if item is None:
                    self._items.pop(place, None)
                    continue
                if place in self._items:
                    item.created_at = self._items[place].created_at
                self._items[place] = item
                self._expect(item)
        return found

    def _candidates(self, op: Op) -> list[StoredItem]:
        if isinstance(op, GetOp):
            item = self._items.get((tuple(op.namespace), op.key))
            return [] if item is None else [item]
        return [] if isinstance(op, PutOp) else [*self._items.values()]

    def _restart(self, items: Sequence[StoredItem], now: float) -> None:
        with self._lock:
            for item in items:
                # Its entry in the heap is corrected when it comes up.
                item.ends_at = now + (item.ttl or 0.0)

    def _encode(self, value: Any, what: str) -> Any:
        return keep(value, what)

    def _decode(self, kept: Any, what: str) -> Any:
        return bring_back(kept, what)

    def _expect(self, item: StoredItem) -> None:
        if item.ends_at is not None:
            self._entries += 1  # decides between equal times
            heappush(self._expiring, (item.ends_at, self._entries, item))

    def _drop_ended(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            item = heappop(self._expiring)[2]
            place = item.namespace, item.key
            if self._items.get(place) is not item or item.ends_at is None:
                continue  # it was put again, with an entry of its own
            if item.ends_at <= now:
                del self._items[place]
            else:
                self._expect(item)
