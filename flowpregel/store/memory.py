"""Items kept as records in a table, whoever keeps the table; here this process.

In the database ``store``::

    "i" + first label (16) + namespace (16) + key (16)   ► a `StoredItem`, encoded
    "e" + when it ends (8, nanoseconds) + the same (48)  ► nothing: what to look at then
    "n"                                                  ► how many items were ever put

Labels and keys stand in a key as digests, so that they may be any texts; items
below one first label are neighbours, which is what a search reads.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from flowpregel._interrupts import held, interruptible
from flowpregel._lmdb.in_memory import MemoryStore
from flowpregel._lmdb.records import KeptInStore, SealedStore, digest_of
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
    check,
    matches,
    passes,
    score,
)

if TYPE_CHECKING:
    from flowpregel._lmdb.options import StoreOptions

__all__ = ["InMemoryStore", "IndexConfig"]

_MOST_ENDED = 1_000
"""How many items that have ended one batch clears away."""
_SECONDS = 60
"""Of a minute, in which times to live are given."""

ItemKey: TypeAlias = tuple[tuple[str, ...], str]
"""(namespace, key)."""


class StoredItem(NamedTuple):
    """What is kept of an item."""

    number: int
    """In the order in which items were first put."""
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
    """Encoded."""

    def lives_at(self, now: float) -> bool:
        """Return whether its time is not over."""
        return self.ends_at is None or self.ends_at > now


class ItemStore(KeptInStore, BaseStore):
    """A store that keeps `StoredItem` records in a table.

    Args:
        path: What the table's store is opened by: a folder, or a URL.
        index: How to find items by meaning; without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns the wall clock in seconds.
        options: How the table's store is opened.
    """

    supports_ttl: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        self.index = index
        self.ttl_config = ttl
        self._search_index = SearchIndex(index)
        self._clock = clock
        self._store = self._open(path, options)
        self._table = self._store.table(b"store")
        self._encode, self._decode = self._store.codec.encode, self._store.codec.decode

    @abstractmethod
    def _open(
        self, path: str | os.PathLike[str], options: StoreOptions | None
    ) -> SealedStore:
        """Open the store that the items are in."""

    @held()
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = [*ops]
        for op in todo:
            check(op)
        now = self._clock()
        # What may fail, runs a user's code or takes long comes before anything changes.
        texts = [op.query for op in todo if isinstance(op, SearchOp) and op.query]
        queries = interruptible(self._search_index.of_queries, texts)
        prepared = interruptible(self._prepared, todo, now)
        found = self._exchange(todo, prepared, now)
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
                        [
                            SearchItem(**self._fields(item), score=fit)
                            for item, fit in hits
                        ]
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

    # -------------------------------------------------------- inner

    def _prepared(
        self, ops: Sequence[Op], now: float
    ) -> dict[ItemKey, StoredItem | None]:
        """Return what is to be kept under each key: the last put of it."""
        last = {
            (tuple(op.namespace), op.key): op for op in ops if isinstance(op, PutOp)
        }
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
                value=self._encode(op.value, f"the value of {op.key!r}"),
            )
        return puts

    def _hits(
        self,
        op: SearchOp,
        items: list[StoredItem],
        queries: Mapping[str, Words | Vector],
    ) -> list[tuple[StoredItem, float | None]]:
        """Return those of *items* that a search finds, with their scores, the best
        first.
        """
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
        return self._decode(item.value, f"the value of {item.key!r}")

    def _fields(self, item: StoredItem) -> dict[str, Any]:
        """Return the fields of an `Item`."""
        return {
            "namespace": item.namespace,
            "key": item.key,
            "value": self._value(item),
            "created_at": datetime.fromtimestamp(item.created_at, UTC),
            "updated_at": datetime.fromtimestamp(item.updated_at, UTC),
        }

    def _exchange(
        self, ops: Sequence[Op], puts: Mapping[ItemKey, StoredItem | None], now: float
    ) -> list[list[StoredItem]]:
        """Return the items that may answer each of *ops*, then keep or forget *puts*,
        at once.

        Those that have ended by *now* are left out; the others come in the order in
        which they were first put.
        """

        def work(transaction: Any) -> list[list[bytes]]:
            records = [self._records(transaction, op) for op in ops]
            if puts:
                self._clear_ended(transaction, now)
            for place, item in puts.items():
                self._put_one(transaction, _place(*place), item)
            return records

        records = self._store.write(work) if puts else self._store.read(work)
        found = [
            [item for item in map(self._item, each) if item.lives_at(now)]
            for each in records
        ]
        return [sorted(items, key=lambda item: item.number) for items in found]

    def _records(self, transaction: Any, op: Op) -> list[bytes]:
        """Return copies of the records that may answer *op*."""
        match op:
            case GetOp():
                record = self._table.get(
                    transaction, b"i" + _place(op.namespace, op.key)
                )
                return [] if record is None else [record]
            case SearchOp():
                prefix = b"i" + (
                    digest_of(op.namespace_prefix[:1]) if op.namespace_prefix else b""
                )
                return [record for _, record in self._table.scan(transaction, prefix)]
            case ListNamespacesOp():
                return [record for _, record in self._table.scan(transaction, b"i")]
            case _:
                return []

    def _item(self, record: bytes) -> StoredItem:
        return StoredItem(*self._decode(record, "an item"))

    # -------------------------------------------------------- inside a transaction

    def _put_one(self, transaction: Any, place: bytes, item: StoredItem | None) -> None:
        before = self._forget(transaction, place)
        if item is None:
            return
        if before is not None and before.lives_at(item.updated_at):
            item = item._replace(number=before.number, created_at=before.created_at)
        else:
            number = 1 + int.from_bytes(
                self._table.get(transaction, b"n") or b"", "big"
            )
            self._table.put(transaction, b"n", number.to_bytes(8, "big"))
            item = item._replace(number=number)
        self._keep(transaction, place, item)

    def _keep(self, transaction: Any, place: bytes, item: StoredItem) -> None:
        self._table.put(transaction, b"i" + place, self._encode(tuple(item), "an item"))
        if item.ends_at is not None:
            self._table.put(transaction, _end(item.ends_at) + place, b"")

    def _forget(self, transaction: Any, place: bytes) -> StoredItem | None:
        record = self._table.get(transaction, b"i" + place)
        if record is None:
            return None
        item = self._item(record)
        self._table.delete(transaction, b"i" + place)
        if item.ends_at is not None:
            self._table.delete(transaction, _end(item.ends_at) + place)
        return item

    def _restart(self, items: Sequence[StoredItem], now: float) -> None:
        """Start the time to live of *items* again."""

        def work(transaction: Any) -> None:
            for each in items:
                place = _place(each.namespace, each.key)
                item = self._forget(transaction, place)
                if item is not None:
                    ends_at = None if item.ttl is None else now + item.ttl
                    self._keep(transaction, place, item._replace(ends_at=ends_at))

        self._store.write(work)

    def _clear_ended(self, transaction: Any, now: float) -> None:
        ends = self._table.scan(transaction, b"e")
        ended = takewhile(lambda end: end[0][:9] <= _end(now), ends)
        for key, _ in [*islice(ended, _MOST_ENDED)]:
            self._forget(transaction, key[9:])
            self._table.delete(transaction, key)


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


def _namespaces(
    op: ListNamespacesOp, items: Iterable[StoredItem]
) -> list[tuple[str, ...]]:
    conditions = op.match_conditions or ()
    found = {
        item.namespace[: op.max_depth]
        for item in items
        if all(matches(item.namespace, each) for each in conditions)
    }
    return sorted(found)[op.offset : op.offset + op.limit]


def _end(at: float) -> bytes:
    return b"e" + int(min(max(0.0, at * 1e9), 2.0**63)).to_bytes(8, "big")


def _place(namespace: Sequence[str], key: str) -> bytes:
    return digest_of(namespace[:1]) + digest_of(namespace) + digest_of((key,))
