"""Sealed records: a keyed checksum on each, large ones in chunks, encrypted on demand.

::

    key            ► checksum (16), 0, payload
    key            ► checksum (16), 1, chunks (4), bytes (8)        a large payload
    key + n (4)    ► checksum (16), 2, n-th chunk

Where payload or chunk is encrypted, 16 is added to the kind.

The checksum covers the record's place (its database and key) too, so that a record that
was moved to another place does not hold there. Values are pickles: nothing of a record is
decoded before its checksum holds. A chunk fills whole pages of the map together with
LMDB's own header, so that any other value can use the room of a dropped one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from flowpregel.errors import ConfigurationError, StoreCorruptError, StoreForeignError

SIZE = 16
NOT_ENCRYPTED = ""
"""The name, in a header, of no encryption key."""
_PAGES_HEADER = 16
CHUNK = (1 << 20) - _PAGES_HEADER - SIZE - 1
_WHOLE, _CHUNKED, _PIECE = 0, 1, 2
_ENCRYPTED = 16
_COUNTS = struct.Struct(">IQ")
_HEAD = SIZE + 1
_NONCE = 12


class EncryptedCodec:
    """Encrypts payloads with AES-GCM, each bound to its record's place.

    ::

        nonce (12), ciphertext, tag (16)

    Args:
        key: 16, 24 or 32 bytes.

    Raises:
        ConfigurationError: The package that this needs is not installed.
    """

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415 - an extra
                AESGCM,
            )
        except ImportError as error:
            raise ConfigurationError(
                "encryption needs the package cryptography; install flowpregel[crypto]"
            ) from error
        self._cipher = AESGCM(key)

    def encode(self, payload: bytes | memoryview, place: bytes) -> bytes:
        """Return *payload* encrypted, for a record at *place*."""
        nonce = os.urandom(_NONCE)
        encrypted: bytes = self._cipher.encrypt(nonce, payload, place)
        return nonce + encrypted

    def decode(self, data: bytes, place: bytes) -> bytes:
        """Return what `encode` was given for a record at *place*.

        Raises:
            StoreForeignError: It was encrypted under another key, or for another place.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            payload: bytes = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], place)
        except InvalidTag as error:
            raise StoreForeignError(
                "a record was encrypted under another encryption_key"
            ) from error
        return payload


class Seal:
    """Makes and checks the checksums of one store, and encrypts if there is a key for that.

    Args:
        key: The secret; any length.
        encryption_key: 16, 24 or 32 bytes; None: records are not encrypted.

    Raises:
        ConfigurationError: The extra that encryption needs is not installed.
    """

    def __init__(self, key: bytes, encryption_key: bytes | None = None) -> None:
        self._base = blake2b(key=digest(key, b"seal"), digest_size=SIZE)
        self.key = key
        self.id = _name(key)
        """Names the key without telling it."""
        self.encrypted = None if encryption_key is None else EncryptedCodec(encryption_key)
        self.encryption = NOT_ENCRYPTED if encryption_key is None else _name(encryption_key)
        """Names the key that records are encrypted under."""

    def of(self, place: bytes, *parts: bytes | memoryview) -> bytes:
        """Return the checksum of a record made of *parts* at *place*."""
        checksum = self._base.copy()
        checksum.update(b"%d:%b" % (len(place), place))
        for part in parts:
            checksum.update(part)
        return checksum.digest()


class Table:
    """One database of a store; every method takes the transaction to use.

    Args:
        name: The database's name.
        path: The store's folder.
        databases: LMDB's handles, by name; others after the file was opened again.
        seal: Makes and checks the checksums.
    """

    def __init__(self, name: bytes, path: str, databases: Mapping[bytes, Any], seal: Seal) -> None:
        self.name = name
        self._path = path
        self._databases = databases
        self._seal = seal

    @property
    def handle(self) -> Any:
        """LMDB's handle; another one after the file was opened again."""
        return self._databases[self.name]

    # ------------------------------------------------------------ one record

    def get(self, transaction: Any, key: bytes) -> bytes | None:
        """Return a copy of the payload at *key*, or None."""
        record = transaction.get(key, db=self._databases[self.name])
        return None if record is None else self._payload(transaction, key, record)

    def put(self, transaction: Any, key: bytes, payload: bytes) -> bool:
        """Keep *payload* (of any length) at *key* (of at most 500 bytes).

        Returns:
            Whether there was something, which is replaced.
        """
        handle = self._databases[self.name]
        old = transaction.get(key, db=handle)
        if old is not None and kind_of(old) == _CHUNKED:
            self.delete(transaction, key)
        kind = _WHOLE
        if len(payload) > CHUNK:
            kind, view = _CHUNKED, memoryview(payload)
            payload = _COUNTS.pack(-(-len(view) // CHUNK), len(view))
            for place, start in _chunks(key, len(view)):
                piece = self.sealed(place, _PIECE, view[start : start + CHUNK])
                transaction.put(place, piece, db=handle)
        record = self.sealed(key, kind, payload)
        # LMDB fills a page to its end only where the greatest key is appended.
        if not transaction.put(key, record, append=True, db=handle):
            transaction.put(key, record, db=handle)
        return old is not None

    def delete(self, transaction: Any, key: bytes) -> bool:
        """Drop what is at *key*; return whether there was something."""
        record = transaction.get(key, db=self.handle)
        if record is not None and kind_of(record) == _CHUNKED:
            for place, _ in _chunks(key, _COUNTS.unpack(self.opened(key, record))[1]):
                transaction.delete(place, db=self.handle)
        return bool(transaction.delete(key, db=self.handle))

    def has(self, transaction: Any, key: bytes) -> bool:
        """Return whether there is something at *key*, without checking whether it holds."""
        return transaction.get(key, db=self.handle) is not None

    # ------------------------------------------------------------ many records

    def scan(
        self, transaction: Any, prefix: bytes, start: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, payload) of all keys that begin with *prefix*, from *start* on.

        With *backwards* the greatest key comes first, of those that are smaller than *start*.
        """
        with transaction.cursor(db=self.handle) as cursor:
            found = cursor.set_range(start or (after(prefix) if backwards else prefix))
            if backwards:
                found = cursor.prev() if found else cursor.last()
            while found:
                key, record = cursor.item()
                if not key.startswith(prefix):
                    return
                if kind_of(record) != _PIECE:
                    yield key, self._payload(transaction, key, record)
                found = cursor.prev() if backwards else cursor.next()

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

    def copy(self, transaction: Any, source: bytes, target: bytes) -> None:
        """Copy everything whose key begins with *source* to keys that begin with *target*."""
        for key in self.keys(transaction, source):
            record = transaction.get(key, db=self.handle)
            place = target + key[len(source) :]
            fresh = self.sealed(place, kind_of(record), self.opened(key, record))
            transaction.put(place, fresh, db=self.handle)

    def drop(self, transaction: Any, prefix: bytes) -> None:
        """Drop everything whose key begins with *prefix*."""
        with transaction.cursor(db=self.handle) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    # ------------------------------------------------------------ what holds

    def check(self, transaction: Any, key: bytes) -> None:
        """Raise `StoreCorruptError` unless the record at *key*, if it is there, holds."""
        record = transaction.get(key, db=self.handle)
        if record is not None:
            with suppress(StoreForeignError):  # it may be encrypted, and nobody gave the key
                self.opened(key, record)

    def corrupt(self, key: bytes, what: str) -> StoreCorruptError:
        """Return the error that says *what* of the record at *key*."""
        return StoreCorruptError(
            f"record {key.hex()} in {self.name.decode()} of {self._path} {what}; "
            "restore a backup, or run verify() to see what else is damaged"
        )

    def sealed(self, key: bytes, kind: int, payload: bytes | memoryview) -> bytes:
        """Return the record of *payload* at *key*."""
        place, encrypted = self.name + key, self._seal.encrypted
        if encrypted is not None:
            kind, payload = kind | _ENCRYPTED, encrypted.encode(payload, place)
        head = bytes((kind,))
        return b"".join((self._seal.of(place, head, payload), head, payload))

    def opened(self, key: bytes, record: bytes) -> bytes:
        """Return the payload of a *record* that was at *key*, after checking that it holds."""
        expected = self._seal.of(self.name + key, memoryview(record)[SIZE:])
        if len(record) < _HEAD or record[:SIZE] != expected:
            raise self.corrupt(key, "is damaged, or was not written there")
        if not record[SIZE] & _ENCRYPTED:
            return record[_HEAD:]
        encrypted = self._seal.encrypted
        if encrypted is None:
            raise StoreForeignError(
                f"{self._path} is encrypted; pass its key as StoreOptions(encryption_key=...)"
            )
        return encrypted.decode(record[_HEAD:], self.name + key)

    # ------------------------------------------------------------ large payloads

    def _payload(self, transaction: Any, key: bytes, record: bytes) -> bytes:
        payload = self.opened(key, record)
        if record[SIZE] & ~_ENCRYPTED == _WHOLE:
            return payload
        count, size = _COUNTS.unpack(payload)
        pieces = []
        for place, _ in _chunks(key, size):
            piece = transaction.get(place, db=self.handle)
            if piece is None:
                raise self.corrupt(place, "is missing: a part of a large value")
            pieces.append(self.opened(place, piece))
        payload = b"".join(pieces)
        if len(payload) != size or len(pieces) != count:
            raise self.corrupt(key, "has not the length it says")
        return payload


def _chunks(key: bytes, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the key of each chunk of a large payload, and where in it the chunk begins."""
    for start in range(0, size, CHUNK):
        yield key + (start // CHUNK).to_bytes(4, "big"), start


def kind_of(record: bytes) -> int:
    """Return what a record is: whole, a large one's head, or a chunk."""
    return record[SIZE] & ~_ENCRYPTED if len(record) >= _HEAD else _WHOLE


def after(prefix: bytes) -> bytes:
    """Return the smallest key greater than all that begin with *prefix*."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\xff" * 500


def digest(data: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes that name *data* for one *purpose*."""
    return blake2b(data, digest_size=32, person=b"flowpregel" + purpose).digest()


def digest_of(labels: Sequence[str]) -> bytes:
    """Return 16 bytes that stand for *labels*, which may be any texts."""
    summed = blake2b(digest_size=16)
    for label in labels:
        data = label.encode("utf-8", "surrogatepass")
        summed.update(len(data).to_bytes(8, "big") + data)
    return summed.digest()


def _name(key: bytes) -> str:
    return digest(key, b"name")[:8].hex()
