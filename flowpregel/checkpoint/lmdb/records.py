"""The records of the store: each is the pickle of its fields.

None of them is unpickled before its checksum holds.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple, TypeVar

from flowpregel._core.records import Version

Record = TypeVar("Record", bound=tuple[Any, ...])


def to_bytes(record: tuple[Any, ...]) -> bytes:
    """Return *record* as `from_bytes` reads it."""
    return pickle.dumps(tuple(record), 5)


def from_bytes(kind: type[Record], data: bytes) -> Record:
    """Return the record in *data*, whose checksum must have held."""
    return kind(*pickle.loads(data))


class NamespaceRecord(NamedTuple):
    """One thread's namespace."""

    number: int
    """What its keys begin with; never used again after the thread is deleted."""
    thread_id: str
    namespace: str
    created: int
    """Wall-clock nanoseconds."""
    fence: int = 0
    """The fencing token of the newest lease that wrote it; older ones may not."""
    newest: str | None = None
    """The greatest id of its checkpoints."""
    checkpoints: int = 0
    """How many it has."""


class CheckpointRecord(NamedTuple):
    """A checkpoint: complete, but for what is kept by version."""

    parent_id: bytes | str | None
    """As `keys.short_id` gives it."""
    at: int
    """Wall-clock nanoseconds."""
    step: int
    source: str
    versions: dict[str, Version]
    """Of all channels."""
    seen: dict[str, dict[str, Version]]
    """For each node, the versions of its triggers when it last ran."""
    changed: tuple[str, ...]
    updated: tuple[str, ...] | None
    metadata: bytes
    inline: dict[str, bytes]
    """The values that are small, encoded."""
    stored: tuple[str, ...]
    """The channels whose values are in ``values``, at their versions."""
    deltas: tuple[str, ...]
    """The channels that are kept as deltas; those in none of the three are empty."""


EMPTY, INLINE, STORED, DELTA = range(4)
"""Where a channel's value at a version is: nowhere, in the record itself, in ``values``,
or in ``deltas``."""


class DeltaRecord(NamedTuple):
    """What one superstep added to a channel."""

    previous: Version | None
    """The version that it was added to."""
    kind: int
    """Where the value of that version is; `INLINE`: in *seed*."""
    seed: bytes | None
    writes: bytes
    """The encoded tuple of what was added."""


class TaskRecord(NamedTuple):
    """A task's pending writes on one checkpoint."""

    task_id: bytes | str
    """As `keys.short_id` gives it."""
    path: str
    writes: tuple[tuple[int, str, bytes], ...]
    """(position, channel, encoded value)."""
    ran: tuple[Any, ...] | None
    """When and where it ran (a `Ran`), if these are the writes it ended with."""
