"""A store's file while LMDB has it mapped: opened, grown, copied, replaced, opened again.

When each of that may happen is up to `environment`. The methods that change the map pass
the gate alone, so an OS thread that is inside it must not call them.
"""

from __future__ import annotations

import os
from typing import Any

import lmdb

from flowpregel._lmdb import errors, files
from flowpregel._lmdb.locks import Gate
from flowpregel.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreReadOnlyError,
)

ENGINE = 0
"""The major version of LMDB whose format we write; py-lmdb ships two."""
DATABASES = (
    b"meta", b"threads", b"checkpoints", b"values", b"deltas", b"writes", b"store", b"cache",
)  # fmt: skip
HEADER = b"header"
"""Its key in ``meta``."""
SMALLEST_MAP = 1 << 20
READERS = 1024


def connect(path: str, map_size: int, *, readonly: bool, lock: bool) -> Any:
    """Return LMDB's own environment at *path*, opened as we open it everywhere.

    With LMDB's default flags: without ``sync`` or ``metasync`` a power cut loses
    acknowledged commits; with ``writemap`` a full disk ends the interpreter.
    """
    # Without it a commit keeps the GIL while the disk syncs: nobody could join its group.
    lmdb.enable_drop_gil()
    return lmdb.open(
        path,
        map_size=map_size,
        max_dbs=16,
        max_readers=READERS,
        mode=0o600,
        create=not readonly,
        readonly=readonly,
        lock=lock,
        lib_version=ENGINE,
    )


def fill(draft: str, header: bytes) -> None:
    """Make a store with its databases and a *header* in the folder *draft*."""
    try:
        with connect(draft, SMALLEST_MAP, readonly=False, lock=True) as env:
            for name in DATABASES:
                env.open_db(name)
            with env.begin(write=True, db=env.open_db(b"meta")) as transaction:
                transaction.put(HEADER, header)
    except lmdb.Error as error:
        raise errors.of_commit(error, draft) from error
    files.close_to_others(draft)


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
        """Every transaction is inside."""
        self.databases: dict[bytes, Any] = {}
        self._map_size = max(map_size, SMALLEST_MAP)
        self._readonly = readonly
        self._registers = lock
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
        """Check the file, with *pages* each page of it, and map it."""
        files.check(self.path, pages=pages, readonly=self._readonly)
        try:
            self._lmdb = self._mapped()
            if not self._readonly or self._registers:
                self._lmdb.reader_check()
            for name in DATABASES:
                self.databases[name] = self._lmdb.open_db(name, create=False)
            if pages:
                self._check_keys()
        except lmdb.Error as error:
            self.close()
            raise errors.of_lmdb(error, self.path) from error
        except StoreCorruptError:
            self.close()
            raise

    def _mapped(self) -> Any:
        size = self._map_size
        while True:
            try:
                return connect(self.path, size, readonly=self._readonly, lock=self._registers)
            except lmdb.MemoryError:
                # A process may be allowed little address space (`ulimit -v`).
                if size <= SMALLEST_MAP:
                    raise
                size //= 2

    def _check_keys(self) -> None:
        """Refuse a database with an empty key, which LMDB's verifier accepts.

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

    def close(self) -> None:
        """Unmap it, if it is mapped; nobody may be inside the gate."""
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None

    def grow(self) -> None:
        """Make room: double the map."""
        with self.gate.alone():
            size = self.live().info()["map_size"]
            self.live().set_mapsize(size * 2 if size < 1 << 36 else size + (1 << 36))

    def map_size(self) -> int:
        """Return the bytes of address space the store has now."""
        with self.gate:
            return int(self.live().info()["map_size"])

    def size(self) -> int:
        """Return the bytes of the store's file that are in use."""
        with self.gate:
            return self._used()

    def _used(self) -> int:
        live = self.live()
        return int((live.info()["last_pgno"] + 1) * live.stat()["psize"])

    def adopt_size(self) -> None:
        """Take the size that another process gave the map."""
        with self.gate.alone():
            self.live().set_mapsize(0)

    def fill_up(self) -> None:
        """Make the file as long as LMDB counts, if the last pages were never written.

        `files.check` has to look at every page of a file that is too short.
        """
        if os.path.getsize(self._data()) < self._used():
            os.truncate(self._data(), self._used())

    def free_readers(self) -> None:
        """Free the slots of readers that died.

        Raises:
            StoreBusyError: They are all alive.
        """
        with self.gate:
            if not self.live().reader_check():
                raise StoreBusyError(self.path, f"{READERS} readers that are all alive", 0.0)

    def has_landed(self, transaction_id: int) -> bool:
        """Open the file again after a commit failed; return whether that is there after all.

        LMDB itself cannot be asked: a meta page that could not be written
        leaves it unusable, and one that could not be synced may be there.
        """
        with self.gate.alone():
            self.close()
            try:
                files.sync(self._data())
                synced = True
            except OSError:
                synced = False
            self.open()
            return synced and self._lmdb.info()["last_txnid"] >= transaction_id

    def copy(self, path: str) -> None:
        """Copy it as it is at one moment into the folder *path*, without free pages."""
        try:
            with self.gate:
                self.live().copy(path, compact=True)
        except lmdb.Error as error:
            raise errors.of_commit(error, path) from error

    def replace(self, draft: str) -> None:
        """Put a compacted copy in its place, made in the folder *draft* on the same disk."""
        self.copy(draft)
        copied = os.path.join(draft, errors.DATA)
        files.sync(copied)
        with self.gate.alone():
            self.close()
            try:
                os.replace(copied, self._data())
                files.sync(self.path)
            finally:
                self.open()

    def _data(self) -> str:
        return os.path.join(self.path, errors.DATA)
