"""The keys of a store changed while nobody has it open.

Every process that has a store open keeps in mind the keys of its records. So those change
only while it is open nowhere, and in a new file: what could be read in the old one would
stay in its free pages. The new file takes the old one's place in one step, once it is whole
and on disk: a crash, a full disk and a damaged record leave the old one as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import lmdb

from flowpregel._lmdb import errors, files
from flowpregel._lmdb.locks import Presence
from flowpregel._lmdb.mapped import DATABASES, HEADER, MappedFile, fill
from flowpregel._lmdb.records import SIZE, Seal, Table, kind_of
from flowpregel.errors import StoreBusyError

_PART = 64 << 20
"""Bytes that are put in one transaction."""
_LEAST_MAP = 16 << 20


@contextmanager
def keep_closed(path: str) -> Iterator[None]:
    """Keep everyone from opening the store at *path*; who opens it meanwhile waits.

    Raises:
        StoreBusyError: Someone has it open, in this process or in another.
    """
    presence = Presence(os.path.join(path, files.PRESENCE))
    try:
        if not presence.become_only():
            raise StoreBusyError(path, "someone who has it open, here or in another process", 0.0)
        yield
    finally:
        presence.close()


def header_of_closed(path: str) -> bytes:
    """Return the header of a store that is kept closed."""
    with _opened(path, readonly=True) as store, store.live().begin() as transaction:
        return transaction.get(HEADER, db=store.databases[b"meta"]) or b""


def seal_anew(path: str, new_header: bytes, seal: Seal, old: Seal | None) -> None:
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
    data = os.path.join(path, errors.DATA)
    try:
        with errors.named(path), files.draft_inside(path) as draft:
            fill(draft, new_header)
            _copy(path, draft, seal, old)
            files.sync(os.path.join(draft, errors.DATA))
            os.replace(os.path.join(draft, errors.DATA), data)
            files.sync(path)
    except lmdb.Error as error:
        raise errors.of_lmdb(error, path) from error
    finally:
        files.close_to_others(path)


def _copy(path: str, draft: str, seal: Seal, old: Seal | None) -> None:
    """Copy all but the header, in parts."""
    with (
        _opened(path, readonly=True) as source,
        # What is sealed anew takes at most the room of its checksum more.
        _opened(draft, map_size=4 * source.size() + _LEAST_MAP) as target,
        source.live().begin() as reading,
    ):
        for name in DATABASES:
            tables = Table(name, source, old or seal), Table(name, target, seal)
            with reading.cursor(db=source.databases[name]) as cursor:
                found = cursor.first()
                while found:
                    with target.live().begin(write=True) as writing:
                        found = _copy_part(cursor, writing, tables, seal if old is None else None)


def _copy_part(
    cursor: Any, writing: Any, tables: tuple[Table, Table], trusting: Seal | None
) -> bool:
    """Copy records from one table to the other; return whether there are more."""
    old, new = tables
    size, found = 0, True
    while found and size <= _PART:
        key, record = cursor.item()
        if key != HEADER:
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
def _opened(path: str, *, map_size: int = 0, readonly: bool = False) -> Iterator[MappedFile]:
    file = MappedFile(path, map_size=map_size, readonly=readonly, lock=not readonly)
    file.open()
    with closing(file):
        yield file
