"""Results of calls that finished: left in the store, and read when a call is replayed.

A run that goes on may have a hundred thousand of them. Its body asks for one after
the other, and drops it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowpregel._core.records import CALLED, RAN, RETURN, Write
from flowpregel._lmdb.codec import Codec
from flowpregel.checkpoint.lmdb import keys, taskrecord
from flowpregel.checkpoint.lmdb.book import Book, Read
from flowpregel.checkpoint.lmdb.plain import value_of
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.taskrecord import Packed


class Sieve:
    """Tells the records of calls that finished, and left nothing else, from all others.

    Args:
        book: The store's records.
        transaction: Open as long as the sieve is used.
    """

    def __init__(self, book: Book, transaction: Any) -> None:
        self._book = book
        self._transaction = transaction
        self._known: dict[tuple[int, ...], bool] = {}
        """By the numbers of the channels that a task wrote to."""
        self.count = 0
        """How many it has left."""

    def leaves(self, task: Packed) -> bool:
        """Return whether *task* is to be left in the store."""
        channels = task[3]
        left = self._known.get(channels)
        if left is None:
            names = {self._book.names.name(self._transaction, each) for each in channels}
            left = self._known[channels] = {RETURN, CALLED} <= names <= {RETURN, CALLED, RAN}
        self.count += left
        return left


class Results:
    """Reads the results that were left.

    Args:
        book: The store's records.
        read: Runs a function in a read transaction.
        codec: Decodes values.
        scope: What they belong to.
        number: The checkpoint's.
    """

    def __init__(self, book: Book, read: Read, codec: Codec, scope: Scope, number: int) -> None:
        self._book = book
        self._read = read
        self._codec = codec
        self._head = keys.log(scope.number, number, keys.WRITE)

    def __call__(self, task_id: str) -> Sequence[Write]:
        """Return what is kept of the call, empty if it has not finished.

        Raises:
            StoreCorruptError: Its record is damaged.
            ValueEncodingError: Its result cannot be read back.
        """
        key = self._head + keys.task(task_id)
        found: tuple[Packed, list[str]] | None = self._read(lambda t: self._found(t, key))
        if found is None:
            return ()
        packed, names = found
        if RETURN not in names:
            return ()
        codec, what = self._codec, f"the write of task {task_id!r} to"
        return [
            (name, value_of(codec, kept, f"{what} {name!r}"))
            for name, kept in zip(names, packed[4], strict=True)
            if name != RAN
        ]

    def _found(self, transaction: Any, key: bytes) -> tuple[Packed, list[str]] | None:
        record = self._book.log.get(transaction, key)
        if record is None:
            return None
        packed = taskrecord.from_bytes(record)
        return packed, [self._book.names.name(transaction, each) for each in packed[3]]
