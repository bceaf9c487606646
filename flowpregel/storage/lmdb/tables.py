"""The tables of a store in LMDB, which are databases of one environment.

A payload over a mebibyte is stored in chunks. Each chunk has its own key::

    key            ► the head: the number of bytes (8)
    key + n (4)    ► the n-th chunk

A chunk and LMDB's own header together fill whole pages of the map, so the space of a
deleted chunk can be reused for any other value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import Any

from flowpregel.storage.records import KIND_END, SIZE, WHOLE, Seal, after
from flowpregel.storage.tables import Table

_PAGES_HEADER = 16
CHUNK = (1 << 20) - _PAGES_HEADER - SIZE - 1
"""The size, in bytes, of a chunk, and of the largest payload that is stored whole."""
_CHUNKED = 1
_PIECE = 2
_CHUNKED_MARKS = (b"\1", b"\x11")
_PIECE_MARKS = (b"\2", b"\x12")
"""The bytes (kinds of records) that mark a record as a chunk: the first for an
unencrypted record, the second for an encrypted one.
"""


class LMDBTable(Table):
    """One database of an environment.

    The transaction is an LMDB transaction. Some methods call it directly instead of
    other methods of this class, for speed: each superstep calls them several times.

    Args:
        name: The name of the database.
        path: The folder of the store, for messages.
        seal: The keys of the store, for checksums and encryption.
        databases: LMDB's database handles by name. The handles in this mapping change
            when the file is opened again.
    """

    def __init__(
        self,
        name: bytes,
        path: str,
        seal: Seal,
        databases: Mapping[bytes, Any],
    ) -> None:
        super().__init__(name, path, seal)
        self._databases = databases

    # ------------------------------------------------------------ records

    def record(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        record: bytes | None = transaction.get(key, db=self._databases[self.name])
        return record

    def put_record(
        self,
        transaction: Any,
        key: bytes,
        record: bytes,
    ) -> None:
        database = self._databases[self.name]
        # Appending is tried first, because LMDB fills pages completely only when keys
        # are appended in ascending order.
        if not transaction.put(key, record, append=True, db=database):
            transaction.put(key, record, db=database)

    def discard(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        return bool(transaction.delete(key, db=self._databases[self.name]))

    def records(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            if backwards:
                is_found = cursor.set_range(start or after(prefix))
                is_found = cursor.prev() if is_found else cursor.last()
            else:
                is_found = cursor.set_range(start or prefix)
            while is_found and cursor.key().startswith(prefix):
                yield cursor.item()
                is_found = cursor.prev() if backwards else cursor.next()

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        """Return the keys that begin with *prefix*, including the keys of chunks."""
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            if not cursor.set_range(start or prefix):
                return []
            keys = cursor.iternext(values=False)
            return [*takewhile(after(prefix).__gt__, islice(keys, limit))]

    def drop(
        self,
        transaction: Any,
        prefix: bytes,
    ) -> None:
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            is_found = cursor.set_range(prefix)
            while is_found and cursor.key().startswith(prefix):
                is_found = cursor.delete()

    # ------------------------------------------------------------ payloads

    def get(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        record = transaction.get(key, db=self._databases[self.name])
        if record is None:
            return None
        kind, payload = self.opened(key, record)
        if kind != WHOLE:
            payload = self._joined(transaction, key, payload)
        if self.resolver is not None:
            payload = self.resolver(transaction, key, payload)
        return payload

    def put(
        self,
        transaction: Any,
        key: bytes,
        payload: bytes,
    ) -> None:
        database = self._databases[self.name]
        is_whole = len(payload) <= CHUNK
        if is_whole:
            record = self.sealed(key, WHOLE, payload)
            # LMDB fills pages completely only when keys are appended in ascending
            # order. A key that can be appended is new, so it has no chunks to delete.
            if transaction.put(key, record, append=True, db=database):
                return
        earlier = transaction.get(key, db=database)
        if earlier is not None and earlier[SIZE:KIND_END] in _CHUNKED_MARKS:
            self._delete_chunks(transaction, key, earlier)
        if not is_whole:
            head = self._put_chunks(transaction, key, memoryview(payload))
            record = self.sealed(key, _CHUNKED, head)
        transaction.put(key, record, db=database)

    def delete(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        record = self.record(transaction, key)
        if record is not None and record[SIZE:KIND_END] in _CHUNKED_MARKS:
            self._delete_chunks(transaction, key, record)
        return self.discard(transaction, key)

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        records = self.records(transaction, prefix, start, backwards=backwards)
        for key, record in records:
            if record[SIZE:KIND_END] in _PIECE_MARKS:
                continue
            kind, payload = self.opened(key, record)
            if kind != WHOLE:
                payload = self._joined(transaction, key, payload)
            if self.resolver is not None:
                payload = self.resolver(transaction, key, payload)
            yield key, payload

    # ------------------------------------------------------------ chunks

    def _put_chunks(
        self,
        transaction: Any,
        key: bytes,
        payload: memoryview,
    ) -> bytes:
        """Store a large payload in chunks, and return the payload's head."""
        database = self._databases[self.name]
        for chunk_key, start in _chunks(key, len(payload)):
            chunk = payload[start : start + CHUNK]
            record = self.sealed(chunk_key, _PIECE, chunk)
            transaction.put(chunk_key, record, db=database)
        return len(payload).to_bytes(8, "big")

    def _delete_chunks(
        self,
        transaction: Any,
        key: bytes,
        record: bytes,
    ) -> None:
        """Delete the chunks of the payload at *key*, whose head is in *record*."""
        _, head = self.opened(key, record)
        for chunk_key, _ in _chunks(key, int.from_bytes(head, "big")):
            self.discard(transaction, chunk_key)

    def _joined(
        self,
        transaction: Any,
        key: bytes,
        head: bytes,
    ) -> bytes:
        """Return the large payload at *key*."""
        size = int.from_bytes(head, "big")
        chunks = []
        for chunk_key, _ in _chunks(key, size):
            record = self.record(transaction, chunk_key)
            if record is None:
                raise self.corrupt(chunk_key, "is missing: a part of a large value")
            _, chunk = self.opened(chunk_key, record)
            chunks.append(chunk)
        payload = b"".join(chunks)
        if len(payload) != size:
            raise self.corrupt(key, "does not have its recorded length")
        return payload


def _chunks(key: bytes, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the key of each chunk, and the position in the payload of the chunk's first
    byte.
    """
    for number, start in enumerate(range(0, size, CHUNK)):
        yield key + number.to_bytes(4, "big"), start
