"""A long-term store on disk.

In the database ``store`` of a store's folder::

    "i" + first label (16) + namespace (16) + key (16)   ► an item (`_Row`), encoded
    "e" + when it ends (8, nanoseconds) + the same (48)  ► nothing: what to look at then
    "n"                                                  ► how many items were ever put

Labels and keys stand in a key as digests, so that they may be any texts; items
below one first label are neighbours, which is what a search reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

from flowpregel._lmdb.codec import decode, encode
from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.store import open_store
from flowpregel.store import matching
from flowpregel.store.base import BaseStore, TTLConfig
from flowpregel.store.meaning import Meaning
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

__all__ = ["LMDBStore"]

_SECONDS = 60
_MOST_ENDED = 1_000
"""How many items that have ended one batch clears away."""


class _Row(NamedTuple):
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
    words: tuple[str, ...] | None
    vectors: tuple[tuple[float, ...], ...]
    value: bytes


@dataclass(slots=True)
class _Put:
    """An item that is to be put, or forgotten (no row)."""

    place: bytes
    row: _Row | None


class LMDBStore(BaseStore):
    """Keeps items in a store's folder. Any OS thread may use it, and several processes.

    Args:
        path: The folder; it may be that of an `LMDBSaver`.
        index: How to find items by meaning (``embed``, ``dims``, ``fields``);
            without it a query ranks by shared words.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, LMDBStore(folder + "/notes.lmdb") as store:
        ...     store.put(("notes",), "a", {"text": "the cat sat"})
        ...     store.get(("notes",), "a").value
        {'text': 'the cat sat'}
    """

    supports_ttl: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index: Any = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        self.index = index
        self.ttl_config = ttl
        self._meaning = Meaning(index)
        self._clock = clock
        self._options = options or StoreOptions()
        self._store = open_store(path, options=self._options)
        self._table = self._store.table(b"store")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = [*ops]
        for op in todo:
            check(op)
        now = self._clock()
        # What may fail, runs a user's code or takes long comes before the transaction.
        queries = {
            op.query: self._meaning.of_query(op.query)
            for op in todo
            if isinstance(op, SearchOp) and op.query
        }
        puts = self._prepared(todo, now)

        def work(transaction: Any) -> list[list[bytes]]:
            records = [self._records(transaction, op) for op in todo]
            if puts:
                self._clear_ended(transaction, now)
                for put in puts:
                    self._put_one(transaction, put)
            return records

        environment = self._store.environment
        if puts:
            records = environment.write(work, timeout=self._options.lock_timeout)
        else:
            records = environment.read(work)
        read: list[_Row] = []
        answers = [
            self._answer(op, self._rows(found, now), queries, read)
            for op, found in zip(todo, records, strict=True)
        ]
        self._refresh(read, now)
        return answers

    def close(self) -> None:
        """Give the store back; may be called again."""
        self._store.close()

    def __enter__(self) -> LMDBStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -------------------------------------------------------- reading

    def _records(self, transaction: Any, op: Op) -> list[bytes]:
        """Return copies of the records that may answer *op*."""
        match op:
            case GetOp():
                record = self._table.get(transaction, b"i" + _place(op.namespace, op.key))
                return [] if record is None else [record]
            case SearchOp():
                prefix = b"i" + (_digest(op.namespace_prefix[:1]) if op.namespace_prefix else b"")
                return [record for _, record in self._table.scan(transaction, prefix)]
            case ListNamespacesOp():
                return [record for _, record in self._table.scan(transaction, b"i")]
            case PutOp():
                return []

    def _rows(self, records: list[bytes], now: float) -> list[_Row]:
        """Return the items in *records* that have not ended, in the order they were put."""
        rows = (_Row(*decode(self._store.codec, record, "an item")) for record in records)
        living = (row for row in rows if row.ends_at is None or row.ends_at > now)
        return sorted(living, key=lambda row: row.number)

    def _answer(
        self, op: Op, rows: list[_Row], queries: Mapping[str, Any], read: list[_Row]
    ) -> Result:
        match op:
            case GetOp():
                for row in rows:
                    if self._refreshes(op.refresh_ttl):
                        read.append(row)
                    return Item(**self._fields(row))
                return None
            case SearchOp():
                return self._search(op, rows, queries, read)
            case ListNamespacesOp():
                found = {
                    row.namespace[: op.max_depth]
                    for row in rows
                    if all(matching.matches(row.namespace, c) for c in op.match_conditions or ())
                }
                return sorted(found)[op.offset : op.offset + op.limit]
            case PutOp():
                return None

    def _search(
        self, op: SearchOp, rows: list[_Row], queries: Mapping[str, Any], read: list[_Row]
    ) -> list[SearchItem]:
        prefix = tuple(op.namespace_prefix)
        found = [
            row
            for row in rows
            if row.namespace[: len(prefix)] == prefix
            and (not op.filter or matching.passes(self._value(row), op.filter))
        ]
        scores: dict[int, float | None] = {}
        if op.query:
            for row in found:
                words = None if row.words is None else frozenset(row.words)
                scores[row.number] = self._meaning.score(queries[op.query], words, row.vectors)
            found.sort(
                key=lambda row: -1.0 if (s := scores[row.number]) is None else s, reverse=True
            )
        found = found[op.offset : op.offset + op.limit]
        if self._refreshes(op.refresh_ttl):
            read.extend(found)
        return [SearchItem(**self._fields(row), score=scores.get(row.number)) for row in found]

    def _fields(self, row: _Row) -> dict[str, Any]:
        return {
            "namespace": row.namespace,
            "key": row.key,
            "value": self._value(row),
            "created_at": datetime.fromtimestamp(row.created_at, UTC),
            "updated_at": datetime.fromtimestamp(row.updated_at, UTC),
        }

    def _value(self, row: _Row) -> dict[str, Any]:
        value: dict[str, Any] = decode(self._store.codec, row.value, f"the value of {row.key!r}")
        return value

    def _refreshes(self, asked: bool | None) -> bool:
        default = (self.ttl_config or {}).get("refresh_on_read", True)
        return default if asked is None else asked

    # -------------------------------------------------------- putting

    def _prepared(self, ops: Sequence[Op], now: float) -> list[_Put]:
        """Return what is to be kept under each key: the last put of it."""
        last = {(tuple(op.namespace), op.key): op for op in ops if isinstance(op, PutOp)}
        meanings = self._meaning.of_puts(last.values())
        puts = []
        for ((namespace, key), op), (words, vectors) in zip(last.items(), meanings, strict=True):
            row = None
            if op.value is not None:
                ttl = None if op.ttl is None else op.ttl * _SECONDS
                row = _Row(
                    number=0,
                    namespace=namespace,
                    key=key,
                    created_at=now,
                    updated_at=now,
                    ttl=ttl,
                    ends_at=None if ttl is None else now + ttl,
                    words=None if words is None else tuple(words),
                    vectors=tuple(tuple(map(float, each)) for each in vectors),
                    value=encode(self._store.codec, op.value, f"the value of {key!r}"),
                )
            puts.append(_Put(_place(namespace, key), row))
        return puts

    def _put_one(self, transaction: Any, put: _Put) -> None:
        before = self._forget(transaction, put.place)
        row = put.row
        if row is None:
            return
        if before is not None and (before.ends_at is None or before.ends_at > row.updated_at):
            row = row._replace(number=before.number, created_at=before.created_at)
        else:
            row = row._replace(number=self._next_number(transaction))
        self._keep(transaction, put.place, row)

    def _keep(self, transaction: Any, place: bytes, row: _Row) -> None:
        data = encode(self._store.codec, tuple(row), "an item")
        self._table.put(transaction, b"i" + place, data)
        if row.ends_at is not None:
            self._table.put(transaction, _end(row.ends_at) + place, b"")

    def _forget(self, transaction: Any, place: bytes) -> _Row | None:
        record = self._table.get(transaction, b"i" + place)
        if record is None:
            return None
        row = _Row(*decode(self._store.codec, record, "an item"))
        self._table.delete(transaction, b"i" + place)
        if row.ends_at is not None:
            self._table.delete(transaction, _end(row.ends_at) + place)
        return row

    def _next_number(self, transaction: Any) -> int:
        found = self._table.get(transaction, b"n")
        number = 1 + (int.from_bytes(found, "big") if found else 0)
        self._table.put(transaction, b"n", number.to_bytes(8, "big"))
        return number

    # -------------------------------------------------------- time

    def _refresh(self, rows: list[_Row], now: float) -> None:
        """Start the time of items that were read again."""
        places = [_place(row.namespace, row.key) for row in rows if row.ttl is not None]
        if not places:
            return

        def work(transaction: Any) -> None:
            for place in places:
                row = self._forget(transaction, place)
                if row is not None:
                    ends_at = None if row.ttl is None else now + row.ttl
                    self._keep(transaction, place, row._replace(ends_at=ends_at))

        self._store.environment.write(work, timeout=self._options.lock_timeout)

    def _clear_ended(self, transaction: Any, now: float) -> None:
        for _ in range(_MOST_ENDED):
            key = self._table.first_key(transaction, b"e")
            if key is None or key[:9] > _end(now):
                return
            self._forget(transaction, key[9:])
            self._table.delete(transaction, key)


def _end(at: float) -> bytes:
    return b"e" + int(min(max(0.0, at * 1e9), 2.0**63)).to_bytes(8, "big")


def _place(namespace: Sequence[str], key: str) -> bytes:
    return _digest(namespace[:1]) + _digest(namespace) + _digest((key,))


def _digest(labels: Sequence[str]) -> bytes:
    """Return 16 bytes that stand for *labels*, which may be any texts."""
    summed = blake2b(digest_size=16)
    for label in labels:
        data = label.encode("utf-8", "surrogatepass")
        summed.update(len(data).to_bytes(8, "big") + data)
    return summed.digest()
