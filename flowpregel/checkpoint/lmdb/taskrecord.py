"""A task's pending writes on one checkpoint, as bytes.

::

    lengths of path and task id, count (4 each)
    for each write: position (4, signed), channel (4), length (4)
    path, task id (unless its tag tells it), the encoded values
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowpregel._core.records import PendingWrite
from flowpregel._lmdb.codec import Codec, decode
from flowpregel.checkpoint.lmdb import keys

_HEAD = struct.Struct(">III")


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


def pack(
    task_id: str,
    path: bytes,
    positions: Sequence[int],
    channels: Sequence[int],
    encoded: Sequence[bytes],
) -> tuple[bytes, list[int]]:
    """Return the record, and where in it each encoded value begins."""
    count = len(encoded)
    named = b"" if keys.task(task_id)[:1] == b"u" else keys.text(task_id)
    directory: list[int] = []
    starts: list[int] = []
    at = _HEAD.size + 12 * count + len(path) + len(named)
    for position, channel, value in zip(positions, channels, encoded, strict=True):
        size = len(value)
        directory += (position, channel, size)
        starts.append(at)
        at += size
    head = struct.pack(f">III{'iII' * count}", len(path), len(named), count, *directory)
    return b"".join((head, path, named, *encoded)), starts


def repack(task: KeptTask) -> bytes:
    """Return the record of a task that was read."""
    positions, channels, encoded = zip(*task.writes, strict=True)
    return pack(task.task_id, keys.text(task.path), positions, channels, encoded)[0]


def unpack(tag: bytes, record: bytes) -> KeptTask:
    """Return the task that `pack` was given.

    Args:
        tag: The task id as `keys.task` gives it.
        record: The record.
    """
    path_size, id_size, count = _HEAD.unpack_from(record)
    directory = struct.unpack_from(">" + "iII" * count, record, _HEAD.size)
    at_id = _HEAD.size + 12 * count + path_size
    at = at_id + id_size
    task_id = keys.task_id_of(tag)
    if task_id is None:
        task_id = keys.untext(record[at_id:at])
    writes = []
    for position, channel, size in zip(
        directory[::3], directory[1::3], directory[2::3], strict=True
    ):
        writes.append(KeptWrite(position, channel, record[at : at + size]))
        at += size
    return KeptTask(keys.untext(record[at_id - path_size : at_id]), task_id, writes)


def value_at(record: bytes, index: int) -> bytes:
    """Return the encoded value of the write that has *index* in the record's order."""
    path_size, id_size, count = _HEAD.unpack_from(record)
    sizes = struct.unpack_from(">" + "iII" * count, record, _HEAD.size)[2::3]
    at = _HEAD.size + 12 * count + path_size + id_size + sum(sizes[:index])
    return record[at : at + sizes[index]]


def merged(old: KeptTask, new: KeptTask) -> KeptTask:
    """Return *old* with what *new* adds to it.

    Control writes replace those of their kind; any other stays as it is once it
    is there. The order is the old one's, so that an index into it stays right.
    """
    known = {write.position: write for write in old.writes}
    for write in new.writes:
        if write.position < 0 or write.position not in known:
            known[write.position] = write
    return KeptTask(old.path, old.task_id, [*known.values()])
