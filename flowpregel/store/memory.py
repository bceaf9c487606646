"""What all stores do alike with items, and the one that keeps them in this process."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias

from flowpregel._core.copies import bring_back, keep
from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from flowpregel.store.search_index import (
    IndexConfig,
    SearchIndex,
    Vector,
    Words,
    check_filter,
    matches,
    passes,
    score,
)

__all__ = ["InMemoryStore", "IndexConfig"]

_SECONDS = 60
"""Of a minute, in which times to live are given."""

ItemKey: TypeAlias = tuple[tuple[str, ...], str]
"""(namespace, key)."""
_LEAST_SWEPT = 1_000


@dataclass(slots=True, eq=False)
class StoredItem:
    """What is kept of an item."""

    number: int
    """In the order in which items were first put, where a store keeps no other order."""
    namespace: tuple[str, ...]
    key: str
    created_at: float
    updated_at: float
    ttl: float | None
    """Seconds."""
    ends_at: float | None
    words: Words | None
    """The words a query is compared with; None: a query does not look at it."""
    vectors: tuple[Vector, ...]
    value: Any
    """As `ItemStore.encode` returns it."""

    def lives_at(self, now: float) -> bool:
        """Return whether its time is not over."""
        return self.ends_at is None or self.ends_at > now


class ItemStore(BaseStore):
    """A store that keeps `StoredItem` records; a subclass decides where.

    Args:
        index: How to find items by meaning; without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns the wall clock in seconds.
    """

    supports_ttl: ClassVar[bool] = True
    encode: Callable[[Any, str], Any]
    """Returns a copy of a value to be kept; the text describes it in errors."""
    decode: Callable[[Any, str], Any]
    """Returns a new copy of the value that `encode` was given."""

    def __init__(
        self, index: IndexConfig | None, ttl: TTLConfig | None, clock: Callable[[], float]
    ) -> None:
        self.index = index
        self.ttl_config = ttl
        self._search_index = SearchIndex(index)
        self._clock = clock

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = [*ops]
        for op in todo:
            check(op)
        now = self._clock()
        # What may fail, runs a user's code or takes long comes before anything changes.
        queries = self._search_index.of_queries(
            op.query for op in todo if isinstance(op, SearchOp) and op.query
        )
        found = self._exchange(todo, self._prepared(todo, now), now)
        refreshes = (self.ttl_config or {}).get("refresh_on_read", True)
        results: list[Result] = []
        read: list[StoredItem] = []
        for op, items in zip(todo, found, strict=True):
            match op:
                case GetOp():
                    results.append(Item(**self._fields(items[0])) if items else None)
                case SearchOp():
                    hits = self._hits(op, items, queries)
                    items = [item for item, _ in hits]
                    results.append(
                        [SearchItem(**self._fields(item), score=fit) for item, fit in hits]
                    )
                case ListNamespacesOp():
                    results.append(_namespaces(op, items))
                case PutOp():
                    results.append(None)
            if isinstance(op, GetOp | SearchOp) and (
                refreshes if op.refresh_ttl is None else op.refresh_ttl
            ):
                read += [item for item in items if item.ttl is not None]
        if read:
            self._restart(read, now)
        return results

    # -------------------------------------------------------- given by a subclass

    @abstractmethod
    def _exchange(
        self, ops: Sequence[Op], puts: Mapping[ItemKey, StoredItem | None], now: float
    ) -> list[list[StoredItem]]:
        """Return the items that may answer each of *ops*, then keep or forget *puts*, at once.

        Those that have ended by *now* are left out; the others come in the order in
        which they were first put.
        """

    @abstractmethod
    def _restart(self, items: Sequence[StoredItem], now: float) -> None:
        """Start the time to live of *items*, which all have one, again."""

    # -------------------------------------------------------- inner

    def _prepared(self, ops: Sequence[Op], now: float) -> dict[ItemKey, StoredItem | None]:
        """Return what is to be kept under each key: the last put of it."""
        last = {(tuple(op.namespace), op.key): op for op in ops if isinstance(op, PutOp)}
        puts: dict[ItemKey, StoredItem | None] = dict.fromkeys(last)
        kept = {place: op for place, op in last.items() if op.value is not None}
        terms = self._search_index.of_puts([*kept.values()])
        for (place, op), (words, vectors) in zip(kept.items(), terms, strict=True):
            ttl = None if op.ttl is None else op.ttl * _SECONDS
            puts[place] = StoredItem(
                number=0,
                namespace=place[0],
                key=op.key,
                created_at=now,
                updated_at=now,
                ttl=ttl,
                ends_at=None if ttl is None else now + ttl,
                words=words,
                vectors=vectors,
                value=self.encode(op.value, f"the value of {op.key!r}"),
            )
        return puts

    def _hits(
        self, op: SearchOp, items: list[StoredItem], queries: Mapping[str, Words | Vector]
    ) -> list[tuple[StoredItem, float | None]]:
        """Return those of *items* that a search finds, with their scores, the best first."""
        prefix, query = tuple(op.namespace_prefix), queries.get(op.query or "")
        found = [
            (item, None if query is None else score(query, item.words, item.vectors))
            for item in items
            if item.namespace[: len(prefix)] == prefix
            and (not op.filter or passes(self._value(item), op.filter))
        ]
        if query is not None:
            found.sort(key=lambda hit: -1.0 if hit[1] is None else hit[1], reverse=True)
        return found[op.offset : op.offset + op.limit]

    def _value(self, item: StoredItem) -> Any:
        return self.decode(item.value, f"the value of {item.key!r}")

    def _fields(self, item: StoredItem) -> dict[str, Any]:
        """Return the fields of an `Item`."""
        return {
            "namespace": item.namespace,
            "key": item.key,
            "value": self._value(item),
            "created_at": datetime.fromtimestamp(item.created_at, UTC),
            "updated_at": datetime.fromtimestamp(item.updated_at, UTC),
        }


def _namespaces(op: ListNamespacesOp, items: Iterable[StoredItem]) -> list[tuple[str, ...]]:
    conditions = op.match_conditions or ()
    found = {
        item.namespace[: op.max_depth]
        for item in items
        if all(matches(item.namespace, each) for each in conditions)
    }
    return sorted(found)[op.offset : op.offset + op.limit]


def check(op: Op) -> None:
    """Raise unless a store can do *op*.

    Raises:
        InvalidNamespaceError: A label is empty, no text, or has a ``.`` or NUL in it;
            or what is put has no namespace, or one that begins with ``"langgraph"``.
        ConfigurationError: A value is no dict, a bound is negative, or a filter has an
            unknown comparison.
    """
    match op:
        case GetOp():
            check_labels(op.namespace)
        case PutOp():
            _check_put(op)
        case SearchOp():
            check_labels(op.namespace_prefix)
            _check_bounds(op.limit, op.offset)
            check_filter(op.filter)
        case ListNamespacesOp():
            for condition in op.match_conditions or ():
                check_labels(condition.path)
                if condition.match_type not in ("prefix", "suffix"):
                    raise ConfigurationError(
                        f"match_type is {condition.match_type!r}; use 'prefix' or 'suffix'"
                    )
            _check_bounds(op.limit, op.offset)
        case _:
            raise ConfigurationError(f"{op!r} is no operation of a store")


def check_labels(namespace: Any) -> None:
    """Raise `InvalidNamespaceError` unless *namespace* consists of possible labels."""
    if not isinstance(namespace, tuple | list):
        raise InvalidNamespaceError(
            f"a namespace is a tuple of texts, not {namespace!r}; write ({namespace!r},)"
        )
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} of namespace {tuple(namespace)!r} cannot be used; a label is "
                "a text that is not empty and has no '.' and no NUL in it"
            )


def _check_put(op: PutOp) -> None:
    check_labels(op.namespace)
    if not op.namespace or op.namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f"nothing can be put under namespace {op.namespace!r}; use at least one label, "
            "the first other than 'langgraph'"
        )
    if not isinstance(op.key, str):
        raise ConfigurationError(f"a key is a text, not {op.key!r}")
    if op.value is not None and not isinstance(op.value, dict):
        raise ConfigurationError(
            f"the value of {op.key!r} is a {type(op.value).__name__}; put a dict, or delete it"
        )
    ttl: Any = op.ttl
    if ttl is not None and not (isinstance(ttl, int | float) and ttl > 0):
        raise ConfigurationError(f"ttl is {ttl!r} minutes; use more than 0, or None for ever")


def _check_bounds(*bounds: Any) -> None:
    if not all(isinstance(each, int) and each >= 0 for each in bounds):
        raise ConfigurationError(
            f"limit is {bounds[0]!r} and offset {bounds[1]!r}; both are numbers of at least 0"
        )


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
        self.encode, self.decode = keep, bring_back
        self._lock = threading.RLock()
        self._items: dict[ItemKey, StoredItem] = {}
        self._most = _LEAST_SWEPT
        """With more items than this, those that have ended are cleared away."""

    def _exchange(
        self, ops: Sequence[Op], puts: Mapping[ItemKey, StoredItem | None], now: float
    ) -> list[list[StoredItem]]:
        with self._lock:
            found = [[item for item in self._records(op) if item.lives_at(now)] for op in ops]
            for place, item in puts.items():
                before = self._items.get(place)
                if item is not None and before is not None and before.lives_at(now):
                    item.created_at = before.created_at
                else:
                    self._items.pop(place, None)  # one that ended goes to the end of the order
                if item is not None:
                    self._items[place] = item
            if len(self._items) > self._most:
                self._items = {at: item for at, item in self._items.items() if item.lives_at(now)}
                self._most = max(_LEAST_SWEPT, 2 * len(self._items))
        return found

    def _records(self, op: Op) -> Iterable[StoredItem]:
        if isinstance(op, GetOp):
            item = self._items.get((tuple(op.namespace), op.key))
            return [] if item is None else [item]
        return [] if isinstance(op, PutOp) else self._items.values()

    def _restart(self, items: Sequence[StoredItem], now: float) -> None:
        with self._lock:
            for item in items:
                item.ends_at = now + (item.ttl or 0.0)
