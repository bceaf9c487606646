"""A batch with everything encoded: putting it into the store needs no user's code.

What can fail for reasons of the user's (a value that cannot be pickled) fails
here, before any transaction begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from flowpregel._core.ran import Ran
from flowpregel._core.records import Batch, Checkpoint, TaskWrites, Version
from flowpregel._lmdb.codec import Codec, encode, encode_all
from flowpregel.checkpoint.shapes import WRITES_IDX_MAP

Written: TypeAlias = tuple[int, int]
"""A pending write of the batch: its task's index, and its own in the task."""
PreparedValue: TypeAlias = tuple[str, bytes, bool]
"""A channel, its value encoded, and whether that is the very bytes of a pending write."""


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

    def add(self, channels: Sequence[str], encoded: Sequence[bytes]) -> None:
        """Add writes: control writes replace those of their kind, others are there once."""
        self.size += sum(map(len, encoded))
        positions = [WRITES_IDX_MAP.get(name, at) for at, name in enumerate(channels)]
        if not self.positions and len({*positions}) == len(positions):
            self.positions, self.channels, self.encoded = positions, [*channels], [*encoded]
            return
        for position, channel, value in zip(positions, channels, encoded, strict=True):
            if position not in self.positions:
                self.positions.append(position)
                self.channels.append(channel)
                self.encoded.append(value)
            elif position < 0:
                self.encoded[self.positions.index(position)] = value


class PreparedDelta(NamedTuple):
    """What was added to a channel: encoded, or the pending writes that it is made of."""

    channel: str
    previous: Version | None
    encoded: bytes
    written: tuple[Written, ...]
    """Empty: it is encoded."""


class Prepared:
    """A batch, encoded."""

    __slots__ = ("_encoded", "batch", "deltas", "metadata", "tasks", "values")

    def __init__(self, batch: Batch, codec: Codec) -> None:
        self.batch = batch
        self.tasks: list[PreparedTask] = []
        self.values: list[PreparedValue] = []
        self.deltas: list[PreparedDelta] = []
        self.metadata = b""
        self._encoded: dict[int, bytes] = {}
        """By the id of an object that a task wrote: its bytes."""
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
        channels, values = zip(*task.kept, strict=True)
        plain = [each.to_bytes(task.path) if type(each) is Ran else each for each in values]
        what = f"the write of task {task.task_id!r} to"
        encoded = encode_all(codec, plain, lambda at: f"{what} {channels[at]!r}")
        self.tasks[number].add(channels, encoded)
        self._encoded.update(zip(map(id, values), encoded, strict=True))

    @property
    def named(self) -> Iterable[str]:
        """The channels that have values."""
        return map(itemgetter(0), self.values)

    def _prepare(self, checkpoint: Checkpoint, codec: Codec) -> None:
        step, known = checkpoint.step, self._encoded.get
        for channel, value in checkpoint.values.items():
            # The very object that a task wrote is encoded once.
            encoded = known(id(value))
            is_written = encoded is not None
            if encoded is None:
                encoded = encode(codec, value, f"the value of channel {channel!r} (step {step})")
            self.values.append((channel, encoded, is_written))
        for channel, delta in checkpoint.deltas.items():
            if channel in checkpoint.values:
                continue
            made_of, encoded = self._written(channel, delta.writes), b""
            if not made_of:
                what = f"what was added to channel {channel!r} (step {step})"
                encoded = encode(codec, delta.writes, what)
            self.deltas.append(PreparedDelta(channel, delta.previous, encoded, made_of))
        if checkpoint.metadata:
            self.metadata = encode(codec, dict(checkpoint.metadata), "the metadata of a checkpoint")

    def _written(self, channel: str, values: tuple[object, ...]) -> tuple[Written, ...]:
        """Return which pending writes of the batch are exactly these objects, if all are."""
        places = {
            id(encoded): (number, index)
            for number, task in enumerate(self.tasks)
            for index, encoded in enumerate(task.encoded)
            if task.channels[index] == channel
        }
        found = [places.get(id(self._encoded.get(id(value)))) for value in values]
        written = tuple(each for each in found if each is not None)
        return written if len(written) == len(values) else ()
