"""The table of pending writes, whose records may refer to values in other records.

When the tasks of a superstep end together, their writes and the checkpoint that follows
are one batch. A large value would then be stored twice: as a write of a task, and as a
value or a delta of a channel. So the record of the writes has a *reference* in place of
the value::

    writes      task's writes  ── (version, index) ──┐
    deltas      the writes of the superstep         ◄┤   index of the write
    values      the value of the channel            ◄┘   `WHOLE_VALUE`

Readers never see a reference: `WritesTable` replaces it by the value. The record that
has the value belongs to a child of the checkpoint that has the writes. Code that
deletes or replaces that child must first call `WritesTable.resolve` for its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from flowpregel._core.ids import packed_id, unpacked_id
from flowpregel._core.records import Checkpoint, TaskWrites
from flowpregel.errors import StoreCorruptError
from flowpregel.storage.tables import Table

WHOLE_VALUE = -1
"""The index in a reference to a value in the table ``values``."""
LONGEST_INLINE = 128
"""The greatest size, in bytes, of a value that is stored inside the records of
checkpoints. A larger value is stored once for each version, in the table ``values``.
"""
_REFERS = b"\0"
"""The first byte of a payload with references. No other payload of the table begins
with it.
"""

SharedValue: TypeAlias = Callable[[Any, bytes, str, Any], bytes]
"""A function that returns the value to which a reference points. Its arguments are the
transaction, the prefix of the namespace, the channel and the reference.
"""


class WritesTable(Table):
    """The table ``writes`` of a store.

    Args:
        table: The table of the engine.
        fields_of: A function that returns the fields in a payload.
        record_of: A function that returns the payload of fields.
        shared_value: A function that returns the value of a reference.
    """

    def __init__(
        self,
        table: Table,
        fields_of: Callable[[Any], Any],
        record_of: Callable[[Any], Any],
        shared_value: SharedValue,
    ) -> None:
        super().__init__(table.name, "", table.seal)
        self._table = table
        self._fields_of = fields_of
        self._record_of = record_of
        self._shared_value = shared_value

    def resolve(
        self,
        transaction: Any,
        prefix: bytes,
    ) -> None:
        """Store the values themselves in place of references.

        Args:
            transaction: The transaction.
            prefix: The prefix of the records' keys.
        """
        payloads = self._table.scan(transaction, prefix)
        keys = [key for key, payload in payloads if payload[:1] == _REFERS]
        for key in keys:
            payload = self.get(transaction, key)
            assert payload is not None
            self._table.put(transaction, key, payload)

    def get(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        payload = self._table.get(transaction, key)
        if payload is None or payload[:1] != _REFERS:
            return payload
        return self._resolved(transaction, key, payload)

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        payloads = self._table.scan(transaction, prefix, start, backwards=backwards)
        for key, payload in payloads:
            if payload[:1] == _REFERS:
                payload = self._resolved(transaction, key, payload)
            yield key, payload

    def _resolved(
        self,
        transaction: Any,
        key: bytes,
        payload: bytes,
    ) -> bytes:
        """Return a payload with the values in place of references."""
        packed, path, writes, ran = self._fields_of(payload[len(_REFERS) :])
        values: dict[int, tuple[str, bytes]] = {}
        for position, (channel, data) in writes.items():
            if isinstance(data, tuple):
                data = self._shared_value(transaction, key[:8], channel, data)
            values[position] = channel, data
        resolved: bytes = self._record_of((unpacked_id(packed), path, values, ran))
        return resolved

    # ------------------------------------------------------------ as the engine's table

    def put(
        self,
        transaction: Any,
        key: bytes,
        payload: bytes,
    ) -> None:
        self._table.put(transaction, key, payload)

    def delete(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        return self._table.delete(transaction, key)

    def record(
        self,
        transaction: Any,
        key: bytes,
    ) -> bytes | None:
        return self._table.record(transaction, key)

    def put_record(
        self,
        transaction: Any,
        key: bytes,
        record: bytes,
    ) -> None:
        self._table.put_record(transaction, key, record)

    def discard(
        self,
        transaction: Any,
        key: bytes,
    ) -> bool:
        return self._table.discard(transaction, key)

    def records(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._table.records(transaction, prefix, start, backwards=backwards)

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        return self._table.keys(transaction, prefix, start, limit)

    def drop(
        self,
        transaction: Any,
        prefix: bytes,
    ) -> None:
        self._table.drop(transaction, prefix)

    def expect(
        self,
        transaction: Any,
        keys: list[bytes],
    ) -> None:
        self._table.expect(transaction, keys)

    def expect_prefixes(
        self,
        transaction: Any,
        prefixes: list[bytes],
    ) -> None:
        self._table.expect_prefixes(transaction, prefixes)

    def corrupt(self, key: bytes, problem: str) -> StoreCorruptError:
        return self._table.corrupt(key, problem)


def writes_payload(
    fields: tuple[Any, ...],
    task: TaskWrites,
    checkpoint: Checkpoint | None,
    record_of: Callable[[Any], bytes],
) -> bytes:
    """Return the payload of a task's writes.

    Args:
        fields: The fields of a `WritesRecord`.
        task: The task.
        checkpoint: The checkpoint that is stored in the same transaction, or None. The
            payload may refer to values that the checkpoint has, if the checkpoint is a
            child of the one from which the task started.
        record_of: A function that returns the payload of fields.
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


def _index_of(data: bytes, channel: str, checkpoint: Checkpoint) -> int | None:
    """Return the index in a reference to *data*, or None if the records of *checkpoint*
    do not have it.

    Within a batch, an object that occurs twice is encoded once, so `is` is enough.
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
