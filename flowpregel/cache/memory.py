"""Results kept as records in a table of bounded size, whoever keeps it; here this
process.

In the database ``cache``::

    "v" + place (32)             ► use (8), expires (8), value
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
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from flowpregel._lmdb.in_memory import MemoryStore
from flowpregel._lmdb.records import KeptInStore, SealedStore, digest_of
from flowpregel.cache.base import BaseCache, FullKey, Namespace
from flowpregel.errors import ConfigurationError, ValueEncodingError

if TYPE_CHECKING:
    from flowpregel._lmdb.options import StoreOptions

__all__ = ["InMemoryCache"]

_HEAD = struct.Struct(">Qd")
_COUNTS = struct.Struct(">QQ")
_FOR_EVER = float("inf")
_PLACE = 32


class RecordCache(KeptInStore, BaseCache):
    """A cache that keeps values as records in a table.

    Args:
        path: What the table's store is opened by: a folder, or a URL.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the table's store is opened.
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
        self._store = self._open(path, options)
        self._table = self._store.table(b"cache")
        self._lock = threading.Lock()
        self._used: dict[bytes, None] = {}

    @abstractmethod
    def _open(
        self, path: str | os.PathLike[str], options: StoreOptions | None
    ) -> SealedStore:
        """Open the store that the values are in."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._clock()
        places = {key: place_of(key) for key in keys}

        def work(transaction: Any) -> dict[FullKey, bytes | None]:
            return {
                key: self._table.get(transaction, b"v" + at)
                for key, at in places.items()
            }

        found = {}
        for key, record in self._store.read(work).items():
            if record is not None and _HEAD.unpack_from(record)[1] > now:
                value = record[_HEAD.size :]
                # A value whose class is gone is a miss: it is computed and kept anew.
                with suppress(ValueEncodingError):
                    found[key] = self._store.codec.decode(value, f"the cached {key!r}")
        with self._lock:
            for key in found:
                self._used.pop(places[key], None)
                self._used[places[key]] = None
        return found

    def set(self, pairs: Mapping[FullKey, tuple[Any, float | None]]) -> None:
        now = self._clock()
        encoded = [
            (
                place_of(key),
                _FOR_EVER if ttl is None else now + ttl,
                self._store.codec.encode(value, f"the value of {key!r}"),
            )
            for key, (value, ttl) in pairs.items()
        ]
        with self._lock:
            used, self._used = [*self._used], {}

        def work(transaction: Any) -> None:
            count, last = self._counts(transaction)
            for place in used:
                if (record := self._take(transaction, place)) is not None:
                    last += 1
                    self._put(transaction, place, last.to_bytes(8, "big") + record[8:])
            for place, until, data in encoded:
                count += self._take(transaction, place) is None
                last += 1
                self._put(transaction, place, _HEAD.pack(last, until) + data)
            spare = max(0, count - self._max_entries)
            for _, oldest in [*islice(self._table.scan(transaction, b"u"), spare)]:
                self._take(transaction, oldest)
            self._table.put(transaction, b"n", _COUNTS.pack(count - spare, last))

        self._store.write(work)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        def work(transaction: Any) -> None:
            if namespaces is None:
                for kind in (b"v", b"u", b"n"):
                    self._table.drop(transaction, kind)
                return
            count, last = self._counts(transaction)
            for namespace in namespaces:
                for key in self._table.keys(transaction, b"v" + digest_of(namespace)):
                    if len(key) == 1 + _PLACE:  # those of chunks are longer
                        count -= self._take(transaction, key[1:]) is not None
            self._table.put(transaction, b"n", _COUNTS.pack(count, last))

        self._store.write(work)

    # -------------------------------------------------------- inside a transaction

    def _counts(self, transaction: Any) -> tuple[int, int]:
        record = self._table.get(transaction, b"n")
        count, last = _COUNTS.unpack(record or bytes(_COUNTS.size))
        return count, last

    def _put(self, transaction: Any, place: bytes, record: bytes) -> None:
        """Keep *record*, which begins with the number of its use, in the order of
        use.
        """
        self._table.put(transaction, b"v" + place, record)
        self._table.put(transaction, b"u" + record[:8], place)

    def _take(self, transaction: Any, place: bytes) -> bytes | None:
        """Return the record at *place*, which is gone then; None if there was none."""
        record = self._table.get(transaction, b"v" + place)
        if record is not None:
            self._table.delete(transaction, b"u" + record[:8])
            self._table.delete(transaction, b"v" + place)
        return record


class InMemoryCache(RecordCache):
    """Keeps the values that were used last, in this process. Any OS thread may use it.

    Values are copied when they are kept and when they are read.

    Args:
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns seconds that only grow.

    Example:
        >>> cache = InMemoryCache()
        >>> cache.set({(("square",), "3"): (9, None)})
        >>> cache.get([(("square",), "3"), (("square",), "4")])
        {(('square',), '3'): 9}
    """

    answers_at_once: ClassVar[bool] = True

    def __init__(
        self, *, max_entries: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("", max_entries=max_entries, clock=clock)
        self._claimed: set[FullKey] = set()

    def _open(self, path: Any, options: Any) -> MemoryStore:
        return MemoryStore()

    @contextmanager
    def claim(self, key: FullKey) -> Iterator[bool]:
        with self._lock:
            is_free = key not in self._claimed
            self._claimed.add(key)
        try:
            yield is_free
        finally:
            if is_free:
                self._claimed.discard(key)


def place_of(key: FullKey) -> bytes:
    """Return the digest that stands for *key*."""
    namespace, name = key
    return digest_of(namespace) + digest_of((name,))
