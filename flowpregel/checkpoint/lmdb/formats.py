"""How the parts of a checkpoint's record are framed, in this format and in those before.

Format 2 has the length (4) of the first pickle at the beginning, which is less
than 2**24: its first byte is 0, which no pickle begins with.
"""

from __future__ import annotations

import pickle
from typing import Final

from flowpregel._lmdb.codec import headless

_PROTOCOL: Final = 5
_SECOND: Final = 4


def pickled(value: object) -> bytes:
    """Return a pickle of plain values, without its head."""
    return headless(pickle.dumps(value, _PROTOCOL))


def is_second(record: bytes) -> bool:
    """Return whether a record is of format 2."""
    return not record[0]


def held_part(record: bytes) -> bytes:
    """Return what begins with the pickle of what a record holds; what follows is not read."""
    return record if record[0] else record[_SECOND:]


def second_fields(record: bytes) -> bytes:
    """Return the pickle of the fields of a record of format 2."""
    return record[_SECOND + int.from_bytes(record[:_SECOND], "big") :]
