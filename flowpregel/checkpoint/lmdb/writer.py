"""Batches into records: encoded before a transaction begins, and put inside it.

Whatever can fail for reasons of the user's (a value that cannot be pickled) fails in
`EncodedBatch`, before any transaction. `put` runs none of the user's code.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import Batch, Checkpoint, Delta, TaskWrites
from flowpregel._lmdb.codec import Codec, encode
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.tables import (
    DELTA,
    EMPTY,
    INLINE,
    STORED,
    CheckpointRecord,
    DeltaRecord,
    NamespaceRecord,
    Tables,
    WritesRecord,
    from_bytes,
    to_bytes,
)
from flowpregel.errors import ConfigurationError, LeaseLostError

LONGEST_INLINE = 128
"""Bytes: a larger value is kept once per version, not in each checkpoint that has it."""


class EncodedBatch:
    """A batch with all its values encoded; an object that is in it twice is encoded once.

    Args:
        batch: The batch.
        codec: Encodes values.

    Raises:
        ValueEncodingError: A value cannot be kept.
    """

    def __init__(self, batch: Batch, codec: Codec) -> None:
        self.batch = batch
        self._codec = codec
        self._known: dict[int, bytes] = {}
        """By the id of an object, which the batch keeps alive."""
        self.tasks: list[tuple[str, WritesRecord]] = [
            (task.checkpoint_id, self._task(task)) for task in batch.writes if task.writes
        ]
        self.values: dict[str, bytes] = {}
        self.deltas: dict[str, tuple[Delta, bytes]] = {}
        self.metadata = b""
        if batch.checkpoint is not None:
            self._encode_checkpoint(batch.checkpoint)

    def _encode_checkpoint(self, checkpoint: Checkpoint) -> None:
        for name, value in checkpoint.values.items():
            what = f"the value of channel {name!r} (step {checkpoint.step})"
            self.values[name] = self._encoded(value, what)
        for name, delta in checkpoint.deltas.items():
            if name not in self.values:
                what = f"what was added to channel {name!r} (step {checkpoint.step})"
                self.deltas[name] = delta, encode(self._codec, delta.writes, what)
        if checkpoint.metadata:
            metadata = dict(checkpoint.metadata)
            self.metadata = encode(self._codec, metadata, "the metadata of a checkpoint")

    def _task(self, task: TaskWrites) -> WritesRecord:
        writes = [
            (
                WRITES_IDX_MAP.get(channel, index),
                channel,
                self._encoded(value, f"the write of task {task.task_id!r} to {channel!r}"),
            )
            for index, (channel, value) in enumerate(task.writes)
        ]
        ran = None if task.ran is None else tuple(task.ran)
        return WritesRecord(task.task_id, task.path, tuple(writes), ran)

    def _encoded(self, value: Any, what: str) -> bytes:
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = encode(self._codec, value, what)
        return known


def put(tables: Tables, transaction: Any, encoded: EncodedBatch) -> None:
    """Put a batch into a transaction.

    Raises:
        LeaseLostError: Its lease was taken over. Nothing was put.
    """
    batch = encoded.batch
    place = batch.address.thread_id, batch.address.namespace
    namespace = before = tables.ensure_namespace(transaction, *place)
    if batch.fence is not None and batch.fence != namespace.fence:
        if batch.fence < namespace.fence:
            raise LeaseLostError(*place, "a newer run")
        namespace = namespace._replace(fence=batch.fence)
    for checkpoint_id, task in encoded.tasks:
        _put_task(tables, transaction, keys.checkpoint(namespace.number, checkpoint_id), task)
    if batch.checkpoint is not None:
        namespace = _put_checkpoint(tables, transaction, namespace, encoded, batch.checkpoint)
    if namespace != before:
        tables.put_namespace(transaction, namespace)


def _put_task(tables: Tables, transaction: Any, prefix: bytes, task: WritesRecord) -> None:
    """Put a task's pending writes on a checkpoint, with those that are there.

    Control writes replace those of their kind; any other stays as it is once it is there.
    """
    key = prefix + keys.digest(task.task_id)
    data = tables.writes.get(transaction, key)
    old = None if data is None else from_bytes(WritesRecord, data)
    known = {write[0]: write for write in old.writes} if old is not None else {}
    for write in task.writes:
        if write[0] < 0 or write[0] not in known:
            known[write[0]] = write
    ran = old.ran if old is not None and task.ran is None else task.ran
    task = task._replace(writes=tuple(known.values()), ran=ran)
    tables.writes.put(transaction, key, to_bytes(task))


def _put_checkpoint(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    encoded: EncodedBatch,
    checkpoint: Checkpoint,
) -> NamespaceRecord:
    """Put a checkpoint and what it changed; return the namespace as it is then."""
    if checkpoint.parent_id == checkpoint.id:
        raise ConfigurationError(f"checkpoint {checkpoint.id!r} cannot be its own parent")
    parent = None
    if checkpoint.parent_id is not None:
        parent = tables.checkpoint(transaction, namespace, checkpoint.parent_id)
    for name, (delta, data) in encoded.deltas.items():
        kind, seed = EMPTY, None
        if delta.previous is not None:
            kind, seed = tables.place(transaction, namespace, parent, name, delta.previous)
        key = keys.value(namespace.number, checkpoint.channel_versions.get(name), name)
        added = DeltaRecord(delta.previous, kind, seed, data)
        tables.deltas.put(transaction, key, to_bytes(added))
    inline, stored, deltas = _inherited(tables, transaction, namespace, checkpoint, parent)
    deltas += encoded.deltas
    for name, data in encoded.values.items():
        if len(data) <= LONGEST_INLINE:
            inline[name] = data
        else:
            stored.append(name)
            version = checkpoint.channel_versions.get(name)
            tables.values.put(transaction, keys.value(namespace.number, version, name), data)
    record = CheckpointRecord(
        checkpoint.parent_id,
        checkpoint.at,
        checkpoint.step,
        checkpoint.source,
        dict(checkpoint.channel_versions),
        {node: dict(seen) for node, seen in checkpoint.versions_seen.items()},
        checkpoint.changed,
        checkpoint.updated_channels,
        encoded.metadata,
        inline,
        tuple(stored),
        tuple(deltas),
    )
    key = keys.checkpoint(namespace.number, checkpoint.id)
    replaced = tables.checkpoints.put(transaction, key, to_bytes(record))
    newest = max(namespace.newest or "", checkpoint.id)
    return namespace._replace(newest=newest, checkpoints=namespace.checkpoints + (not replaced))


def _inherited(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    checkpoint: Checkpoint,
    parent: CheckpointRecord | None,
) -> tuple[dict[str, bytes], list[str], list[str]]:
    """Return where the values are of the channels that *checkpoint* does not change."""
    inline: dict[str, bytes] = {}
    stored: list[str] = []
    deltas: list[str] = []
    changed = {*checkpoint.changed, *checkpoint.values, *checkpoint.deltas}
    for name, version in checkpoint.channel_versions.items():
        if name in changed:
            continue
        kind, data = tables.place(transaction, namespace, parent, name, version)
        if kind == INLINE and data is not None:
            inline[name] = data
        elif kind == STORED:
            stored.append(name)
        elif kind == DELTA:
            deltas.append(name)
    return inline, stored, deltas
