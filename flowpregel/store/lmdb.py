"""A long-term store on disk.

In the database ``store`` of a store's folder::

    "i" + first label (16) + namespace (16) + key (16)   ► a `StoredItem`, encoded
    "e" + when it ends (8, nanoseconds) + the same (48)  ► nothing: what to look at then
    "n"                                                  ► how many items were ever put

Labels and keys stand in a key as digests, so that they may be any texts; items
below one first label are neighbours, which is what a search reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import SealedStore, digest_of
from flowpregel._lmdb.store import open_store
from flowpregel.store.base import GetOp, ListNamespacesOp, Op, SearchOp, TTLConfig
from flowpregel.store.memory import ItemKey, ItemStore, StoredItem
from flowpregel.store.search_index import IndexConfig

__all__ = ["LMDBStore"]

_MOST_ENDED = 1_000
"""How many items that have ended one batch clears away."""
_FIELDS = tuple(field.name for field in fields(StoredItem))


class DurableStore(ItemStore):
    """Keeps items as records in a table, whoever keeps the table.

    Args:
        path: What its store is opened by: a folder, or a URL.
        index: How to find items by meaning.
        ttl: How long items are kept that do not say so themselves.
        clock: Returns wall-clock seconds.
        options: How the store is opened.
    """

    _open: ClassVar[Callable[..., SealedStore]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(index, ttl, clock)
        self._options = options or StoreOptions()
        self._store = self._open(path, options=self._options)
        self._table = self._store.table(b"store")
        self.encode, self.decode = self._store.codec.encode, self._store.codec.decode

    def close(self) -> None:
        """Give the store back; may be called again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _exchange(
        self, ops: Sequence[Op], puts: Mapping[ItemKey, StoredItem | None], now: float
    ) -> list[list[StoredItem]]:
        def work(transaction: Any) -> list[list[bytes]]:
            records = [self._records(transaction, op) for op in ops]
            if puts:
                self._clear_ended(transaction, now)
            for place, item in puts.items():
                self._put_one(transaction, _place(*place), item)
            return records

        environment = self._store.environment
        timeout = self._options.lock_timeout
        records = environment.write(work, timeout=timeout) if puts else environment.read(work)
        found = [[item for item in map(self._item, each) if item.lives_at(now)] for each in records]
        return [sorted(items, key=lambda item: item.number) for items in found]

    def _records(self, transaction: Any, op: Op) -> list[bytes]:
        """Return copies of the records that may answer *op*."""
        match op:
            case GetOp():
                record = self._table.get(transaction, b"i" + _place(op.namespace, op.key))
                return [] if record is None else [record]
            case SearchOp():
                prefix = b"i" + (digest_of(op.namespace_prefix[:1]) if op.namespace_prefix else b"")
                return [record for _, record in self._table.scan(transaction, prefix)]
            case ListNamespacesOp():
                return [record for _, record in self._table.scan(transaction, b"i")]
            case _:
                return []

    def _item(self, record: bytes) -> StoredItem:
        return StoredItem(*self.decode(record, "an item"))

    # -------------------------------------------------------- inside a transaction

    def _put_one(self, transaction: Any, place: bytes, item: StoredItem | None) -> None:
        before = self._forget(transaction, place)
        if item is None:
            return
        if before is not None and before.lives_at(item.updated_at):
            item.number, item.created_at = before.number, before.created_at
        else:
            item.number = 1 + int.from_bytes(self._table.get(transaction, b"n") or b"", "big")
            self._table.put(transaction, b"n", item.number.to_bytes(8, "big"))
        self._keep(transaction, place, item)

    def _keep(self, transaction: Any, place: bytes, item: StoredItem) -> None:
        record = tuple(getattr(item, name) for name in _FIELDS)
        data = self.encode(record, "an item")
        self._table.put(transaction, b"i" + place, data)
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
        def work(transaction: Any) -> None:
            for each in items:
                place = _place(each.namespace, each.key)
                item = self._forget(transaction, place)
                if item is not None:
                    item.ends_at = None if item.ttl is None else now + item.ttl
                    self._keep(transaction, place, item)

        self._store.environment.write(work, timeout=self._options.lock_timeout)

    def _clear_ended(self, transaction: Any, now: float) -> None:
        for _ in range(_MOST_ENDED):
            key = next((key for key, _ in self._table.scan(transaction, b"e")), None)
            if key is None or key[:9] > _end(now):
                return
            self._forget(transaction, key[9:])
            self._table.delete(transaction, key)


class LMDBStore(DurableStore):
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

    _open = staticmethod(open_store)


def _end(at: float) -> bytes:
    return b"e" + int(min(max(0.0, at * 1e9), 2.0**63)).to_bytes(8, "big")


def _place(namespace: Sequence[str], key: str) -> bytes:
    return digest_of(namespace[:1]) + digest_of(namespace) + digest_of((key,))
