"""A cache on disk, shared by runs and processes, of bounded size.

In the database ``cache`` of a store::

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Any, ClassVar, Self

from flowpregel._lmdb.locks import FileLock
from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import SealedStore, digest_of
from flowpregel._lmdb.store import open_store
from flowpregel.cache.base import BaseCache, FullKey, Namespace
from flowpregel.errors import ConfigurationError

__all__ = ["LMDBCache"]

_HEAD = struct.Struct(">Qd")
_COUNTS = struct.Struct(">QQ")
_FOR_EVER = float("inf")
_PLACE = 32


class DurableCache(BaseCache):
    """Keeps values as records in a table, whoever keeps the table.

    Args:
        path: What its store is opened by: a folder, or a URL.
        max_entries: How many values to keep; the one not used for longest goes first.
        clock: Returns wall-clock seconds.
        options: How the store is opened.
    """

    _open: ClassVar[Callable[..., SealedStore]]

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
        self._store = self._open(path, options=self._options)
        self._table = self._store.table(b"cache")
        self._lock = threading.Lock()
        self._used: dict[bytes, None] = {}

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._clock()
        places = {key: place_of(key) for key in keys}

        def work(transaction: Any) -> dict[FullKey, bytes | None]:
            return {key: self._table.get(transaction, b"v" + at) for key, at in places.items()}

        found = {}
        for key, record in self._store.environment.read(work).items():
            if record is not None and _HEAD.unpack_from(record)[1] > now:
                value = record[_HEAD.size :]
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

        self._store.environment.write(work, timeout=self._options.lock_timeout)

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

        self._store.environment.write(work, timeout=self._options.lock_timeout)

    def close(self) -> None:
        """Give the store back; may be called again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -------------------------------------------------------- inside a transaction

    def _counts(self, transaction: Any) -> tuple[int, int]:
        record = self._table.get(transaction, b"n")
        count, last = _COUNTS.unpack(record or bytes(_COUNTS.size))
        return count, last

    def _put(self, transaction: Any, place: bytes, record: bytes) -> None:
        """Keep *record*, which begins with the number of its use, in the order of use."""
        self._table.put(transaction, b"v" + place, record)
        self._table.put(transaction, b"u" + record[:8], place)

    def _take(self, transaction: Any, place: bytes) -> bytes | None:
        """Return the record at *place*, which is gone then; None if there was none."""
        record = self._table.get(transaction, b"v" + place)
        if record is not None:
            self._table.delete(transaction, b"u" + record[:8])
            self._table.delete(transaction, b"v" + place)
        return record


class LMDBCache(DurableCache):
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

    _open = staticmethod(open_store)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_entries: int = 10_000,
        clock: Callable[[], float] = time.time,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(path, max_entries=max_entries, clock=clock, options=options)
        self._claims = os.path.join(self._store.environment.path, "claims")
        with suppress(FileNotFoundError):
            for left in os.listdir(self._claims):  # by processes that were killed
                with self._claimed(left):
                    pass

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        with suppress(FileExistsError):
            os.mkdir(self._claims, 0o700)
        return self._claimed(place_of(key).hex())

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        file = FileLock(os.path.join(self._claims, name))
        try:
            # Whoever had it may have removed the file since it was opened.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
            if is_free:
                file.unlink()
        finally:
            file.close()


def place_of(key: FullKey) -> bytes:
    """Return the digest that stands for *key*."""
    namespace, name = key
    return digest_of(namespace) + digest_of((name,))
