"""A database of sealed records, large ones in chunks.

::

    key            ► checksum (16), 0, payload
    key            ► checksum (16), 1, chunks (4), bytes (8)        a large payload
    key + n (4)    ► checksum (16), 2, n-th chunk

Where payload or chunk is encrypted, 16 is added to the kind.

A chunk fills whole pages of the map together with LMDB's own header, so that
the room of a dropped value is used again by any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from flowpregel._lmdb.overlay import getter
from flowpregel._lmdb.seal import SIZE, Seal
from flowpregel.errors import StoreCorruptError, StoreForeignError

_PAGES_HEADER = 16
CHUNK = (1 << 20) - _PAGES_HEADER - SIZE - 1
_WHOLE, _CHUNKED, _PIECE = 0, 1, 2
_ENCRYPTED = 16
_COUNTS = struct.Struct(">IQ")
_HEAD = SIZE + 1
_KINDS = [bytes((kind,)) for kind in range(2 * _ENCRYPTED)]
_SMALL = 4096


class Store(Protocol):
    """What a table needs of its store."""

    @property
    def path(self) -> str:
        """Its folder."""

    @property
    def databases(self) -> Mapping[bytes, Any]:
        """LMDB's handles, by name."""


class _Begun(dict[int, Any]):
    """What the checksums of a database's records begin with, by the size of their keys.

    Args:
        name: The database's name.
        seal: Makes the checksums.
    """

    def __init__(self, name: bytes, seal: Seal) -> None:
        self._name = name
        self._seal = seal

    def __missing__(self, size: int) -> Any:
        begun = self[size] = self._seal.begun(self._name, len(self._name) + size)
        return begun


class Table:
    """One database of a store; every method takes the transaction to use.

    Args:
        name: The database's name.
        store: Its environment.
        seal: Makes and checks the checksums.
    """

    __slots__ = ("_begun", "_name", "_seal", "_store")

    def __init__(self, name: bytes, store: Store, seal: Seal) -> None:
        self._store = store
        self._name = name
        self._seal = seal
        self._begun = _Begun(name, seal)

    @property
    def handle(self) -> Any:
        """LMDB's handle; another one after the file was opened again."""
        return self._store.databases[self._name]

    def get(self, transaction: Any, key: bytes) -> bytes | None:
        """Return a copy of the payload at *key*, or None."""
        record = transaction.get(key, db=self.handle)
        if record is None:
            return None
        payload = self.opened(key, record)
        if kind_of(record) == _WHOLE:
            return payload
        return self._joined(transaction, key, payload)

    def fetcher(self, transaction: Any, size: int) -> Callable[[bytes], bytes | None]:
        """Return a function that does what `get` does, sooner, for many small records.

        Args:
            transaction: Open as long as the function is used.
            size: The bytes of each key.
        """
        get, opened = getter(transaction, self.handle), self.get
        begun = self._begun[size]

        def fetch(key: bytes) -> bytes | None:
            record = get(key)
            if record is not None and _HEAD <= len(record) < _SMALL and record[SIZE] == _WHOLE:
                summed = begun.copy()
                summed.update(key + record[SIZE:])
                if record[:SIZE] == summed.digest():
                    return record[_HEAD:]
            return opened(transaction, key)

        return fetch

    def put(self, transaction: Any, key: bytes, payload: bytes, *, fresh: bool = False) -> None:
        """Keep *payload* at *key*.

        Args:
            transaction: A write transaction.
            key: At most 500 bytes.
            payload: Any length.
            fresh: There is nothing at *key* yet, so nothing to clear away.
        """
        if not fresh:
            self._drop_chunks(transaction, key)
        if len(payload) <= CHUNK:
            transaction.put(key, self.record(key, _WHOLE, payload), db=self.handle)
            return
        view = memoryview(payload)
        count = -(-len(payload) // CHUNK)
        counts = _COUNTS.pack(count, len(payload))
        transaction.put(key, self.record(key, _CHUNKED, counts), db=self.handle)
        for number in range(count):
            place = key + number.to_bytes(4, "big")
            chunk = view[number * CHUNK : (number + 1) * CHUNK]
            transaction.put(place, self.record(place, _PIECE, chunk), db=self.handle)

    def add(self, transaction: Any, key: bytes, payload: bytes) -> bool:
        """Keep *payload* at *key* if there is nothing; return whether it was kept."""
        if len(payload) >= _SMALL:
            if self.has(transaction, key):
                return False
            self.put(transaction, key, payload, fresh=True)
            return True
        record = self.record(key, _WHOLE, payload)
        return bool(transaction.put(key, record, overwrite=False, db=self.handle))

    def append(self, transaction: Any, key: bytes, payload: bytes) -> bool:
        """Keep *payload* at *key*, where there is nothing yet; return whether it is the last now.

        LMDB fills a page to its end only where it is told that the last one is put.
        """
        if len(payload) < _SMALL:
            record = self.record(key, _WHOLE, payload)
            if transaction.put(key, record, append=True, db=self.handle):
                return True
        self.put(transaction, key, payload, fresh=True)
        return False

    def raw(self, transaction: Any, key: bytes) -> bytes | None:
        """Return the record at *key* as it is, to be compared with one that held."""
        record: bytes | None = transaction.get(key, db=self.handle)
        return record

    def delete(self, transaction: Any, key: bytes) -> bool:
        """Drop what is at *key*; return whether there was something."""
        self._drop_chunks(transaction, key)
        return bool(transaction.delete(key, db=self.handle))

    def has(self, transaction: Any, key: bytes) -> bool:
        """Return whether there is something at *key*, without looking whether it holds."""
        return transaction.get(key, db=self.handle) is not None

    def scan(
        self, transaction: Any, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, payload) of all keys that begin with *prefix*, from *start* on."""
        with transaction.cursor(db=self.handle) as cursor:
            found = cursor.set_range(start or prefix)
            while found:
                key, record = cursor.item()
                if not key.startswith(prefix):
                    return
                if kind_of(record) != _PIECE:
                    payload = self.opened(key, record)
                    if kind_of(record) == _CHUNKED:
                        payload = self._joined(transaction, key, payload)
                    yield key, payload
                found = cursor.next()

    def keys(self, transaction: Any, prefix: bytes) -> list[bytes]:
        """Return all keys that begin with *prefix*, those of chunks included."""
        found = []
        with transaction.cursor(db=self.handle) as cursor:
            if cursor.set_range(prefix):
                for key in cursor.iternext(keys=True, values=False):
                    if not key.startswith(prefix):
                        break
                    found.append(key)
        return found

    def first_key(self, transaction: Any, prefix: bytes) -> bytes | None:
        """Return the first key with *prefix*, or None."""
        with transaction.cursor(db=self.handle) as cursor:
            if not cursor.set_range(prefix):
                return None
            key: bytes = cursor.key()
            return key if key.startswith(prefix) else None

    def last_key(self, transaction: Any, prefix: bytes, before: bytes = b"") -> bytes | None:
        """Return the last key with *prefix* (of those smaller than *before*), or None."""
        with transaction.cursor(db=self.handle) as cursor:
            found = cursor.set_range(before or after(prefix))
            found = cursor.prev() if found else cursor.last()
            if not found:
                return None
            key: bytes = cursor.key()
            return key if key.startswith(prefix) else None

    def drop(self, transaction: Any, prefix: bytes) -> int:
        """Drop everything whose key begins with *prefix*; return how many records."""
        count = 0
        with transaction.cursor(db=self.handle) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()
                count += 1
        return count

    def check(self, transaction: Any, key: bytes) -> None:
        """Raise `StoreCorruptError` unless the record at *key*, if it is there, holds."""
        record = transaction.get(key, db=self.handle)
        if record is not None:
            self._check(key, record)

    def corrupt(self, key: bytes, what: str) -> StoreCorruptError:
        """Return the error that says *what* of the record at *key*."""
        return StoreCorruptError(
            f"record {key.hex()} in {self._name.decode()} of {self._store.path} {what}; "
            "restore a backup, or run verify() to see what else is damaged"
        )

    def record(self, key: bytes, kind: int, payload: bytes | memoryview) -> bytes:
        """Return *payload* as it is kept at *key*."""
        cipher = self._seal.cipher
        if cipher is not None:
            kind, payload = kind | _ENCRYPTED, cipher.encrypt(self._name + key, payload)
        head = _KINDS[kind]
        if len(payload) >= _SMALL:
            return b"".join((self._seal.of(self._name + key, head, payload), head, payload))
        record = head + payload
        return self._of_small(key, record) + record

    def _of_small(self, key: bytes, record: bytes) -> bytes:
        """Return the checksum of a small *record* at *key*."""
        summed = self._begun[len(key)].copy()
        summed.update(key + record)
        checksum: bytes = summed.digest()
        return checksum

    def _check(self, key: bytes, record: bytes) -> None:
        if len(record) < _SMALL:
            expected = self._of_small(key, record[SIZE:])
        else:
            expected = self._seal.of(self._name + key, memoryview(record)[SIZE:])
        if len(record) < _HEAD or record[:SIZE] != expected:
            raise self.corrupt(key, "is damaged, or was not written there")

    def opened(self, key: bytes, record: bytes) -> bytes:
        """Return the payload of a *record* that was at *key*, after seeing that it holds."""
        self._check(key, record)
        if not record[SIZE] & _ENCRYPTED:
            return record[_HEAD:]
        cipher = self._seal.cipher
        if cipher is None:
            raise StoreForeignError(
                f"{self._store.path} is encrypted; pass its key as StoreOptions(encryption_key=...)"
            )
        return cipher.decrypt(self._name + key, record[_HEAD:])

    def _joined(self, transaction: Any, key: bytes, counts: bytes) -> bytes:
        count, size = _COUNTS.unpack(counts)
        pieces = []
        for number in range(count):
            place = key + number.to_bytes(4, "big")
            record = transaction.get(place, db=self.handle)
            if record is None:
                raise self.corrupt(place, "is missing: a part of a large value")
            pieces.append(self.opened(place, record))
        payload = b"".join(pieces)
        if len(payload) != size:
            raise self.corrupt(key, "has not the length it says")
        return payload

    def _drop_chunks(self, transaction: Any, key: bytes) -> None:
        record = transaction.get(key, db=self.handle)
        if record is not None and kind_of(record) == _CHUNKED:
            count = _COUNTS.unpack(self.opened(key, record))[0]
            for number in range(count):
                transaction.delete(key + number.to_bytes(4, "big"), db=self.handle)


def kind_of(record: bytes) -> int:
    """Return what a record is: whole, a large one's head, or a chunk."""
    return record[SIZE] & ~_ENCRYPTED if len(record) >= _HEAD else _WHOLE


def after(prefix: bytes) -> bytes:
    """Return the smallest key greater than all that begin with *prefix*."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\xff" * 500
