"""One LMDB environment for each store and process, and the two ways into it.

::

    open_environment(path) ──► Environment (shared, counted)
                                 ├── read(work)    one short read transaction
                                 └── write(work)   our mutex ► our flock ► gate ► transaction

*work* is a function of the transaction. It may be called again: after the map
grew, or was grown by another process, the transaction is dead and the whole of
it is repeated. A transaction is never handed out, so that it begins, is filled
and is committed on one OS thread, and nothing of the map outlives it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from flowpregel._fault import fault
from flowpregel._lmdb import engine, failures, folder
from flowpregel._lmdb.failures import CommitFailedError
from flowpregel._lmdb.filelock import FileLock, Presence
from flowpregel._lmdb.gate import Gate
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel.errors import (
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)

Result = TypeVar("Result")
Work = Callable[[Any], Result]

_open: dict[str, Environment] = {}
_registry = threading.Lock()


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
        self.databases: dict[bytes, Any] = {}
        self._shared: dict[Any, Any] = {}
        self._pid = os.getpid()
        self._gate = Gate()
        self._writer = threading.Lock()
        self._map_size = max(map_size, engine.SMALLEST_MAP)
        self._lock = lock
        self._lmdb: Any = None
        self._file_lock: FileLock | None = None
        self._presence = Presence(os.path.join(path, folder.PRESENCE))
        try:
            self._begin(options)
        except OSError as error:
            self._shut()
            raise folder.named(error, path) from error
        except BaseException:
            self._shut()  # else its locks are held by nobody
            raise

    def _begin(self, options: StoreOptions) -> None:
        if self.readonly:
            self._connect(pages=options.check_pages)
            return
        self._file_lock = FileLock(os.path.join(self.path, folder.WRITE_LOCK))
        with self._exclusively(options.lock_timeout):
            self._connect(pages=options.check_pages)
        folder.make_ballast(self.path)
        folder.close_to_others(self.path)

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
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        while True:
            try:
                with self._gate, self._live().begin() as transaction:
                    return work(transaction)
            except lmdb.MapResizedError:
                self._adopt_size()
            except lmdb.ReadersFullError:
                self._free_readers()
            except lmdb.Error as error:
                raise failures.translated(error, self.path) from error

    def write(self, work: Work[Result], *, timeout: float) -> Result:
        """Return ``work(transaction)`` of one write transaction, once it is on disk.

        Args:
            work: Fills the transaction; may be called more than once.
            timeout: Seconds to wait for others who write.

        Raises:
            StoreBusyError: Someone else held the store all that time.
            StoreFullError: There is no room; nothing of it was kept.
        """
        self._live()
        with self._exclusively(timeout):
            return self._write(work)

    @contextmanager
    def _exclusively(self, timeout: float) -> Iterator[None]:
        """Keep out all others who write, of this process and of others."""
        lock = self._enter(timeout)
        try:
            yield
        finally:
            lock.release()
            self._writer.release()

    def _enter(self, timeout: float) -> FileLock:
        """Take both locks, our OS threads' and the processes'; return the latter."""
        if not self._writer.acquire(timeout=timeout):
            raise StoreBusyError(self.path, "another OS thread of this process", timeout)
        try:
            return self._take_file_lock(timeout)
        except BaseException:
            self._writer.release()
            raise

    def _take_file_lock(self, timeout: float) -> FileLock:
        lock = self._file_lock
        if lock is None:
            raise StoreReadOnlyError(f"{self.path} was opened to be read only, or is closed")
        if not lock.acquire(timeout):
            raise StoreBusyError(self.path, str(lock.holder()), timeout)
        return lock

    def _write(self, work: Work[Result]) -> Result:
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        while True:
            try:
                with self._gate:
                    return self._attempt(work)
            except lmdb.MapFullError:
                self.grow()
            except lmdb.MapResizedError:
                self._adopt_size()
            except lmdb.ReadersFullError:
                self._free_readers()
            except lmdb.Error as error:
                raise failures.translated(error, self.path) from error
            except CommitFailedError as failed:
                landed = self._reopened_after(failed.transaction_id)
                if not landed:
                    raise failures.of_commit(failed.error, self.path) from failed.error
                return failed.result  # type: ignore[no-any-return]

    def _attempt(self, work: Work[Result]) -> Result:
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        fault("store.write.begin")
        transaction = self._live().begin(write=True)
        try:
            result = work(transaction)
            number = transaction.id()
            fault("store.write.before")
        except BaseException:
            transaction.abort()
            raise
        try:
            transaction.commit()
        except (lmdb.MapFullError, lmdb.MapResizedError):
            raise
        except lmdb.Error as error:
            raise CommitFailedError(error, number, result) from error
        fault("store.write.after")
        return result

    # ------------------------------------------------------------ the map

    def grow(self) -> None:
        """Make room: double the map."""
        with self._gate.alone():
            size = self._live().info()["map_size"]
            self._live().set_mapsize(size * 2 if size < 1 << 36 else size + (1 << 36))

    def _adopt_size(self) -> None:
        with self._gate.alone():
            self._live().set_mapsize(0)

    def _free_readers(self) -> None:
        with self._gate:
            if not self._live().reader_check():
                raise StoreBusyError(self.path, f"{engine.READERS} readers that are all alive", 0.0)

    def _reopened_after(self, transaction_id: int) -> bool:
        """Open the file again after a commit failed; return whether it is there after all.

        LMDB itself cannot be asked: a meta page that could not be written
        leaves it unusable, and one that could not be synced may be there.
        """
        with self._gate.alone():
            self._lmdb.close()
            self._lmdb = None
            try:
                folder.sync(self._data_file())
                synced = True
            except OSError:
                synced = False
            self._connect()
            return synced and self._lmdb.info()["last_txnid"] >= transaction_id

    # ------------------------------------------------------------ open and close

    def _live(self) -> Any:
        if self._pid != os.getpid():
            raise StoreReadOnlyError(
                f"{self.path} was opened before a fork (by process {self._pid}); "
                "a forked process cannot use it: start one that opens it itself"
            )
        if self._lmdb is None:
            raise StoreError(f"{self.path} is closed; open it again")
        return self._lmdb

    def _connect(self, *, pages: bool = False) -> None:
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        folder.check(self.path, pages=pages)
        size = self._map_size
        while True:
            try:
                self._lmdb = engine.connect(
                    self.path, size, readonly=self.readonly, lock=self._lock
                )
                break
            except lmdb.MemoryError as error:
                # A process may be allowed little address space (`ulimit -v`).
                if size <= engine.SMALLEST_MAP:
                    raise failures.translated(error, self.path) from error
                size //= 2
            except lmdb.Error as error:
                raise failures.translated(error, self.path) from error
        try:
            if not self.readonly or self._lock:
                self._lmdb.reader_check()
            # This is a write transaction where the store can be written, so our own lock
            # must be held: LMDB's could keep us waiting for ever.
            for name in engine.DATABASES:
                self.databases[name] = self._lmdb.open_db(name, create=False)
        except lmdb.Error as error:
            self._lmdb.close()
            self._lmdb = None
            raise failures.translated(error, self.path) from error

    def copy(self, path: str, *, compact: bool) -> None:
        """Copy the store as it is at one moment into the folder *path*, while it is used."""
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        try:
            with self._gate:
                self._live().copy(path, compact=compact)
        except lmdb.Error as error:
            raise failures.of_commit(error, path) from error

    def map_size(self) -> int:
        """Return the bytes of address space the store has now."""
        with self._gate:
            return int(self._live().info()["map_size"])

    def size(self) -> int:
        """Return the bytes the store takes up in its file."""
        with self._gate:
            live = self._live()
            pages: int = live.info()["last_pgno"] + 1
            return pages * int(live.stat()["psize"])

    def replace(self, timeout: float) -> None:
        """Put a compacted copy in the place of the file.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        with self._exclusively(timeout):
            if not self._presence.become_only():
                raise StoreBusyError(self.path, "another process that has it open", 0.0)
            try:
                with folder.draft_inside(self.path) as draft:
                    self.copy(draft, compact=True)
                    folder.sync(os.path.join(draft, folder.DATA))
                    with self._gate.alone():
                        self._live().close()
                        try:
                            os.replace(os.path.join(draft, folder.DATA), self._data_file())
                            folder.sync(self.path)
                        finally:
                            self._connect()
            except OSError as error:
                raise folder.named(error, self.path) from error
            finally:
                self._presence.be_one_of_many()
                folder.close_to_others(self.path)

    def structure(self, timeout: float) -> list[str]:
        """Return what is wrong with the file's pages, as LMDB's own verifier finds it."""
        with self._exclusively(timeout):
            return folder.unsound_pages(self.path)

    def _data_file(self) -> str:
        return os.path.join(self.path, folder.DATA)

    def close(self) -> None:
        """Give one opening back; the last one closes the file."""
        with _registry:
            self.users -= 1
            if self.users <= 0:
                self._shut()

    def _shut(self) -> None:
        if _open.get(self.path) is self:
            del _open[self.path]
        if self._pid != os.getpid():
            return  # it is the parent's
        with self._gate.alone():
            if self._lmdb is not None:
                self._lmdb.close()
                self._lmdb = None
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None
            self._presence.close()


def open_environment(
    path: str | os.PathLike[str],
    header: Callable[[], Sequence[tuple[bytes, bytes]]],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    options: StoreOptions = StoreOptions(),  # noqa: B008 - it is frozen
) -> Environment:
    """Return the environment at *path*, opening it (or making it) if need be.

    Args:
        path: The folder.
        header: Gives the records of ``meta`` that a new store begins with.
        map_size: The bytes the map begins with; it grows by itself.
        readonly: Only read; there must be a store.
        lock: Register as a reader. Without it nobody may write meanwhile.
        options: The rarely needed.
    """
    options.check_opening(readonly=readonly, lock=lock)
    real = folder.real_path(path)
    with _registry:
        found = _open.get(real)
        if found is None or found._pid != os.getpid():  # noqa: SLF001 - its own module
            if not options.allow_network:
                folder.refuse_network(real)
            if not folder.exists(real):
                if readonly:
                    raise StoreError(f"there is no store at {real}, and readonly=True makes none")
                folder.create(real, lambda draft: engine.fill(draft, header()))
            found = Environment(
                real,
                map_size=map_size,
                readonly=readonly,
                lock=lock,
                options=options,
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
    for environment in list(_open.values()):
        environment._shut()  # noqa: SLF001 - its own module
