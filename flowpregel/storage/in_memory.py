"""A store in the memory of this process, with plain dicts as tables.

::

    MemoryStore ┬─► read(work), write(work)   one OS thread at a time
                └─► table(name)               key ► payload, in the order of the keys

The changes of a transaction that fails are undone. Payloads have no checksums.
"""

from __future__ import annotations

import pickle
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from flowpregel._interrupts import defer_interrupts
from flowpregel._pickling.copies import IMMUTABLE, restore_value, snapshot_value
from flowpregel.storage.codec import ValueCodec
from flowpregel.storage.records import Seal, after
from flowpregel.storage.tables import Table

Undo: TypeAlias = "list[tuple[MemoryTable, bytes, bytes | None]]"
"""A write transaction, as a list of the changes to undo if it fails: for each change,
the table, the key, and the earlier payload (None if there was none).
"""

_NONE = (pickle.dumps(None),)
_LONGEST = 1_000
"""The greatest length of one list in `SortedKeys`. An insertion moves no more keys than
this.
"""


class MemoryStore:
    """A store that lives as long as its process. Any OS thread may use it.

    Args:
        codec: The codec of values. The default is the default codec of stores on disk.
    """

    def __init__(self, codec: ValueCodec | None = None) -> None:
        self.codec: ValueCodec = codec or ValueCodec(None)
        self._lock = threading.RLock()
        self._tables: dict[bytes, MemoryTable] = {}

    def read(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``. Only one OS thread at a time calls *work*."""
        with self._lock:
            return work(None)

    @defer_interrupts()
    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``. If *work* raises an error, undo its changes."""
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
        """Do nothing: the records exist until this object is deleted."""


class CopyingCodec(ValueCodec):
    """A codec that copies values instead of encoding them as bytes.

    The fields of records remain tuples.
    """

    def __init__(self) -> None:
        self.plain_types = frozenset(IMMUTABLE - {type(None)})
        self.fields_of: Callable[[Any], Any] = tuple
        self.record_of: Callable[[Any], Any] = tuple

    def load_renames_with(self, load: object) -> None:
        """Do nothing, because a copied value refers to its class, not to a name."""

    def encode(
        self,
        value: Any,
        label: object,
    ) -> Any:
        # None itself cannot be stored, since a table returns None if there is no
        # record. So a marker is stored instead.
        return _NONE if value is None else snapshot_value(value, label)

    def decode(
        self,
        data: Any,
        label: object,
    ) -> Any:
        return restore_value(data, label)


class MemoryTable(Table):
    """A table of plain dicts. Its payloads have no checksums, and contain no references
    to values in other records.
    """

    def __init__(self, name: bytes) -> None:
        super().__init__(name, "this process", Seal(b""))
        self._payloads: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        self._new_keys: list[bytes] = []
        """The keys that are not in *_keys* yet. They are sorted when the order of keys
        is needed, because few transactions need it.
        """

    def get(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        return self._payloads.get(key)

    record = get

    def put(
        self,
        transaction: Undo,
        key: bytes,
        payload: bytes,
    ) -> None:
        before = self._payloads.get(key)
        transaction.append((self, key, before))
        if before is None:
            self._new_keys.append(key)
        self._payloads[key] = payload

    def put_record(
        self,
        transaction: Undo,
        key: bytes,
        record: bytes,
    ) -> None:
        self.put(transaction, key, record)

    def delete(
        self,
        transaction: Undo,
        key: bytes,
    ) -> bool:
        before = self._payloads.pop(key, None)
        if before is None:
            return False
        transaction.append((self, key, before))
        self._sorted_keys().remove(key)
        return True

    discard = delete

    def _sorted_keys(self) -> SortedKeys:
        """Return all keys in their order."""
        for key in self._new_keys:
            self._keys.add(key)
        self._new_keys.clear()
        return self._keys

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        if backwards:
            keys = self._sorted_keys().before(start or after(prefix))
        else:
            keys = self._sorted_keys().since(start or prefix)
        for key in keys:
            if not key.startswith(prefix):
                break
            yield key, self._payloads[key]

    records = scan

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        payloads = self.scan(transaction, prefix, start)
        return [key for key, _ in islice(payloads, limit)]

    def drop(
        self,
        transaction: Undo,
        prefix: bytes,
    ) -> None:
        for key in self.keys(transaction, prefix):
            self.delete(transaction, key)


class SortedKeys:
    """Sorted keys, in short lists, so that an insertion moves few keys."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = [[]]
        """The lists, in order. A list is empty only if it is the only list."""

    def add(self, key: bytes) -> None:
        """Add a key, which must not be present."""
        index = max(0, bisect_right(self._parts, [key]) - 1)
        part = self._parts[index]
        insort(part, key)
        if len(part) > _LONGEST:
            half = len(part) // 2
            self._parts[index : index + 1] = [part[:half], part[half:]]

    def remove(self, key: bytes) -> None:
        """Remove a key, which must be present."""
        index = bisect_left(self._parts, [key + b"\0"]) - 1
        part = self._parts[index]
        del part[bisect_left(part, key)]
        if not part and len(self._parts) > 1:
            del self._parts[index]

    def since(self, low: bytes) -> Iterator[bytes]:
        """Yield the keys that are not below *low*, the smallest first."""
        index = max(0, bisect_right(self._parts, [low]) - 1)
        for part in self._parts[index:]:
            yield from part[bisect_left(part, low) :]

    def before(self, high: bytes) -> Iterator[bytes]:
        """Yield the keys below *high*, the greatest first."""
        index = bisect_left(self._parts, [high])
        for part in reversed(self._parts[:index]):
            yield from reversed(part[: bisect_left(part, high)])
