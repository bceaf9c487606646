"""How the parts of a checkpoint's record are framed, in this format and in those before.

Format 2 has the length (4) of the first pickle at the beginning, which is less
than 2**24: its first byte is 0, which no pickle begins with.
"""

from __future__ import annotations

import pickle
from typing import Final

_PROTOCOL: Final = 5
_HEAD: Final = 11
"""Bytes: what a pickle of one frame begins with, which says nothing else than that."""
_FRAMED: Final = b"\x80\x05\x95"
_SECOND: Final = 4


def pickled(value: object) -> bytes:
    """Return a pickle of plain values without its head, which reading does not need."""
    data = pickle.dumps(value, _PROTOCOL)
    if data[:3] == _FRAMED and int.from_bytes(data[3:_HEAD], "little") == len(data) - _HEAD:
        return data[_HEAD:]
    return data


def is_second(record: bytes) -> bool:
    """Return whether a record is of format 2."""
    return not record[0]


def held_part(record: bytes) -> bytes:
    """Return what begins with the pickle of what a record holds; what follows is not read."""
    return record if record[0] else record[_SECOND:]


def second_fields(record: bytes) -> bytes:
    """Return the pickle of the fields of a record of format 2."""
    return record[_SECOND + int.from_bytes(record[:_SECOND], "big") :]
