"""A batch with everything encoded: putting it into the store needs no user's code.

What can fail for reasons of the user's (a value that cannot be pickled) fails
here, before any transaction begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from flowpregel._core.records import CALLED, RAN, Batch, Checkpoint, TaskWrites, Version
from flowpregel._lmdb.codec import Codec, encode
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.lmdb.plain import Encoder, Kept

Written: TypeAlias = tuple[int, int]
"""A pending write of the batch: its task's index, and its own in the task."""


Positions: TypeAlias = tuple[int, ...] | int
"""Of a task's writes; a number n is what is usual: 0 to n - 1, and that of how it ran."""
_CONTROL = frozenset(WRITES_IDX_MAP)
_CALL = 80
"""About how many bytes the record of a call takes that says which one it was."""
_FIXED = frozenset({str, int, bool, bytes, type(None)})
"""The exact types of values that never change, and are the same wherever they are equal."""
_MOST_KNOWN = 1024


def each_of(positions: Positions) -> tuple[int, ...]:
    """Return the position of each write."""
    if isinstance(positions, int):
        return (*range(positions), WRITES_IDX_MAP[RAN])
    return positions


class PreparedTask:
    """A task's pending writes, encoded."""

    __slots__ = ("channels", "checkpoint_id", "kept", "path", "positions", "size", "task_id")

    def __init__(
        self, task: TaskWrites, channels: Sequence[str], kept: Sequence[Kept], size: int
    ) -> None:
        self.checkpoint_id = task.checkpoint_id
        self.task_id = task.task_id
        self.path = task.path
        self.size = 0
        """About how many bytes the values take."""
        self.positions: Positions = ()
        self.channels: Sequence[str] = ()
        self.kept: Sequence[Kept] = ()
        if channels[-1] == RAN and _CONTROL.isdisjoint(channels[:-1]):
            self.size, self.positions = size, len(channels) - 1
            self.channels, self.kept = channels, kept
        else:
            self.add(channels, kept, size)

    def add(self, channels: Sequence[str], kept: Sequence[Kept], size: int) -> None:
        """Add writes: control writes replace those of their kind, others are there once."""
        self.size += size
        positions = tuple(map(WRITES_IDX_MAP.get, channels, count()))
        own = zip(self.channels, self.kept, strict=True)
        writes = dict(zip(each_of(self.positions), own, strict=True))
        for position, channel, value in zip(positions, channels, kept, strict=True):
            if position not in writes or position < 0:
                writes[position] = channel, value
        self.positions = (*writes,)
        self.channels, self.kept = zip(*writes.values(), strict=True)


class PreparedDelta(NamedTuple):
    """What was added to a channel: encoded, or the pending writes that it is made of."""

    channel: str
    previous: Version | None
    encoded: bytes
    written: tuple[Written, ...]
    """Empty: it is encoded."""


class KnownMetadata:
    """The metadata that was encoded: that of one run's checkpoints is the same."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[tuple[str, Any]], list[type], bytes]] = {}
        """By the id of the mapping, of which a run has one. Only where to look: another
        may have that id by now."""

    def encoded(self, metadata: Mapping[str, Any], codec: Codec) -> bytes:
        """Return *metadata* as bytes."""
        items, types = [*metadata.items()], [*map(type, metadata.values())]
        known = self._known.get(id(metadata))
        # What is equal may be of another type.
        if known is not None and known[1] == types and known[0] == items:
            return known[2]
        data = encode(codec, dict(metadata), "the metadata of a checkpoint")
        # What can change may be changed in place.
        if _FIXED.issuperset(types):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(metadata)] = items, types, data
        return data


class Prepared:
    """A batch, encoded."""

    __slots__ = (
        "_encoder",
        "_known",
        "batch",
        "bytes",
        "deltas",
        "metadata",
        "names",
        "size",
        "tasks",
        "values",
    )

    def __init__(self, batch: Batch, codec: Codec, metadata: KnownMetadata | None = None) -> None:
        self.batch = batch
        self.bytes = 0
        """About how many bytes all that is encoded takes."""
        self._known = metadata or KnownMetadata()
        self.names: Sequence[str] = ()
        """The channels that have values."""
        self.values: Sequence[Kept] = ()
        """A value for each of them."""
        self.size = 0
        """About how many bytes they take."""
        self.deltas: list[PreparedDelta] = []
        self.metadata = b""
        self._encoder = Encoder(codec)
        known: dict[tuple[str, str], PreparedTask] = {}
        for task in batch.writes:
            if not task.writes:
                continue
            channels, kept, size = self._encoded(task, codec)
            self.bytes += size
            place = task.checkpoint_id, task.task_id
            if place in known:
                known[place].add(channels, kept, size)
            else:
                known[place] = PreparedTask(task, channels, kept, size)
        self.tasks = [*known.values()]
        if batch.checkpoint is not None:
            self._prepare(batch.checkpoint, codec)

    def _encoded(self, task: TaskWrites, codec: Codec) -> tuple[Sequence[str], Sequence[Kept], int]:
        """Return the channels of a task's writes, their values, and about how many bytes."""
        channels: tuple[str, ...]
        kept: Sequence[Kept]
        channels, values = zip(*task.writes, strict=True)
        if channels[-1] == CALLED and self._encoder.leaves(values[-1]):
            kept, size = self._encoder.all(values[:-1], channels, _write_of, task.task_id)
            kept, size = (*kept, values[-1]), size + _CALL
        else:
            kept, size = self._encoder.all(values, channels, _write_of, task.task_id)
        if task.ran is None:
            return channels, kept, size
        ran = codec.encode(tuple(task.ran))
        return (*channels, RAN), (*kept, ran), size + len(ran)

    def _prepare(self, checkpoint: Checkpoint, codec: Codec) -> None:
        if checkpoint.values:
            names = self.names = (*checkpoint.values,)
            # The very object that a task wrote is encoded once.
            self.values, self.size = self._encoder.all(
                (*checkpoint.values.values(),), names, _value_at, checkpoint.step
            )
            self.bytes += self.size
        for channel, delta in checkpoint.deltas.items():
            if channel in checkpoint.values:
                continue
            made_of, encoded = self._written(channel, delta.writes), b""
            if not made_of:
                what = f"what was added to channel {channel!r} (step {checkpoint.step})"
                encoded = encode(codec, delta.writes, what)
                self.bytes += len(encoded)
            self.deltas.append(PreparedDelta(channel, delta.previous, encoded, made_of))
        if checkpoint.metadata:
            self.metadata = self._known.encoded(checkpoint.metadata, codec)

    def _written(self, channel: str, values: tuple[object, ...]) -> tuple[Written, ...]:
        """Return which pending writes of the batch are exactly these objects, if all are."""
        places = {
            id(kept): (number, index)
            for number, task in enumerate(self.tasks)
            for index, kept in enumerate(task.kept)
            if task.channels[index] == channel
        }
        found = [places.get(id(self._encoder.known(value))) for value in values]
        written = tuple(each for each in found if each is not None)
        return written if len(written) == len(values) else ()


def _write_of(task_id: str, channel: str) -> str:
    return f"the write of task {task_id!r} to {channel!r}"


def _value_at(step: int, channel: str) -> str:
    return f"the value of channel {channel!r} (step {step})"
