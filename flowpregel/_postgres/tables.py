"""One kind of records in a store's database, sealed as those of an LMDB store are.

::

    kind (1) + key ► checksum (16), 0, payload

A record is one row however large it is: PostgreSQL itself cuts what is large into chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowpregel._lmdb.records import Seal, Table, after
from flowpregel._postgres.transactions import CACHE, DELTAS, STORE, THREADS
from flowpregel.errors import ValueEncodingError

KINDS = {
    b"meta": b"m", b"threads": THREADS, b"checkpoints": b"c", b"values": b"v",
    b"deltas": DELTAS, b"writes": b"w", b"store": STORE, b"cache": CACHE,
    b"live": b"l",
}  # fmt: skip
_WHOLE = 0
_LARGEST = 1_000_000_000
"""PostgreSQL's own limit for a field is a little above."""
_FIRST_PAGE, _LARGEST_PAGE = 16, 256


class PostgresTable(Table):
    """One kind of records; every method takes the transaction to use.

    Args:
        name: The kind.
        path: The database, for messages.
        seal: Makes and checks the checksums.
    """

    def __init__(self, name: bytes, path: str, seal: Seal) -> None:
        super().__init__(name, path, {}, seal)
        self._kind = KINDS[name]

    def record(self, transaction: Any, key: bytes) -> bytes | None:
        found: bytes | None = transaction.get(self._kind + key)
        return found

    def get(self, transaction: Any, key: bytes) -> bytes | None:
        record = self.record(transaction, key)
        return None if record is None else self.opened(key, record)[1]

    def check(self, transaction: Any, key: bytes) -> None:
        self.get(transaction, key)

    def expect(self, transaction: Any, keys: list[bytes]) -> None:
        transaction.expect([self._kind + key for key in keys])

    def put(self, transaction: Any, key: bytes, payload: bytes) -> None:
        if len(payload) > _LARGEST:
            raise ValueEncodingError(
                f"a value of {len(payload):,} bytes is too large for PostgreSQL, which keeps at "
                "most 1 GB: keep it in a file, and its path here"
            )
        transaction.put(self._kind + key, self.sealed(key, _WHOLE, payload))

    def delete(self, transaction: Any, key: bytes) -> bool:
        was_there = transaction.get(self._kind + key) is not None
        if was_there:
            transaction.put(self._kind + key, None)
        return was_there

    discard = delete

    def scan(
        self, transaction: Any, prefix: bytes, start: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        low, high = (prefix, start) if start and backwards else (start or prefix, after(prefix))
        for key, record in self._rows(transaction, low, high, "DESC" if backwards else "ASC"):
            yield key, self.opened(key, record)[1]

    def keys(
        self, transaction: Any, prefix: bytes, start: bytes = b"", limit: int | None = None
    ) -> list[bytes]:
        low, high = self._kind + (start or prefix), self._kind + after(prefix)
        return [key[1:] for (key,) in transaction.page(low, high, limit, "ASC", "key")]

    def drop(self, transaction: Any, prefix: bytes) -> None:
        transaction.drop(self._kind + prefix, self._kind + after(prefix))

    def _rows(
        self, transaction: Any, low: bytes, high: bytes, order: str
    ) -> Iterator[tuple[bytes, bytes]]:
        limit = _FIRST_PAGE
        while True:
            page = transaction.page(self._kind + low, self._kind + high, limit, order)
            yield from ((key[1:], record) for key, record in page)
            if len(page) < limit:
                return
            last, limit = page[-1][0][1:], _LARGEST_PAGE
            low, high = (low, last) if order == "DESC" else (last + b"\0", high)
