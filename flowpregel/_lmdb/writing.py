"""A write transaction of a store: into its journal, or into LMDB's file.

::

    work ──► `Draft` ──► the journal, one flush
               │ too much for it, or many are there
               └──► LMDB's transaction, with all that is in the journal ──► commit, two flushes

Both are on disk before anybody sees them. *work* may be called again: on LMDB's transaction
where it was too much for the journal; and after the map grew, or was grown by another
process, when LMDB's transaction is dead and the whole of it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

from flowpregel._fault import fault
from flowpregel._lmdb import engine, failures
from flowpregel._lmdb.failures import CommitFailedError, JournalFailedError
from flowpregel._lmdb.journal import SIZE
from flowpregel._lmdb.mapped import MappedFile
from flowpregel._lmdb.overlay import Counted, TooMuchError
from flowpregel._lmdb.pending import Pending
from flowpregel.errors import StoreError

Result = TypeVar("Result")
Given = TypeVarTuple("Given")
Work = Callable[[Any], Result]


class Writing:
    """Writes to a store; for whoever keeps all others out who write.

    Args:
        path: The store's folder.
        file: Its data file.
        pending: What is in its journal.
    """

    def __init__(self, path: str, file: MappedFile, pending: Pending) -> None:
        self._path = path
        self._file = file
        self._pending = pending

    def write(self, work: Work[Result], *, size: int) -> Result:
        """Return what *work* returns, once what it did is on disk.

        Args:
            work: A function of the transaction.
            size: About how many bytes it puts there.
        """
        result = self._repeated(self._attempt, work, size)
        if self._pending.is_untold:
            # It is on disk, but other processes could not be told where.
            with suppress(StoreError):
                self.empty_journal()
        return result

    def catch_up(self) -> None:
        """Take in what other processes have put into the journal."""
        self._repeated(self._catch_up)

    def empty_journal(self) -> None:
        """Let LMDB's file have everything."""
        self.catch_up()
        if not self._pending.is_empty:
            self._repeated(self._commit, lambda _: None)

    def _repeated(self, do: Callable[[*Given], Result], *given: *Given) -> Result:
        """Return ``do(*given)``, which is called again as long as the map is to grow."""
        while True:
            try:
                with self._file.gate:
                    return do(*given)
            except engine.error("MapFullError"):
                self._file.grow()
            except engine.error("MapResizedError"):
                self._file.adopt_size()
            except engine.error("ReadersFullError"):
                self._file.free_readers()
            except engine.error("Error") as error:
                raise failures.translated(error, self._path) from error
            except JournalFailedError as error:
                raise failures.of_commit(error, self._path) from error
            except CommitFailedError as failed:
                landed = self._file.reopened_after(failed.transaction_id)
                if not landed:
                    raise failures.of_commit(failed.error, self._path) from failed.error
                return failed.result  # type: ignore[no-any-return]

    def _catch_up(self) -> None:
        with self._file.live().begin() as transaction:
            self._pending.catch_up(transaction.id())

    def _attempt(self, work: Work[Result], size: int) -> Result:
        if size < SIZE and self._pending.make():
            with suppress(TooMuchError):
                return self._put_down(work, size)
        return self._commit(work)

    def _put_down(self, work: Work[Result], size: int) -> Result:
        """Do *work* in a transaction that goes into the journal.

        Raises:
            TooMuchError: It cannot.
        """
        fault("store.write.begin")
        with self._file.live().begin() as transaction:
            self._pending.catch_up(transaction.id())
            draft = self._pending.draft(transaction, self._file.numbers, size)
            result = work(draft)
        fault("store.write.before")
        if draft.changes:
            self._pending.add(draft)
        fault("store.write.after")
        return result

    def _commit(self, work: Work[Result]) -> Result:
        """Do *work* in a transaction of LMDB's, which takes along what is in the journal."""
        fault("store.commit.begin")
        transaction = self._file.live().begin(write=True)
        try:
            self._pending.catch_up(transaction.id() - 1)
            self._pending.apply(transaction, self._file.databases)
            result = work(Counted(transaction, self._pending.next_number))
            number = transaction.id()
            fault("store.commit.before")
        except BaseException:
            transaction.abort()
            raise
        try:
            transaction.commit()
        except (engine.error("MapFullError"), engine.error("MapResizedError")):
            raise
        except engine.error("Error") as error:
            raise CommitFailedError(error, number, result) from error
        # Not *number*: LMDB does not count a transaction that changed nothing.
        with self._file.live().begin() as reading:
            self._pending.moved(reading.id())
        with suppress(OSError):  # where it cannot be done the next to open it takes longer
            self._file.fill_up()
        fault("store.commit.after")
        return result
