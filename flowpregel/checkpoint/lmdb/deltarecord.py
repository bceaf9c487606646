"""What a superstep added to a channel, as bytes.

::

    kind (1), number (8) of what it was added to, and one of
      0, the encoded tuple of its writes
      1, for each write: length (4), the encoded write
      2, for each write: where it is in ``log``, without the scope (30)

The third form is the usual one: a superstep's tasks have kept their writes on
the checkpoint before, and what they added to the channel is just that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flowpregel.checkpoint.lmdb.state import Place

_HEAD = struct.Struct(">BQB")
_WHOLE, _PARTS, _REFERENCES = 0, 1, 2
_REFERENCE = 30

Added: TypeAlias = bytes | list[bytes]
"""An encoded tuple of writes, or each of them encoded."""


@dataclass(slots=True)
class DeltaRecord:
    """What was added, and to what; *encoded*, *parts* or *references* say it."""

    previous: Place
    encoded: bytes = b""
    parts: Sequence[bytes] = ()
    references: Sequence[bytes] = ()

    def to_bytes(self) -> bytes:
        """Return the record as `from_bytes` reads it."""
        if self.references:
            return _HEAD.pack(*self.previous, _REFERENCES) + b"".join(self.references)
        if self.parts:
            packed = (piece for p in self.parts for piece in (len(p).to_bytes(4, "big"), p))
            return _HEAD.pack(*self.previous, _PARTS) + b"".join(packed)
        return _HEAD.pack(*self.previous, _WHOLE) + self.encoded

    @classmethod
    def from_bytes(cls, data: bytes) -> DeltaRecord:
        """Return the record in *data*."""
        kind, number, form = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        if form == _WHOLE:
            return cls((kind, number), encoded=rest)
        if form == _PARTS:
            return cls((kind, number), parts=_split(rest))
        places = range(0, len(rest), _REFERENCE)
        return cls((kind, number), references=[rest[at : at + _REFERENCE] for at in places])

    def added(self, look_up: Callable[[bytes], bytes]) -> Added:
        """Return what was added; *look_up* gives the write that a reference names."""
        if self.references:
            return [look_up(reference) for reference in self.references]
        return [*self.parts] if self.parts else self.encoded


def _split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts
