"""Batches with every value encoded, before anybody is shown what they record.

A saver may commit later than it is given a batch, and the run goes on meanwhile: with the
same objects, which it may change. What is encoded already no change can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from flowpregel._core.records import Batch, Checkpoint, Delta

Encode: TypeAlias = Callable[[Any, str], Any]
"""Returns what a saver keeps of a value; the text says what it is, for an error's message."""


class EncodedBatch(Batch):
    """A batch whose values are what a saver keeps of them."""

    __slots__ = ()


def encode_batch(batch: Batch, encode: Encode) -> EncodedBatch:
    """Return *batch* with each value encoded; an object that is in it twice is encoded once.

    Args:
        batch: The batch.
        encode: Encodes a value.

    Raises:
        ValueEncodingError: A value cannot be kept.
    """
    known: dict[int, Any] = {}  # by the id of an object, which *batch* keeps alive

    def encode_once(value: Any, what: str) -> Any:
        if id(value) not in known:
            known[id(value)] = encode(value, what)
        return known[id(value)]

    tasks = []
    for task in batch.writes:
        what = f"the write of task {task.task_id!r} to"
        writes = [(name, encode_once(value, f"{what} {name!r}")) for name, value in task.writes]
        if writes:
            tasks.append(replace(task, writes=tuple(writes)))
    return EncodedBatch(
        batch.address,
        tuple(tasks),
        None if batch.checkpoint is None else _encode_checkpoint(batch.checkpoint, encode_once),
        batch.fence,
    )


def _encode_checkpoint(checkpoint: Checkpoint, encode: Encode) -> Checkpoint:
    step = f"(step {checkpoint.step})"
    return replace(
        checkpoint,
        channel_versions=dict(checkpoint.channel_versions),
        # A run gives a node a new mapping and changes none, so the outer copy is enough.
        versions_seen=dict(checkpoint.versions_seen),
        values={
            name: encode(value, f"the value of channel {name!r} {step}")
            for name, value in checkpoint.values.items()
        },
        deltas={
            name: Delta(
                delta.previous,
                tuple(
                    encode(value, f"what was added to channel {name!r} {step}")
                    for value in delta.writes
                ),
            )
            for name, delta in checkpoint.deltas.items()
        },
        metadata={
            name: encode(value, "the metadata of a checkpoint")
            for name, value in checkpoint.metadata.items()
        },
    )
