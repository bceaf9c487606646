"""The journal of a store: small transactions that are on disk and not yet in LMDB's file.

::

    record    checksum (16), base (8), place (4), length (4), changes

    changes   database (1), length of the key (2), length of the value (4), key, value
              database (1), length of the key (2), 0xFFFFFFFF, key        it is dropped

LMDB flushes twice for a commit; a record at the end of this file needs one flush. The
blocks of the file are there from the beginning, so that a flush writes the record and
nothing else.

A record is on top of the LMDB transaction that is its *base*, and of the records before
it. So the records count as long as that is LMDB's newest transaction. The next one that
is made puts them all into LMDB's file and adds one to the number: then none of them
counts any more, and the file is used from its beginning again.

Numbers are little-endian. A database is its number in `engine.DATABASES`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from flowpregel._lmdb import folder

SIZE = 64 << 10
"""The bytes that the records may take."""
_SUM = 16
_HEAD = struct.Struct("<QII")
_HEAD_SIZE = _SUM + _HEAD.size
_START = struct.Struct("<QI")
"""What `_HEAD` begins with."""
_CHANGE = struct.Struct("<BHI")
_DROPPED = 0xFFFFFFFF
_TAIL = struct.Struct("<QQI")
_NOTHING = blake2b(digest_size=_SUM)
"""Copied in half the time in which one is made."""
_flush = getattr(os, "fdatasync", os.fsync)

Change: TypeAlias = "tuple[int, bytes, bytes | None]"
"""The number of a database, a key, and its value; None: it is dropped."""


class Record(NamedTuple):
    """A transaction."""

    place: int
    """Among those on the same base, from 1."""
    end: int
    """The bytes that it and those before it take."""
    changes: list[Change]
    """What it changed, in order."""


def packed(database: int, key: bytes, value: bytes | None) -> bytes:
    """Return a change as a record has it."""
    if value is None:
        return _CHANGE.pack(database, len(key), _DROPPED) + key
    return b"".join((_CHANGE.pack(database, len(key), len(value)), key, value))


class Journal:
    """The files of a journal, opened to be read, or written too.

    Args:
        path: The store's folder.
        readonly: Make and write nothing.
    """

    def __init__(self, path: str, *, readonly: bool) -> None:
        self._path = path
        self._readonly = readonly
        self._records = -1
        self._tail = -1

    def make(self) -> None:
        """Make the file if it is not there.

        Raises:
            OSError: It is not possible, or there is no room.
        """
        if self._opened():
            return
        path = os.path.join(self._path, folder.JOURNAL)
        draft = f"{path}.new"
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)  # whatever the umask took away
            _write(file, bytes(SIZE), 0)
            os.fsync(file)
        except OSError:
            os.unlink(draft)
            raise
        finally:
            os.close(file)
        os.rename(draft, path)
        folder.sync(self._path)
        self._opened()

    def read(self, base: int, place: int, at: int, until: int = SIZE) -> Iterator[Record]:
        """Yield the records from *at* to *until*, the first of which has *place*, on *base*."""
        if not self._opened():
            return
        if os.pread(self._records, _START.size, at + _SUM) != _START.pack(base, place):
            return
        data = os.pread(self._records, until - at, at)
        while (found := _record(data, base, place, at)) is not None:
            yield found
            data, at, place = data[found.end - at :], found.end, place + 1

    def is_ahead(self, base: int) -> bool:
        """Return whether the first record is on a newer base: LMDB's file was put back."""
        if not self._opened():
            return False
        data = os.pread(self._records, _HEAD_SIZE, 0)
        return len(data) == _HEAD_SIZE and int(_HEAD.unpack_from(data, _SUM)[0]) > base

    def clear(self) -> None:
        """Let there be no record at all, on disk."""
        if self._opened():
            _write(self._records, bytes(SIZE), 0)
            _flush(self._records)
            self.publish(0, 0)

    def is_cut(self, base: int, place: int, at: int) -> bool:
        """Return whether there is a newer record on *base* than *place*, which is not at *at*."""
        if not self._opened():
            return False
        data = os.pread(self._records, SIZE - at, at)
        wanted = base.to_bytes(8, "little")
        found_at = data.find(wanted)
        while found_at >= 0:
            start = found_at - _SUM
            if start > 0 and (found := _any(data[start:], base)) is not None and found > place:
                return True
            found_at = data.find(wanted, found_at + 1)
        return False

    def put(self, base: int, place: int, at: int, changes: Sequence[bytes]) -> int:
        """Put a record of *changes*, as `packed` gives them, at *at*, on disk; return its end.

        Raises:
            OSError: It was not possible; `take_back` is to follow.
        """
        body = b"".join(changes)
        rest = _HEAD.pack(base, place, len(body)) + body
        _write(self._records, _sum(rest) + rest, at)
        _flush(self._records)
        return at + _SUM + len(rest)

    def take_back(self, at: int) -> None:
        """Let there be no record at *at*, on disk."""
        _write(self._records, bytes(_HEAD_SIZE), at)
        _flush(self._records)

    def publish(self, base: int, end: int) -> None:
        """Tell those who only read that the records on *base* are on disk up to *end*."""
        _write(self._tail, _TAIL.pack(base, end, _check(base, end)), 0)

    def published(self, base: int) -> int:
        """Return up to where the records on *base* are on disk, as far as somebody told."""
        if not self._opened() or self._tail < 0:
            return 0
        data = os.pread(self._tail, _TAIL.size, 0)
        if len(data) < _TAIL.size:
            return 0
        of, end, check = _TAIL.unpack(data)
        return int(end) if of == base and check == _check(of, end) else 0

    def close(self) -> None:
        """Close the files."""
        for file in (self._records, self._tail):
            if file >= 0:
                os.close(file)
        self._records = self._tail = -1

    def _opened(self) -> bool:
        """Open the files if they are there; return whether the records are."""
        if self._records < 0 or self._tail < 0:
            path = os.path.join(self._path, folder.JOURNAL)
            mode = os.O_CLOEXEC | (os.O_RDONLY if self._readonly else os.O_RDWR)
            with suppress(FileNotFoundError):
                if self._records < 0:
                    self._records = os.open(path, mode)
                # It is a help to readers, and may be lost.
                make = 0 if self._readonly else os.O_CREAT
                self._tail = os.open(f"{path}.tail", mode | make, 0o600)
                if make:
                    os.fchmod(self._tail, 0o600)
        return self._records >= 0


def _record(data: bytes, base: int, place: int, at: int) -> Record | None:
    """Return the record that *data* begins with, if it is the one that is meant, and whole."""
    if _any(data, base) != place:
        return None
    end = _HEAD_SIZE + _HEAD.unpack_from(data, _SUM)[2]
    return Record(place, at + end, [*_changes(data[_HEAD_SIZE:end])])


def _any(data: bytes, base: int) -> int | None:
    """Return the place of the record on *base* that *data* begins with, if there is one."""
    if len(data) < _HEAD_SIZE:
        return None
    of, place, length = _HEAD.unpack_from(data, _SUM)
    end = _HEAD_SIZE + length
    is_whole = of == base and end <= len(data) and _sum(data[_SUM:end]) == data[:_SUM]
    return int(place) if is_whole else None


def _changes(body: bytes) -> Iterator[Change]:
    at = 0
    while at < len(body):
        database, key_size, size = _CHANGE.unpack_from(body, at)
        at += _CHANGE.size
        key = body[at : at + key_size]
        at += key_size
        if size == _DROPPED:
            yield database, key, None
        else:
            yield database, key, body[at : at + size]
            at += size


def _write(file: int, data: bytes, at: int) -> None:
    """Write all of *data* at *at*."""
    done = os.pwrite(file, data, at)
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)


def _check(base: int, end: int) -> int:
    """Return what tells a tail that is read while it is written."""
    return zlib.crc32(b"%d %d" % (base, end))


def _sum(data: bytes) -> bytes:
    summed = _NOTHING.copy()
    summed.update(data)
    return summed.digest()
