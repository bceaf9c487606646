"""The results of a cache, as records in a table of bounded size, and the cache whose
table is in memory.

In the database ``cache``::

    "v" + digest (32)            ► use (8), expires (8), value
    "u" + use (8)                ► digest: the order in which values were used
    "n"                          ► the number of values, the number of the last use

A *use* is a serial number, which a value gets when it is read or put. A read writes
nothing to the table: the use is recorded in memory, and stored when the next value is
put.
"""

from __future__ import annotations

import os
import struct
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from flowpregel import _clock
from flowpregel.cache.base import BaseCache, Entries, FullKey, Namespace
from flowpregel.errors import ConfigurationError, ValueEncodingError
from flowpregel.storage.in_memory import MemoryStore
from flowpregel.storage.records import labels_digest
from flowpregel.storage.stores import Store, StoreUser, use_renames_of

if TYPE_CHECKING:
    from flowpregel.storage.options import StoreOptions

__all__ = ["InMemoryCache"]

_HEAD = struct.Struct(">Qd")
_COUNTS = struct.Struct(">QQ")
_FOR_EVER = float("inf")
_DIGEST_SIZE = 32
_CODES = b"c"
"""The prefix of the keys of the records that `note_code` stores."""
_MOST_CODES = 4
"""The number of versions of a task's code that are stored (see `note_code`)."""


class RecordCache(StoreUser, BaseCache):
    """A cache that keeps values as records in a table.

    Args:
        path: The location of the table's store: a folder, or a URL.
        max_entries: The number of values to keep; the least recently used is deleted
            first.
        clock: A function that returns wall-clock seconds.
        options: Options for opening the table's store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_entries: int = 10_000,
        clock: Callable[[], float] = _clock.wall,
        options: StoreOptions | None = None,
    ) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries is {max_entries}; use at least 1")
        self._max_entries = max_entries
        self._clock = clock
        self._store = self._open(path, options)
        use_renames_of(self._store)
        self._table = self._store.table(b"cache")
        self._lock = threading.Lock()
        self._used: dict[bytes, None] = {}

    @abstractmethod
    def _open(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions | None,
    ) -> Store:
        """Open the store of the table."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._clock()
        digests = {key: digest_of_key(key) for key in keys}

        def work(transaction: Any) -> dict[FullKey, bytes | None]:
            records = {}
            for key, digest in digests.items():
                records[key] = self._table.get(transaction, b"v" + digest)
            return records

        values = {}
        for key, record in self._store.read(work).items():
            if record is None:
                continue
            _, expires_at = _HEAD.unpack_from(record)
            if expires_at <= now:
                continue
            # If the class of a value no longer exists, the value is treated as missing,
            # so that it is computed and stored again.
            with suppress(ValueEncodingError):
                data = record[_HEAD.size :]
                values[key] = self._store.codec.decode(data, f"the cached {key!r}")
        with self._lock:
            for key in values:
                digest = digests[key]
                self._used.pop(digest, None)
                self._used[digest] = None
        return values

    def set(self, pairs: Entries) -> None:
        now = self._clock()
        entries: list[tuple[bytes, float, bytes]] = []
        for key, (value, ttl) in pairs.items():
            expires_at = _FOR_EVER if ttl is None else now + ttl
            data = self._store.codec.encode(value, f"the value of {key!r}")
            entries.append((digest_of_key(key), expires_at, data))
        with self._lock:
            used = list(self._used)
            self._used = {}

        def work(transaction: Any) -> None:
            count, last_use = self._counts(transaction)
            last_use = self._store_uses(
                transaction,
                used,
                last_use,
            )
            for digest, expires_at, data in entries:
                count += self._pop(transaction, digest) is None
                last_use += 1
                record = _HEAD.pack(last_use, expires_at) + data
                self._put(
                    transaction,
                    digest,
                    record,
                )
            excess = max(0, count - self._max_entries)
            oldest = islice(self._table.scan(transaction, b"u"), excess)
            for _, digest in list(oldest):
                self._pop(transaction, digest)
            counts = _COUNTS.pack(count - excess, last_use)
            self._table.put(
                transaction,
                b"n",
                counts,
            )

        self._store.write(work)

    def codes_of(self, task: Namespace) -> dict[Namespace, str]:
        key = _CODES + labels_digest(task)
        data = self._store.read(lambda transaction: self._table.get(transaction, key))
        return {} if data is None else self._codes_in(data)

    def note_code(self, task: Namespace, namespace: Namespace, parts: str) -> None:
        key = _CODES + labels_digest(task)

        def note(transaction: Any) -> None:
            data = self._table.get(transaction, key)
            codes = {} if data is None else self._codes_in(data)
            codes.pop(namespace, None)
            codes[namespace] = parts
            newest = dict([*codes.items()][-_MOST_CODES:])
            record = self._store.codec.encode(newest, f"the code of {task!r}")
            self._table.put(
                transaction,
                key,
                record,
            )

        if [*self.codes_of(task).items()][-1:] != [(namespace, parts)]:
            self._store.write(note)

    def _codes_in(self, data: bytes) -> dict[Namespace, str]:
        """Return the namespaces in a record that `note_code` has stored."""
        codes: dict[Namespace, str] = self._store.codec.decode(data, "a task's code")
        return codes

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        def clear_all(transaction: Any) -> None:
            for kind in (b"v", b"u", b"n", _CODES):
                self._table.drop(transaction, kind)

        def clear_namespaces(transaction: Any) -> None:
            count, last_use = self._counts(transaction)
            for namespace in namespaces or ():
                count -= self._clear_namespace(transaction, namespace)
            counts = _COUNTS.pack(count, last_use)
            self._table.put(
                transaction,
                b"n",
                counts,
            )

        clear = clear_all if namespaces is None else clear_namespaces
        self._store.write(clear)

    # -------------------------------------------------------- inside a transaction

    def _counts(self, transaction: Any) -> tuple[int, int]:
        record = self._table.get(transaction, b"n")
        count, last_use = _COUNTS.unpack(record or bytes(_COUNTS.size))
        return count, last_use

    def _clear_namespace(
        self,
        transaction: Any,
        namespace: Namespace,
    ) -> int:
        """Delete the values of a namespace, and return their number."""
        count = 0
        prefix = b"v" + labels_digest(namespace)
        for key in self._table.keys(transaction, prefix):
            if len(key) != 1 + _DIGEST_SIZE:
                # The key belongs to a chunk of a large value, which is removed together
                # with the value.
                continue
            if self._pop(transaction, key[1:]) is not None:
                count += 1
        return count

    def _store_uses(
        self,
        transaction: Any,
        used: Sequence[bytes],
        last_use: int,
    ) -> int:
        """Store a new last use of each value in *used*, and return the serial number of
        the newest use.

        Args:
            transaction: A write transaction.
            used: The digests of the values that were used since the last write.
            last_use: The serial number of the newest use that is stored.
        """
        for digest in used:
            record = self._pop(transaction, digest)
            if record is not None:
                last_use += 1
                record = last_use.to_bytes(8, "big") + record[8:]
                self._put(
                    transaction,
                    digest,
                    record,
                )
        return last_use

    def _put(
        self,
        transaction: Any,
        digest: bytes,
        record: bytes,
    ) -> None:
        """Store *record* for a value. The first bytes of the record are the serial
        number of the value's last use. The digest is also stored under that number, so
        that the least recently used value can be found.
        """
        use = record[:8]
        self._table.put(
            transaction,
            b"v" + digest,
            record,
        )
        self._table.put(
            transaction,
            b"u" + use,
            digest,
        )

    def _pop(
        self,
        transaction: Any,
        digest: bytes,
    ) -> bytes | None:
        """Delete a record and return it, or return None if there is no record."""
        record = self._table.get(transaction, b"v" + digest)
        if record is not None:
            use = record[:8]
            self._table.delete(transaction, b"u" + use)
            self._table.delete(transaction, b"v" + digest)
        return record


class InMemoryCache(RecordCache):
    """A cache of recently used values in this process, for any OS thread.

    Values are copied when they are stored and when they are read.

    Args:
        max_entries: The number of values to keep; the least recently used is deleted
            first.
        clock: A function that returns monotonic seconds.

    Example:
        >>> cache = InMemoryCache()
        >>> cache.set({(("square",), "3"): (9, None)})
        >>> cache.get([(("square",), "3"), (("square",), "4")])
        {(('square',), '3'): 9}
    """

    answers_at_once: ClassVar[bool] = True

    def __init__(
        self,
        *,
        max_entries: int = 10_000,
        clock: Callable[[], float] = _clock.monotonic,
    ) -> None:
        super().__init__(
            "",
            max_entries=max_entries,
            clock=clock,
        )
        self._claimed: set[FullKey] = set()

    def _open(
        self,
        path: Any,
        options: Any,
    ) -> MemoryStore:
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


def digest_of_key(key: FullKey) -> bytes:
    """Return the digest of *key*, which names its record.

    Example:
        >>> len(digest_of_key((("lengths",), "ada")))
        32
    """
    namespace, name = key
    return labels_digest(namespace) + labels_digest((name,))
