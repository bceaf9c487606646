"""A store that is open: its environment, its seal and its codec; and how its keys change.

Every process that has a store open keeps in mind the keys of its records. So those change
only while it is open nowhere, and in a new file: what could be read in the old one would
stay in its free pages. The new file takes the old one's place in one step, once it is whole
and on disk: a crash, a full disk and a damaged record leave the old one as it was.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import lmdb

from flowpregel._interrupts import held
from flowpregel._lmdb import errors, files
from flowpregel._lmdb.codec import Codec, ValueCodec
from flowpregel._lmdb.environment import OPEN, REGISTRY, Environment
from flowpregel._lmdb.folders import refuse_network
from flowpregel._lmdb.locks import Presence
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, Header, StoreOptions, store_key
from flowpregel._lmdb.records import SIZE, Seal, Table, kind_of
from flowpregel.errors import StoreBusyError, StoreError, StoreReadOnlyError

_PAUSE = 0.02
"""Seconds before the next try to find a store that nobody has open."""
_PART = 64 << 20
"""Bytes that are put in one transaction when records are sealed anew: it is in memory."""
_LEAST_MAP = 16 << 20


class OpenStore:
    """One opening of a store; `close` gives it back.

    Args:
        environment: What the process shares.
        seal: Makes and checks the checksums.
        codec: Encodes values.
    """

    def __init__(self, environment: Environment, seal: Seal, codec: ValueCodec) -> None:
        self.environment = environment
        self.seal = seal
        self.codec = codec
        self._is_open = True

    def table(self, name: bytes) -> Table:
        """Return the database that has *name*."""
        return Table(name, self.environment.path, self.environment.databases, self.seal)

    @held()
    def seal_anew(self, seal: Seal) -> None:
        """Close the store, and make every record of it one of *seal*.

        Raises:
            StoreBusyError: Someone else has it open.
        """
        path = self.environment.path
        if self.environment.readonly:
            raise _cannot_be_sealed(path)
        self.close()
        with _kept_closed(path):
            record = _header_of_closed(path)
            header = Header.read(record, path)
            # Someone may have been faster.
            header.check(record, self.seal, path)
            header.check_encryption(self.seal, path, readonly=False)
            new = replace(header, key=seal.id, encryption=seal.encryption)
            _seal_anew(path, new.to_bytes(seal), seal, self.seal)

    def close(self) -> None:
        """Give the opening back; may be called again."""
        if self._is_open:
            self._is_open = False
            self.environment.close()


@held()
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
    with REGISTRY:
        found = OPEN.get(real)
        if found is None or found.pid != os.getpid():
            if not options.allow_network:
                refuse_network(real)
            if not files.exists(real):
                if readonly:
                    raise StoreError(f"there is no store at {real}, and readonly=True makes none")
                files.create(real, lambda draft: files.fill(draft, header()))
            found = OPEN[real] = Environment(
                real, map_size=map_size, readonly=readonly, lock=lock, options=options
            )
        elif found.readonly and not readonly:
            raise StoreReadOnlyError(
                f"{real} is open in this process to be read only; close that before writing to it"
            )
        found.users += 1
        return found


@atexit.register
def _close_all() -> None:
    for environment in [*OPEN.values()]:
        environment.shut()


@held()
def open_store(
    path: str | os.PathLike[str],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    codec: Codec | None = None,
    options: StoreOptions,
) -> OpenStore:
    """Open the store at *path*, or make it.

    Raises:
        StoreForeignError: It is sealed, or encrypted, under another key.
        StoreBusyError: It must be sealed anew first, and someone has it open.
        StoreVersionError: Another release, or another engine, wrote it.
        StoreCorruptError: It is damaged.
    """
    wrapped = ValueCodec(codec, compression=options.compression)
    key = options.trust if isinstance(options.trust, bytes) else store_key()
    seal = Seal(key, options.encryption_key)
    check = partial(_check, path=os.fspath(path), seal=seal, options=options)
    until = time.monotonic() + options.lock_timeout
    while True:
        _look(path, partial(check, readonly=readonly))
        environment = open_environment(
            path,
            lambda: Header.new(seal).to_bytes(seal),
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            options=options,
        )
        with ExitStack() as closing:
            closing.callback(environment.close)
            record = environment.read(partial(_header_in, environment.databases))
            header = check(record, readonly=environment.readonly)
            if header.key == seal.id:
                closing.pop_all()
                return OpenStore(environment, seal, wrapped)
        _take_over(environment.path, record, replace(header, key=seal.id), seal, until)


def _look(path: str | os.PathLike[str], check: Callable[[bytes], object]) -> None:
    """Check a store's header before anything in its folder is made, or opened to be written.

    Without LMDB's lock: if someone has it open, it is checked later.
    """
    real = files.real_path(path)
    with REGISTRY:
        if real not in OPEN and files.exists(real):
            with suppress(StoreBusyError), _kept_closed(real, create=False):
                check(_header_of_closed(real))


def _check(
    record: bytes, *, path: str, seal: Seal, options: StoreOptions, readonly: bool
) -> Header:
    """Return the header in *record*, unless the store is not to be opened."""
    header = Header.read(record, path)
    if options.trust is not True or header.key == seal.id:
        header.check(record, seal, path)
    elif readonly:
        raise _cannot_be_sealed(path)
    header.check_encryption(seal, path, readonly=readonly)
    return header


def _header_in(databases: Mapping[bytes, Any], transaction: Any) -> bytes:
    return transaction.get(files.HEADER, db=databases[b"meta"]) or b""


def _take_over(path: str, record: bytes, header: Header, seal: Seal, until: float) -> None:
    """Seal a store of somebody else anew, unless its header has changed already.

    With ``trust=True`` the user trusts whoever wrote it: nothing can be checked
    without the other key, and what is sealed now is unpickled later.

    Raises:
        StoreBusyError: Someone has it open, and it is late.
    """
    try:
        with _kept_closed(path):
            if _header_of_closed(path) == record:
                _seal_anew(path, header.to_bytes(seal), seal, None)
    except StoreBusyError as error:
        if time.monotonic() > until:
            raise StoreBusyError(path, f"{error.holder}, and is to be sealed anew", 0.0) from error
        time.sleep(_PAUSE)  # they may be about to do the same


def _cannot_be_sealed(path: str) -> StoreReadOnlyError:
    return StoreReadOnlyError(
        f"{path} cannot be sealed anew with readonly=True; open it to be written"
    )


# ---------------------------------------------------------------- while nobody has it open


@contextmanager
def _kept_closed(path: str, *, create: bool = True) -> Iterator[None]:
    """Keep everyone from opening the store at *path*; who opens it meanwhile waits.

    Raises:
        StoreBusyError: Someone has it open, in this process or in another.
    """
    presence = Presence(os.path.join(path, files.PRESENCE), create=create)
    try:
        if not presence.become_only():
            raise StoreBusyError(path, "someone who has it open, here or in another process", 0.0)
        with errors.named(path):
            yield
            presence.note(os.path.join(path, errors.DATA))
    except lmdb.Error as error:
        raise errors.of_lmdb(error, path) from error
    finally:
        presence.close()


def _header_of_closed(path: str) -> bytes:
    with _opened(path) as (env, databases), env.begin() as transaction:
        return _header_in(databases, transaction)


def _seal_anew(path: str, new_header: bytes, seal: Seal, old: Seal | None) -> None:
    """Make every record of a store one of *seal*: sealed, and encrypted if it has a key for that.

    Args:
        path: The store's folder; it must be kept closed.
        new_header: Of the new file.
        seal: Makes the records.
        old: Made those that are there, and checks them. None: nobody knows the key
            they were sealed under, and they are taken as they are.

    Raises:
        StoreForeignError: A record is encrypted under another key than *old* has.
        StoreCorruptError: A record is damaged.
        StoreFullError: There is no room for both files.
    """
    try:
        with files.draft_inside(path) as draft:
            files.fill(draft, new_header)
            _copy(path, draft, seal, old)
            files.put_in_place(draft, path)
    finally:
        files.close_to_others(path)


def _copy(path: str, draft: str, seal: Seal, old: Seal | None) -> None:
    """Copy all but the header, in parts."""
    # What is sealed anew takes at most the room of its checksum more.
    room = 4 * os.path.getsize(os.path.join(path, errors.DATA)) + _LEAST_MAP
    with (
        _opened(path) as (source, databases),
        _opened(draft, room) as (target, new_databases),
        source.begin() as reading,
    ):
        for name in files.DATABASES:
            tables = (
                Table(name, path, databases, old or seal),
                Table(name, draft, new_databases, seal),
            )
            with reading.cursor(db=databases[name]) as cursor:
                found = cursor.first()
                while found:
                    with target.begin(write=True) as writing:
                        found = _copy_part(cursor, writing, tables, seal if old is None else None)


def _copy_part(
    cursor: Any, writing: Any, tables: tuple[Table, Table], trusting: Seal | None
) -> bool:
    """Copy records from one table to the other; return whether there are more."""
    old, new = tables
    size, found = 0, True
    while found and size <= _PART:
        key, record = cursor.item()
        if key != files.HEADER:
            if trusting is None:
                fresh = new.sealed(key, kind_of(record), old.opened(key, record))
            else:
                fresh = trusting.of(old.name + key, record[SIZE:]) + record[SIZE:]
            # A tree that is damaged may not be in order; all that is in it is kept.
            if not writing.put(key, fresh, append=True, db=new.handle):
                writing.put(key, fresh, db=new.handle)
            size += len(record)
        found = cursor.next()
    return found


@contextmanager
def _opened(path: str, map_size: int = 0) -> Iterator[tuple[Any, dict[bytes, Any]]]:
    """Open a file that nobody else has open; without *map_size* only to be read."""
    readonly = not map_size
    files.check(path, readonly=readonly)
    size = max(map_size, files.SMALLEST_MAP)
    with files.connect(path, size, readonly=readonly, lock=not readonly) as env:
        yield env, {name: env.open_db(name, create=False) for name in files.DATABASES}
