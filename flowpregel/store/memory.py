"""A store that keeps everything in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Any, ClassVar, TypedDict

from flowpregel._core.copies import bring_back, keep
from flowpregel.errors import ConfigurationError
from flowpregel.store import matching
from flowpregel.store.base import BaseStore, TTLConfig
from flowpregel.store.meaning import Vector, embedded
from flowpregel.store.ops import (
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    check,
)

__all__ = ["InMemoryStore", "IndexConfig"]

_SECONDS = 60
"""Of a minute, in which times to live are given."""

StepId = tuple[tuple[str, ...], str]


class IndexConfig(TypedDict, total=False):
    """How a store finds items by meaning."""

    embed: Any
    """A function of a list of texts that returns a vector for each, or an object with
    ``embed_documents`` and ``embed_query`` as LangChain has them."""
    dims: int
    """The length of a vector; what `embed` returns is checked against it."""
    fields: Sequence[str]
    """The paths that are looked at where `put` names none; ``["$"]`` is everything."""


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept under one key."""

    value: Any
    """As `keep` returns it."""
    created_at: float
    updated_at: float
    ttl: float | None
    """Seconds."""
    expires_at: float | None
    words: frozenset[str] | None = None
    """The words a query is compared with; None: it is not looked at."""
    vectors: tuple[Vector, ...] = ()


class InMemoryStore(BaseStore):
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

    supports_ttl: ClassVar[bool] = True

    def __init__(
        self,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if index is not None and not index.get("embed"):
            raise ConfigurationError("an index needs 'embed', a function from texts to vectors")
        self.index = index
        self.ttl_config = ttl
        self._fields: Sequence[str] = (index or {}).get("fields") or ("$",)
        self._clock = clock
        self._lock = threading.RLock()
        self._data: dict[tuple[str, ...], dict[str, _Kept]] = {}
        self._expiring: list[tuple[float, int, StepId, _Kept]] = []
        self._notes = 0

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = [*ops]
        for op in todo:
            check(op)
        now = self._clock()
        # What may fail, and what takes long, comes before the lock.
        queries = self._embedded_queries(todo)
        puts = self._prepared_puts(todo, now)
        with self._lock:
            self._drop_expired(now)
            answers: list[Result] = [self._read(op, queries, now) for op in todo]
            for place, kept in puts.items():
                self._put_one(place, kept)
        return answers

    # -------------------------------------------------------- reading

    def _read(self, op: Op, queries: dict[str, Vector], now: float) -> Result:
        match op:
            case GetOp():
                kept = self._data.get(tuple(op.namespace), {}).get(op.key)
                if kept is None:
                    return None
                self._refresh((tuple(op.namespace), op.key), kept, op.refresh_ttl, now)
                return Item(**_fields((tuple(op.namespace), op.key), kept))
            case SearchOp():
                return self._search(op, queries, now)
            case ListNamespacesOp():
                return self._list(op)
            case PutOp():
                return None

    def _search(self, op: SearchOp, queries: dict[str, Vector], now: float) -> list[SearchItem]:
        found: list[tuple[StepId, _Kept, float | None]] = [
            (place, kept, None) for place, kept in self._below(op)
        ]
        if op.query:
            words = matching.words_of(op.query)
            vector = queries.get(op.query)
            found = [(place, kept, _score(kept, words, vector)) for place, kept, _ in found]
            found.sort(key=lambda each: -1.0 if each[2] is None else each[2], reverse=True)
        answer = []
        for place, kept, score in found[op.offset : op.offset + op.limit]:
            self._refresh(place, kept, op.refresh_ttl, now)
            answer.append(SearchItem(**_fields(place, kept), score=score))
        return answer

    def _below(self, op: SearchOp) -> Iterator[tuple[StepId, _Kept]]:
        """Yield what is below the prefix of a search and passes its filter."""
        prefix = tuple(op.namespace_prefix)
        for namespace, items in self._data.items():
            if namespace[: len(prefix)] != prefix:
                continue
            for key, kept in items.items():
                if not op.filter or matching.passes(_value(kept, key), op.filter):
                    yield (namespace, key), kept

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {
            namespace[: op.max_depth]
            for namespace in self._data
            if all(matching.matches(namespace, each) for each in op.match_conditions or ())
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # -------------------------------------------------------- putting

    def _prepared_puts(self, ops: Sequence[Op], now: float) -> dict[StepId, _Kept | None]:
        """Return what is to be kept under each key: the last put of it."""
        last = {(tuple(op.namespace), op.key): op for op in ops if isinstance(op, PutOp)}
        vectors = self._embedded_puts([*last.values()])
        puts: dict[StepId, _Kept | None] = {}
        for place, op in last.items():
            if op.value is None:
                puts[place] = None
                continue
            ttl = None if op.ttl is None else op.ttl * _SECONDS
            kept = _Kept(
                value=keep(op.value, f"the value of {op.key!r}"),
                created_at=now,
                updated_at=now,
                ttl=ttl,
                expires_at=None if ttl is None else now + ttl,
            )
            texts = self._texts(op)
            kept.vectors = tuple(vectors[text] for text in texts if text in vectors)
            if op.index is not False and self.index is None:
                paths = self._paths(op)
                kept.words = frozenset().union(*(matching.words_at(op.value, p) for p in paths))
            puts[place] = kept
        return puts

    def _put_one(self, place: StepId, kept: _Kept | None) -> None:
        namespace, key = place
        if kept is None:
            items = self._data.get(namespace, {})
            items.pop(key, None)
            if not items:
                self._data.pop(namespace, None)
            return
        items = self._data.setdefault(namespace, {})
        if (before := items.get(key)) is not None:
            kept.created_at = before.created_at
        items[key] = kept
        if kept.expires_at is not None:
            self._expect(kept.expires_at, place, kept)

    # -------------------------------------------------------- finding by meaning

    def _paths(self, op: PutOp) -> Sequence[str]:
        return self._fields if op.index is None else (op.index or ())

    def _texts(self, op: PutOp) -> list[str]:
        if self.index is None or op.value is None:
            return []
        return [text for path in self._paths(op) for text in matching.texts_at(op.value, path)]

    def _embedded_puts(self, puts: Sequence[PutOp]) -> dict[str, Vector]:
        texts = [*dict.fromkeys(text for op in puts for text in self._texts(op))]
        return embedded(self.index, texts) if texts else {}

    def _embedded_queries(self, ops: Sequence[Op]) -> dict[str, Vector]:
        if self.index is None:
            return {}
        queries = [*dict.fromkeys(op.query for op in ops if isinstance(op, SearchOp) and op.query)]
        return embedded(self.index, queries, as_queries=True) if queries else {}

    # -------------------------------------------------------- time

    def _refresh(self, place: StepId, kept: _Kept, asked: bool | None, now: float) -> None:
        refresh = (self.ttl_config or {}).get("refresh_on_read", True) if asked is None else asked
        if refresh and kept.ttl is not None:
            # Its old entry in the heap is put right when it comes up.
            kept.expires_at = now + kept.ttl

    def _expect(self, expires_at: float, place: StepId, kept: _Kept) -> None:
        """Note when to look at an item again; the number decides between equal times."""
        self._notes += 1
        heappush(self._expiring, (expires_at, self._notes, place, kept))

    def _drop_expired(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, _, place, kept = heappop(self._expiring)
            if self._data.get(place[0], {}).get(place[1]) is not kept or kept.expires_at is None:
                # It was put again, which made a note of its own: one note an item.
                continue
            if kept.expires_at <= now:
                self._put_one(place, None)
            else:
                self._expect(kept.expires_at, place, kept)


def _value(kept: _Kept, key: str) -> dict[str, Any]:
    value: dict[str, Any] = bring_back(kept.value, f"the value of {key!r}")
    return value


def _fields(place: StepId, kept: _Kept) -> dict[str, Any]:
    """Return the fields of an `Item`."""
    return {
        "namespace": place[0],
        "key": place[1],
        "value": _value(kept, place[1]),
        "created_at": datetime.fromtimestamp(kept.created_at, UTC),
        "updated_at": datetime.fromtimestamp(kept.updated_at, UTC),
    }


def _score(kept: _Kept, words: frozenset[str], vector: Vector | None) -> float | None:
    """Return how well an item fits a query; None if it is not looked at."""
    if vector is not None:
        scores = [matching.cosine(vector, each) for each in kept.vectors]
        return max(scores, default=None)
    return None if kept.words is None else matching.shared_words(words, kept.words)
