"""References: a pending write names a value that another record has.

When the tasks of a superstep end together, their writes and the checkpoint that follows
are one batch. A large value would then be stored twice: as a write of a task, and as a
value or a delta of a channel. So the record of the writes has a *reference* in place of
the value::

    writes      task's writes  ── (version, index) ──┐
    deltas      the writes of the superstep         ◄┤   index of the write
    values      the value of the channel            ◄┘   `WHOLE_VALUE`

Readers of `Tables.writes` never see a reference: they get the value. The record that
has the value belongs to a child of the checkpoint that has the writes. Code that
deletes or replaces that child must first call `Tables.resolve_writes` for the child's
parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowpregel._core.ids import packed_id, unpacked_id
from flowpregel._core.records import Checkpoint, TaskWrites

WHOLE_VALUE = -1
"""The index in a reference to a value in the table ``values``."""
LONGEST_INLINE = 128
"""The greatest size, in bytes, of a value that is stored inside the records of
checkpoints. A larger value is stored once for each version, in the table ``values``.
"""
_REFERS = b"\0"
"""The first byte of a payload with references. No other payload in the table ``writes``
begins with it.
"""


def writes_payload(
    fields: tuple[Any, ...],
    task: TaskWrites,
    checkpoint: Checkpoint | None,
    record_of: Callable[[Any], bytes],
) -> bytes:
    """Return the payload of a task's writes.

    Args:
        fields: The fields of a `WritesRecord`.
        task: The task, with its writes.
        checkpoint: The checkpoint that is stored in the same transaction, or None. The
            payload may refer to values that the checkpoint has, if the checkpoint is a
            child of the one from which the task started.
        record_of: A function that returns the payload of a record with given fields.
    """
    if checkpoint is None or checkpoint.parent_id != task.checkpoint_id:
        return record_of(fields)
    task_id, path, writes, ran = fields
    references: dict[int, tuple[str, Any]] = {}
    for position, (channel, data) in writes.items():
        if not isinstance(data, bytes) or len(data) <= LONGEST_INLINE:
            continue
        index = _index_of(data, channel, checkpoint)
        version = checkpoint.channel_versions.get(channel)
        if index is not None and version is not None:
            references[position] = channel, (version, index)
    if not references:
        return record_of(fields)
    short = {**writes, **references}
    return _REFERS + record_of((packed_id(task_id), path, short, ran))


def has_references(payload: bytes) -> bool:
    """Return whether a payload of the table ``writes`` has references."""
    return payload[:1] == _REFERS


def resolved_payload(
    payload: bytes,
    value_of: Callable[[str, Any], bytes],
    fields_of: Callable[[Any], Any],
    record_of: Callable[[Any], bytes],
) -> bytes:
    """Return a payload with the values in place of references.

    Args:
        payload: A payload with references.
        value_of: A function that returns the value to which a reference points. Its
            arguments are the channel and the reference.
        fields_of: A function that returns the fields in a payload.
        record_of: A function that returns the payload of a record with given fields.
    """
    packed, path, writes, ran = fields_of(payload[len(_REFERS) :])
    values: dict[int, tuple[str, bytes]] = {}
    for position, (channel, data) in writes.items():
        if isinstance(data, tuple):
            data = value_of(channel, data)
        values[position] = channel, data
    return record_of((unpacked_id(packed), path, values, ran))


def _index_of(data: bytes, channel: str, checkpoint: Checkpoint) -> int | None:
    """Return the index by which a reference points to *data*, or None if the records of
    *checkpoint* do not contain *data*.

    An object that occurs twice in a batch is encoded only once. So its two occurrences
    are the same bytes object, and `is` finds them.
    """
    if channel in checkpoint.values:
        return WHOLE_VALUE if checkpoint.values[channel] is data else None
    delta = checkpoint.deltas.get(channel)
    if delta is None:
        return None
    for index, write in enumerate(delta.writes):
        if write is data:
            return index
    return None
