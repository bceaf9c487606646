"""What a checkpoint's record holds besides the checkpoint: small values, and the writes before it.

A superstep whose tasks end together is one record. It holds their pending
writes (those of the checkpoint *before*, whose number is smaller by one), the
values of the channels they wrote, and what they added to the others. A value
that is one of the writes is there once.

::

    counts of items and tasks (2 each)
    for each item: kind (1), channel (4), where it is and its length (4 each)
    for each task: its tag (17), where its writes are and their length (4 each)
    the bytes

Large ones have records of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from flowpregel.checkpoint.lmdb.state import VALUE

_COUNTS = struct.Struct(">HH")
_ITEM = struct.Struct(">BIII")
_TASK = struct.Struct(">17sII")
_PIECE = struct.Struct(">II")

LARGEST = 4096
"""Bytes: a larger value, or a task's writes that are larger, get a record of their own."""
ROOM = 32768
"""Bytes that a checkpoint's record holds at most."""
MOST = 60_000
"""Items or tasks that a record holds at most."""


class Piece(NamedTuple):
    """An encoded write in the record of a task that is held."""

    task: int
    """The task's index."""
    start: int
    """Where the value begins in the task's record."""
    size: int


class Item(NamedTuple):
    """A value or a delta, as it is to be held.

    *pieces* are the writes that it is made of, held here as well.
    """

    kind: int
    channel: int
    data: bytes
    pieces: Sequence[Piece] = ()


NOTHING = _COUNTS.pack(0, 0)


def pack(items: Sequence[Item], tasks: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the held part of a checkpoint's record.

    Args:
        items: Values and deltas.
        tasks: For each task its tag and its record.
    """
    if not items and not tasks:
        return NOTHING
    at = _COUNTS.size + _ITEM.size * len(items) + _TASK.size * len(tasks)
    parts = [b""]
    directory = []
    starts = []
    for tag, record in tasks:
        directory.append(_TASK.pack(tag, at, len(record)))
        starts.append(at)
        parts.append(record)
        at += len(record)
    listed = []
    for kind, channel, data, pieces in items:
        if pieces and kind == VALUE:
            task, start, size = pieces[0]
            listed.append(_ITEM.pack(kind, channel, starts[task] + start, size))
            continue
        for task, start, size in pieces:
            data += _PIECE.pack(starts[task] + start, size)
        listed.append(_ITEM.pack(kind, channel, at, len(data)))
        parts.append(data)
        at += len(data)
    parts[0] = b"".join((_COUNTS.pack(len(items), len(tasks)), *listed, *directory))
    return b"".join(parts)


class Held:
    """The held part of a checkpoint's record, read as far as it is asked for.

    Args:
        data: The whole record.
        start: Where in it the held part begins.
    """

    __slots__ = ("_data", "_items", "_start")

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._start = start
        self._items: dict[tuple[int, int], tuple[int, int]] | None = None

    def item(self, kind: int, channel: int) -> bytes | None:
        """Return a channel's encoded value, or the record of its delta, if it is held here."""
        found = self.items().get((kind, channel))
        return None if found is None else self._piece(*found)

    def pieces(self, packed: bytes) -> list[bytes]:
        """Return the encoded writes that a delta held here is made of."""
        return [self._piece(start, size) for start, size in _PIECE.iter_unpack(packed)]

    def items(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return where each item is: by (kind, channel), its place and its length."""
        if self._items is None:
            count, _ = _COUNTS.unpack_from(self._data, self._start)
            at = self._start + _COUNTS.size
            directory = self._data[at : at + count * _ITEM.size]
            self._items = {
                (kind, channel): (place, size)
                for kind, channel, place, size in _ITEM.iter_unpack(directory)
            }
        return self._items

    def tasks(self) -> dict[bytes, bytes]:
        """Return the record of each task's writes on the checkpoint before, by its tag."""
        items, count = _COUNTS.unpack_from(self._data, self._start)
        if not count:
            return {}
        at = self._start + _COUNTS.size + items * _ITEM.size
        directory = self._data[at : at + count * _TASK.size]
        return {tag: self._piece(place, size) for tag, place, size in _TASK.iter_unpack(directory)}

    def whole(self) -> bytes:
        """Return the held part as `pack` made it."""
        return self._data[self._start :]

    def _piece(self, start: int, size: int) -> bytes:
        at = self._start + start
        return self._data[at : at + size]
