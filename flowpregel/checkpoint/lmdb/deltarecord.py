"""What a superstep added to a channel, as bytes.

::

    kind (1), number (8) of what it was added to, and one of
      0, the encoded tuple of its writes
      1, for each write: length (4), the encoded write
      2, for each write: the number (8), task (17) and index (4) of a pending write
      3, for each write: where it is in the record that holds this one, its length (4 each)

The last form is the usual one: a superstep's tasks have made their writes on
the checkpoint before, and what they added to the channel is just that. Where
those writes have records of their own, it is the third.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from flowpregel.checkpoint.lmdb.state import Place

_HEAD = struct.Struct(">BQB")
_WHOLE, _PARTS, _REFERENCES, _PIECES = 0, 1, 2, 3
_REFERENCE = struct.Struct(">Q17sI")

Added: TypeAlias = bytes | list[bytes]
"""An encoded tuple of writes, or each of them encoded."""


class Reference(NamedTuple):
    """A pending write that has a record of its own."""

    number: int
    """Of the checkpoint it was made on."""
    tag: bytes
    """The task's."""
    position: int
    """Its index among the task's writes."""


@dataclass(slots=True)
class DeltaRecord:
    """What was added, and to what; *encoded*, *parts* or *references* say it."""

    previous: Place
    encoded: bytes = b""
    parts: Sequence[bytes] = ()
    references: Sequence[Reference] = ()

    def to_bytes(self) -> bytes:
        """Return the record as `from_bytes` reads it."""
        if self.references:
            packed = [_REFERENCE.pack(*each) for each in self.references]
            return _HEAD.pack(*self.previous, _REFERENCES) + b"".join(packed)
        if self.parts:
            pieces = (piece for p in self.parts for piece in (len(p).to_bytes(4, "big"), p))
            return _HEAD.pack(*self.previous, _PARTS) + b"".join(pieces)
        return _HEAD.pack(*self.previous, _WHOLE) + self.encoded

    @classmethod
    def from_bytes(cls, data: bytes, pieces: Callable[[bytes], list[bytes]]) -> DeltaRecord:
        """Return the record in *data*.

        Args:
            data: The record.
            pieces: Reads the writes from the record that holds this one.
        """
        kind, number, form = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        if form == _PIECES:
            return cls((kind, number), parts=pieces(rest))
        if form == _WHOLE:
            return cls((kind, number), encoded=rest)
        if form == _PARTS:
            return cls((kind, number), parts=_split(rest))
        references = [Reference(*each) for each in _REFERENCE.iter_unpack(rest)]
        return cls((kind, number), references=references)

    def added(self, look_up: Callable[[Reference], bytes]) -> Added:
        """Return what was added; *look_up* gives the write that a reference names."""
        if self.references:
            return [look_up(reference) for reference in self.references]
        return [*self.parts] if self.parts else self.encoded


def head_of_pieces(previous: Place) -> bytes:
    """Return what a record begins with whose writes are held beside it."""
    return _HEAD.pack(*previous, _PIECES)


def _split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts
