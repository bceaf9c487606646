"""The items of a long-term store, as records in a table of any storage engine, and the
store whose table is in memory.

In the database ``store``::

    "i" + first label (16) + namespace (16) + key (16)   ► a `StoredItem`, encoded
    "e" + end (8, nanoseconds) + the same (48)           ► nothing: the item ends then
    "n"                                                  ► the number of items ever put

A record's key contains digests, so labels and keys may be any strings. Items with the
same first label are next to each other, so a search reads only these items.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, assert_never

from flowpregel import _clock
from flowpregel._interrupts import defer_interrupts, interruptible
from flowpregel.storage.in_memory import MemoryStore
from flowpregel.storage.records import labels_digest
from flowpregel.storage.stores import Store, StoreUser, use_renames_of
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
    check_op,
    matches,
    passes,
    score,
)

if TYPE_CHECKING:
    from flowpregel.storage.options import StoreOptions

__all__ = ["InMemoryStore", "IndexConfig"]

_MOST_ENDED = 1_000
"""The greatest number of items whose time to live has ended that one batch deletes."""
_SECONDS = 60
"""The number of seconds in a minute, which is the unit of times to live."""

ItemKey: TypeAlias = tuple[tuple[str, ...], str]
"""The namespace and the key of an item."""


class StoredItem(NamedTuple):
    """The record of an item."""

    number: int
    """The position of the item in the order in which items were first put."""
    namespace: tuple[str, ...]
    key: str
    created_at: float
    updated_at: float
    ttl: float | None
    """The time to live in seconds, or None if the item does not expire."""
    ends_at: float | None
    words: Words | None
    """The words that are compared with a query, or None if the item is not indexed, or
    has vectors instead.
    """
    vectors: tuple[Vector, ...]
    value: Any
    """The value of the item, encoded."""

    def lives_at(self, now: float) -> bool:
        """Return whether the item's time to live has not ended."""
        return self.ends_at is None or self.ends_at > now


class ItemStore(StoreUser, BaseStore):
    """A store that keeps its items as records in a table.

    Args:
        path: The location of the table's store: a folder, or a URL.
        index: The index of embeddings for queries; without an index, a query ranks
            items by shared words.
        ttl: The time to live of items that are put without one.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the table's store.
    """

    supports_ttl: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = _clock.wall,
        options: StoreOptions | None = None,
    ) -> None:
        self.index = index
        self.ttl_config = ttl
        self._search_index = SearchIndex(index)
        self._clock = clock
        self._store = self._open(path, options)
        use_renames_of(self._store)
        self._table = self._store.table(b"store")
        self._encode = self._store.codec.encode
        self._decode = self._store.codec.decode

    @abstractmethod
    def _open(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions | None,
    ) -> Store:
        """Open the store of the table."""

    @defer_interrupts()
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = list(ops)
        for op in todo:
            check_op(op)
        now = self._clock()
        # The steps that may fail, run user code or take long are done before any
        # change, so that an error leaves the store unchanged.
        texts = [op.query for op in todo if isinstance(op, SearchOp) and op.query]
        queries = interruptible(self._search_index.of_queries, texts)
        puts = interruptible(self._prepared, todo, now)
        candidates = self._exchange(todo, puts, now)
        results: list[Result] = []
        read: list[StoredItem] = []
        for op, items in zip(todo, candidates, strict=True):
            result, items_read = self._answer(op, items, queries)
            results.append(result)
            if self._refreshes(op):
                read += items_read
        self._restart(read, now)
        return results

    # -------------------------------------------------------- helpers

    def _answer(
        self,
        op: Op,
        items: list[StoredItem],
        queries: Mapping[str, Words | Vector],
    ) -> tuple[Result, list[StoredItem]]:
        """Return the answer to *op*, chosen from the candidates *items*, and the items
        in the answer.
        """
        match op:
            case GetOp():
                return self._answer_get(items), items
            case SearchOp():
                hits = self._hits(op, items, queries)
                return self._answer_search(hits), [item for item, _ in hits]
            case ListNamespacesOp():
                return _namespaces(op, items), []
            case PutOp():
                return None, []
        assert_never(op)

    def _refreshes(self, op: Op) -> bool:
        """Return whether *op* restarts the time to live of the items that it reads."""
        if not isinstance(op, GetOp | SearchOp):
            return False
        if op.refresh_ttl is not None:
            return op.refresh_ttl
        config = self.ttl_config or {}
        return config.get("refresh_on_read", True)

    def _prepared(
        self,
        ops: Sequence[Op],
        now: float,
    ) -> dict[ItemKey, StoredItem | None]:
        """Return the item that the last put in the batch makes for each key, or None if
        that put deletes the item.
        """
        last_puts: dict[ItemKey, PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                last_puts[tuple(op.namespace), op.key] = op
        items: dict[ItemKey, StoredItem | None] = dict.fromkeys(last_puts)
        indexed = [op for op in last_puts.values() if op.value is not None]
        terms = self._search_index.of_puts(indexed)
        for op, (words, vectors) in zip(indexed, terms, strict=True):
            namespace = tuple(op.namespace)
            ttl = None
            ends_at = None
            if op.ttl is not None:
                ttl = op.ttl * _SECONDS
                ends_at = now + ttl
            items[namespace, op.key] = StoredItem(
                number=0,
                namespace=namespace,
                key=op.key,
                created_at=now,
                updated_at=now,
                ttl=ttl,
                ends_at=ends_at,
                words=words,
                vectors=vectors,
                value=self._encode(op.value, f"the value of {op.key!r}"),
            )
        return items

    def _hits(
        self,
        op: SearchOp,
        items: list[StoredItem],
        queries: Mapping[str, Words | Vector],
    ) -> list[tuple[StoredItem, float | None]]:
        """Return the items that a search finds, with their scores. The best item comes
        first.
        """
        prefix = tuple(op.namespace_prefix)
        query = queries.get(op.query or "")
        hits: list[tuple[StoredItem, float | None]] = []
        for item in items:
            if item.namespace[: len(prefix)] != prefix:
                continue
            if op.filter and not passes(self._value(item), op.filter):
                continue
            fit = None
            if query is not None:
                fit = score(query, item.words, item.vectors)
            hits.append((item, fit))
        if query is not None:
            hits.sort(key=_rank, reverse=True)
        return hits[op.offset : op.offset + op.limit]

    def _answer_get(self, items: Sequence[StoredItem]) -> Item | None:
        if not items:
            return None
        return Item(**self._fields(items[0]))

    def _answer_search(
        self, hits: Iterable[tuple[StoredItem, float | None]]
    ) -> list[SearchItem]:
        answer = []
        for item, fit in hits:
            fields = self._fields(item)
            answer.append(SearchItem(**fields, score=fit))
        return answer

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
        self,
        ops: Sequence[Op],
        puts: Mapping[ItemKey, StoredItem | None],
        now: float,
    ) -> list[list[StoredItem]]:
        """Read the items that may answer *ops* (the candidates), then apply *puts*, in
        one transaction.

        Return the candidates whose time to live has not ended *now*, for each of *ops*,
        in the order in which they were first put.
        """

        def work(transaction: Any) -> list[list[bytes]]:
            records = [self._records(transaction, op) for op in ops]
            if puts:
                self._clear_ended(transaction, now)
            for item_key, item in puts.items():
                self._put_one(transaction, _item_digest(*item_key), item)
            return records

        run = self._store.write if puts else self._store.read
        return [self._living(records, now) for records in run(work)]

    def _living(
        self,
        records: Iterable[bytes],
        now: float,
    ) -> list[StoredItem]:
        items = []
        for record in records:
            item = self._item(record)
            if item.lives_at(now):
                items.append(item)
        items.sort(key=lambda item: item.number)
        return items

    def _records(
        self,
        transaction: Any,
        op: Op,
    ) -> list[bytes]:
        """Return copies of the records of the items that may answer *op*."""
        match op:
            case GetOp():
                key = b"i" + _item_digest(op.namespace, op.key)
                record = self._table.get(transaction, key)
                return [] if record is None else [record]
            case SearchOp():
                prefix = b"i"
                if op.namespace_prefix:
                    prefix += labels_digest(op.namespace_prefix[:1])
            case ListNamespacesOp():
                prefix = b"i"
            case _:
                return []
        return [record for _, record in self._table.scan(transaction, prefix)]

    def _item(self, record: bytes) -> StoredItem:
        return StoredItem(*self._decode(record, "an item"))

    # -------------------------------------------------------- inside a transaction

    def _put_one(
        self,
        transaction: Any,
        digest: bytes,
        item: StoredItem | None,
    ) -> None:
        """Store *item*, with the number and the creation time of the item that it
        replaces. None deletes the item.
        """
        earlier = self._pop(transaction, digest)
        if item is None:
            return
        if earlier is not None and earlier.lives_at(item.updated_at):
            number = earlier.number
            item = item._replace(number=number, created_at=earlier.created_at)
        else:
            item = item._replace(number=self._next_number(transaction))
        self._write(transaction, digest, item)

    def _next_number(self, transaction: Any) -> int:
        last = self._table.get(transaction, b"n") or b""
        number = 1 + int.from_bytes(last, "big")
        self._table.put(transaction, b"n", number.to_bytes(8, "big"))
        return number

    def _write(
        self,
        transaction: Any,
        digest: bytes,
        item: StoredItem,
    ) -> None:
        record = self._encode(tuple(item), "an item")
        self._table.put(transaction, b"i" + digest, record)
        if item.ends_at is not None:
            self._table.put(transaction, _end_key(item.ends_at) + digest, b"")

    def _pop(
        self,
        transaction: Any,
        digest: bytes,
    ) -> StoredItem | None:
        """Delete an item and return it, or return None if there is no item."""
        key = b"i" + digest
        record = self._table.get(transaction, key)
        if record is None:
            return None
        item = self._item(record)
        self._table.delete(transaction, key)
        if item.ends_at is not None:
            self._table.delete(transaction, _end_key(item.ends_at) + digest)
        return item

    def _restart(
        self,
        items: Iterable[StoredItem],
        now: float,
    ) -> None:
        """Restart the time to live of *items*, if they have a time to live."""
        mortal = [item for item in items if item.ttl is not None]
        if not mortal:
            return

        def work(transaction: Any) -> None:
            for read in mortal:
                digest = _item_digest(read.namespace, read.key)
                item = self._pop(transaction, digest)
                if item is None:
                    continue
                # The item is read again, because another process may have put it with
                # another time to live since it was found.
                ends_at = None if item.ttl is None else now + item.ttl
                self._write(transaction, digest, item._replace(ends_at=ends_at))

        self._store.write(work)

    def _clear_ended(
        self,
        transaction: Any,
        now: float,
    ) -> None:
        last = _end_key(now)
        ends = self._table.scan(transaction, b"e")
        ended = takewhile(lambda entry: entry[0][: len(last)] <= last, ends)
        for key, _ in list(islice(ended, _MOST_ENDED)):
            self._pop(transaction, key[len(last) :])
            self._table.delete(transaction, key)


class InMemoryStore(ItemStore):
    """A store in this process, until it ends, for any OS thread.

    Args:
        index: The index of embeddings for queries; without an index, a query ranks
            items by shared words.
        ttl: The time to live of items that are put without one.
        clock: A function that returns wall-clock seconds.

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
        clock: Callable[[], float] = _clock.wall,
    ) -> None:
        super().__init__(
            "",
            index=index,
            ttl=ttl,
            clock=clock,
        )

    def _open(
        self,
        path: Any,
        options: Any,
    ) -> MemoryStore:
        return MemoryStore()


def _namespaces(
    op: ListNamespacesOp,
    items: Iterable[StoredItem],
) -> list[tuple[str, ...]]:
    """Return the namespaces of *items* that match *op*, sorted."""
    conditions = op.match_conditions or ()
    namespaces = set()
    for item in items:
        if all(matches(item.namespace, condition) for condition in conditions):
            namespaces.add(item.namespace[: op.max_depth])
    return sorted(namespaces)[op.offset : op.offset + op.limit]


def _rank(hit: tuple[StoredItem, float | None]) -> float:
    """Return the score of a hit, by which hits are sorted. A hit without a score gets a
    number that is less than any score.
    """
    _, fit = hit
    return -1.0 if fit is None else fit


def _end_key(at: float) -> bytes:
    """Return the beginning of the table keys for items whose time to live ends *at*
    this time.
    """
    nanoseconds = min(max(0.0, at * 1e9), 2.0**63)
    return b"e" + int(nanoseconds).to_bytes(8, "big")


def _item_digest(
    namespace: Sequence[str],
    key: str,
) -> bytes:
    """Return the part of a table key that identifies an item."""
    return (
        labels_digest(namespace[:1]) + labels_digest(namespace) + labels_digest((key,))
    )
