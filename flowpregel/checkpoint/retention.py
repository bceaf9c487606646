"""How much history is kept; what is dropped, with only what no kept checkpoint needs;
and redo.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flowpregel._core.ids import NOWHERE, CallRecord, caller_of
from flowpregel._core.records import ASKED, CALLED, INTERRUPT, RESUME, Address
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    NamespaceRecord,
    Tables,
    WritesRecord,
)
from flowpregel.errors import ConfigurationError
from flowpregel.storage.codec import ValueCodec


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How much history each namespace of a thread keeps.

    A checkpoint is dropped if any of the bounds says so. Never dropped are the
    newest of a namespace, those that wait for an answer, and those that are
    pinned; what is kept reads as it did before.

    Example:
        >>> Retention(keep_last=100, max_age=7 * 86_400).keep_last
        100
    """

    keep_last: int | None = None
    """So many of the newest checkpoints."""
    max_age: float | None = None
    """Only those younger than so many seconds."""
    max_bytes: int | None = None
    """Of the newest, as many as have so many bytes of records together."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "max_age", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"{name} is {value!r}; use more than 0, or None"
                )


class Sweeper:
    """Drops what a `Retention` does not keep, now and then.

    Args:
        tables: The store's records.
        retention: What to keep.
    """

    def __init__(self, tables: Tables, retention: Retention) -> None:
        self._tables = tables
        self._retention = retention
        # no mutant: any interval of about this ratio will do
        self._interval = max(32, (retention.keep_last or 0) // 2)
        """When a namespace has so many checkpoints more it is swept again: in
        proportion to what is kept, so that sweeping costs each commit the same.
        """

    def is_due(self, namespace: NamespaceRecord) -> bool:
        """Return whether a namespace is to be swept now."""
        return namespace.checkpoints - namespace.swept >= self._interval

    def sweep(self, transaction: Any, address: Address) -> int:
        """Drop what is not to be kept of a namespace; return how many checkpoints."""
        namespace = self._tables.namespace(transaction, address)
        if namespace is None:
            return 0
        namespace = namespace._replace(swept=namespace.checkpoints)
        self._tables.put_namespace(transaction, namespace)
        gone = self._beyond(transaction, namespace)
        return forget_checkpoints(self._tables, transaction, address, gone)

    def _beyond(self, transaction: Any, namespace: NamespaceRecord) -> set[str]:
        """Return the ids of the checkpoints that are beyond a bound and that may go."""
        bounds, prefix = self._retention, namespace.prefix
        oldest = 0  # no mutant: a nanosecond after 1970
        if bounds.max_age is not None:
            oldest = time.time_ns() - int(bounds.max_age * 1e9)
        beyond: set[str] = set()
        answered: set[str | None] = set()
        """The parents of those that are kept: their questions were answered."""
        size = 0
        found = self._tables.newest_first(transaction, namespace)
        for position, (identifier, record) in enumerate(found):
            if bounds.max_bytes is not None:
                size += self._bytes(transaction, prefix, identifier, record)
            is_beyond = (
                (bounds.keep_last is not None and position >= bounds.keep_last)
                or (bounds.max_bytes is not None and size > bounds.max_bytes)
                or record.at < oldest  # no mutant: a nanosecond more or less
            )
            if position and is_beyond:
                beyond.add(identifier)
            else:
                answered.add(record.parent_id)
        pinned = {
            *self._tables.writes.keys(transaction, layout.beside(layout.PIN, prefix))
        }
        return {
            each
            for each in beyond
            if layout.beside(layout.PIN, layout.checkpoint_key(prefix, each))
            not in pinned
            and (each in answered or not self._waits(transaction, prefix, each))
        }

    def _bytes(
        self, transaction: Any, prefix: bytes, identifier: str, record: CheckpointRecord
    ) -> int:
        """Return the bytes of a checkpoint, its pending writes, and what it changed."""
        tables, key = self._tables, layout.checkpoint_key(prefix, identifier)
        found = [tables.checkpoints.get(transaction, key)]
        for place in (key, layout.beside(layout.ARGUMENTS, key)):
            found += [data for _, data in tables.writes.scan(transaction, place)]
        for name in record.changed:
            place = layout.value_key(prefix, record.channel_versions.get(name), name)
            found += [
                table.get(transaction, place)
                for table in (tables.values, tables.deltas)
            ]
        return sum(len(data) for data in found if data is not None)

    def _waits(self, transaction: Any, prefix: bytes, identifier: str) -> bool:
        """Return whether a task of the checkpoint waits for an answer."""
        found = self._tables.writes.scan(
            transaction, layout.checkpoint_key(prefix, identifier)
        )
        tasks = [WritesRecord(*self._tables.fields_of(data)) for _, data in found]
        return any(
            name == INTERRUPT for task in tasks for name, _ in task.writes.values()
        )


# ---------------------------------------------------------------- forgotten and copied


def pin(tables: Tables, transaction: Any, address: Address, *, pinned: bool) -> None:
    """Keep a checkpoint from being dropped by a `Retention`, or let go of it."""
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        return
    checkpoint = layout.checkpoint_key(namespace.prefix, address.checkpoint_id)
    key = layout.beside(layout.PIN, checkpoint)
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
    """Drop the checkpoints of a namespace that have these ids; return how many there
    were.

    What a kept checkpoint shows stays as it is: the values and deltas that it needs are
    kept.

    Args:
        tables: The store's records.
        transaction: A write transaction.
        address: The namespace's.
        gone: The ids; None: all but the newest.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None:
        return 0
    prefix, known = namespace.prefix, dict(tables.newest_first(transaction, namespace))
    gone = known.keys() - {namespace.newest} if gone is None else known.keys() & gone
    if not gone:
        return 0
    for identifier in gone:
        key = layout.checkpoint_key(prefix, identifier)
        tables.checkpoints.delete(transaction, key)
        tables.writes.drop(transaction, key)
        for kind in (layout.ARGUMENTS, layout.OUTPUT, layout.PIN):
            tables.writes.drop(transaction, layout.beside(kind, key))
        del known[identifier]
    needed: set[bytes] = set()
    for record in known.values():
        _add_needed(tables, transaction, prefix, record, needed)
    for table in (tables.values, tables.deltas):
        for key in table.keys(transaction, prefix):
            if table.name + key[: layout.VALUE_LENGTH] not in needed:
                table.discard(transaction, key)
    newest = max(known, default=None)
    left = namespace._replace(newest=newest, checkpoints=len(known), swept=len(known))
    tables.put_namespace(transaction, left)
    return len(gone)


def _add_needed(
    tables: Tables,
    transaction: Any,
    prefix: bytes,
    record: CheckpointRecord,
    needed: set[bytes],
) -> None:
    """Add the values and deltas that a checkpoint needs to *needed*."""
    for name, place in record.places.items():
        version = record.channel_versions.get(name)
        if place == layout.STORED:
            needed.add(tables.values.name + layout.value_key(prefix, version, name))
        if place != layout.DELTA:
            continue
        for each, delta in tables.chain(transaction, prefix, name, version):
            key = tables.deltas.name + layout.value_key(prefix, each, name)
            if key in needed:
                break
            needed.add(key)
            if delta.base == layout.STORED:
                needed.add(
                    tables.values.name + layout.value_key(prefix, delta.previous, name)
                )


def forget_thread(tables: Tables, transaction: Any, thread_id: str) -> None:
    """Drop everything of a thread."""
    for namespace in tables.namespaces(transaction, thread_id):
        for table in tables.of_namespace:
            table.drop(transaction, namespace.prefix)
        tables.threads.delete(
            transaction, layout.namespace_key(thread_id, namespace.namespace)
        )


def copy_thread(tables: Tables, transaction: Any, source: str, target: str) -> None:
    """Copy all records of the thread *source* to *target*, sealed for their new place.

    Raises:
        ConfigurationError: *target* has checkpoints already.
    """
    found = [
        each for each in tables.namespaces(transaction, source) if each.checkpoints
    ]
    if found and any(
        each.checkpoints for each in tables.namespaces(transaction, target)
    ):
        raise ConfigurationError(
            f"thread {target!r} has checkpoints already; copy to a new thread_id, "
            "or delete_thread it first"
        )
    for namespace in found:
        twin = tables.ensure_namespace(
            transaction, Address(target, namespace.namespace)
        )
        for table in tables.of_namespace:
            table.copy(transaction, namespace.prefix, twin.prefix)
        twin = namespace._replace(
            prefix=twin.prefix, thread_id=target, fence=twin.fence
        )
        tables.put_namespace(transaction, twin)


# ---------------------------------------------------------------- taken back


def take_back(
    tables: Tables, transaction: Any, address: Address, calls: Collection[str]
) -> None:
    """Take results of calls back, those of the tasks that made them, and all later
    checkpoints.

    ::

        body (taken back)
         ├── parse('a.txt')       stays
         ├── parse('b.txt')       taken back
         │    └── clean('b')      stays: it answers if it is asked for again
         └── total([1, 2])        stays, as that one

    The next run makes these calls again, and what was made of them. What such a call
    calls itself, and what its caller calls after it, may be something else then: no
    sign of chance.

    Args:
        tables: The store's records.
        transaction: A write transaction.
        address: The checkpoint that the calls left something on.
        calls: Their ids.

    Raises:
        ConfigurationError: It has no such call.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None or address.checkpoint_id is None:
        raise ConfigurationError(f"there is nothing to take back at {address}")
    pending = tables.writes.scan(
        transaction, layout.checkpoint_key(namespace.prefix, address.checkpoint_id)
    )
    tasks = {key: WritesRecord(*tables.fields_of(data)) for key, data in pending}
    chosen = {task.path for task in tasks.values() if task.task_id in calls}
    taken = {*chosen}
    for path in chosen:
        while path := caller_of(path):
            taken.add(path)
    # By caller, the path after which its calls may be others the next time.
    first = {caller_of(path): path for path in sorted(taken, reverse=True)}
    first.update(dict.fromkeys(chosen, ""))
    for key, task in tasks.items():
        if task.path in taken:
            answers = {
                at: write
                for at, write in task.writes.items()
                if write[0] in (RESUME, ASKED)
            }
            task = task._replace(writes=answers, ran=None)
        elif task.path > first.get(caller_of(task.path), task.path):
            task = _anywhere(task, tables.codec)
        else:
            continue
        tables.writes.put(transaction, key, tables.record_of(tuple(task)))
    later = [
        id
        for id, _ in tables.newest_first(transaction, namespace)
        if id > address.checkpoint_id
    ]
    forget_checkpoints(tables, transaction, address, later)


def _anywhere(task: WritesRecord, codec: ValueCodec) -> WritesRecord:
    """Return what is kept of a call, without its place among the calls of its body."""
    _, data = task.writes.get(WRITES_IDX_MAP[CALLED], (CALLED, b""))
    asked = codec.decode(data, "a call") if data else None
    if asked is None:
        return task
    changed = codec.encode(tuple(CallRecord(*asked)._replace(place=NOWHERE)), "a call")
    return task._replace(
        writes={**task.writes, WRITES_IDX_MAP[CALLED]: (CALLED, changed)}
    )
