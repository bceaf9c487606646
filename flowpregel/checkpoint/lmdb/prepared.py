"""A batch with everything encoded: putting it into the store needs no user's code.

What can fail for reasons of the user's (a value that cannot be pickled) fails
here, before any transaction begins.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from flowpregel._core.ran import Ran
from flowpregel._core.records import Batch, Checkpoint, TaskWrites, Version
from flowpregel._lmdb.codec import Codec, encode
from flowpregel.checkpoint.lmdb import keys

Written: TypeAlias = tuple[int, int]
"""A pending write of the batch: its task's index, and its own in the task."""


class PreparedTask:
    """A task's pending writes, encoded."""

    __slots__ = ("channels", "checkpoint_id", "encoded", "path", "positions", "size", "task_id")

    def __init__(self, task: TaskWrites) -> None:
        self.checkpoint_id = task.checkpoint_id
        self.task_id = task.task_id
        self.path = task.path
        self.positions: list[int] = []
        self.channels: list[str] = []
        self.encoded: list[bytes] = []
        self.size = 0
        """Bytes of the encoded values."""

    def index(self, channel: str, position: int) -> int:
        """Return where a write to *channel* at *position* goes; -1: the place is taken."""
        if position not in self.positions:
            self.positions.append(position)
            self.channels.append(channel)
            self.encoded.append(b"")
            return len(self.positions) - 1
        return self.positions.index(position) if position < 0 else -1


class PreparedValue(NamedTuple):
    """A channel's value, encoded."""

    channel: str
    encoded: bytes
    is_written: bool
    """Whether it is the very bytes of a pending write."""


class PreparedDelta(NamedTuple):
    """What was added to a channel: encoded, or the pending writes that it is made of."""

    channel: str
    previous: Version | None
    encoded: bytes
    written: tuple[Written, ...]
    """Empty: it is encoded."""


class Prepared:
    """A batch, encoded."""

    __slots__ = ("_found", "batch", "deltas", "metadata", "tasks", "values")

    def __init__(self, batch: Batch, codec: Codec) -> None:
        self.batch = batch
        self.tasks: list[PreparedTask] = []
        self.values: list[PreparedValue] = []
        self.deltas: list[PreparedDelta] = []
        self.metadata = b""
        self._found: dict[int, Written] = {}
        known: dict[tuple[str, str], int] = {}
        for task in batch.writes:
            if not task.writes:
                continue
            number = known.setdefault((task.checkpoint_id, task.task_id), len(self.tasks))
            if number == len(self.tasks):
                self.tasks.append(PreparedTask(task))
            self._add(number, task, codec)
        if batch.checkpoint is not None:
            self._prepare(batch.checkpoint, codec)

    def _add(self, number: int, task: TaskWrites, codec: Codec) -> None:
        prepared, found = self.tasks[number], self._found
        for position, (channel, value) in enumerate(task.kept):
            index = prepared.index(channel, keys.position(channel, position))
            if index < 0:
                continue
            what = f"the write of task {task.task_id!r} to {channel!r}"
            plain = value.to_bytes(task.path) if type(value) is Ran else value
            prepared.encoded[index] = encoded = encode(codec, plain, what)
            prepared.size += len(encoded)
            found[id(value)] = (number, index)

    def _prepare(self, checkpoint: Checkpoint, codec: Codec) -> None:
        step, found = checkpoint.step, self._found
        for channel, value in checkpoint.values.items():
            written = found.get(id(value))
            if written is None:
                what = f"the value of channel {channel!r} (step {step})"
                encoded = encode(codec, value, what)
            else:
                # The very object that a task wrote: it is encoded once.
                encoded = self.tasks[written[0]].encoded[written[1]]
            self.values.append(PreparedValue(channel, encoded, written is not None))
        for channel, delta in checkpoint.deltas.items():
            if channel in checkpoint.values:
                continue
            made_of, encoded = self._written(delta.writes), b""
            if not made_of:
                what = f"what was added to channel {channel!r} (step {step})"
                encoded = encode(codec, delta.writes, what)
            self.deltas.append(PreparedDelta(channel, delta.previous, encoded, made_of))
        if checkpoint.metadata:
            self.metadata = encode(codec, dict(checkpoint.metadata), "the metadata of a checkpoint")

    def _written(self, values: tuple[object, ...]) -> tuple[Written, ...]:
        """Return which pending writes of the batch are exactly these objects, if all are."""
        found = [self._found.get(id(value)) for value in values]
        written = tuple(each for each in found if each is not None)
        return written if len(written) == len(values) else ()
