"""Retention: the settings for the history to keep, the deletion of older history, and
the undoing of calls.

A deletion keeps every value and delta that a remaining checkpoint needs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flowpregel._core.ids import NOWHERE, CallRecord, caller_of
from flowpregel._core.records import (
    ASKED,
    CALLED,
    INTERRUPT,
    RESUME,
    Address,
    Version,
)
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    DeltaRecord,
    NamespaceRecord,
    WritesRecord,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import ConfigurationError
from flowpregel.storage.codec import ValueCodec


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The amount of history that is kept in each namespace of a thread.

    A checkpoint is deleted if it exceeds any of the bounds. The newest checkpoint of a
    namespace, checkpoints that wait for an answer, and pinned checkpoints are never
    deleted. The content of the remaining checkpoints does not change.

    Example:
        >>> Retention(keep_last=100, max_age=7 * 86_400).keep_last
        100
    """

    keep_last: int | None = None
    """The number of newest checkpoints to keep."""
    max_age: float | None = None
    """The greatest age of a checkpoint, in seconds."""
    max_bytes: int | None = None
    """The greatest size, in bytes, of the records of all kept checkpoints of the
    namespace together.
    """

    def __post_init__(self) -> None:
        for name in ("keep_last", "max_age", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"{name} is {value!r}; use more than 0, or None"
                )

    def is_exceeded(self, *, newer: int, age: float, size: int) -> bool:
        """Return whether a checkpoint exceeds one of the bounds.

        Args:
            newer: The number of newer checkpoints in the namespace.
            age: The age of the checkpoint, in seconds.
            size: The total size of the checkpoint and all newer ones, in bytes.

        Example:
            >>> week = 7 * 86_400
            >>> retention = Retention(keep_last=100, max_age=week)
            >>> retention.is_exceeded(newer=3, age=week + 1, size=0)
            True
        """
        return (
            (self.keep_last is not None and newer >= self.keep_last)
            # no mutant: With `>=`, the bound would only differ by a nanosecond.
            or (self.max_age is not None and age > self.max_age)
            or (self.max_bytes is not None and size > self.max_bytes)
        )


class RetentionCollector:
    """A garbage collector, which deletes the history that a `Retention` does not keep.

    Args:
        tables: The tables of the store.
        retention: The bounds of the history that is kept.
    """

    def __init__(self, tables: Tables, retention: Retention) -> None:
        self._tables = tables
        self._retention = retention
        # no mutant: Any interval of about this ratio will do.
        self._interval = max(32, (retention.keep_last or 0) // 2)
        """The number of new checkpoints after which a namespace is swept again. It is
        proportional to the number of kept checkpoints, so that the cost of sweeping,
        spread over the commits, does not depend on that number.
        """

    def is_due(self, namespace: NamespaceRecord) -> bool:
        """Return whether a namespace has got enough checkpoints since the last sweep
        (deletion of excess history).
        """
        return namespace.checkpoints - namespace.swept >= self._interval

    def sweep(self, transaction: Any, address: Address) -> int:
        """Delete the excess history of a namespace, and return the number of deleted
        checkpoints.
        """
        namespace = self._tables.namespace(transaction, address)
        if namespace is None:
            return 0
        namespace = namespace._replace(swept=namespace.checkpoints)
        self._tables.put_namespace(transaction, namespace)
        gone = self._beyond(transaction, namespace)
        return forget_checkpoints(self._tables, transaction, address, gone)

    def _beyond(self, transaction: Any, namespace: NamespaceRecord) -> set[str]:
        """Return the ids of the checkpoints that exceed a bound and may be deleted."""
        bounds = self._retention
        prefix = namespace.prefix
        beyond: set[str] = set()
        answered: set[str | None] = set()
        """The ids of the kept checkpoints' parents. A checkpoint in this set has a
        child that is kept, so its questions were answered.
        """
        size = 0
        now = time.time_ns()
        counted: set[bytes] = set()
        checkpoints = self._tables.newest_first(transaction, namespace)
        for newer, (identifier, record) in enumerate(checkpoints):
            if bounds.max_bytes is not None:
                size += self._bytes(transaction, prefix, identifier, record, counted)
            age = (now - record.at) / 1e9
            if newer and bounds.is_exceeded(newer=newer, age=age, size=size):
                beyond.add(identifier)
            else:
                answered.add(record.parent_id)
        pins = layout.sidecar_key(layout.PIN, prefix)
        pinned = {*self._tables.writes.keys(transaction, pins)}
        deletable: set[str] = set()
        for identifier in beyond:
            key = layout.checkpoint_key(prefix, identifier)
            if layout.sidecar_key(layout.PIN, key) in pinned:
                continue
            if identifier in answered or not self._waits(transaction, key):
                deletable.add(identifier)
        return deletable

    def _bytes(
        self,
        transaction: Any,
        prefix: bytes,
        identifier: str,
        record: CheckpointRecord,
        counted: set[bytes],
    ) -> int:
        """Return the total size of a checkpoint's records.

        They are the checkpoint itself, the pending writes, the arguments and media
        beside them, the values that the checkpoint changed, and its keyframe unless
        that is in *counted* already.
        """
        tables = self._tables
        key = layout.checkpoint_key(prefix, identifier)
        records = [tables.checkpoints.get(transaction, key)]
        in_writes = (
            key,
            layout.sidecar_key(layout.ARGUMENTS, key),
            layout.sidecar_key(layout.MEDIA, key),
        )
        for task_prefix in in_writes:
            # A value to which a task's writes refer is counted once, with the channel.
            tasks = tables.stored_writes.scan(transaction, task_prefix)
            records += [data for _, data in tasks]
        for name in record.changed:
            version = record.channel_versions.get(name)
            value_key = layout.value_key(prefix, version, name)
            for table in (tables.values, tables.deltas):
                records.append(table.get(transaction, value_key))
        if record.keyframe is not None and record.keyframe not in counted:
            counted.add(record.keyframe)
            key = layout.keyframe_key(prefix, record.keyframe)
            records.append(tables.values.get(transaction, key))
        return sum(len(data) for data in records if data is not None)

    def _waits(self, transaction: Any, key: bytes) -> bool:
        """Return whether a task of the checkpoint at *key* waits for an answer."""
        for _, data in self._tables.writes.scan(transaction, key):
            task = WritesRecord(*self._tables.fields_of(data))
            channels = {channel for channel, _ in task.writes.values()}
            if INTERRUPT in channels:
                return True
        return False


# ---------------------------------------------------------------- deletion and copies


def pin(tables: Tables, transaction: Any, address: Address, *, pinned: bool) -> None:
    """Protect a checkpoint from `Retention`, or end its protection if not *pinned*."""
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        return
    checkpoint = layout.checkpoint_key(namespace.prefix, address.checkpoint_id)
    key = layout.sidecar_key(layout.PIN, checkpoint)
    if pinned:
        tables.writes.put(transaction, key, b"")
    else:
        tables.writes.delete(transaction, key)


def forget_checkpoints(
    tables: Tables,
    transaction: Any,
    address: Address,
    gone: Collection[str] | None = None,
) -> int:
    """Delete checkpoints of a namespace, and return the number of deleted checkpoints.

    The keyframes, metadata, values and deltas that the other checkpoints need are kept.

    Args:
        tables: The tables of the store.
        transaction: A write transaction.
        address: The address of the namespace.
        gone: The ids of the checkpoints to delete, or None for all but the newest.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None:
        return 0
    remaining = dict(tables.newest_first(transaction, namespace))
    if gone is None:
        gone = remaining.keys() - {namespace.newest}
    gone = remaining.keys() & gone
    if not gone:
        return 0
    parents = _parents_of(remaining.pop(identifier) for identifier in gone)
    for parent_id in parents - gone:
        # The parent itself may have been deleted before: its writes are stored without
        # it if its tasks were running at that time.
        tables.resolve_writes(transaction, namespace.prefix, parent_id)
    for identifier in gone:
        key = layout.checkpoint_key(namespace.prefix, identifier)
        _drop_checkpoint(tables, transaction, key)
    needed = _needed_keys(tables, transaction, namespace.prefix, remaining.values())
    for table in (tables.values, tables.deltas):
        for key in table.keys(transaction, namespace.prefix):
            # The key of a chunk of a large value begins with the key of the value, so
            # only the beginning is compared.
            if table.name + key[: layout.VALUE_LENGTH] not in needed:
                table.discard(transaction, key)
    newest = max(remaining, default=None)
    count = len(remaining)
    namespace = namespace._replace(newest=newest, checkpoints=count, swept=count)
    tables.put_namespace(transaction, namespace)
    return len(gone)


def _parents_of(records: Iterable[CheckpointRecord]) -> set[str]:
    """Return the ids of the parents of checkpoints."""
    return {record.parent_id for record in records if record.parent_id is not None}


def _drop_checkpoint(tables: Tables, transaction: Any, key: bytes) -> None:
    """Delete the record of a checkpoint, and the records in ``writes`` that belong to
    it.
    """
    tables.checkpoints.delete(transaction, key)
    tables.writes.drop(transaction, key)
    for kind in (layout.ARGUMENTS, layout.OUTPUT, layout.PIN, layout.MEDIA):
        tables.writes.drop(transaction, layout.sidecar_key(kind, key))


def _needed_keys(
    tables: Tables,
    transaction: Any,
    prefix: bytes,
    records: Collection[CheckpointRecord],
) -> set[bytes]:
    """Return the keys of the keyframes, metadata, values and deltas that checkpoints
    need.

    Each key follows the name of the key's table.
    """
    needed: set[bytes] = set()
    for record in records:
        for key in record.shared_keys(prefix):
            needed.add(tables.values.name + key)
        for channel, location in record.places.items():
            version = record.channel_versions.get(channel)
            if location == layout.STORED:
                key = layout.value_key(prefix, version, channel)
                needed.add(tables.values.name + key)
            elif location == layout.DELTA:
                chain = tables.chain(transaction, prefix, channel, version)
                _add_chain(tables, prefix, channel, chain, needed)
    return needed


def _add_chain(
    tables: Tables,
    prefix: bytes,
    channel: str,
    chain: Iterator[tuple[Version | None, DeltaRecord]],
    needed: set[bytes],
) -> None:
    """Add the keys of a channel's deltas, and of the snapshot that they start from.

    Deltas that are in *needed* already are not read again.
    """
    for version, delta in chain:
        key = tables.deltas.name + layout.value_key(prefix, version, channel)
        if key in needed:
            return
        needed.add(key)
        if delta.base == layout.STORED:
            key = layout.value_key(prefix, delta.previous, channel)
            needed.add(tables.values.name + key)


def forget_thread(tables: Tables, transaction: Any, thread_id: str) -> None:
    """Delete all records of a thread."""
    for namespace in tables.namespaces(transaction, thread_id):
        for table in tables.of_namespace:
            table.drop(transaction, namespace.prefix)
        key = layout.namespace_key(thread_id, namespace.namespace)
        tables.threads.delete(transaction, key)


def copy_thread(tables: Tables, transaction: Any, source: str, target: str) -> None:
    """Copy all records of the thread *source* to *target*, with checksums that match
    the record keys of *target*.

    Raises:
        ConfigurationError: *target* has checkpoints already.
    """
    namespaces = tables.namespaces(transaction, source)
    sources = [record for record in namespaces if record.checkpoints]
    namespaces = tables.namespaces(transaction, target)
    is_known = any(record.checkpoints for record in namespaces)
    if sources and is_known:
        raise ConfigurationError(
            f"thread {target!r} already has checkpoints; copy to a new thread_id, or "
            "call delete_thread first"
        )
    for namespace in sources:
        twin = tables.ensure_namespace(
            transaction, Address(target, namespace.namespace)
        )
        for table in tables.of_namespace:
            table.copy(transaction, namespace.prefix, twin.prefix)
        twin = namespace._replace(
            prefix=twin.prefix, thread_id=target, fence=twin.fence
        )
        tables.put_namespace(transaction, twin)


# ---------------------------------------------------------------- undoing calls


def undo_calls(
    tables: Tables, transaction: Any, address: Address, calls: Collection[str]
) -> None:
    """Undo calls, so that the next run makes them again.

    The results of the tasks that made the calls, and all later checkpoints, are deleted
    too. ::

        body (undone)
         ├── parse('a.txt')       stays
         ├── parse('b.txt')       undone
         │    └── clean('b')      stays: it answers if the same call is made again
         └── total([1, 2])        stays, like clean('b')

    A task that runs again may make different calls than before. If the task itself was
    undone, all its calls may differ; in the caller of an undone call, the calls after
    that one may differ. Such a difference does not show that the code is not
    deterministic. So the recorded calls that stay lose their positions, and are no
    longer compared by position.

    Args:
        tables: The tables of the store.
        transaction: A write transaction.
        address: The checkpoint with which the writes of the calls are stored.
        calls: The ids of the calls.

    Raises:
        ConfigurationError: There is no such checkpoint.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        raise ConfigurationError(f"there is nothing to undo at {address}")
    prefix = layout.checkpoint_key(namespace.prefix, address.checkpoint_id)
    pending = tables.writes.scan(transaction, prefix)
    tasks = {key: WritesRecord(*tables.fields_of(data)) for key, data in pending}
    chosen = {task.path for task in tasks.values() if task.task_id in calls}
    undone = _with_callers(chosen)
    # The dict contains, for each body that made calls, the first of the calls whose
    # results are deleted. A call is known by its path: its position among the calls of
    # the body. Recorded calls after the first one lose their positions, because the
    # body may make other calls at these positions when it runs again.
    first = {caller_of(path): path for path in sorted(undone, reverse=True)}
    first.update(dict.fromkeys(chosen, ""))
    for key, task in tasks.items():
        if task.path in undone:
            task = _with_answers_only(task)
        elif task.path > first.get(caller_of(task.path), task.path):
            task = _without_position(task, tables.codec)
        else:
            continue
        tables.writes.put(transaction, key, tables.record_of(tuple(task)))
    newest_first = tables.newest_first(transaction, namespace)
    later = [id for id, _ in newest_first if id > address.checkpoint_id]
    forget_checkpoints(tables, transaction, address, later)


def _with_callers(paths: Collection[str]) -> set[str]:
    """Return the paths of tasks and of all their direct and indirect callers."""
    all_paths = {*paths}
    for path in paths:
        while path := caller_of(path):
            all_paths.add(path)
    return all_paths


def _with_answers_only(task: WritesRecord) -> WritesRecord:
    """Return the writes that are kept of a task whose result is deleted: its questions,
    and the answers to them.
    """
    answers = {
        position: (channel, data)
        for position, (channel, data) in task.writes.items()
        if channel in (RESUME, ASKED)
    }
    return task._replace(writes=answers, ran=None)


def _without_position(task: WritesRecord, codec: ValueCodec) -> WritesRecord:
    """Return the writes of a call without its position in the body that made it."""
    position = WRITES_IDX_MAP[CALLED]
    _, data = task.writes.get(position, (CALLED, b""))
    fields = codec.decode(data, "a call") if data else None
    if fields is None:
        return task
    record = CallRecord(*fields)._replace(position=NOWHERE)
    changed = codec.encode(tuple(record), "a call")
    writes = {**task.writes, position: (CALLED, changed)}
    return task._replace(writes=writes)
