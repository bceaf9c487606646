"""Checkpoints dropped, with only what no kept one needs; and threads copied."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.records import STORED, CheckpointRecord, NamespaceRecord
from flowpregel.checkpoint.lmdb.tables import Tables
from flowpregel.errors import ConfigurationError


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
        tables.writes.drop(transaction, keys.writes(namespace.number, identifier))
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
    for name in record.stored:
        needed.add(tables.values.name + keys.value(number, versions.get(name), name))
    for name in record.deltas:
        for version, delta in tables.chain(transaction, namespace, name, versions.get(name)):
            place = tables.deltas.name + keys.value(number, version, name)
            if place in needed:
                break
            needed.add(place)
            if delta.kind == STORED:
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
        twin = tables.ensure_namespace(transaction, target, namespace.namespace)
        for table in tables.of_namespace:
            table.copy(transaction, keys.prefix(namespace.number), keys.prefix(twin.number))
        twin = twin._replace(
            created=namespace.created, newest=namespace.newest, checkpoints=namespace.checkpoints
        )
        tables.put_namespace(transaction, twin)
