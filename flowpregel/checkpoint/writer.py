"""Encoded batches put into a transaction: what can fail for reasons of the user's is done.

`put` runs none of the user's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowpregel._core.records import CONTROL_WRITES, SAVED, Checkpoint, TaskWrites
from flowpregel.checkpoint.arguments import arguments_key
from flowpregel.checkpoint.base import WRITES_IDX_MAP, EncodedBatch
from flowpregel.checkpoint.tables import (
    DELTA,
    EMPTY,
    STORED,
    CheckpointRecord,
    NamespaceRecord,
    Place,
    Tables,
    WritesRecord,
    checkpoint_key,
    digest,
    value_key,
)
from flowpregel.errors import ConfigurationError, LeaseLostError

LONGEST_INLINE = 128
"""Bytes: a larger value is kept once per version, not in each checkpoint that has it."""


def put(tables: Tables, transaction: Any, batches: Sequence[EncodedBatch]) -> None:
    """Put batches into a transaction.

    Raises:
        LeaseLostError: The lease of one was taken over.
    """
    for batch in batches:
        thread = batch.address.thread_id, batch.address.namespace
        before = tables.namespace(transaction, *thread)
        namespace = before or tables.new_namespace(transaction, *thread)
        if batch.fence is not None:
            if batch.fence < namespace.fence:
                raise LeaseLostError(*thread, "a newer run")
            if batch.fence > namespace.fence:
                namespace = namespace._replace(fence=batch.fence)
        for code, source in batch.sources.items():
            tables.put_source(transaction, code, source)
        for task in batch.writes:
            _put_task(tables, transaction, namespace.prefix, task)
        if batch.checkpoint is not None:
            namespace = _put_checkpoint(tables, transaction, namespace, batch.checkpoint)
        if namespace != before:
            tables.put_namespace(transaction, namespace)


def _put_task(tables: Tables, transaction: Any, prefix: bytes, task: TaskWrites) -> None:
    """Put a task's pending writes on a checkpoint, with those that are there.

    By position: control writes replace those of their kind; any other stays as it is once it is
    there, and ends the use of what the task had saved.
    The arguments of a call that failed are kept beside them, until it has finished.
    """
    pending = checkpoint_key(prefix, task.checkpoint_id)
    key = pending + digest(task.task_id)
    known: dict[int, tuple[str, bytes]] = {}
    ran = None if task.ran is None else tuple(task.ran)
    if (data := tables.writes.get(transaction, key)) is not None:
        old = WritesRecord(*tables.fields_of(data))
        known, ran = dict(old.writes), ran or old.ran
        if not CONTROL_WRITES.issuperset(channel for channel, _ in task.writes):
            tables.writes.delete(transaction, arguments_key(pending, task.task_id))
    for index, write in enumerate(task.writes):
        position = WRITES_IDX_MAP.get(write[0], index)
        if position < 0 or position not in known:
            known[position] = write
        if position >= 0:
            known.pop(WRITES_IDX_MAP[SAVED], None)
    tables.writes.put(transaction, key, tables.record_of((task.task_id, task.path, known, ran)))
    if isinstance(task.failed, bytes):
        tables.writes.put(transaction, arguments_key(pending, task.task_id), task.failed)


def _put_checkpoint(
    tables: Tables, transaction: Any, namespace: NamespaceRecord, checkpoint: Checkpoint
) -> NamespaceRecord:
    """Put a checkpoint and what it changed; return the namespace as it is then."""
    if checkpoint.parent_id == checkpoint.id:
        raise ConfigurationError(f"checkpoint {checkpoint.id!r} cannot be its own parent")
    parent = None
    if checkpoint.parent_id is not None:
        parent = tables.checkpoint(transaction, namespace, checkpoint.parent_id)
    places: dict[str, Place] = {}
    for name, version in checkpoint.channel_versions.items():
        if name in checkpoint.values:
            places[name] = data = checkpoint.values[name]
            if not isinstance(data, bytes) or len(data) > LONGEST_INLINE:
                places[name] = STORED
                tables.values.put(transaction, value_key(namespace.prefix, version, name), data)
        elif name in checkpoint.deltas:
            previous, writes = checkpoint.deltas[name].previous, checkpoint.deltas[name].writes
            base: Place = EMPTY
            if previous is not None:
                base = tables.place(transaction, namespace, parent, name, previous)
            added = tables.record_of((previous, base, writes))
            tables.deltas.put(transaction, value_key(namespace.prefix, version, name), added)
            places[name] = DELTA
        elif name not in checkpoint.changed:
            places[name] = tables.place(transaction, namespace, parent, name, version)
    record = (*(getattr(checkpoint, name) for name in CheckpointRecord._fields[:-1]), places)
    key = checkpoint_key(namespace.prefix, checkpoint.id)
    is_new = tables.checkpoints.get(transaction, key) is None
    tables.checkpoints.put(transaction, key, tables.record_of(record))
    newest = max(namespace.newest or "", checkpoint.id)
    return namespace._replace(newest=newest, checkpoints=namespace.checkpoints + is_new)
