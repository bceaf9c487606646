"""A store's LMDB environment: everything that LMDB does not forgive is kept in here.

::

    open_environment(path) ──► Environment (one a process, shared, counted)
                                 ├── read(work)    one short read transaction
                                 └── write(work)   group commit ► our flock ► gate ► LMDB

LMDB alone holds the data: with its default flags a commit is on disk when it returns,
and what it has acknowledged every later transaction sees, of this process or another.

A transaction is never handed out: *work* is a function of it, so that it begins, is
filled and is committed on one OS thread, and nothing of the map outlives it. *work* may
be called again: a transaction that met the end of the map is dead, the map grows, and
the whole of it is repeated.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import lmdb

from flowpregel._fault import fault
from flowpregel._lmdb import errors, files
from flowpregel._lmdb.commits import GroupCommit
from flowpregel._lmdb.locks import FileLock, Presence
from flowpregel._lmdb.mapped import MappedFile, fill
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel.errors import StoreBusyError, StoreError, StoreReadOnlyError

Result = TypeVar("Result")
Work = Callable[[Any], Result]

_open: dict[str, Environment] = {}
_registry = threading.Lock()


class _CommitFailedError(Exception):
    """A commit that failed; the file knows the outcome."""

    def __init__(self, error: Exception, transaction_id: int, result: Any) -> None:
        super().__init__(error, transaction_id, result)
        self.error, self.transaction_id, self.result = error, transaction_id, result


class Environment:
    """A store's LMDB environment, shared by all who opened it in this process.

    Use `open_environment`; each `close` gives one opening back.
    """

    def __init__(
        self, path: str, *, map_size: int, readonly: bool, lock: bool, options: StoreOptions
    ) -> None:
        self.path = path
        self.readonly = readonly
        self.users = 0
        self.file = MappedFile(path, map_size=map_size, readonly=readonly, lock=lock)
        self.databases = self.file.databases
        self._shared: dict[Any, Any] = {}
        self._group = GroupCommit(path, self._transact)
        self._writer = threading.Lock()
        self._file_lock: FileLock | None = None
        self._presence = Presence(os.path.join(path, files.PRESENCE))
        try:
            with errors.named(path):
                self._begin(options)
        except BaseException:
            self._shut()  # else its locks are held by nobody
            raise

    def _begin(self, options: StoreOptions) -> None:
        if self.readonly:
            self.file.open(pages=options.check_pages)
            return
        self._file_lock = FileLock(os.path.join(self.path, files.WRITE_LOCK))
        # Opening the databases is a write transaction, and LMDB's lock waits for ever.
        with self._exclusively(options.lock_timeout):
            self.file.open(pages=options.check_pages)
        files.make_ballast(self.path)
        files.close_to_others(self.path)

    def share(self, key: object, make: Callable[[], Result]) -> Result:
        """Return what all users of the store in this process have in common under *key*."""
        with _registry:
            if key not in self._shared:
                self._shared[key] = make()
            found: Result = self._shared[key]
            return found

    # ------------------------------------------------------------ transactions

    def read(self, work: Work[Result]) -> Result:
        """Return ``work(transaction)`` of one read transaction.

        What it returns must be copies: nothing of the map may leave.
        """

        def attempt() -> Result:
            with self.file.live().begin() as transaction:
                return work(transaction)

        return self._repeated(attempt)

    def write(self, work: Work[Result], *, timeout: float) -> Result:
        """Return ``work(transaction)`` of one write transaction, once it is on disk.

        Args:
            work: Fills the transaction; may be called more than once.
            timeout: Seconds to wait for others who write.

        Raises:
            StoreBusyError: Someone else held the store all that time.
            StoreFullError: There is no room; nothing of it was kept.
        """
        self.file.live()
        result: Result = self._group.write(work, timeout)
        return result

    def _transact(self, work: Work[Result], timeout: float) -> Result:
        with self._exclusively(timeout):
            return self._repeated(lambda: self._commit(work))

    def _repeated(self, attempt: Callable[[], Result]) -> Result:
        """Return ``attempt()``, repeated when the map has to change before it can succeed."""
        while True:
            try:
                with self.file.gate:
                    return attempt()
            except lmdb.MapFullError:
                self.file.grow()
            except lmdb.MapResizedError:
                self.file.adopt_size()
            except lmdb.ReadersFullError:
                self.file.free_readers()
            except lmdb.Error as error:
                raise errors.of_lmdb(error, self.path) from error
            except _CommitFailedError as failed:
                if not self.file.has_landed(failed.transaction_id):
                    raise errors.of_commit(failed.error, self.path) from failed.error
                result: Result = failed.result
                return result

    def _commit(self, work: Work[Result]) -> Result:
        fault("store.commit.begin")
        transaction = self.file.live().begin(write=True)
        try:
            result = work(transaction)
            number = transaction.id()
            fault("store.commit.before")
        except BaseException:
            transaction.abort()
            raise
        try:
            transaction.commit()
        except (lmdb.MapFullError, lmdb.MapResizedError):
            raise
        except lmdb.Error as error:
            raise _CommitFailedError(error, number, result) from error
        with suppress(OSError):  # where it cannot be done the next to open it takes longer
            self.file.fill_up()
        fault("store.commit.after")
        return result

    @contextmanager
    def _exclusively(self, timeout: float) -> Iterator[None]:
        """Keep out all others who write, of this process and of others."""
        if not self._writer.acquire(timeout=timeout):
            raise StoreBusyError(self.path, "another OS thread of this process", timeout)
        try:
            lock = self._file_lock
            if lock is None:
                raise StoreReadOnlyError(f"{self.path} was opened to be read only, or is closed")
            if not lock.acquire(timeout):
                raise StoreBusyError(self.path, str(lock.holder()), timeout)
            try:
                yield
            finally:
                lock.release()
        finally:
            self._writer.release()

    # ------------------------------------------------------------ the file

    def replace(self, timeout: float) -> None:
        """Put a compacted copy in the place of the file.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        with self._exclusively(timeout):
            if not self._presence.become_only():
                raise StoreBusyError(self.path, "another process that has it open", 0.0)
            try:
                with errors.named(self.path), files.draft_inside(self.path) as draft:
                    self.file.replace(draft)
            finally:
                self._presence.be_one_of_many()
                files.close_to_others(self.path)

    def structure(self, timeout: float) -> list[str]:
        """Return what is wrong with the file's pages, as LMDB's own verifier finds it."""
        with self._exclusively(timeout):
            return files.unsound_pages(self.path)

    # ------------------------------------------------------------ open and close

    def close(self) -> None:
        """Give one opening back; the last one closes the file."""
        with _registry:
            self.users -= 1
            if self.users <= 0:
                self._shut()

    def _shut(self) -> None:
        if _open.get(self.path) is self:
            del _open[self.path]
        if self.file.is_inherited:
            return  # it is the parent's
        with self.file.gate.alone():
            self.file.close()
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None
            self._presence.close()


def open_environment(
    path: str | os.PathLike[str],
    header: Callable[[], bytes],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    options: StoreOptions = StoreOptions(),  # noqa: B008 - it is frozen
) -> Environment:
    """Return the environment at *path*, opening it (or making it) if need be.

    Args:
        path: The folder.
        header: Gives the header that a new store begins with.
        map_size: The bytes the map begins with; it grows by itself.
        readonly: Only read; there must be a store.
        lock: Register as a reader. Without it nobody may write meanwhile.
        options: The rarely needed.
    """
    options.check_opening(readonly=readonly, lock=lock)
    real = files.real_path(path)
    with _registry:
        found = _open.get(real)
        if found is None or found.file.is_inherited:
            if not options.allow_network:
                files.refuse_network(real)
            if not files.exists(real):
                if readonly:
                    raise StoreError(f"there is no store at {real}, and readonly=True makes none")
                files.create(real, lambda draft: fill(draft, header()))
            found = Environment(
                real, map_size=map_size, readonly=readonly, lock=lock, options=options
            )
            _open[real] = found
        elif found.readonly and not readonly:
            raise StoreReadOnlyError(
                f"{real} is open in this process to be read only; close that before writing to it"
            )
        found.users += 1
        return found


@atexit.register
def _close_all() -> None:
    for environment in [*_open.values()]:
        environment._shut()  # noqa: SLF001 - its own module
