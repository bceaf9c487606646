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

A durable commit costs the same for a hundred requests as for one: whose turn it is
takes along all that wait. The others find theirs done at their turn, or do it then if
Ctrl-C ended who took it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import lmdb

from flowpregel._fault import fault
from flowpregel._interrupts import held
from flowpregel.errors import StoreBusyError, StoreError, StoreReadOnlyError
from flowpregel.storage import errors
from flowpregel.storage.lmdb import files
from flowpregel.storage.locks import FileLock, Gate, Presence
from flowpregel.storage.options import StoreOptions
from flowpregel.storage.records import DATABASES

_TICK = 50_000_000
"""Nanoseconds within which two commits may leave the same time on the file."""

Result = TypeVar("Result")
Part = TypeVar("Part")
Work = Callable[[Any], Result]

OPEN: dict[str, Environment] = {}
REGISTRY = threading.Lock()


class CommitRequest(NamedTuple):
    """What one caller wants done in a transaction: all of it, or nothing."""

    work: Work[Any]
    ended: Future[Any]


class Environment:
    """A store's LMDB environment, shared by all who opened it in this process.

    Use `open_store`; each `close` gives one opening back.
    """

    def __init__(
        self,
        path: str,
        *,
        map_size: int,
        readonly: bool,
        lock: bool,
        options: StoreOptions,
    ) -> None:
        self.path = path
        self.readonly = readonly
        self.users = 0
        self.databases: dict[bytes, Any] = {}
        self.shared: dict[str, Any] = {}  # by all users of the store in this process
        self._map_size = max(map_size, files.SMALLEST_MAP)
        self._registers = lock
        self.pid = os.getpid()
        self._data = os.path.join(path, errors.DATA)
        self._lmdb: Any = None
        self._inode = 0
        self._gate = Gate()  # every transaction is inside
        self._writer = threading.Lock()
        self._queue: deque[CommitRequest] = deque()
        self._file_lock: FileLock | None = None
        self._presence = Presence(os.path.join(path, files.PRESENCE), self._data)
        try:
            with errors.named(path):
                self._presence.agree(options.lock_timeout)
                if readonly:
                    self._map(pages=options.check_pages)
                    return
                self._file_lock = FileLock(os.path.join(path, files.WRITE_LOCK))
                # Opening the databases is a write transaction, and LMDB's lock waits
                # for ever.
                with self.exclusively(options.lock_timeout):
                    self._map(pages=options.check_pages)
                files.make_ballast(path)
                files.close_to_others(path)
        except BaseException:
            self.shut()  # else its locks are held by nobody
            raise

    # ------------------------------------------------------------ transactions

    @held()
    def read(self, work: Work[Result]) -> Result:
        """Return ``work(transaction)`` of one read transaction.

        What it returns must be copies: nothing of the map may leave.
        """
        while True:
            try:
                with self._gate, self._usable(self._lmdb).begin() as transaction:
                    return work(transaction)
            except lmdb.Error as error:
                self._overcome(error)

    @held()
    def write(self, work: Work[Any], *, timeout: float) -> Any:
        """Return ``work(transaction)`` of one write transaction, once it is on disk.

        Args:
            work: Fills the transaction; may be called more than once.
            timeout: Seconds to wait for others who write.

        Raises:
            StoreBusyError: Someone else held the store all that time.
            StoreFullError: There is no room; nothing of it was kept.
            Exception: Whatever *work* raises; nothing of it was kept.
        """
        self._usable(self._file_lock)
        request = CommitRequest(work, Future())
        self._queue.append(request)
        try:
            if not self._writer.acquire(timeout=timeout):
                with suppress(ValueError):
                    self._queue.remove(request)
                    raise StoreBusyError(
                        self.path, "another OS thread of this process", timeout
                    )
                # it is being committed: how that ends has to be known
                self._writer.acquire()
            try:
                if not request.ended.done():
                    with self._locked(timeout):
                        group: list[CommitRequest] = []
                        # others may withdraw theirs meanwhile
                        with suppress(IndexError):
                            while True:
                                group.append(self._queue.popleft())
                        # whoever took it along was interrupted
                        if request not in group:
                            group.append(request)
                        self._commit(group)
            finally:
                self._writer.release()
        finally:
            with suppress(ValueError):  # it was taken along, or is to be withdrawn
                self._queue.remove(request)
        return request.ended.result()

    def _commit(self, group: Sequence[CommitRequest]) -> None:
        """Commit what is asked for in one transaction; note what came of it."""
        results: list[Any] | None = None
        try:
            while results is None:
                try:
                    results = self._attempt(group)
                except lmdb.Error as error:
                    self._overcome(error)
        except Exception as error:  # noqa: BLE001 - raised in the OS thread that asked
            if len(group) == 1:
                group[0].ended.set_exception(error)
                return
            # One may be to blame: each on its own, so that the others are kept.
            for each in group:
                self._commit([each])
        else:
            for each, result in zip(group, results, strict=True):
                each.ended.set_result(result)

    def _attempt(self, group: Sequence[CommitRequest]) -> list[Any]:
        """Return what each request's work returned, once all are on disk."""
        fault("store.commit.begin")
        with self._gate:
            with suppress(FileNotFoundError):  # the whole folder may be moved
                if os.stat(self._data).st_ino != self._inode:
                    raise StoreError(
                        f"{self.path} is not the store that was opened: another file "
                        "has taken "
                        "its place, as when a backup is restored; nothing was kept: "
                        "open it again"
                    )
            live = self._usable(self._lmdb)
            transaction = live.begin(write=True)
            try:
                results = [request.work(transaction) for request in group]
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
                failed = error
            else:
                # Unless the last pages are written, `files.check` has to look at all of
                # them.
                used = (live.info()["last_pgno"] + 1) * live.stat()["psize"]
                # where it cannot be done the next to open it takes longer
                with suppress(OSError):
                    if os.path.getsize(self._data) < used:
                        os.truncate(self._data, used)
                fault("store.commit.after")
                return results
        if not self._has_landed(number):  # what came of it the file knows
            raise errors.of_commit(failed, self.path) from failed
        return results

    def _overcome(self, error: lmdb.Error) -> None:
        """Do what lets a transaction succeed that failed by *error*, or raise what that
        means.
        """
        match error:
            case lmdb.MapFullError():
                self.grow()
            case lmdb.MapResizedError():  # another process gave it another size
                self._resize(0)
            case lmdb.ReadersFullError():
                with self._gate:
                    if not self._usable(self._lmdb).reader_check():
                        holder = f"{files.READERS} readers that are all alive"
                        raise StoreBusyError(self.path, holder, 0.0) from None
            case _:
                raise errors.of_lmdb(error, self.path) from error

    @contextmanager
    def exclusively(self, timeout: float) -> Iterator[None]:
        """Keep out all others who write, of this process and of others."""
        if not self._writer.acquire(timeout=timeout):
            raise StoreBusyError(
                self.path, "another OS thread of this process", timeout
            )
        try:
            with self._locked(timeout):
                yield
        finally:
            self._writer.release()

    @contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock that keeps other processes from writing."""
        lock = self._usable(self._file_lock)
        try:
            if not lock.acquire(timeout):
                raise StoreBusyError(self.path, str(lock.holder()), timeout)
            yield
        finally:
            lock.release()

    # ------------------------------------------------------------ the map and the file

    def _usable(self, part: Part | None) -> Part:
        """Return *part*, LMDB's environment or the lock, unless it is closed or a
        parent's.

        LMDB's environment is for use inside the gate.
        """
        if self.pid != os.getpid():
            raise StoreReadOnlyError(
                f"{self.path} was opened before a fork (by process {self.pid}); "
                "a forked process cannot use it: start one that opens it itself"
            )
        if part is not None:
            return part
        if self._lmdb is None:
            raise StoreError(f"{self.path} is closed; open it again")
        raise StoreReadOnlyError(
            f"{self.path} was opened to be read only, or is closed"
        )

    def _map(self, *, pages: bool = False) -> None:
        """Check the file, with *pages* each page of it, and map it."""
        files.check_files(self.path, pages=pages, readonly=self.readonly)
        size = self._map_size
        try:
            while self._lmdb is None:
                try:
                    self._lmdb = files.open_lmdb(
                        self.path, size, readonly=self.readonly, lock=self._registers
                    )
                except lmdb.MemoryError:
                    # A process may be allowed little address space (`ulimit -v`).
                    if size <= files.SMALLEST_MAP:
                        raise
                    size //= 2
            self._inode = os.stat(self._data).st_ino
            if self._registers:
                self._lmdb.reader_check()
            for name in DATABASES:
                self.databases[name] = self._lmdb.open_db(name, create=False)
        except BaseException as error:
            self._unmap()
            if isinstance(error, lmdb.Error):
                raise errors.of_lmdb(error, self.path) from error
            raise

    def _unmap(self) -> None:
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None

    def grow(self) -> None:
        """Make room: double the map."""
        size = self.sizes()[1]
        self._resize(size * 2 if size < 1 << 36 else size + (1 << 36))

    def _resize(self, size: int) -> None:
        """Give the map another size (0: the one that the file tells)."""
        with self._gate.alone():
            try:
                self._usable(self._lmdb).set_mapsize(size)
            # such as: no address space; LMDB has closed itself
            except lmdb.Error as error:
                self._unmap()
                self._map()
                raise errors.of_commit(error, self.path) from error

    @held()
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the file, and those of its address space."""
        with self._gate:
            return os.path.getsize(self._data), int(
                self._usable(self._lmdb).info()["map_size"]
            )

    def _has_landed(self, transaction_id: int) -> bool:
        """Open the file again after a commit failed; return whether that is there after
        all.

        LMDB itself cannot be asked: a meta page that could not be written
        leaves it unusable, and one that could not be synced may be there.
        """
        with self._gate.alone():
            self._unmap()
            synced = False
            with suppress(OSError):
                files.sync(self._data)
                synced = True
            self._map()
            return synced and self._lmdb.info()["last_txnid"] >= transaction_id

    def mark(self) -> int:
        """Return a number that is the same as long as nothing is committed.

        For a moment after a commit it is another each time.
        """
        changed, now = os.stat(self._data).st_mtime_ns, time.time_ns()
        return changed if now - changed > _TICK else now

    @held()
    def copy(self, path: str) -> None:
        """Copy it as it is at one moment into the folder *path*, without free pages."""
        try:
            with self._gate:
                self._usable(self._lmdb).copy(path, compact=True)
        except lmdb.Error as error:
            raise errors.of_commit(error, path) from error

    @held()
    def replace(self, timeout: float) -> None:
        """Put a compacted copy in the place of the file.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        with self.exclusively(timeout), self._presence.alone() as is_only:
            if not is_only:
                raise StoreBusyError(self.path, "another process that has it open", 0.0)
            with (
                errors.named(self.path),
                files.draft_in(self.path, files.DRAFT) as draft,
            ):
                self.copy(draft)
                with self._gate.alone():
                    # if it was closed meanwhile, others may have written
                    self._usable(self._lmdb)
                    self._unmap()
                    try:
                        files.put_in_place(draft, self.path)
                    finally:
                        self._map()
            files.close_to_others(self.path)

    # ------------------------------------------------------------ open and close

    @held()
    def close(self) -> None:
        """Give one opening back; the last one closes the file."""
        with REGISTRY:
            self.users -= 1
            if self.users <= 0:
                self.shut()

    def shut(self) -> None:
        """Close the file, whoever uses it."""
        if OPEN.get(self.path) is self:
            del OPEN[self.path]
        if self.pid != os.getpid():
            return  # it is the parent's
        with self._gate.alone():
            self._unmap()
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None
        with self._writer:  # who makes it compact uses that outside the gate too
            self._presence.close()
