"""A store that nobody has open, and the change of its keys.

Every process that has a store open keeps in mind what it knows of it: the keys of its
records above all. So those change only while it is open nowhere, in a new file: what
could be read in the old one would stay in its free pages. The new file takes the old
one's place in one step, once it is whole and on disk: a crash, a full disk and a damaged
record leave the old one as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import lmdb

from flowpregel._lmdb import errors, files, header
from flowpregel._lmdb.locks import Presence
from flowpregel._lmdb.mapped import DATABASES, SMALLEST_MAP, connect, fill
from flowpregel._lmdb.records import SIZE, Seal, Table, kind_of
from flowpregel.errors import StoreBusyError

Result = TypeVar("Result")

_PART = 64 << 20
"""Bytes that are put in one transaction."""


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


class ClosedStore:
    """The file of a store that is kept closed to all others.

    Args:
        path: The store's folder.
        draft: The folder of a file that will take the place of the store's.
        map_size: The bytes the map begins with.
        readonly: Only read.
    """

    def __init__(
        self, path: str, *, draft: str = "", map_size: int = 0, readonly: bool = False
    ) -> None:
        self.path = path
        size = max(map_size, SMALLEST_MAP)
        try:
            self.lmdb = connect(draft or path, size, readonly=readonly, lock=not readonly)
            self.databases: dict[bytes, Any] = {
                name: self.lmdb.open_db(name, create=False) for name in DATABASES
            }
        except lmdb.Error as error:
            raise errors.of_lmdb(error, path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.lmdb.close()

    def read(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(transaction)`` of one read transaction."""
        with self.lmdb.begin() as transaction:
            return work(transaction)

    def write(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(transaction)`` of one write transaction; it may be called again."""
        while True:
            try:
                with self.lmdb.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self.lmdb.set_mapsize(2 * self.lmdb.info()["map_size"])
            except lmdb.Error as error:
                raise errors.of_lmdb(error, self.path) from error

    def size(self) -> int:
        """Return the bytes of its file that are in use."""
        return int((self.lmdb.info()["last_pgno"] + 1) * self.lmdb.stat()["psize"])


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
            fill(draft, [(header.KEY, new_header)])
            _copy(path, draft, seal, old)
            files.sync(os.path.join(draft, errors.DATA))
            os.replace(os.path.join(draft, errors.DATA), data)
            files.sync(path)
    finally:
        files.close_to_others(path)


def _copy(path: str, draft: str, seal: Seal, old: Seal | None) -> None:
    """Copy all but the header."""
    with (
        ClosedStore(path, readonly=True) as source,
        ClosedStore(path, draft=draft, map_size=2 * source.size()) as target,
        source.lmdb.begin() as reading,
    ):
        for name in DATABASES:

            def remade(key: bytes, record: bytes, name: bytes = name) -> bytes:
                if old is None:
                    rest = record[SIZE:]
                    return seal.of(name + key, rest) + rest
                payload = Table(name, source, old).opened(key, record)
                return Table(name, target, seal).sealed(key, kind_of(record), payload)

            databases = source.databases[name], target.databases[name]
            start: bytes | None = b""
            while start is not None:
                start = target.write(partial(_copy_part, reading, databases, remade, start))


def _copy_part(
    reading: Any,
    databases: tuple[Any, Any],
    remade: Callable[[bytes, bytes], bytes],
    start: bytes,
    writing: Any,
) -> bytes | None:
    """Copy some records, from *start* on; return where the next part starts."""
    size = 0
    with reading.cursor(db=databases[0]) as cursor:
        found = cursor.set_range(start)
        while found:
            key, record = cursor.item()
            if size > _PART:
                return bytes(key)
            if key != header.KEY:
                fresh = remade(key, record)
                # A tree that is damaged may not be in order; all that is in it is kept.
                if not writing.put(key, fresh, append=True, db=databases[1]):
                    writing.put(key, fresh, db=databases[1])
                size += len(fresh)
            found = cursor.next()
    return None
