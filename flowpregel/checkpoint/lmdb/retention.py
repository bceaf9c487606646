"""How much history is kept; and checkpoints dropped, with only what no kept one needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from flowpregel._core.records import INTERRUPT
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.tables import (
    DELTA,
    STORED,
    CheckpointRecord,
    NamespaceRecord,
    Tables,
    WritesRecord,
    from_bytes,
)
from flowpregel.errors import ConfigurationError


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
                raise ConfigurationError(f"{name} is {value!r}; use more than 0, or None")


class Sweeper:
    """Drops what a `Retention` does not keep, now and then.

    Args:
        tables: The store's records.
        retention: What to keep.
        clock: Returns wall-clock nanoseconds.
    """

    def __init__(
        self, tables: Tables, retention: Retention, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._tables = tables
        self._retention = retention
        self._clock = clock
        self._interval = max(32, (retention.keep_last or 0) // 2)
        """After so many commits a namespace is swept: in proportion to what is kept, so that
        sweeping costs each commit the same."""
        self._since: dict[tuple[str, str], int] = {}

    def is_due(self, thread_id: str, namespace: str) -> bool:
        """Count a commit; return whether its namespace is to be swept now."""
        place = (thread_id, namespace)
        count = self._since.pop(place, 0) + 1
        if count < self._interval:
            self._since[place] = count
        return count >= self._interval

    def sweep(self, transaction: Any, thread_id: str, name: str) -> int:
        """Drop what is not to be kept of a namespace; return how many checkpoints."""
        namespace = self._tables.namespace(transaction, thread_id, name)
        if namespace is None:
            return 0
        gone = self._beyond(transaction, namespace)
        return forget_checkpoints(self._tables, transaction, namespace, gone)

    def _beyond(self, transaction: Any, namespace: NamespaceRecord) -> set[str]:
        """Return the ids of the checkpoints that are beyond a bound and that may go."""
        beyond: set[str] = set()
        answered: set[str | None] = set()
        """The parents of those that are kept: their questions were answered."""
        size = 0
        found = self._tables.newest_first(transaction, namespace)
        for position, (identifier, record) in enumerate(found):
            if self._retention.max_bytes is not None:
                size += self._bytes(transaction, namespace, identifier, record)
            if position and self._is_beyond(position, size, record.at):
                beyond.add(identifier)
            else:
                answered.add(record.parent_id)
        number = namespace.number
        return {
            each
            for each in beyond
            if not self._tables.is_pinned(transaction, number, each)
            and (each in answered or not self._waits(transaction, number, each))
        }

    def _is_beyond(self, position: int, size: int, at: int) -> bool:
        bounds = self._retention
        return (
            (bounds.keep_last is not None and position >= bounds.keep_last)
            or (bounds.max_bytes is not None and size > bounds.max_bytes)
            or (bounds.max_age is not None and at < self._clock() - int(bounds.max_age * 1e9))
        )

    def _bytes(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        identifier: str,
        record: CheckpointRecord,
    ) -> int:
        """Return the bytes of a checkpoint, its pending writes, and what it changed."""
        tables, number = self._tables, namespace.number
        found = [tables.checkpoints.get(transaction, keys.checkpoint(number, identifier))]
        writes = tables.writes.scan(transaction, keys.checkpoint(number, identifier))
        found += [data for _, data in writes]
        for name in record.changed:
            place = keys.value(number, record.versions.get(name), name)
            found += [table.get(transaction, place) for table in (tables.values, tables.deltas)]
        return sum(len(data) for data in found if data is not None)

    def _waits(self, transaction: Any, number: int, identifier: str) -> bool:
        """Return whether a task of the checkpoint waits for an answer."""
        found = self._tables.writes.scan(transaction, keys.checkpoint(number, identifier))
        return any(
            channel == INTERRUPT
            for _, data in found
            for channel, _ in from_bytes(WritesRecord, data).writes.values()
        )


# ---------------------------------------------------------------- forgotten and copied


def forget_checkpoints(
    tables: Tables, transaction: Any, namespace: NamespaceRecord, gone: Collection[str]
) -> int:
    """Drop the checkpoints that have these ids; return how many there were.

    What a kept checkpoint shows stays as it is: the values and deltas that it needs are kept.
    """
    known = dict(tables.newest_first(transaction, namespace))
    kept = {each: record for each, record in known.items() if each not in gone}
    if len(kept) == len(known):
        return 0
    needed: set[bytes] = set()
    for record in kept.values():
        _add_needed(tables, transaction, namespace, record, needed)
    for identifier in known.keys() - kept.keys():
        tables.checkpoints.delete(transaction, keys.checkpoint(namespace.number, identifier))
        tables.writes.drop(transaction, keys.checkpoint(namespace.number, identifier))
    for table in (tables.values, tables.deltas):
        for key in table.keys(transaction, keys.prefix(namespace.number)):
            if table.name + key[: keys.VALUE_LENGTH] not in needed:
                transaction.delete(key, db=table.handle)
    newest = max(kept, default=None)
    tables.put_namespace(transaction, namespace._replace(newest=newest, checkpoints=len(kept)))
    return len(known) - len(kept)


def _add_needed(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    record: CheckpointRecord,
    needed: set[bytes],
) -> None:
    """Add the values and deltas that a checkpoint needs to *needed*."""
    number, versions = namespace.number, record.versions
    for name, kept in record.places.items():
        if kept == STORED:
            needed.add(tables.values.name + keys.value(number, versions.get(name), name))
        if kept != DELTA:
            continue
        for version, delta in tables.chain(transaction, namespace, name, versions.get(name)):
            place = tables.deltas.name + keys.value(number, version, name)
            if place in needed:
                break
            needed.add(place)
            if delta.base == STORED:
                needed.add(tables.values.name + keys.value(number, delta.previous, name))


def forget_thread(tables: Tables, transaction: Any, thread_id: str) -> None:
    """Drop everything of a thread."""
    for namespace in tables.namespaces(transaction, thread_id):
        for table in tables.of_namespace:
            table.drop(transaction, keys.prefix(namespace.number))
        key = keys.of_namespace(thread_id, namespace.namespace)
        tables.threads.delete(transaction, key)


def copy_thread(tables: Tables, transaction: Any, source: str, target: str) -> None:
    """Copy all records of the thread *source* to *target*, sealed for their new place.

    Raises:
        ConfigurationError: *target* has checkpoints already.
    """
    found = [each for each in tables.namespaces(transaction, source) if each.checkpoints]
    if not found:
        return
    if any(each.checkpoints for each in tables.namespaces(transaction, target)):
        raise ConfigurationError(
            f"thread {target!r} has checkpoints already; copy to a new thread_id, "
            "or delete_thread it first"
        )
    for namespace in found:
        place = target, namespace.namespace
        twin = tables.namespace(transaction, *place) or tables.new_namespace(transaction, *place)
        for table in tables.of_namespace:
            table.copy(transaction, keys.prefix(namespace.number), keys.prefix(twin.number))
        twin = twin._replace(
            created=namespace.created, newest=namespace.newest, checkpoints=namespace.checkpoints
        )
        tables.put_namespace(transaction, twin)
