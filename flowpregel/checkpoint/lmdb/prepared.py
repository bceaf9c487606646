"""A batch with everything encoded: putting it into the store needs no user's code.

What can fail for reasons of the user's (a value that cannot be pickled) fails
here, before any transaction begins.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from flowpregel._core.ran import Ran
from flowpregel._core.records import RAN, Batch, Checkpoint, PendingWrite, Version
from flowpregel._lmdb.codec import Codec, decode, encode
from flowpregel.checkpoint.lmdb import keys

_WRITE_HEAD = struct.Struct(">IHI")


class PreparedWrite(NamedTuple):
    """One pending write, encoded."""

    checkpoint_id: str
    task_id: str
    path: bytes
    channel: str
    position: int
    encoded: bytes


class PreparedDelta(NamedTuple):
    """What was added to a channel: encoded, or the pending writes that it is made of."""

    channel: str
    previous: Version | None
    encoded: bytes
    written: tuple[int, ...]
    """Where these are among the batch's writes; empty: it is encoded."""


class Prepared:
    """A batch, encoded."""

    __slots__ = ("batch", "deltas", "metadata", "values", "writes")

    def __init__(self, batch: Batch, codec: Codec) -> None:
        self.batch = batch
        self.writes = [
            PreparedWrite(
                task.checkpoint_id,
                task.task_id,
                keys.text(task.path),
                channel,
                keys.position(channel, index),
                value.to_bytes(task.path)
                if type(value) is Ran
                else encode(codec, value, f"the write of task {task.task_id!r} to {channel!r}"),
            )
            for task in batch.writes
            for index, (channel, value) in enumerate(task.kept)
        ]
        self.values: list[tuple[str, bytes]] = []
        self.deltas: list[PreparedDelta] = []
        self.metadata = b""
        if batch.checkpoint is not None:
            self._prepare(batch.checkpoint, codec)

    def _prepare(self, checkpoint: Checkpoint, codec: Codec) -> None:
        step = checkpoint.step
        for channel, value in checkpoint.values.items():
            what = f"the value of channel {channel!r} (step {step})"
            self.values.append((channel, encode(codec, value, what)))
        for channel, delta in checkpoint.deltas.items():
            if channel in checkpoint.values:
                continue
            written, encoded = self._written(channel, delta.writes), b""
            if not written:
                what = f"what was added to channel {channel!r} (step {step})"
                encoded = encode(codec, delta.writes, what)
            self.deltas.append(PreparedDelta(channel, delta.previous, encoded, written))
        if checkpoint.metadata:
            self.metadata = encode(codec, dict(checkpoint.metadata), "the metadata of a checkpoint")

    def _written(self, channel: str, values: tuple[Any, ...]) -> tuple[int, ...]:
        """Return which pending writes of the batch have exactly these objects, if all are there."""
        found = {}
        number = 0
        for task in self.batch.writes:
            for name, value in task.kept:
                if name == channel:
                    found[id(value)] = number
                number += 1
        numbers = tuple(found.get(id(value), -1) for value in values)
        return () if -1 in numbers else numbers


def write_record(write: PreparedWrite, channel: int) -> bytes:
    """Return the record of a pending write."""
    # A task id that is no UUID is not in the key, which has only its digest.
    task = b"" if keys.task(write.task_id)[:1] == b"u" else keys.text(write.task_id)
    head = _WRITE_HEAD.pack(channel, len(write.path), len(task))
    return b"".join((head, write.path, task, write.encoded))


class KeptWrite(NamedTuple):
    """One pending write as it was read, not yet decoded."""

    path: str
    task_id: str
    position: int
    channel: int
    encoded: bytes

    def order(self) -> tuple[str, str, int]:
        """Return what pending writes are ordered by."""
        return self.path, self.task_id, self.position

    def decode(self, codec: Codec, channel: str) -> PendingWrite:
        """Return the write as it was given; of how a task ran, the bytes."""
        if channel == RAN:
            return PendingWrite(self.task_id, channel, self.encoded)
        what = f"the write of task {self.task_id!r} to {channel!r}"
        value: Any = decode(codec, self.encoded, what)
        return PendingWrite(self.task_id, channel, value)


def read_write(key: bytes, record: bytes) -> KeptWrite:
    """Return the pending write that is kept at *key*."""
    channel, path_size, task_size = _WRITE_HEAD.unpack_from(record)
    at_task = _WRITE_HEAD.size + path_size
    at_value = at_task + task_size
    task_id = keys.task_id_of(key[keys.LOG_HEAD : keys.LOG_HEAD + 17])
    if task_id is None:
        task_id = keys.untext(record[at_task:at_value])
    return KeptWrite(
        keys.untext(record[_WRITE_HEAD.size : at_task]),
        task_id,
        keys.position_of(key),
        channel,
        record[at_value:],
    )
