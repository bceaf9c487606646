"""A store sealed anew: every record under other keys, in a new file.

A new file, since what could be read in the old one would stay in the pages that
are free. It takes the old one's place in one step, once it is whole and on disk:
a crash, a full disk and a damaged record leave the old one as it was.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from flowpregel._lmdb import engine, folder, naming
from flowpregel._lmdb.closed import ClosedStore
from flowpregel._lmdb.seal import HEADER, SIZE, Seal
from flowpregel._lmdb.table import Table, kind_of

_PART = 64 << 20
"""Bytes that are put in one transaction."""


def seal_anew(path: str, header: bytes, seal: Seal, old: Seal | None) -> None:
    """Make every record of a store one of *seal*: sealed, and encrypted if it has a key for that.

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
    data = os.path.join(path, folder.DATA)
    try:
        with folder.draft_inside(path) as draft:
            engine.fill(draft, [(HEADER, header)])
            _copy(path, draft, seal, old)
            folder.sync(os.path.join(draft, folder.DATA))
            os.replace(os.path.join(draft, folder.DATA), data)
            folder.sync(path)
    except OSError as error:
        raise folder.named(error, path) from error
    finally:
        folder.close_to_others(path)


def _copy(path: str, draft: str, seal: Seal, old: Seal | None) -> None:
    with (
        ClosedStore(path, readonly=True) as source,
        ClosedStore(path, draft=draft, map_size=2 * source.size()) as target,
    ):
        copying = _Copying(source, target, seal, old)
        source.read(copying.all)
        names = Table(b"names", target, seal)
        target.write(partial(_index, names, seal))


class _Copying:
    """The records of one file on their way to another."""

    def __init__(
        self, source: ClosedStore, target: ClosedStore, seal: Seal, old: Seal | None
    ) -> None:
        self._source = source
        self._target = target
        self._seal = seal
        self._old = old

    def all(self, reading: Any) -> None:
        """Copy all but the header, and what is made of other records."""
        for name in engine.DATABASES:
            start: bytes | None = b""
            while start is not None:
                start = self._target.write(partial(self._part, reading, name, start))

    def _part(self, reading: Any, name: bytes, start: bytes, writing: Any) -> bytes | None:
        """Copy some records, from *start* on; return where the next part starts."""
        size = 0
        with reading.cursor(db=self._source.databases[name]) as cursor:
            found = cursor.set_range(start)
            while found:
                key, record = cursor.item()
                if size > _PART:
                    return bytes(key)
                if not _is_made_anew(name, key):
                    fresh = self._remade(name, key, record)
                    database = self._target.databases[name]
                    # As the last: pages that are filled from left to right get full. A tree
                    # that is damaged may not be in order, and what is in it is kept all the same.
                    if not writing.put(key, fresh, append=True, db=database):
                        writing.put(key, fresh, db=database)
                    size += len(fresh)
                found = cursor.next()
        return None

    def _remade(self, name: bytes, key: bytes, record: bytes) -> bytes:
        if self._old is None:
            rest = record[SIZE:]
            return self._seal.of(name + key, rest) + rest
        payload = Table(name, self._source, self._old).opened(key, record)
        return Table(name, self._target, self._seal).record(key, kind_of(record), payload)


def _is_made_anew(name: bytes, key: bytes) -> bool:
    """Return whether what is at *key* depends on the seal as a whole, its key too."""
    if name == b"meta":
        return key == HEADER
    return name == b"names" and not key.startswith(naming.BY_NUMBER)


def _index(names: Table, seal: Seal, writing: Any) -> None:
    """Put the keys by which names are found."""
    for key, name in [*names.scan(writing, naming.BY_NUMBER)]:
        names.add(writing, naming.keys_of(name, seal)[0], key[len(naming.BY_NUMBER) :])
