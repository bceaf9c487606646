"""One LMDB environment for each store and process, and the two ways into it.

::

    open_environment(path) ──► Environment (shared, counted)
                                 ├── read(work)    one short read transaction
                                 └── write(work)   our mutex ► our flock ► gate
                                                     ├── little changes ► journal, one flush
                                                     └── else, and now and then ► LMDB's commit

*work* is a function of the transaction, and may be called again: `writing` says when.
A transaction is never handed out, so that it begins, is filled and is committed on one
OS thread, and nothing of the map outlives it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from flowpregel._lmdb import engine, failures, folder
from flowpregel._lmdb.closed import ClosedStore
from flowpregel._lmdb.failures import JournalFailedError
from flowpregel._lmdb.filelock import FileLock, Presence, not_written
from flowpregel._lmdb.mapped import MappedFile
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.overlay import Layer, Overlaid, apply
from flowpregel._lmdb.pending import Missing, Pending
from flowpregel._lmdb.writing import Writing
from flowpregel.errors import (
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)

Result = TypeVar("Result")
Work = Callable[[Any], Result]
_SOON = 0.05
"""Seconds to wait for others who write, to do what can be done later as well."""

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
        self._file = MappedFile(path, map_size=map_size, readonly=readonly, lock=lock)
        self.databases: Mapping[bytes, Any] = self._file.databases
        self._shared: dict[Any, Any] = {}
        self._writer = threading.Lock()
        self._file_lock: FileLock | None = None
        self._presence = Presence(os.path.join(path, folder.PRESENCE))
        self._pending = Pending(path, readonly=readonly)
        self._writing = Writing(path, self._file, self._pending)
        try:
            self._begin(options)
        except OSError as error:
            self._shut()
            raise folder.named(error, path) from error
        except BaseException:
            self._shut()  # else its locks are held by nobody
            raise

    def _begin(self, options: StoreOptions) -> None:
        lock = os.path.join(self.path, folder.WRITE_LOCK)
        if self.readonly:
            self._file.open(pages=options.check_pages)
            with not_written(lock) as is_certain:
                # Else someone has it open, who tells us what is in the journal.
                if is_certain:
                    self._writing.catch_up()
            return
        self._file_lock = FileLock(lock)
        with self._exclusively(options.lock_timeout):
            self._file.open(pages=options.check_pages)
            self._writing.catch_up()
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

        missing: Missing | None = None
        while True:
            try:
                with self._file.gate, self._file.live().begin() as transaction:
                    seen = self._pending.seen(transaction, self._file.numbers, missing)
                    if not isinstance(seen, Missing):
                        return work(seen)
                    missing = seen
            except lmdb.MapResizedError:
                self._file.adopt_size()
            except lmdb.ReadersFullError:
                self._file.free_readers()
            except (lmdb.Error, JournalFailedError) as error:
                raise failures.translated(error, self.path) from error

    def write(self, work: Work[Result], *, timeout: float, size: int = 0) -> Result:
        """Return ``work(transaction)`` of one write transaction, once it is on disk.

        Args:
            work: Fills the transaction; may be called more than once.
            timeout: Seconds to wait for others who write.
            size: About how many bytes it puts there; the journal is for what is small.

        Raises:
            StoreBusyError: Someone else held the store all that time.
            StoreFullError: There is no room; nothing of it was kept.
        """
        self._file.live()
        lock = self._enter(timeout)
        try:
            return self._writing.write(work, size=size)
        finally:
            self._leave(lock)

    @contextmanager
    def _exclusively(self, timeout: float) -> Iterator[None]:
        """Keep out all others who write, of this process and of others."""
        lock = self._enter(timeout)
        try:
            yield
        finally:
            self._leave(lock)

    def _enter(self, timeout: float) -> FileLock:
        """Take both locks, our OS threads' and the processes'; return the latter."""
        if not self._writer.acquire(timeout=timeout):
            raise StoreBusyError(self.path, "another OS thread of this process", timeout)
        lock, is_taken = self._file_lock, False
        try:
            is_taken = lock is not None and lock.acquire(timeout)
        finally:
            if not is_taken:
                self._writer.release()
        if lock is None:
            raise StoreReadOnlyError(f"{self.path} was opened to be read only, or is closed")
        if not is_taken:
            raise StoreBusyError(self.path, str(lock.holder()), timeout)
        return lock

    def _leave(self, lock: FileLock) -> None:
        lock.release()
        self._writer.release()

    # ------------------------------------------------------------ the file

    def grow(self) -> None:
        """Make room: double the map."""
        self._file.grow()

    def map_size(self) -> int:
        """Return the bytes of address space the store has now."""
        return self._file.map_size()

    def size(self) -> int:
        """Return the bytes the store takes up in its file."""
        return self._file.size()

    def copy(self, path: str, *, compact: bool, timeout: float) -> None:
        """Copy the store as it is at one moment into the folder *path*, while it is used.

        Args:
            path: The folder.
            compact: Leave out the pages that are free.
            timeout: Seconds to wait for others who write.

        Raises:
            StoreBusyError: Someone else held the store all that time.
        """
        if not self.readonly:
            with self._exclusively(timeout):
                self._writing.empty_journal()
            self._file.copy(path, compact=compact)
            return
        until = time.monotonic() + timeout
        while not self._copied_with_journal(path, compact):
            if time.monotonic() > until:
                raise StoreBusyError(self.path, "others who write all the time", timeout)

    def _copied_with_journal(self, path: str, compact: bool) -> bool:
        """Copy the file and what is in the journal; return False if one of them has moved on."""
        base, layers = self.read(_on_top)
        self._file.copy(path, compact=compact)
        if not layers:
            return True
        if self.read(_on_top)[0] != base:
            os.unlink(os.path.join(path, folder.DATA))
            return False
        with ClosedStore(path) as copy:
            copy.write(lambda transaction: apply(transaction, copy.databases, layers))
        return True

    def replace(self, timeout: float) -> None:
        """Put a compacted copy in the place of the file.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        with self._exclusively(timeout):
            if not self._presence.become_only():
                raise StoreBusyError(self.path, "another process that has it open", 0.0)
            try:
                self._writing.empty_journal()
                self._pending.clear()  # LMDB counts its transactions anew
                with folder.draft_inside(self.path) as draft:
                    self._file.replace(draft)
            except OSError as error:
                raise folder.named(error, self.path) from error
            finally:
                self._presence.be_one_of_many()
                folder.close_to_others(self.path)

    def structure(self, timeout: float) -> list[str]:
        """Return what is wrong with the file's pages, as LMDB's own verifier finds it."""
        with self._exclusively(timeout):
            return folder.unsound_pages(self.path)

    # ------------------------------------------------------------ close

    @property
    def is_inherited(self) -> bool:
        """Whether a process that this one was forked from opened it."""
        return self._file.is_inherited

    def close(self) -> None:
        """Give one opening back; the last one closes the file."""
        with _registry:
            self.users -= 1
            if self.users <= 0:
                self._shut()

    def _shut(self) -> None:
        if _open.get(self.path) is self:
            del _open[self.path]
        if self.is_inherited:
            return  # it is the parent's
        if not self._pending.is_empty and self._file_lock is not None:
            # What is in the journal is safe there: where it cannot be done now, it is done later.
            with suppress(StoreError), self._exclusively(_SOON):
                self._writing.empty_journal()
        with self._file.gate.alone():
            self._file.close()
            self._pending.close()
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None
            self._presence.close()


def _on_top(transaction: Any) -> tuple[int, Mapping[int, Layer]]:
    """Return the number of LMDB's transaction, and what the journal has on top of it."""
    layers = transaction.layers if isinstance(transaction, Overlaid) else {}
    return transaction.id(), layers


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
        if found is None or found.is_inherited:
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
