"""What the journal of a store has and LMDB's file has not, as this process knows it.

::

    write ──► `Draft` ──► record in the journal, flushed ──► `add` ──► seen by all
                │ too much, or too many
                └──► LMDB's transaction: `apply`, the work, commit ──► `moved`

Those who write hold the store's write lock, and find what others put there by looking for
the next record. Those who only read cannot do that, since a record may be on its way to
the disk, or be taken back: they are told in a file of its own up to where it is safe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from flowpregel._fault import fault
from flowpregel._lmdb.failures import JournalFailedError
from flowpregel._lmdb.journal import SIZE, Journal, Record
from flowpregel._lmdb.overlay import Draft, Layer, Overlaid, TooMuchError, apply
from flowpregel.errors import StoreCorruptError

_MOST = 64
"""Records after which LMDB's file is written."""
_SMALLEST = 1 << 10
"""Bytes that must be free in the journal for another record."""


class Missing(NamedTuple):
    """What was told to be on disk, and was not there."""

    base: int
    end: int


class Pending:
    """The records on the newest transaction of LMDB's.

    Args:
        path: The store's folder.
        readonly: Nothing is written.
    """

    def __init__(self, path: str, *, readonly: bool) -> None:
        self._path = path
        self._readonly = readonly
        self._journal = Journal(path, readonly=readonly)
        self._lock = threading.Lock()
        """Held to open the journal, and to change what is below."""
        self._base = 0
        self._count = 0
        self._end = 0
        """The bytes that the records take."""
        self._layers: dict[int, Layer] = {}
        self._lasts: dict[int, bytes] = {}
        """The greatest keys that whoever writes has come across; none that is too small."""
        self._number = 0
        """Of the last transaction, as `Draft.id` says it."""
        self._known = (0, 0)
        """Where whoever writes left base and end."""
        self._has_journal = True
        """Whether there is one, or could be."""
        self.is_untold = False
        """Whether those who only read could not be told of the last record."""

    @property
    def is_empty(self) -> bool:
        """Whether LMDB's file has everything, as far as is known."""
        return not self._count

    # ------------------------------------------------------------ for those who read

    def seen(self, transaction: Any, numbers: Mapping[Any, int], missing: Missing | None) -> Any:
        """Return what a read *transaction* of LMDB's is to be used as.

        Args:
            transaction: It.
            numbers: The number of each database, by LMDB's handle.
            missing: What this has returned for the transaction before this one.

        Returns:
            `Missing` if LMDB may have moved on meanwhile: another transaction is to be begun.

        Raises:
            StoreCorruptError: A record is missing, and LMDB has not moved on.
            JournalFailedError: The journal could not be read.
        """
        base = transaction.id()
        try:
            with self._lock:
                told = self._journal.published(base)
                if base < self._base:
                    return Missing(base, 0)
                self._be_on(base)
                if told > self._end:
                    self._load(told)
                if told > self._end:
                    if missing == Missing(base, told):
                        raise self._damaged()
                    return Missing(base, told)
                if not self._count:
                    return transaction
                layers = {number: layer.copy() for number, layer in self._layers.items()}
        except OSError as error:
            raise JournalFailedError(error) from error
        return Overlaid(transaction, numbers, layers)

    # ------------------------------------------------------------ for those who write

    def catch_up(self, base: int) -> None:
        """Take in what others have put; *base* is LMDB's newest transaction.

        For whoever holds the store's write lock.

        Raises:
            StoreCorruptError: A record is damaged that is not the last.
            JournalFailedError: The journal could not be read, or written.
        """
        try:
            with self._lock:
                self._be_on(base)
                self._load(SIZE)
                if (base, self._end) != self._known:
                    self._look_around()
        except OSError as error:
            raise JournalFailedError(error) from error

    @property
    def next_number(self) -> int:
        """The number of the next transaction: one more than the last, if that was ours."""
        return self._number + 1

    def draft(self, transaction: Any, numbers: Mapping[Any, int], size: int = 0) -> Draft:
        """Return what a small transaction is to be made on.

        Args:
            transaction: A read transaction of LMDB's.
            numbers: The number of each database, by LMDB's handle.
            size: About how many bytes it will take.

        Raises:
            TooMuchError: It is LMDB's turn.
        """
        room = SIZE - self._end - _SMALLEST
        if self._count >= _MOST or room <= size:
            raise TooMuchError
        return Draft(
            transaction,
            numbers,
            self._layers,
            lasts=self._lasts,
            number=self.next_number,
            room=room,
        )

    def make(self) -> bool:
        """Make the journal, if it is not there; return whether that was possible."""
        if self._has_journal:
            try:
                with self._lock:
                    self._journal.make()
            except OSError:
                # The disk is full, most likely: LMDB may still have pages that are free.
                self._has_journal = False
        return self._has_journal

    def add(self, draft: Draft) -> None:
        """Put a transaction into the journal, on disk, and let it be seen.

        Raises:
            JournalFailedError: It was not possible.
        """
        base, place, at = self._base, self._count + 1, self._end
        fault("store.journal.before")
        try:
            end = self._journal.put(base, place, at, draft.changes)
        except OSError as error:
            self._take_back(at)
            raise JournalFailedError(error) from error
        fault("store.journal.after")
        with self._lock:
            for number, layer in draft.own.items():
                self._layers.setdefault(number, {}).update(layer)
            self._count, self._end = place, end
            self._known = base, end
            self._number += 1
        self._tell()

    def _take_back(self, at: int) -> None:
        try:
            self._journal.take_back(at)
        except OSError as error:
            raise JournalFailedError(error, is_known=False) from error

    def apply(self, transaction: Any, databases: Mapping[bytes, Any]) -> None:
        """Put all there is into a write transaction of LMDB's."""
        apply(transaction, databases, self._layers)

    def moved(self, base: int) -> None:
        """Note that all is in LMDB's transaction *base*, which is on disk, and ours."""
        with self._lock:
            self._be_on(base)
            self._known = base, 0
            self._number += 1
            self.is_untold = False

    def clear(self) -> None:
        """Let there be no record in the journal, since LMDB is about to count anew.

        Raises:
            OSError: It was not possible.
        """
        self._journal.clear()
        with self._lock:
            self._be_on(0)

    def close(self) -> None:
        """Close the files."""
        self._journal.close()

    def _tell(self) -> None:
        try:
            self._journal.publish(self._base, self._end)
        except OSError:
            self.is_untold = True

    # ------------------------------------------------------------ with the lock

    def _look_around(self) -> None:
        """See to what others have left."""
        self._known = self._base, self._end
        # Not the number after ours: whoever keeps things in mind has to look again.
        self._number += 2
        self._lasts = {}
        if self._journal.is_cut(self._base, self._count + 1, self._end):
            raise self._damaged()
        if self._readonly:
            return
        if self._journal.is_ahead(self._base):
            self._journal.clear()
        if self._count:
            self._tell()

    def _be_on(self, base: int) -> None:
        if base != self._base:
            self._base = base
            self._count = self._end = 0
            self._layers = {}

    def _load(self, until: int) -> None:
        for record in self._journal.read(self._base, self._count + 1, self._end, until):
            self._take_in(record)

    def _take_in(self, record: Record) -> None:
        for number, key, value in record.changes:
            self._layers.setdefault(number, {})[key] = value
        self._count, self._end = record.place, record.end

    def _damaged(self) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self._path}: record {self._count + 1} of the journal is damaged, and not the last; "
            "restore a backup, or remove the file `journal` to lose what is in it"
        )
