"""A cache on disk, shared by runs and processes, of bounded size.

In the database ``cache`` of a store::

    "v" + place (32)             ► use (8), expires (8), namespace, key, value
    "u" + use (8)                ► place: the order in which values were used
    "n"                          ► how many values, the last use's number

Reading writes nothing: what was used is noted in memory, and kept with the next
value that is put.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import digest_of
from flowpregel._lmdb.store import open_store
from flowpregel.cache.base import BaseCache, FullKey, Namespace
from flowpregel.errors import ConfigurationError

__all__ = ["LMDBCache"]

_HEAD = struct.Struct(">QdI")
_COUNTS = struct.Struct(">QQ")
_FOR_EVER = float("inf")


class LMDBCache(BaseCache):
    """Keeps the values that were used last, in a store's folder. Any OS thread may use it.

    Args:
        path: The folder; it may be that of an `LMDBSaver`.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the store is opened.

    Raises:
        StoreError: The store cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, LMDBCache(folder + "/cache.lmdb") as cache:
        ...     cache.set({(("square",), "3"): (9, None)})
        ...     cache.get([(("square",), "3")])
        {(('square',), '3'): 9}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_entries: int = 10_000,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries is {max_entries}; use at least 1")
        self._max_entries = max_entries
        self._clock = clock
        self._options = options or StoreOptions()
        self._store = open_store(path, options=self._options)
        self._table = self._store.table(b"cache")
        self._lock = threading.Lock()
        self._used: dict[bytes, None] = {}

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._clock()
        places = {key: _place(key) for key in keys}

        def work(transaction: Any) -> dict[FullKey, bytes]:
            records = {
                key: self._table.get(transaction, b"v" + place) for key, place in places.items()
            }
            return {key: record for key, record in records.items() if record is not None}

        found = {}
        for key, record in self._store.environment.read(work).items():
            _, expires, size = _HEAD.unpack_from(record)
            if expires > now:
                found[key] = self._store.codec.decode(
                    record[_HEAD.size + size :], f"the cached {key!r}"
                )
        with self._lock:
            for key in found:
                self._used.pop(places[key], None)
                self._used[places[key]] = None
        return found

    def set(self, pairs: Mapping[FullKey, tuple[Any, float | None]]) -> None:
        now = self._clock()
        encoded = {
            key: (
                self._store.codec.encode(value, f"the value of {key!r}"),
                _FOR_EVER if ttl is None else now + ttl,
            )
            for key, (value, ttl) in pairs.items()
        }
        with self._lock:
            used, self._used = [*self._used], {}

        def work(transaction: Any) -> None:
            count, last = self._counts(transaction)
            for place in used:
                last = self._note_use(transaction, place, last)
            for key, (data, expires) in encoded.items():
                place = _place(key)
                count += not self._forget(transaction, place)
                last += 1
                namespace = repr(tuple(key[0])).encode("utf-8", "surrogatepass")
                head = _HEAD.pack(last, expires, len(namespace))
                self._table.put(transaction, b"v" + place, head + namespace + data)
                self._table.put(transaction, b"u" + last.to_bytes(8, "big"), place)
            while count > self._max_entries:
                self._drop_oldest(transaction)
                count -= 1
            self._table.put(transaction, b"n", _COUNTS.pack(count, last))

        self._store.environment.write(work, timeout=self._options.lock_timeout)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        def work(transaction: Any) -> None:
            count, last = self._counts(transaction)
            if namespaces is None:
                self._table.drop(transaction, b"v")
                self._table.drop(transaction, b"u")
                count = 0
            for namespace in namespaces or ():
                for key in self._table.keys(transaction, b"v" + digest_of(namespace)):
                    if len(key) == 1 + _PLACE:  # those of chunks are longer
                        count -= self._forget(transaction, key[1:])
            self._table.put(transaction, b"n", _COUNTS.pack(count, last))

        self._store.environment.write(work, timeout=self._options.lock_timeout)

    def close(self) -> None:
        """Give the store back; may be called again."""
        self._store.close()

    def __enter__(self) -> LMDBCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -------------------------------------------------------- inside a transaction

    def _counts(self, transaction: Any) -> tuple[int, int]:
        record = self._table.get(transaction, b"n")
        if record is None:
            return 0, 0
        count, last = _COUNTS.unpack(record)
        return count, last

    def _note_use(self, transaction: Any, place: bytes, last: int) -> int:
        record = self._table.get(transaction, b"v" + place)
        if record is None:
            return last
        last += 1
        use, expires, size = _HEAD.unpack_from(record)
        self._table.delete(transaction, b"u" + use.to_bytes(8, "big"))
        self._table.put(transaction, b"u" + last.to_bytes(8, "big"), place)
        head = _HEAD.pack(last, expires, size)
        self._table.put(transaction, b"v" + place, head + record[_HEAD.size :])
        return last

    def _forget(self, transaction: Any, place: bytes) -> bool:
        record = self._table.get(transaction, b"v" + place)
        if record is None:
            return False
        use = _HEAD.unpack_from(record)[0]
        self._table.delete(transaction, b"u" + use.to_bytes(8, "big"))
        return self._table.delete(transaction, b"v" + place)

    def _drop_oldest(self, transaction: Any) -> None:
        key = self._table.first_key(transaction, b"u")
        if key is not None:
            place = self._table.get(transaction, key)
            assert place is not None
            self._forget(transaction, place)


_PLACE = 32


def _place(key: FullKey) -> bytes:
    namespace, name = key
    return digest_of(namespace) + digest_of((name,))
