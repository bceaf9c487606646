"""A store's file while LMDB has it mapped: opened, grown, opened again, copied, replaced.

Who may use it, and when, is for `environment` to say. All methods but `live`, `open` and
`close` pass the gate by themselves, so nobody may call them who is inside.
"""

from __future__ import annotations

import os
from typing import Any

from flowpregel._lmdb import engine, failures, folder
from flowpregel._lmdb.gate import Gate
from flowpregel.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreReadOnlyError,
)


class MappedFile:
    """The data file of a store, mapped into this process from `open` to `close`.

    Args:
        path: The store's folder.
        map_size: The bytes of address space to begin with.
        readonly: Only read it.
        lock: Register as a reader.
    """

    def __init__(self, path: str, *, map_size: int, readonly: bool, lock: bool) -> None:
        self.path = path
        self.gate = Gate()
        """Whoever has a transaction is inside."""
        self.databases: dict[bytes, Any] = {}
        self.numbers: dict[Any, int] = {}
        """The number of each database in `engine.DATABASES`, by its handle."""
        self._map_size = max(map_size, engine.SMALLEST_MAP)
        self._readonly = readonly
        self._lock = lock
        self._pid = os.getpid()
        self._lmdb: Any = None

    @property
    def is_inherited(self) -> bool:
        """Whether a process that this one was forked from opened it."""
        return self._pid != os.getpid()

    def live(self) -> Any:
        """Return LMDB's environment, for use inside the gate.

        Raises:
            StoreReadOnlyError: It was opened before a fork.
            StoreError: It is closed.
        """
        if self.is_inherited:
            raise StoreReadOnlyError(
                f"{self.path} was opened before a fork (by process {self._pid}); "
                "a forked process cannot use it: start one that opens it itself"
            )
        if self._lmdb is None:
            raise StoreError(f"{self.path} is closed; open it again")
        return self._lmdb

    def open(self, *, pages: bool = False) -> None:
        """Check the file, with *pages* each page of it, and map it.

        Whoever may write needs our own write lock for it: opening the databases is a write
        transaction then, for which LMDB's own lock could keep us waiting for ever.
        """
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        folder.check(self.path, pages=pages)
        self._lmdb = self._connected()
        try:
            if not self._readonly or self._lock:
                self._lmdb.reader_check()
            for name in engine.DATABASES:
                self.databases[name] = self._lmdb.open_db(name, create=False)
            if pages:
                self._check_keys()
            self.numbers = {self.databases[name]: n for n, name in enumerate(engine.DATABASES)}
        except lmdb.Error as error:
            self.close()
            raise failures.translated(error, self.path) from error
        except StoreCorruptError:
            self.close()
            raise

    def _check_keys(self) -> None:
        """Refuse a database with a key of no bytes, which LMDB's verifier lets pass.

        There can be none; where a damaged page has one, a record is not found any more.
        """
        with self._lmdb.begin() as transaction:
            for name, database in self.databases.items():
                with transaction.cursor(db=database) as cursor:
                    if cursor.first() and not cursor.key():
                        raise StoreCorruptError(
                            f"{self._data()} is damaged: {name.decode()} has a record without "
                            "a key; restore a backup"
                        )

    def _connected(self) -> Any:
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        size = self._map_size
        while True:
            try:
                return engine.connect(self.path, size, readonly=self._readonly, lock=self._lock)
            except lmdb.MemoryError as error:
                # A process may be allowed little address space (`ulimit -v`).
                if size <= engine.SMALLEST_MAP:
                    raise failures.translated(error, self.path) from error
                size //= 2
            except lmdb.Error as error:
                raise failures.translated(error, self.path) from error

    def close(self) -> None:
        """Unmap it, if it is mapped; nobody may be inside the gate."""
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None

    def fill_up(self) -> None:
        """Make the file as long as LMDB says it is, if the last pages were never written.

        For whoever has just committed, inside the gate: `folder.check` has to look at
        every page of a file that is too short.
        """
        needed = self.live().stat()["psize"] * (self.live().info()["last_pgno"] + 1)
        if os.path.getsize(self._data()) < needed:
            os.truncate(self._data(), needed)

    # ------------------------------------------------------------ the map

    def grow(self) -> None:
        """Make room: double the map."""
        with self.gate.alone():
            size = self.live().info()["map_size"]
            self.live().set_mapsize(size * 2 if size < 1 << 36 else size + (1 << 36))

    def adopt_size(self) -> None:
        """Take the size that another process gave the map."""
        with self.gate.alone():
            self.live().set_mapsize(0)

    def free_readers(self) -> None:
        """Free the places of readers that died.

        Raises:
            StoreBusyError: They are all alive.
        """
        with self.gate:
            if not self.live().reader_check():
                raise StoreBusyError(self.path, f"{engine.READERS} readers that are all alive", 0.0)

    def map_size(self) -> int:
        """Return the bytes of address space it has now."""
        with self.gate:
            return int(self.live().info()["map_size"])

    # ------------------------------------------------------------ the file

    def size(self) -> int:
        """Return the bytes that are used of the file."""
        with self.gate:
            live = self.live()
            pages: int = live.info()["last_pgno"] + 1
            return pages * int(live.stat()["psize"])

    def reopened_after(self, transaction_id: int) -> bool:
        """Open it again after a commit failed; return whether that is there after all.

        LMDB itself cannot be asked: a meta page that could not be written
        leaves it unusable, and one that could not be synced may be there.
        """
        with self.gate.alone():
            self.close()
            try:
                folder.sync(self._data())
                synced = True
            except OSError:
                synced = False
            self.open()
            return synced and self._lmdb.info()["last_txnid"] >= transaction_id

    def copy(self, path: str, *, compact: bool) -> None:
        """Copy it as it is at one moment into the folder *path*, while it is used."""
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        try:
            with self.gate:
                self.live().copy(path, compact=compact)
        except lmdb.Error as error:
            raise failures.of_commit(error, path) from error

    def replace(self, draft: str) -> None:
        """Put a compacted copy in its place, made in the folder *draft* on the same disk."""
        self.copy(draft, compact=True)
        copied = os.path.join(draft, folder.DATA)
        folder.sync(copied)
        with self.gate.alone():
            self.live().close()
            try:
                os.replace(copied, self._data())
                folder.sync(self.path)
            finally:
                self.open()

    def _data(self) -> str:
        return os.path.join(self.path, folder.DATA)
