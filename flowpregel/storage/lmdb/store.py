"""An LMDB store that this process has opened: its environment, keys and codec.

The secret keys of a store, for checksums and for encryption, can be changed. Every
process that has the store open has the keys in memory, so they can be changed only
while no process has it open. All records are written with the new keys to a new file,
because the free pages of the old file still contain readable data. When the new file is
complete and on disk, it replaces the old file in one step. A crash, a full disk or a
damaged record leaves the old file untouched.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import lmdb

from flowpregel._interrupts import defer_interrupts
from flowpregel.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)
from flowpregel.storage.codec import Codec, ValueCodec
from flowpregel.storage.drafts import draft_in
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.file_systems import refuse_network_folder
from flowpregel.storage.headers import Header, seal_for
from flowpregel.storage.lmdb import errors, files
from flowpregel.storage.lmdb.environment import OPEN, Environment, registry
from flowpregel.storage.lmdb.gates import OpenStoreLock
from flowpregel.storage.lmdb.tables import LMDBTable
from flowpregel.storage.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel.storage.ownership import refuse_foreign_files
from flowpregel.storage.records import HEADER, TABLE_NAMES, Seal, SealedRecords
from flowpregel.storage.tables import Table

ENGINES = ("lmdb 0.9", "0.9")
"""The name of this engine in a header, and its earlier name."""
_PAUSE = 0.02
"""Seconds before the next attempt to open a store whose records must first get
checksums of our own key. This is possible only while no process has the store open.
"""
_PART = 64 << 20
"""The size, in bytes, of the records that are rewritten with other secret keys in one
transaction. It is limited because LMDB keeps a transaction in memory.
"""
_LEAST_MAP = 16 << 20


class OpenStore:
    """A store that one object in this process, such as a saver, has opened, until
    `close`.

    Args:
        environment: The environment, which all such objects in the process share.
        seal: The keys of the store, for checksums and encryption.
        codec: The codec of values.
        timeout: Seconds to wait for other writers.
    """

    def __init__(
        self,
        environment: Environment,
        seal: Seal,
        codec: ValueCodec,
        timeout: float,
    ) -> None:
        self.environment = environment
        self.path: str = environment.path
        self.sizes: Callable[[], tuple[int, int]] = environment.sizes
        self.change_counter: Callable[[], int] = environment.change_counter
        self.read: Callable[[Callable[[Any], Any]], Any] = environment.read
        self.write: partial[Any] = partial(environment.commits.write, timeout=timeout)
        self.seal = seal
        self.codec = codec
        self._is_open = True

    def table(self, name: bytes) -> Table:
        """Return the database that has *name*."""
        return LMDBTable(name, self.path, self.seal, self.environment.databases)

    def check(self, transaction: Any) -> None:
        """Raise `StoreCorruptError` if a record is damaged, or is not at its own key.

        A damaged key must be detected by this check, because a later read by the right
        key would only report that the record is missing.
        """
        for name in TABLE_NAMES:
            table = self.table(name)
            database = self.environment.databases[name]
            with transaction.cursor(db=database) as cursor:
                for key in cursor.iternext(values=False):
                    table.check(transaction, key)

    @defer_interrupts()
    def seal_again(self, seal: Seal) -> None:
        """Close the store, and rewrite all its records with the secret keys in *seal*.

        Raises:
            StoreBusyError: Another object in this process, or another process, has the
                store open.
            StoreReadOnlyError: The store was opened to be read only.
        """
        path = self.environment.path
        if self.environment.readonly:
            raise StoreReadOnlyError(
                f"{path} is read only, so its keys cannot be changed; open it for "
                "writing"
            )
        self.close()
        with _kept_closed(path):
            # The header is read again, because another process may have changed it
            # since the store was closed.
            record = _header_of(path)
            header = Header.read(record, path, ENGINES)
            header.check(record, path, self.seal, readonly=False)
            _seal_again(path, header.with_keys_of(seal), seal, self.seal)

    def close(self) -> None:
        """Close this object. The last open object in this process also closes the
        store. It is safe to call this twice.
        """
        if self._is_open:
            self._is_open = False
            self.environment.close()


def _check_arguments(
    path: str | os.PathLike[str],
    map_size: int,
    options: StoreOptions,
    *,
    readonly: bool,
    lock: bool,
) -> None:
    """Raise `ConfigurationError` for arguments with which no store can be opened."""
    if not os.fspath(path):
        raise ConfigurationError("the store's path is empty: give that of a folder")
    if map_size < 0:
        raise ConfigurationError(f"map_size={map_size}: use bytes, 0 or more")
    if not lock and not readonly:
        raise ConfigurationError(
            "lock=False needs readonly=True: it is for folders that no one can write to"
        )
    if options.check_pages and readonly and lock:
        raise ConfigurationError(
            "check_pages requires that no process writes at the same time: with "
            "readonly=True, also pass lock=False"
        )


@defer_interrupts()
def open_store(
    path: str | os.PathLike[str],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    codec: Codec | None = None,
    options: StoreOptions | None = None,
) -> OpenStore:
    """Open the store at *path*, or create it.

    Args:
        path: The folder.
        map_size: The initial size of the map, in bytes. The map grows by itself.
        readonly: True to open an existing store for reading only.
        lock: True to register as a reader. If False, no process may write at the same
            time.
        codec: The codec of values, or None for `PythonCodec`.
        options: Rarely needed options.

    Raises:
        StoreForeignError: The store's checksums or its encryption use another secret
            key, or the store belongs to another user, or other users can write to it.
        StoreBusyError: The records must first get checksums of our own key, and a
            process has the store open.
        StoreVersionError: Another release, or another engine, wrote the store.
        StoreCorruptError: The store is damaged.
    """
    options = options or StoreOptions()
    _check_arguments(path, map_size, options, readonly=readonly, lock=lock)
    values = ValueCodec(codec, options.compression, options.renamed)
    real = files.real_path(path)
    if files.exists(real) and not (options.trust or options.trusts_all):
        refuse_foreign_files([real, os.path.join(real, errors.DATA)])
    deadline = time.monotonic() + options.lock_timeout
    while True:
        environment = _shared_environment(
            real, options, map_size, readonly=readonly, lock=lock
        )
        store = _opening(environment, values, options, readonly=readonly)
        if store is not None:
            return store
        if time.monotonic() > deadline:
            raise StoreBusyError(
                real, "a process that has it open, so it cannot be sealed again", 0.0
            )
        # Another process may be about to write the new checksums, so this process
        # waits.
        time.sleep(_PAUSE)


def _opening(
    environment: Environment,
    codec: ValueCodec,
    options: StoreOptions,
    *,
    readonly: bool,
) -> OpenStore | None:
    """Return an open store, or None if its records must first get checksums of our own
    key.

    If None is returned, or an error is raised, the environment is released.
    """
    try:
        record = environment.read(partial(_header_in, environment.databases))
        header, seal = _accepted(record, environment.path, options, readonly=readonly)
        if header.key == seal.id:
            store = OpenStore(environment, seal, codec, options.lock_timeout)
            if options.check_pages:
                environment.read(store.check)
            return store
    except BaseException:
        environment.close()
        raise
    environment.close()
    return None


def _accepted(
    record: bytes,
    path: str,
    options: StoreOptions,
    *,
    readonly: bool,
) -> tuple[Header, Seal]:
    """Check a store's header. Return it with the secret keys that the records must
    have.
    """
    header = Header.read(record, path, ENGINES)
    seal = seal_for(options, header)
    header.check(record, path, seal, readonly=readonly, trusting=options.trusts_all)
    return header, seal


def _shared_environment(
    path: str,
    options: StoreOptions,
    map_size: int,
    *,
    readonly: bool,
    lock: bool,
) -> Environment:
    """Return the environment of *path* that this process shares.

    If there is none yet, the store is opened, or created.
    """
    with registry():
        environment = OPEN.get(path)
        # If the folder of an open store was deleted or moved, the objects that use the
        # store keep their environment, and the path is free for another store.
        if (
            environment is None
            or environment.pid != os.getpid()
            or not environment.is_at_path()
        ):
            if not options.allow_network:
                refuse_network_folder(path)
            _check_or_create(path, options, readonly=readonly)
            environment = Environment(
                path, map_size=map_size, readonly=readonly, lock=lock, options=options
            )
            OPEN[path] = environment
        elif environment.readonly and not readonly:
            raise StoreReadOnlyError(
                f"{path} is already open read-only in this process; close it before "
                "you open it for writing"
            )
        environment.users += 1
        return environment


def _check_or_create(
    path: str,
    options: StoreOptions,
    *,
    readonly: bool,
) -> None:
    """Check the store at *path*, or create one."""
    if files.exists(path):
        _check_header(path, options, readonly=readonly)
    elif readonly:
        raise StoreError(
            f"there is no store at {path}, and readonly=True does not create one"
        )
    else:
        seal = seal_for(options)
        header = Header.new(seal, ENGINES[0]).to_bytes(seal)
        files.create(path, partial(files.fill_draft, header=header))


def _check_header(
    path: str,
    options: StoreOptions,
    *,
    readonly: bool,
) -> None:
    """Check a store's header before any file in its folder is created, or opened for
    writing.

    The header is read without LMDB's lock. If a process has the store open, this
    function does not check the header, which is then checked after this process has
    opened the store too. A store that is accepted by `StoreOptions.trust` gets new
    checksums of our own key. Its old checksums cannot be checked, since their key is
    unknown. After that, the records are unpickled as if this user had written them.
    """
    with suppress(StoreBusyError):
        with _kept_closed(path, create=False):
            record = _header_of(path)
            header, seal = _accepted(record, path, options, readonly=readonly)
        if header.key != seal.id:
            with _kept_closed(path):
                if _header_of(path) == record:
                    _seal_again(path, header.under(seal), seal, None)


@atexit.register
def _close_environments() -> None:
    for environment in [*OPEN.values()]:
        environment.shut()


# ---------------------------------------------- a store that no process has open


@contextmanager
def _kept_closed(path: str, *, create: bool = True) -> Iterator[None]:
    """Make all processes that open the store at *path* wait, while the context is open.

    Raises:
        StoreBusyError: The store is open, in this process or in another.
    """
    data = os.path.join(path, errors.DATA)
    lock_path = os.path.join(path, files.OPEN_LOCK)
    open_lock = OpenStoreLock(lock_path, data, create=create)
    try:
        with open_lock.alone() as is_alone, translate_os_errors(path):
            if not is_alone:
                raise StoreBusyError(
                    path, "a program that has it open, here or in another process", 0.0
                )
            yield
    except lmdb.Error as error:
        raise errors.of_lmdb(error, path) from error
    finally:
        open_lock.close()


@contextmanager
def _opened(path: str, map_size: int = 0) -> Iterator[tuple[Any, dict[bytes, Any]]]:
    """Open LMDB's file, which no process may have open.

    Without *map_size*, the file is opened for reading only.
    """
    readonly = not map_size
    files.check_files(path, readonly=readonly)
    size = max(map_size, files.SMALLEST_MAP)
    with files.open_lmdb(path, size, readonly=readonly, lock=not readonly) as env:
        yield env, {name: env.open_db(name, create=False) for name in TABLE_NAMES}


def _header_of(path: str) -> bytes:
    with _opened(path) as (env, databases), env.begin() as transaction:
        return _header_in(databases, transaction)


def _header_in(databases: Mapping[bytes, Any], transaction: Any) -> bytes:
    return transaction.get(HEADER, db=databases[b"meta"]) or b""


def _seal_again(
    path: str,
    header: Header,
    seal: Seal,
    old: Seal | None,
) -> None:
    """Rewrite all records of a store with checksums made with *seal*, and encrypt them
    if *seal* has an encryption key.

    Args:
        path: The folder of the store. The caller must keep other processes from opening
            it.
        header: The header of the new file.
        seal: The new secret keys.
        old: The old secret keys, with which the records are checked. If they are
            unknown (None), the records are not checked.

    Raises:
        StoreForeignError: A record is encrypted under another key than that of *old*.
        StoreCorruptError: A record is damaged.
        StoreFullError: There is not enough space for both files.
    """
    # The map is large enough for the new records, because a record grows by at most a
    # checksum when it is rewritten.
    room = 4 * os.path.getsize(os.path.join(path, errors.DATA)) + _LEAST_MAP
    try:
        with draft_in(path, files.DRAFT, 0.0) as draft:
            files.fill_draft(draft, header.to_bytes(seal))
            with (
                _opened(path) as (environment, databases),
                _opened(draft, room) as (target, new_databases),
                environment.begin() as reading,
            ):
                for name in TABLE_NAMES:
                    records = SealedRecords(name, path, seal)
                    source = None if old is None else SealedRecords(name, path, old)
                    resealed = partial(records.resealed, source=source)
                    with reading.cursor(db=databases[name]) as cursor:
                        _copy_table(cursor, target, new_databases[name], resealed)
            files.put_in_place(draft, path)
    finally:
        files.close_to_others(path)


def _copy_table(
    cursor: Any,
    target: Any,
    database: Any,
    resealed: Callable[[bytes, bytes], bytes],
) -> None:
    """Copy the records of a table, without the header, in small transactions."""
    is_found = cursor.first()
    while is_found:
        size = 0
        with target.begin(write=True, db=database) as writing:
            while is_found and size <= _PART:
                key, record = cursor.item()
                if key != HEADER:
                    new_record = resealed(key, record)
                    # Appending fails if the key is out of order, as in a damaged file.
                    # In this case, the record is inserted instead.
                    if not writing.put(key, new_record, append=True):
                        writing.put(key, new_record)
                    size += len(record)
                is_found = cursor.next()
