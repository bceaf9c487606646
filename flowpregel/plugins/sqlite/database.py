"""An open SQLite store: its connections, transactions and header.

::

    SQLiteDatabase ┬─► read(work)     a connection of the pool, one snapshot
                   ├─► write(work)    group commit ► our flock ► one connection
                   └─► table(name)    see `tables`

The waiting writers of one process share one transaction and one sync (see
`flowpregel.storage.group_commit`). To exclude writers of other processes, a lock file
of our own is locked first, because an error can name the process that holds it.
SQLite's own lock is then free, unless another program writes to the database.

A commit whose sync failed is rolled back, but its pages may be in the log, where a
reader would find them after a crash. So they are overwritten at once, by a transaction
that writes the same header again. If that fails too, the caller gets
`CommitUnknownError`.

An open store has at least one connection, which holds a shared lock of SQLite on the
file. By this lock, the module `keys` finds out whether any program has the store open.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowpregel.errors import (
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)
from flowpregel.plugins.sqlite import connections, files, keys
from flowpregel.plugins.sqlite.connections import our_errors
from flowpregel.plugins.sqlite.tables import SQLiteTable
from flowpregel.storage import (
    TABLE_NAMES,
    Codec,
    CommitQueue,
    FileLock,
    Header,
    Seal,
    StoreOptions,
    ValueCodec,
    defer_interrupts,
    fault,
    make_ballast,
    raise_pending_interrupts,
    refuse_network_folder,
    seal_for,
    translate_os_errors,
)

_MOST_IDLE = 4
_TICK = 50_000_000
"""The time, in nanoseconds, within which two commits may leave the same modification
time of the file, because of the resolution of the file system's clock.
"""
_PAUSE = 0.02
"""Seconds between two attempts to open a store whose records must first get checksums
of our own key.
"""


@dataclass(slots=True, eq=False)
class StoreHandles:
    """The connections and the lock of an open store."""

    pid: int
    """The process that opened the store."""
    idle: list[sqlite3.Connection] = field(default_factory=list)
    """The connections for reading that are not in use."""
    writer: sqlite3.Connection | None = None
    """The connection that writes, or None if the store is only read."""
    lock: FileLock | None = None
    """The lock that excludes writers of other processes, or None if the store is only
    read.
    """

    def close_connections(self) -> None:
        """Close the connections, except those with which other OS threads are
        reading.
        """
        while self.idle:
            self.idle.pop().close()
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def close(self) -> None:
        """Close the connections and the lock, except in a forked process, which shares
        them with the process that opened the store.
        """
        if self.pid != os.getpid():
            return
        self.close_connections()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


class SQLiteDatabase:
    """A store in a SQLite database, for any OS thread and several processes.

    Args:
        location: The URL or the path of the file. The file is created if it does not
            exist.
        readonly: True to open an existing file for reading only.
        codec: The codec of values, or None for `PythonCodec`.
        options: Rarely needed options.

    Raises:
        ConfigurationError: The URL names no file.
        StoreError: The store cannot be opened; the subclass of the error gives the
            reason.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self.path: str = files.path_in(location)
        self.readonly = readonly
        self._options = options or StoreOptions()
        self._timeout = self._options.lock_timeout
        self.codec: ValueCodec = ValueCodec(
            codec, self._options.compression, self._options.renamed
        )
        self._pid = os.getpid()
        self._is_open = True
        self._lock = threading.Lock()
        """The lock that guards the pool of connections."""
        self._handles = StoreHandles(self._pid)
        # If the program does not close the store, this finalizer does. Otherwise the
        # lock file would stay open, and Python 3.13 would warn about each connection.
        weakref.finalize(self, self._handles.close)
        self._commits = CommitQueue(self.path, self._attempt, self._locked)
        try:
            with defer_interrupts():
                self._open()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ the store

    def table(self, name: bytes) -> SQLiteTable:
        """Return the table that has *name*."""
        return SQLiteTable(name, self.path, self.seal)

    @defer_interrupts()
    def read(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``, where *work* reads one snapshot."""
        with our_errors(self.path, self._timeout), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("ROLLBACK")

    @defer_interrupts()
    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``, once the transaction is on disk.

        If this raises an error, nothing is stored.

        Raises:
            StoreBusyError: Another writer held the store for too long.
            StoreFullError: There is not enough space.
            CommitUnknownError: It is unknown whether the changes are stored.
            Exception: Any error that *work* raises.
        """
        self._writing()
        return self._commits.write(work, self._timeout)

    def sizes(self) -> tuple[int, int]:
        """Return the size of the files in bytes, and 0 in place of the size of a memory
        map.
        """
        size = os.path.getsize(self.path)
        with suppress(FileNotFoundError):
            size += os.path.getsize(self.path + files.WAL_SUFFIX)
        return size, 0

    def change_counter(self) -> int:
        """Return a number that stays the same as long as nothing is committed.

        For 50 ms after a commit, each call returns a different number, because another
        commit in that time might not be visible in the file's modification time.
        """
        with translate_os_errors(self.path):
            changed_at = os.stat(self.path).st_mtime_ns
        with suppress(FileNotFoundError):
            log = os.stat(self.path + files.WAL_SUFFIX)
            changed_at = max(changed_at, log.st_mtime_ns)
        now = time.time_ns()
        return changed_at if now - changed_at > _TICK else now

    @defer_interrupts()
    def close(self) -> None:
        """Close the connections. It is safe to call this more than once."""
        self._is_open = False
        if self._pid != os.getpid():
            # A forked process must not close the connections, because they belong to
            # the parent process.
            return
        with self._commits.writer, self._lock:
            self._handles.close()

    # ------------------------------------------------------------ maintenance

    @defer_interrupts()
    def unsound_pages(self) -> list[str]:
        """Return descriptions of the file's damaged pages."""
        with our_errors(self.path, self._timeout), self._connection() as connection:
            return connections.damaged_pages(connection)

    @defer_interrupts()
    def backup(self, path: str) -> None:
        """Copy a snapshot of the store into the new file *path*, without free pages.

        Raises:
            StoreError: There is a file at *path*.
        """
        if os.path.lexists(path):
            raise StoreError(f"there is already a file at {path}; give a new path")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not files.create_database(path, self._copy):
            raise StoreError(f"there is already a file at {path}; give a new path")

    def _copy(self, path: str) -> None:
        with our_errors(path, self._timeout), self._connection() as connection:
            connection.execute("VACUUM INTO ?", (path,))

    @defer_interrupts()
    def compact(self) -> None:
        """Rewrite the file without free pages.

        Raises:
            StoreBusyError: Another program uses the database.
        """
        self._writing()
        with self._commits.exclusively(self._timeout):
            connection = self._writing()
            with our_errors(self.path, self._timeout):
                connection.execute("VACUUM")
                cursor = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                is_busy, *_ = cursor.fetchone()
            if is_busy:
                # All rewritten pages are in SQLite's log. But while another connection
                # reads old pages, the log cannot be copied into the file, so no space
                # is freed.
                reader = "another program that reads the database"
                raise StoreBusyError(self.path, reader, self._timeout)

    @defer_interrupts()
    def seal_again(self, seal: Seal) -> None:
        """Close the store, and rewrite all its records with the secret keys in *seal*.

        Raises:
            StoreBusyError: Another object in this process, or another process, has the
                store open.
            StoreReadOnlyError: The store was opened to be read only.
        """
        self._check_usable()
        if self.readonly:
            raise StoreReadOnlyError(
                f"{self.path} is read only, so its keys cannot be changed; open it for "
                "writing"
            )
        self.close()
        with keys.sole_connection(self.path) as connection:
            # The header is read again, because another process may have changed it
            # after this process had closed the store.
            record = connections.header_of(connection)
            header = Header.read(record, self.path, keys.ENGINES)
            header.check(record, self.path, self.seal, readonly=False)
            header = header.with_keys_of(seal)
            keys.reseal(connection, self.path, header, seal, self.seal)

    # ------------------------------------------------------------ opening

    def _open(self) -> None:
        """Check the files, create a store if there is none, and check the header."""
        if not self._options.allow_network:
            refuse_network_folder(os.path.dirname(self.path), "SQLite")
        if not os.path.exists(self.path):
            self._create()
        if not (self._options.trust or self._options.trusts_all):
            files.refuse_others_files(self.path)
        deadline = time.monotonic() + self._timeout
        while not self._accepts_header():
            # All connections to the store must be closed first, including those of this
            # process.
            with self._lock:
                self._handles.close_connections()
            try:
                keys.seal_as_ours(self.path, self._options)
            except StoreBusyError:
                if time.monotonic() > deadline:
                    raise
                # Another process has the store open. Perhaps it is about to write
                # checksums of the same key. So this process waits and tries again.
                raise_pending_interrupts()
                time.sleep(_PAUSE)
        if not self.readonly:
            # The folder of the locks is created only after the header was accepted, so
            # that no folder is left beside a file that is no store of ours.
            self._handles.lock = files.write_lock(self.path)
            make_ballast(files.locks_of(self.path))
        self._inode = os.stat(self.path).st_ino
        if self._options.check_pages:
            self._check_all()

    def _accepts_header(self) -> bool:
        """Open the first connection, and check the header of the store.

        Returns:
            False if all records must first get checksums of our own key.
        """
        with our_errors(self.path, self._timeout):
            record = self._first_connection()
        header, seal = keys.accepted_header(
            record, self.path, self._options, readonly=self.readonly
        )
        self.seal = seal
        return header.key == seal.id

    def _create(self) -> None:
        if self.readonly:
            raise StoreError(
                f"there is no store at {self.path}, and readonly=True does not create "
                "one"
            )
        with translate_os_errors(self.path):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        seal = seal_for(self._options)
        lock = files.write_lock(self.path)
        try:
            if not lock.acquire(self._timeout):
                raise StoreBusyError(self.path, str(lock.holder()), self._timeout)
            header = Header.new(seal, keys.ENGINES[0]).to_bytes(seal)
            files.create_database(self.path, partial(self._fill_draft, header=header))
        finally:
            lock.close()

    def _fill_draft(
        self,
        draft: str,
        header: bytes,
    ) -> None:
        with our_errors(self.path, self._timeout):
            connection = connections.connect(draft, timeout=0.0)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connections.make_tables(connection, header)
            finally:
                connection.close()

    def _first_connection(self) -> bytes:
        """Open the connection for writing, or, if the store is only read, the first
        connection for reading. Return the header.
        """
        connection = self._new_connection()
        if self.readonly:
            self._handles.idle.append(connection)
        else:
            self._handles.writer = connection
        connections.check_application(connection, self.path)
        if not self.readonly:
            # The journal mode is set each time, because a restored backup may have
            # another mode.
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        return connections.header_of(connection)

    def _check_all(self) -> None:
        """Raise `StoreCorruptError` if a page or a record is damaged."""
        with our_errors(self.path, self._timeout), self._connection() as connection:
            connections.refuse_damaged_pages(connection, self.path)

        def work(transaction: Any) -> None:
            for name in TABLE_NAMES:
                table = self.table(name)
                for key in table.keys(transaction, b""):
                    table.check(transaction, key)

        self.read(work)

    # ------------------------------------------------------------ transactions

    @contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock that excludes writers of other processes."""
        self._writing()
        lock = self._handles.lock
        # `_writing` has returned a connection, so the store is open for writing, and
        # opening it has opened the lock file, too. So `lock` is not None.
        assert lock is not None
        try:
            if not lock.acquire(timeout):
                raise StoreBusyError(self.path, str(lock.holder()), timeout)
            yield
        finally:
            lock.release()

    def _attempt(self, works: Sequence[Callable[[Any], Any]]) -> list[Any]:
        """Call all *works* in one transaction, and return their results once the
        changes are on disk.
        """
        self._refuse_another_file()
        connection = self._writing()
        with our_errors(self.path, self._timeout):
            connection.execute("BEGIN IMMEDIATE")
            try:
                results = [work(connection) for work in works]
                fault("store.commit.before")
            except BaseException:
                connections.roll_back(connection)
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                connections.undo_commit(connection, error, self.path)
                raise
        return results

    def _refuse_another_file(self) -> None:
        """Raise `StoreError` if the open file is no longer the file at the path."""
        try:
            inode = os.stat(self.path).st_ino
        except FileNotFoundError:
            # SQLite finds its other files by the name of the database file. So a
            # database that was moved must not be written either.
            raise StoreError(
                f"{self.path} was deleted or moved while it was open; nothing was "
                "stored: open it again"
            ) from None
        if inode != self._inode:
            raise StoreError(
                f"{self.path} is no longer the store that was opened: another file "
                "has replaced it, such as a restored backup; nothing was stored: open "
                "it again"
            )

    # ------------------------------------------------------------ connections

    def _check_usable(self) -> None:
        """Raise `StoreError` if the store is closed, or was opened before a fork."""
        if self._pid != os.getpid():
            raise StoreReadOnlyError(
                f"{self.path} was opened before a fork (by process {self._pid}); "
                "a forked process cannot use it: start one that opens it itself"
            )
        if not self._is_open:
            raise StoreError(f"{self.path} is closed; open it again")

    def _writing(self) -> sqlite3.Connection:
        """Return the connection that writes."""
        self._check_usable()
        writer = self._handles.writer
        if writer is None:
            raise StoreReadOnlyError(f"{self.path} was opened read-only")
        return writer

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Take a connection for reading from the pool, until the context ends."""
        # This is checked before the lock is acquired, because in a forked child, an OS
        # thread of the parent may still hold the lock.
        self._check_usable()
        idle = self._handles.idle
        with self._lock:
            # Another OS thread may have closed the store in the meantime.
            self._check_usable()
            connection = idle.pop() if idle else None
        connection = connection or self._new_connection()
        try:
            yield connection
        finally:
            with self._lock:
                is_kept = self._is_open and len(idle) < _MOST_IDLE
                if is_kept:
                    idle.append(connection)
            if not is_kept:
                connection.close()

    def _new_connection(self) -> sqlite3.Connection:
        """Return a new connection. It is read-only if the store was opened for reading
        only.
        """
        try:
            return connections.connect(
                self.path, timeout=self._timeout, readonly=self.readonly
            )
        except sqlite3.OperationalError:
            # SQLite must create the index of the log, which it cannot do in a read-only
            # folder. There, the file can only be opened as immutable.
            is_frozen = not os.access(os.path.dirname(self.path), os.W_OK)
            if not self.readonly or not is_frozen:
                raise
            files.refuse_unread_log(self.path)
            return connections.connect(
                self.path, timeout=self._timeout, readonly=True, immutable=True
            )
