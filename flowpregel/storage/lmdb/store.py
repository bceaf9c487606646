"""A store that is open: its environment, its seal and its codec; and how its keys
change.

Every process that has a store open keeps in mind the keys of its records. So those
change only while it is open nowhere, and in a new file: what could be read in the old
one would stay in its free pages. The new file takes the old one's place in one step,
once it is whole and on disk: a crash, a full disk and a damaged record leave the old
one as it was.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import lmdb

from flowpregel._interrupts import held
from flowpregel.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)
from flowpregel.storage import errors
from flowpregel.storage.codec import Codec, ValueCodec
from flowpregel.storage.lmdb import files
from flowpregel.storage.lmdb.environment import OPEN, REGISTRY, Environment
from flowpregel.storage.locks import Presence
from flowpregel.storage.options import (
    DEFAULT_MAP_SIZE,
    Header,
    StoreOptions,
    refuse_others,
    seal_for,
)
from flowpregel.storage.records import DATABASES, HEADER, SIZE, Seal, Table
from flowpregel.storage.renames import RENAMED

_PAUSE = 0.02
"""Seconds before the next try to find a store that nobody has open."""
_PART = 64 << 20
"""Bytes that are put in one transaction when records are sealed anew: it is in
memory.
"""
_LEAST_MAP = 16 << 20


class OpenStore:
    """One opening of a store; `close` gives it back.

    Args:
        environment: What the process shares.
        seal: Makes and checks the checksums.
        codec: Encodes values.
        timeout: Seconds for which it waits for others who write.
    """

    def __init__(
        self, environment: Environment, seal: Seal, codec: ValueCodec, timeout: float
    ) -> None:
        self.environment = environment
        self.path, self.sizes, self.mark = (
            environment.path,
            environment.sizes,
            environment.mark,
        )
        self.read = environment.read
        self.write = partial(environment.write, timeout=timeout)
        self.seal = seal
        self.codec = codec
        codec.renames.load = lambda: self.read(
            partial(self.table(b"meta").get, key=RENAMED)
        )
        self._is_open = True

    def table(self, name: bytes) -> Table:
        """Return the database that has *name*."""
        return Table(name, self.environment.path, self.environment.databases, self.seal)

    def check(self, transaction: Any) -> None:
        """Raise `StoreCorruptError` unless every record holds, each under the key it is
        found at.

        That a record whose key was damaged is missing cannot be told otherwise.
        """
        for table in map(self.table, DATABASES):
            with transaction.cursor(
                db=self.environment.databases[table.name]
            ) as cursor:
                for key in cursor.iternext(values=False):
                    table.check(transaction, key)

    @held()
    def seal_anew(self, seal: Seal) -> None:
        """Close the store, and make every record of it one of *seal*.

        Raises:
            StoreBusyError: Someone else has it open.
        """
        path = self.environment.path
        if self.environment.readonly:
            raise StoreReadOnlyError(
                f"{path} is read only, so it cannot be sealed anew"
            )
        self.close()
        with _kept_closed(path):
            # Someone may have been faster.
            record = _header_of(path)
            header = Header.read(record, path)
            header.check(record, path, self.seal, readonly=False)
            header = replace(header.under(seal), encryption=seal.encryption)
            _seal_anew(path, header, seal, self.seal)

    def close(self) -> None:
        """Give the opening back; may be called again."""
        if self._is_open:
            self._is_open = False
            self.environment.close()


def _check_place(path: str | os.PathLike[str], map_size: int) -> None:
    """Refuse a path or a size that no store can have."""
    if not os.fspath(path):
        raise ConfigurationError("the store's path is empty: give that of a folder")
    if map_size < 0:
        raise ConfigurationError(f"map_size={map_size}: use bytes, 0 or more")


@held()
def open_store(
    path: str | os.PathLike[str],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    codec: Codec | None = None,
    options: StoreOptions | None = None,
) -> OpenStore:
    """Open the store at *path*, or make it.

    Args:
        path: The folder.
        map_size: The bytes the map begins with; it grows by itself.
        readonly: Only read; there must be a store.
        lock: Register as a reader. Without it nobody may write meanwhile.
        codec: Encodes values; None is `PythonCodec`.
        options: The rarely needed.

    Raises:
        StoreForeignError: It is sealed, or encrypted, under another key, or others own
            it or may write it.
        StoreBusyError: It must be sealed anew first, and someone has it open.
        StoreVersionError: Another release, or another engine, wrote it.
        StoreCorruptError: It is damaged.
    """
    options = options or StoreOptions()
    _check_place(path, map_size)
    if not lock and not readonly:
        raise ConfigurationError(
            "lock=False needs readonly=True: it is for folders none can write"
        )
    if options.check_pages and readonly and lock:
        raise ConfigurationError(
            "check_pages needs that nobody writes meanwhile: with readonly=True, "
            "pass lock=False too"
        )
    values = ValueCodec(codec, options.compression, options.renamed)
    real, until = files.real_path(path), time.monotonic() + options.lock_timeout
    if files.exists(real) and not (options.trust or options.trusts_all):
        refuse_others(real)
    while True:
        environment = _shared_environment(
            real, options, map_size, readonly=readonly, lock=lock
        )
        try:
            record = environment.read(partial(_header_in, environment.databases))
            header, seal = _accepted(record, real, options, readonly=readonly)
            if header.key == seal.id:
                store = OpenStore(environment, seal, values, options.lock_timeout)
                if options.check_pages:
                    environment.read(store.check)
                return store
        except BaseException:
            environment.close()
            raise
        environment.close()
        if time.monotonic() > until:
            raise StoreBusyError(
                real, "someone who has it open, and is to be sealed anew", 0.0
            )
        time.sleep(_PAUSE)  # they may be about to do the same


def _accepted(
    record: bytes, path: str, options: StoreOptions, *, readonly: bool
) -> tuple[Header, Seal]:
    """Return a store's header, and the seal that its records have or are to be
    given.
    """
    header = Header.read(record, path)
    seal = seal_for(options, header)
    header.check(record, path, seal, readonly=readonly, trusting=options.trusts_all)
    return header, seal


def _shared_environment(
    path: str, options: StoreOptions, map_size: int, *, readonly: bool, lock: bool
) -> Environment:
    """Return the environment that all of this process share, opened or made if need
    be.
    """
    with REGISTRY:
        found = OPEN.get(path)
        if found is None or found.pid != os.getpid():
            if not options.allow_network:
                files.refuse_network(path)
            if files.exists(path):
                _look(path, options, readonly=readonly)
            elif readonly:
                raise StoreError(
                    f"there is no store at {path}, and readonly=True makes none"
                )
            else:
                seal = seal_for(options)
                header = Header.new(seal).to_bytes(seal)
                files.create(path, partial(files.fill_draft, header=header))
            found = OPEN[path] = Environment(
                path, map_size=map_size, readonly=readonly, lock=lock, options=options
            )
        elif found.readonly and not readonly:
            raise StoreReadOnlyError(
                f"{path} is open in this process to be read only; close that before "
                "writing to it"
            )
        found.users += 1
        return found


def _look(path: str, options: StoreOptions, *, readonly: bool) -> None:
    """Check a store's header before anything in its folder is made, or opened to be
    written.

    Without LMDB's lock: if someone has it open, it is checked later. One that is
    trusted is sealed anew: nothing can be checked without the other key, and what is
    sealed now is unpickled later.
    """
    with suppress(StoreBusyError):
        with _kept_closed(path, create=False):
            record = _header_of(path)
            header, seal = _accepted(record, path, options, readonly=readonly)
        if header.key != seal.id:
            with _kept_closed(path):
                if _header_of(path) == record:
                    _seal_anew(path, header.under(seal), seal, None)


@atexit.register
def _close_environments() -> None:
    for environment in [*OPEN.values()]:
        environment.shut()


# while nobody has it open --------------------------------------------------


@contextmanager
def _kept_closed(path: str, *, create: bool = True) -> Iterator[None]:
    """Keep everyone from opening the store at *path*; who opens it meanwhile waits.

    Raises:
        StoreBusyError: Someone has it open, in this process or in another.
    """
    data = os.path.join(path, errors.DATA)
    presence = Presence(os.path.join(path, files.PRESENCE), data, create=create)
    try:
        with presence.alone() as is_only, errors.named(path):
            if not is_only:
                raise StoreBusyError(
                    path, "someone who has it open, here or elsewhere", 0.0
                )
            yield
    except lmdb.Error as error:
        raise errors.of_lmdb(error, path) from error
    finally:
        presence.close()


@contextmanager
def _opened(path: str, map_size: int = 0) -> Iterator[tuple[Any, dict[bytes, Any]]]:
    """Open a file that nobody else has open; without *map_size* only to be read."""
    readonly = not map_size
    files.check_files(path, readonly=readonly)
    size = max(map_size, files.SMALLEST_MAP)
    with files.open_lmdb(path, size, readonly=readonly, lock=not readonly) as env:
        yield env, {name: env.open_db(name, create=False) for name in DATABASES}


def _header_of(path: str) -> bytes:
    with _opened(path) as (env, databases), env.begin() as transaction:
        return _header_in(databases, transaction)


def _header_in(databases: Mapping[bytes, Any], transaction: Any) -> bytes:
    return transaction.get(HEADER, db=databases[b"meta"]) or b""


def _seal_anew(path: str, header: Header, seal: Seal, old: Seal | None) -> None:
    """Make every record of a store one of *seal*: sealed, and encrypted if it has a key
    for that.

    Args:
        path: The store's folder; it must be kept closed.
        header: Of the new file.
        seal: Makes the records.
        old: Made those that are there, and checks them. None: nobody knows the key
            they were sealed under, and they are taken as they are.

    Raises:
        StoreForeignError: A record is encrypted under another key than *old* has.
        StoreCorruptError: A record is damaged.
        StoreFullError: There is no room for both files.
    """
    # What is sealed anew takes at most the room of its checksum more.
    room = 4 * os.path.getsize(os.path.join(path, errors.DATA)) + _LEAST_MAP
    try:
        with files.draft_in(path, files.DRAFT) as draft:
            files.fill_draft(draft, header.to_bytes(seal))
            with (
                _opened(path) as (source, databases),
                _opened(draft, room) as (target, new_databases),
                source.begin() as reading,
            ):
                for name in DATABASES:
                    known = None if old is None else Table(name, path, {}, old)
                    table = Table(name, draft, {}, seal)
                    with reading.cursor(db=databases[name]) as cursor:
                        found = cursor.first()
                        while found:
                            with target.begin(
                                write=True, db=new_databases[name]
                            ) as writing:
                                found = _copy_part(cursor, writing, known, table, seal)
            files.put_in_place(draft, path)
    finally:
        files.close_to_others(path)


def _copy_part(
    cursor: Any, writing: Any, old: Table | None, new: Table, seal: Seal
) -> bool:
    """Copy records, all but the header, from one table; return whether there are
    more.
    """
    size, found = 0, True
    while found and size <= _PART:
        key, record = cursor.item()
        if key != HEADER:
            if old is not None:
                fresh = new.sealed(key, *old.opened(key, record))
            else:
                fresh = seal.of(new.name + key, record[SIZE:]) + record[SIZE:]
            # A tree that is damaged may not be in order; all that is in it is kept.
            if not writing.put(key, fresh, append=True):
                writing.put(key, fresh)
            size += len(record)
        found = cursor.next()
    return found
