"""A store in this process: tables of plain dicts, under everything that is kept as
records.

::

    MemoryStore ┬─► read(work), write(work)   one OS thread at a time
                └─► table(name)               key ► payload, in the order of the keys

What fails in the middle of a transaction is undone; nothing is sealed.
"""

from __future__ import annotations

import pickle
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any, TypeAlias

from flowpregel._core.copies import restore_value, snapshot_value
from flowpregel._interrupts import held
from flowpregel.storage.codec import ValueCodec
from flowpregel.storage.records import Seal, Table, after

Undo: TypeAlias = "list[tuple[MemoryTable, bytes, bytes | None]]"
"""A transaction that writes: what it has changed, and what was there before."""

_NONE = (pickle.dumps(None),)
_LONGEST = 1_000
"""How many keys are moved at most to add one."""


class MemoryStore:
    """A store that ends with its process. Any OS thread may use it.

    Args:
        codec: Encodes values; by default as a store on disk does.
    """

    def __init__(self, codec: ValueCodec | None = None) -> None:
        self.codec = codec or ValueCodec(None)
        self._lock = threading.RLock()
        self._tables: dict[bytes, MemoryTable] = {}

    def read(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``."""
        with self._lock:
            return work(None)

    @held()
    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``; if it raises, nothing of it was kept."""
        with self._lock:
            undo: Undo = []
            try:
                return work(undo)
            except BaseException:
                for table, key, before in reversed(undo):
                    if before is None:
                        table.delete([], key)
                    else:
                        table.put([], key, before)
                raise

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""
        return self._tables.setdefault(name, MemoryTable(name))

    def close(self) -> None:
        """Keep everything: it is there as long as the store is."""


class CopyingCodec(ValueCodec):
    """Keeps copies of values, and the fields of records as they are: no bytes are made
    of them.
    """

    def __init__(self) -> None:
        self.fields_of = self.record_of = tuple

    def encode(self, value: Any, what: str) -> Any:
        # A table without a record gives None.
        return _NONE if value is None else snapshot_value(value, what)

    def decode(self, data: Any, what: object) -> Any:
        return restore_value(data, what)


class MemoryTable(Table):
    """One kind of records; every method takes the transaction to use."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name, "this process", {}, Seal(b""))
        self._records: dict[bytes, bytes] = {}
        self._keys = SortedKeys()

    def get(self, transaction: Any, key: bytes) -> bytes | None:
        return self._records.get(key)

    def put(self, transaction: Undo, key: bytes, payload: bytes) -> None:
        before = self._records.get(key)
        transaction.append((self, key, before))
        if before is None:
            self._keys.add(key)
        self._records[key] = payload

    def delete(self, transaction: Undo, key: bytes) -> bool:
        before = self._records.pop(key, None)
        if before is None:
            return False
        transaction.append((self, key, before))
        self._keys.remove(key)
        return True

    discard = delete

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        if backwards:
            found = self._keys.before(start or after(prefix))
        else:
            found = self._keys.since(start or prefix)
        for key in takewhile(lambda key: key.startswith(prefix), found):
            yield key, self._records[key]

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        return [key for key, _ in islice(self.scan(transaction, prefix, start), limit)]

    def drop(self, transaction: Undo, prefix: bytes) -> None:
        for key in self.keys(transaction, prefix):
            self.delete(transaction, key)


class SortedKeys:
    """Keys in order, in lists of which none is long: to add one moves few others."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = [[]]
        """In order, each sorted; only the first may be empty, if there is no other."""

    def add(self, key: bytes) -> None:
        """Add a key that is not there."""
        at = max(0, bisect_right(self._parts, [key]) - 1)
        part = self._parts[at]
        insort(part, key)
        if len(part) > _LONGEST:
            half = len(part) // 2
            self._parts[at : at + 1] = [part[:half], part[half:]]

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        at = bisect_left(self._parts, [key + b"\0"]) - 1
        part = self._parts[at]
        del part[bisect_left(part, key)]
        if not part and len(self._parts) > 1:
            del self._parts[at]

    def since(self, low: bytes) -> Iterator[bytes]:
        """Yield the keys from *low* on, the smallest first."""
        at = max(0, bisect_right(self._parts, [low]) - 1)
        for part in self._parts[at:]:
            yield from part[bisect_left(part, low) :]

    def before(self, high: bytes) -> Iterator[bytes]:
        """Yield the keys below *high*, the greatest first."""
        at = bisect_left(self._parts, [high])
        for part in reversed(self._parts[:at]):
            yield from reversed(part[: bisect_left(part, high)])
