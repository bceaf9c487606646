"""The tables of a store, which have records by key, in the order of the keys.

An engine keeps *records*, which are opaque bytes. `Table` turns payloads into sealed
records (with a keyed checksum, and perhaps encrypted) and back, so no engine can return
a record that was damaged or moved::

    saver ── payload ──► Table.put ── sealed record ──► put_record   an engine's
          ◄── payload ── Table.get ◄── checked record ── record      six methods
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self, TypeAlias

from flowpregel.errors import StoreForeignError
from flowpregel.storage.records import HEADER, WHOLE, SealedRecords

Resolver: TypeAlias = Callable[[Any, bytes, bytes], bytes]
"""A function that returns a payload with the values that other records have in place of
references to them. Its arguments are the transaction, the key and the stored payload.
"""


class Table(SealedRecords, ABC):
    """A table of one store. Every method takes the transaction to use.

    A transaction is the object that `Store.read` and `Store.write` pass to their work.
    Only the engine's own tables access its contents. A subclass implements the six
    abstract methods. Keys are at most 500 bytes long, and are ordered bytewise.

    A subclass that overrides `get` or `scan` too must pass each payload through
    `resolver`, unless that is None.

    Args:
        name: The name of the table, one of `TABLE_NAMES`.
        path: The location of the store, for messages.
        seal: The keys of the store, for checksums and encryption.
    """

    resolver: Resolver | None = None
    """The function that `get` and `scan` apply to each payload, or None."""

    def with_resolver(self, resolver: Resolver) -> Self:
        """Return a table with the same records, whose `get` and `scan` apply *resolver*
        to each payload.
        """
        table = copy.copy(self)
        table.resolver = resolver
        return table

    # ------------------------------------------------------------ an engine's part

    @abstractmethod
    def record(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        """Return the record at *key*, or None.

        Args:
            transaction: An open transaction of the store.
            key: The key of the record.
        """

    @abstractmethod
    def put_record(
        self,
        transaction: Any,
        key: bytes,
        record: bytes,
    ) -> None:
        """Store *record* at *key*, in place of an earlier record at that key.

        Args:
            transaction: A write transaction of the store.
            key: The key of the record.
            record: The bytes of the record.
        """

    @abstractmethod
    def discard(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        """Delete the record at *key*, and return True if there was one.

        Args:
            transaction: A write transaction of the store.
            key: The key of the record.
        """

    @abstractmethod
    def records(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, record) for all keys that begin with *prefix*, in key order.

        The caller may stop at any record, and may delete records that were yielded.

        Args:
            transaction: An open transaction of the store.
            prefix: The bytes with which the keys begin.
            start: The smallest key to yield. With *backwards*, only smaller keys than
                this are yielded.
            backwards: Yield the greatest key first.
        """

    @abstractmethod
    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        """Return the keys that begin with *prefix*, in key order.

        Args:
            transaction: An open transaction of the store.
            prefix: The bytes with which the keys begin.
            start: The smallest key to return.
            limit: The greatest number of keys to return.
        """

    @abstractmethod
    def drop(
        self,
        transaction: Any,
        prefix: bytes,
    ) -> None:
        """Delete all records whose keys begin with *prefix*.

        Args:
            transaction: A write transaction of the store.
            prefix: The bytes with which the keys begin.
        """

    def expect(
        self,
        transaction: Any,
        keys: list[bytes],
    ) -> None:
        """Prepare to read *keys*. A database on another machine fetches them in one
        round trip.

        Args:
            transaction: An open transaction of the store.
            keys: The keys that will be read.
        """

    def expect_prefixes(
        self,
        transaction: Any,
        prefixes: list[bytes],
    ) -> None:
        """Prepare to read the keys that begin with each of *prefixes*. A database on
        another machine fetches the first records of each prefix in one round trip.

        Args:
            transaction: An open transaction of the store.
            prefixes: The prefixes. None of them begins with another one.
        """

    # ------------------------------------------------------------ payloads

    def get(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        """Return the payload at *key*, or None.

        Args:
            transaction: An open transaction of the store.
            key: The key of the payload.
        """
        record = self.record(transaction, key)
        if record is None:
            return None
        _, payload = self.opened(key, record)
        if self.resolver is not None:
            payload = self.resolver(transaction, key, payload)
        return payload

    def put(
        self,
        transaction: Any,
        key: bytes,
        payload: bytes,
    ) -> None:
        """Store *payload* at *key*.

        Args:
            transaction: A write transaction of the store.
            key: The key of the payload.
            payload: The bytes to store.
        """
        record = self.sealed(key, WHOLE, payload)
        self.put_record(transaction, key, record)

    def delete(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        """Delete the payload at *key*, and return True if there was one.

        Args:
            transaction: A write transaction of the store.
            key: The key of the payload.
        """
        return self.discard(transaction, key)

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, payload) as `records` yields (key, record).

        Args:
            transaction: An open transaction of the store.
            prefix: The bytes with which the keys begin.
            start: The smallest key to yield. With *backwards*, only smaller keys than
                this are yielded.
            backwards: Yield the greatest key first.
        """
        records = self.records(transaction, prefix, start, backwards=backwards)
        for key, record in records:
            _, payload = self.opened(key, record)
            if self.resolver is not None:
                payload = self.resolver(transaction, key, payload)
            yield key, payload

    def copy(
        self,
        transaction: Any,
        source: bytes,
        target: bytes,
    ) -> None:
        """Copy all payloads whose keys begin with *source* to keys that begin with
        *target*.

        Args:
            transaction: A write transaction of the store.
            source: The bytes with which the keys of the payloads begin.
            target: The bytes with which the keys of the copies begin.
        """
        for key, payload in self.scan(transaction, source):
            rest = key[len(source) :]
            self.put(transaction, target + rest, payload)

    # ------------------------------------------------------------ verification

    def check(
        self,
        transaction: Any,
        key: bytes,
    ) -> None:
        """Raise `StoreCorruptError` if the record at *key* is damaged.

        The header has another form than other records. It is checked when the store is
        opened.

        Args:
            transaction: An open transaction of the store.
            key: The key of the record.
        """
        if not key:
            raise self.corrupt(key, "has no key")
        record = self.record(transaction, key)
        if record is not None and self.name + key != b"meta" + HEADER:
            # The checksum is verified before the record is decrypted. So
            # StoreForeignError means that only the encryption key is missing, and the
            # record is not damaged.
            with suppress(StoreForeignError):
                self.opened(key, record)
