"""A task's pending writes on one checkpoint, as bytes.

A pickle of ``(task id, path, positions, channels, encoded values)``; the task id
as `keys.short` gives it, channels as their numbers.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from flowpregel._core.records import PendingWrite
from flowpregel._lmdb.codec import Codec, decode
from flowpregel.checkpoint.lmdb import keys

Packed: TypeAlias = tuple[bytes | str, str, tuple[int, ...], tuple[int, ...], tuple[bytes, ...]]
"""What the pickle is of. In it, one bytes object that is there twice is kept once."""


class KeptWrite(NamedTuple):
    """One pending write as it was read, not yet decoded."""

    position: int
    channel: int
    """The channel's number."""
    encoded: bytes


class KeptTask(NamedTuple):
    """A task's pending writes as they were read, not yet decoded."""

    path: str
    task_id: str
    writes: Sequence[KeptWrite]

    def decode(self, codec: Codec, write: KeptWrite, channel: str) -> PendingWrite:
        """Return one of the writes as it was given."""
        what = f"the write of task {self.task_id!r} to {channel!r}"
        value: Any = decode(codec, write.encoded, what)
        return PendingWrite(self.task_id, channel, value)


def to_bytes(task: Packed) -> bytes:
    """Return the record of a task's writes."""
    return pickle.dumps(task, 5)


def from_bytes(record: bytes) -> Packed:
    """Return what `to_bytes` was given. The record's checksum must have held."""
    found: Packed = pickle.loads(record)
    return found


def unpack(task: Packed) -> KeptTask:
    """Return the writes one by one."""
    task_id, path, *columns = task
    writes = [*map(KeptWrite._make, zip(*columns, strict=True))]
    return KeptTask(path, keys.long(task_id), writes)


def tag_of(task: Packed) -> bytes:
    """Return the task id as it stands in keys."""
    return keys.task(keys.long(task[0]))


def value_at(task: Packed, index: int) -> bytes:
    """Return the encoded value of the write that has *index*."""
    return task[4][index]


def merged(old: Packed, new: Packed) -> Packed:
    """Return *old* with what *new* adds to it.

    Control writes replace those of their kind; any other stays as it is once it
    is there. The order is the old one's, so that an index into it stays right.
    """
    known = {write[0]: write for write in zip(*old[2:], strict=True)}
    for write in zip(*new[2:], strict=True):
        if write[0] < 0 or write[0] not in known:
            known[write[0]] = write
    positions, channels, encoded = zip(*known.values(), strict=True)
    return old[0], old[1], positions, channels, encoded
