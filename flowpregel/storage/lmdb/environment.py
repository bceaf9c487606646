"""An LMDB environment: the only module that calls LMDB's unsafe operations.

::

    open_environment(path) ──► Environment (one per process and folder, counted)
                              ├── read(work)    one short read transaction
                              └── commits       group commit ► flock ► gate ► LMDB

No data is cached outside of LMDB. With LMDB's default flags, a commit is on disk when
it returns, and every later transaction, of this process or another, sees it.

The hazards of LMDB, and how they are avoided:

* *A transaction that is used on another OS thread, or a view of the map that is used
  after its transaction.* Callers never get a transaction. They pass *work*, a function
  of the transaction. So the transaction is begun, filled and committed on one OS
  thread, and *work* must return copies.
* *A resize while a transaction is open.* Each transaction shares the lock `_gate` (the
  gate); a resize holds it exclusively.
* *The end of the map.* A transaction that reaches it must be aborted. The map grows,
  and all of *work* is repeated. So *work* may be called more than once, and must do the
  same each time.
* *A wait without a deadline.* LMDB's writer lock has no timeout, and is lost if the
  process opens and closes the lock file. So a `FileLock` is acquired first, with a
  deadline. Then LMDB's own lock is free.
* *A commit that fails.* LMDB is unusable after it could not write a meta page, and a
  commit may be on disk although its sync failed. So the file is opened again, and the
  number of the newest transaction in it shows whether the commit succeeded.
* *A writer that dies at the end of a commit.* The commit is in the file, but readers
  see it only after the next write. So a run that inherits the lease of a dead owner
  writes before it reads.
* *A fork.* The child must not use the environment, so every use checks the pid.

To avoid deadlocks, the locks are always acquired in this order: the writer lock of the
`CommitQueue` (one OS thread), the `FileLock` (one process), the gate, LMDB's own lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import lmdb

from flowpregel import _fault
from flowpregel._interrupts import defer_interrupts
from flowpregel.errors import StoreBusyError, StoreError, StoreReadOnlyError
from flowpregel.storage.ballast import make_ballast
from flowpregel.storage.drafts import draft_in, sync_path
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.group_commit import CommitQueue, Work
from flowpregel.storage.lmdb import errors, files
from flowpregel.storage.lmdb.gates import OpenStoreLock, SharedExclusiveLock
from flowpregel.storage.locks import FileLock
from flowpregel.storage.options import StoreOptions
from flowpregel.storage.records import TABLE_NAMES

_TICK = 50_000_000
"""The time, in nanoseconds, within which two commits may leave the file with the same
modification time.
"""
_LEAST_GROWTH = 1 << 20
"""The least number of bytes by which the file grows between two searches for killed
readers.
"""
_LARGEST_DOUBLED = 1 << 36
"""The greatest size, in bytes, of a map that doubles when it grows. A larger map grows
by this number of bytes.
"""

Result = TypeVar("Result")
Part = TypeVar("Part")

OPEN: dict[str, Environment] = {}
"""The environments that are open in this process, by their paths."""
_registry = threading.Lock()
_environments: WeakSet[Environment] = WeakSet()


def registry() -> threading.Lock:
    """Return the lock that guards `OPEN`, and in each environment the number of objects
    that use it.
    """
    return _registry


class Environment:
    """An LMDB environment, shared by all objects that use a store in this process.

    Use `open_store` to get one. The environment is closed when each of these objects
    has called `close`.
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
        self.users: int = 0
        self.databases: dict[bytes, Any] = {}
        self.shared: dict[str, Any] = {}
        """Objects that are shared by everything in this process that uses the store, by
        name.
        """
        self.pid: int = os.getpid()
        self._map_size = max(map_size, files.SMALLEST_MAP)
        self._registers = lock
        self._data = os.path.join(path, errors.DATA)
        self._lmdb: Any = None
        self._inode = 0
        self._check_readers_at = 0
        """The size of the file, in bytes, at which the entries of readers that were
        killed are removed again.
        """
        self._gate = SharedExclusiveLock()
        self.commits: CommitQueue = CommitQueue(path, self._commit, self._locked)
        self.exclusively: Callable[[float], AbstractContextManager[None]] = (
            self.commits.exclusively
        )
        self._file_lock: FileLock | None = None
        open_lock_path = os.path.join(path, files.OPEN_LOCK)
        self._open_lock = OpenStoreLock(open_lock_path, self._data)
        _environments.add(self)
        try:
            with translate_os_errors(path):
                self._open(options)
        except BaseException:
            # Opening has failed, so the locks that were acquired so far are released.
            self.shut()
            raise

    def _open(self, options: StoreOptions) -> None:
        """Acquire the locks of an open store, and map its file."""
        self._open_lock.await_one_file(options.lock_timeout)
        if self.readonly:
            self._map(pages=options.check_pages)
            return
        self._file_lock = FileLock(os.path.join(self.path, files.WRITE_LOCK))
        # LMDB opens its databases in a write transaction. LMDB's own lock has no
        # timeout, so the `FileLock` is acquired for the transaction.
        with self.exclusively(options.lock_timeout):
            self._map(pages=options.check_pages)
        make_ballast(self.path)
        files.close_to_others(self.path)

    # ------------------------------------------------------------ transactions

    @defer_interrupts()
    def read(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(transaction)``, called in a read transaction.

        *work* must return copies: no view of the map may be used after the transaction.
        """
        while True:
            try:
                with self._gate, self._usable(self._lmdb).begin() as transaction:
                    return work(transaction)
            except lmdb.Error as error:
                self._overcome(error)

    def _commit(self, works: Sequence[Work]) -> list[Any]:
        """Call all *works* in one transaction, and return their results once the
        changes are on disk.
        """
        while True:
            try:
                return self._attempt(works)
            except lmdb.Error as error:
                self._overcome(error)

    def _attempt(self, works: Sequence[Work]) -> list[Any]:
        """Do the same as `_commit`, but without retries: raise LMDB's errors."""
        with self._gate:
            try:
                is_lost = os.stat(self._data).st_ino != self._inode
            except FileNotFoundError:
                # No file is at this path. If the folder was moved, the file still
                # exists at another path.
                is_lost = self._open_lock.is_deleted()
            if is_lost:
                raise self._lost_file()
            environment = self._usable(self._lmdb)
            transaction = environment.begin(write=True)
            try:
                results = [work(transaction) for work in works]
                number = transaction.id()
                if _fault.points:
                    _fault.fault("store.commit.before")
            except BaseException:
                transaction.abort()
                raise
            try:
                transaction.commit()
            except (lmdb.MapFullError, lmdb.MapResizedError):
                raise
            except lmdb.Error as error:
                failure = error
            else:
                last_page = environment.info()["last_pgno"]
                used = (last_page + 1) * environment.stat()["psize"]
                with suppress(OSError):
                    size = os.path.getsize(self._data)
                    if size < used or used > self._check_readers_at:
                        self._complete_file(environment, used)
                return results
        if not self._has_landed(number):
            raise errors.of_commit(failure, self.path) from failure
        return results

    def _complete_file(self, environment: Any, size: int) -> None:
        """Extend the file to *size* bytes after a commit, and remove killed readers
        from LMDB's table if the file has grown by a quarter.
        """
        # LMDB does not write pages at the end of the file that a transaction allocated
        # and freed again. If the file stayed too short, `files.check_files` would check
        # every page of it. If it cannot be extended, the next process only takes longer
        # to open it.
        with suppress(OSError):
            if os.path.getsize(self._data) < size:
                os.truncate(self._data, size)
        if size > self._check_readers_at:
            # The commit has succeeded, so an error must not make the caller repeat it.
            with suppress(lmdb.Error):
                self._remove_killed_readers(environment, size)

    def _remove_killed_readers(self, environment: Any, size: int) -> None:
        """Remove the processes that were killed from LMDB's table of readers.

        LMDB reuses no page that was freed since a process in that table began to read.

        Args:
            environment: LMDB's environment.
            size: The size of the file, in bytes.
        """
        self._check_readers_at = size + max(size // 4, _LEAST_GROWTH)
        environment.reader_check()

    def _lost_file(self) -> StoreError:
        """Return the error for an open file that was deleted or replaced by another
        file.
        """
        if self._open_lock.is_deleted():
            return StoreError(
                f"{self.path} was deleted while it was open; nothing was stored: open "
                "it again to begin with an empty store"
            )
        return StoreError(
            f"{self.path} is no longer the store that was opened: another file has "
            "replaced it, such as a restored backup; nothing was stored: open it "
            "again"
        )

    def is_at_path(self) -> bool:
        """Return whether the store's folder was neither deleted nor moved."""
        return self._open_lock.is_at_path()

    def _overcome(self, error: lmdb.Error) -> None:
        """Remove the cause of LMDB's *error*, so that the transaction can be repeated.

        Raises:
            StoreError: The cause cannot be removed.
        """
        match error:
            case lmdb.MapFullError():
                self.grow()
            case lmdb.MapResizedError():
                # Another process has resized the map, so this process adopts the new
                # size.
                self._resize(0)
            case lmdb.ReadersFullError():
                with self._gate:
                    if not self._usable(self._lmdb).reader_check():
                        holder = f"{files.READERS} live readers"
                        raise StoreBusyError(self.path, holder, 0.0) from None
            case _:
                raise errors.of_lmdb(error, self.path) from error

    @contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock that excludes writers of other processes."""
        lock = self._usable(self._file_lock)
        try:
            if not lock.acquire(timeout):
                raise StoreBusyError(self.path, str(lock.holder()), timeout)
            yield
        finally:
            lock.release()

    # ------------------------------------------------------------ the map and the file

    def _usable(self, part: Part | None) -> Part:
        """Return *part*, which is LMDB's environment or the writers' `FileLock`, if it
        can be used.

        LMDB's environment may be used only while the gate is held.

        Raises:
            StoreError: The store is closed, or was opened by the parent of this fork.
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
        raise StoreReadOnlyError(f"{self.path} was opened read-only, or is closed")

    def _map(self, *, pages: bool = False) -> None:
        """Check the file, and map it. With *pages*, check every page of the file."""
        files.check_files(self.path, pages=pages, readonly=self.readonly)
        try:
            self._lmdb = self._open_lmdb()
            self._inode = os.stat(self._data).st_ino
            if self._registers:
                size = os.path.getsize(self._data)
                self._remove_killed_readers(self._lmdb, size)
            for name in TABLE_NAMES:
                self.databases[name] = self._lmdb.open_db(name, create=False)
        except lmdb.Error as error:
            self._unmap()
            raise errors.of_lmdb(error, self.path) from error
        except BaseException:
            self._unmap()
            raise

    def _open_lmdb(self) -> Any:
        """Open LMDB's environment. If the process cannot get enough address space, open
        the environment with a smaller map.
        """
        size = self._map_size
        while True:
            try:
                return files.open_lmdb(
                    self.path, size, readonly=self.readonly, lock=self._registers
                )
            except lmdb.MemoryError:
                # A limit on the process's address space (`ulimit -v`) leaves no room
                # for a map of this size, so half the size is tried next.
                if size <= files.SMALLEST_MAP:
                    raise
                size //= 2

    def _unmap(self) -> None:
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None

    def grow(self) -> None:
        """Enlarge the map: double it, or add `_LARGEST_DOUBLED` bytes if it is larger
        than that.
        """
        _, size = self.sizes()
        self._resize(size + min(size, _LARGEST_DOUBLED))

    def _resize(self, size: int) -> None:
        """Resize the map. A size of 0 adopts the size that another process has set."""
        with self._gate.alone():
            try:
                self._usable(self._lmdb).set_mapsize(size)
            except lmdb.Error as error:
                # LMDB has already unmapped the file, for example if no address space is
                # left. So the file is mapped again.
                self._unmap()
                self._map()
                raise errors.of_commit(error, self.path) from error

    @defer_interrupts()
    def sizes(self) -> tuple[int, int]:
        """Return the size of the file and the size of the map, in bytes."""
        with self._gate:
            info = self._usable(self._lmdb).info()
            return os.path.getsize(self._data), int(info["map_size"])

    def _has_landed(self, transaction_id: int) -> bool:
        """Open the file again after a commit has failed, and return True if the commit
        is on disk nevertheless.

        The file must be opened again, because LMDB is unusable after it could not write
        a meta page, and a meta page that could not be synced may still be on disk.
        """
        with self._gate.alone():
            self._unmap()
            is_synced = False
            with suppress(OSError):
                sync_path(self._data)
                is_synced = True
            self._map()
            newest = self._lmdb.info()["last_txnid"]
            return is_synced and bool(newest >= transaction_id)

    def change_counter(self) -> int:
        """Return a number that stays the same as long as nothing is committed.

        The number is the file's modification time. A further commit soon after the last
        one may not change this time, so for 50 ms after a commit, each call returns a
        different number.
        """
        with translate_os_errors(self._data):
            changed_at = os.stat(self._data).st_mtime_ns
        now = time.time_ns()
        return changed_at if now - changed_at > _TICK else now

    @defer_interrupts()
    def copy(self, path: str) -> None:
        """Copy a snapshot of the store into the folder *path*, without free pages."""
        try:
            with self._gate:
                self._usable(self._lmdb).copy(path, compact=True)
        except lmdb.Error as error:
            raise errors.of_commit(error, path) from error

    @defer_interrupts()
    def replace(self, timeout: float) -> None:
        """Replace the file by a compacted copy.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        with self.exclusively(timeout), self._open_lock.alone() as is_alone:
            if not is_alone:
                raise StoreBusyError(self.path, "another process that has it open", 0.0)
            with (
                translate_os_errors(self.path),
                draft_in(self.path, files.DRAFT, 0.0) as draft,
            ):
                self.copy(draft)
                with self._gate.alone():
                    # `_usable` raises an error if the store was closed after the copy
                    # was made, because another process may have written to the store
                    # since then.
                    self._usable(self._lmdb)
                    self._unmap()
                    try:
                        files.put_in_place(draft, self.path)
                    finally:
                        self._map()
            files.close_to_others(self.path)

    # ------------------------------------------------------------ open and close

    @defer_interrupts()
    def close(self) -> None:
        """Release the environment for one of the objects that use it. The last call
        closes the file.
        """
        with registry():
            self.users -= 1
            if self.users <= 0:
                self.shut()

    def shut(self) -> None:
        """Close the file for all parts of this process that have it open."""
        if OPEN.get(self.path) is self:
            del OPEN[self.path]
        if self.pid != os.getpid():
            # A forked process must not close the environment, because it belongs to the
            # parent process.
            return
        with self._gate.alone():
            self._unmap()
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None
        # The gate is not enough to protect the open lock (`OpenStoreLock`): `replace`
        # uses this lock under the writer lock, without the gate. So the writer lock is
        # taken here too.
        with self.commits.writer:
            self._open_lock.close()

    def after_fork(self) -> None:
        """Replace the locks in a forked child, because an OS thread of the parent may
        have held them during the fork. The child cannot use the environment, and gets
        an error at once instead of waiting for them.
        """
        self._gate = SharedExclusiveLock()
        self.commits.after_fork()


def _replace_locks_after_fork() -> None:
    global _registry
    _registry = threading.Lock()
    for environment in _environments:
        environment.after_fork()


os.register_at_fork(after_in_child=_replace_locks_after_fork)
