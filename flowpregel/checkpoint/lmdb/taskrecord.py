"""A task's pending writes on one checkpoint, as bytes.

A pickle of ``(task id, path, positions, channels, values)``; the task id as
`keys.short` gives it, channels as their numbers. The path of a task that its
node's triggers made is the node's number. What is usual of the positions is a
number n: 0 to n - 1, and that of how the task ran.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from flowpregel._core.records import PULLED, PendingWrite
from flowpregel._lmdb.codec import Codec
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.plain import Kept, value_of
from flowpregel.checkpoint.lmdb.prepared import Positions, PreparedTask, each_of

Packed: TypeAlias = tuple[bytes | str, str | int, Positions, tuple[int, ...], tuple[Kept, ...]]
"""What the pickle is of. In it, one object that is there twice is kept once."""

_PULLED = len(PULLED)


class KeptWrite(NamedTuple):
    """One pending write as it was read, not yet decoded."""

    position: int
    channel: int
    """The channel's number."""
    kept: Kept


class KeptTask(NamedTuple):
    """A task's pending writes as they were read, not yet decoded."""

    path: str
    task_id: str
    writes: Sequence[KeptWrite]

    def decode(self, codec: Codec, write: KeptWrite, channel: str) -> PendingWrite:
        """Return one of the writes as it was given."""
        what = f"the write of task {self.task_id!r} to {channel!r}"
        return PendingWrite(self.task_id, channel, value_of(codec, write.kept, what))


def pack(task: PreparedTask, number_of: Callable[[str], int]) -> Packed:
    """Return what is pickled of a task's writes; *number_of* gives a name's number."""
    path = task.path
    return (
        keys.short(task.task_id),
        number_of(path[_PULLED:]) if path.startswith(PULLED) else path,
        task.positions,
        tuple(map(number_of, task.channels)),
        tuple(task.kept),
    )


def to_bytes(task: Packed) -> bytes:
    """Return the record of a task's writes."""
    return pickle.dumps(task, 5)


def from_bytes(record: bytes) -> Packed:
    """Return what `to_bytes` was given. The record's checksum must have held."""
    found: Packed = pickle.loads(record)
    return found


def unpack(task: Packed, name_of: Callable[[int], str]) -> KeptTask:
    """Return the writes one by one; *name_of* gives the name that has a number."""
    task_id, path, _, channels, kept = task
    writes = [*map(KeptWrite, each_of(task[2]), channels, kept)]
    shown = path if isinstance(path, str) else PULLED + name_of(path)
    return KeptTask(shown, keys.long(task_id), writes)


def tag_of(task: Packed) -> bytes:
    """Return the task id as it stands in keys."""
    return keys.task(keys.long(task[0]))


def value_at(task: Packed, index: int) -> Kept:
    """Return the value of the write that has *index*, as it is kept."""
    return task[4][index]


def merged(old: Packed, new: Packed) -> Packed:
    """Return *old* with what *new* adds to it.

    Control writes replace those of their kind; any other stays as it is once it
    is there. The order is the old one's, so that an index into it stays right.
    """
    known = {write[0]: write for write in zip(each_of(old[2]), *old[3:], strict=True)}
    for write in zip(each_of(new[2]), *new[3:], strict=True):
        if write[0] < 0 or write[0] not in known:
            known[write[0]] = write
    positions, channels, kept = zip(*known.values(), strict=True)
    return old[0], old[1], positions, channels, kept
