"""What is in a store, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from flowpregel._core.records import ERROR, INTERRUPT, Address, Saved
from flowpregel._lmdb.records import Table
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.tables import (
    CheckpointRecord,
    NamespaceRecord,
    Read,
    Tables,
    from_bytes,
)
from flowpregel.errors import StoreError

_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """What `LMDBSaver.threads` tells of a thread."""

    thread_id: str
    created: int
    """Wall-clock nanoseconds."""
    updated: int
    """Wall-clock nanoseconds of its newest checkpoint."""
    step: int
    """The superstep of its newest checkpoint."""
    status: Literal["running", "interrupted", "failed", "idle"]
    """*running*: a run holds its lease; *interrupted*: it waits for an answer;
    *failed*: a task of its newest checkpoint raised."""


@dataclass(slots=True, kw_only=True)
class Stats:
    """What `LMDBSaver.stats` tells of a store."""

    bytes: int
    """Of the file: those in use, and those that are free to be used again."""
    map_size: int
    threads: int = 0
    namespaces: int = 0
    checkpoints: int = 0
    bytes_of_channels: dict[str, int] = field(default_factory=dict)
    """By channel: values, deltas and snapshots, encoded."""
    bytes_of_checkpoints: int = 0
    bytes_of_writes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `LMDBSaver.verify` found."""

    records: int
    """How many were read."""
    problems: tuple[str, ...]
    """What is damaged, and where; empty: all is well."""

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.problems


def info_of(namespace: NamespaceRecord, newest: Saved, *, running: bool) -> ThreadInfo:
    """Return what is known of the thread whose outermost namespace is *namespace*."""
    channels = {write.channel for write in newest.writes}
    status: Literal["running", "interrupted", "failed", "idle"] = "idle"
    if running:
        status = "running"
    elif INTERRUPT in channels:
        status = "interrupted"
    elif ERROR in channels:
        status = "failed"
    return ThreadInfo(
        thread_id=namespace.thread_id,
        created=namespace.created,
        updated=newest.checkpoint.at,
        step=newest.checkpoint.step,
        status=status,
    )


# ---------------------------------------------------------------- stats


def count(tables: Tables, read: Read, namespaces: Iterator[NamespaceRecord], stats: Stats) -> None:
    """Add what is in *namespaces* to *stats*."""
    threads = set()
    for namespace in namespaces:
        threads.add(namespace.thread_id)
        stats.namespaces += 1
        stats.checkpoints += namespace.checkpoints
        names: dict[bytes, str] = {}
        prefix = keys.prefix(namespace.number)
        for key, size in _sizes(tables.checkpoints, read, prefix):
            stats.bytes_of_checkpoints += size
            read(partial(_count_checkpoint, tables, stats, names, key))
        stats.bytes_of_writes += sum(size for _, size in _sizes(tables.writes, read, prefix))
        for table in (tables.values, tables.deltas):
            for key, size in _sizes(table, read, prefix):
                _add(stats, names.get(keys.channel_in(key), "?"), size)
    stats.threads = len(threads)


def _count_checkpoint(
    tables: Tables, stats: Stats, names: dict[bytes, str], key: bytes, transaction: Any
) -> None:
    """Learn the names of channels, and count small values where they belong."""
    data = tables.checkpoints.get(transaction, key)
    if data is None:
        return
    record = from_bytes(CheckpointRecord, data)
    names.update((keys.digest(name), name) for name in record.versions)
    for name, place in record.places.items():
        if isinstance(place, bytes):
            stats.bytes_of_checkpoints -= len(place)
            _add(stats, name, len(place))


def _add(stats: Stats, channel: str, size: int) -> None:
    stats.bytes_of_channels[channel] = stats.bytes_of_channels.get(channel, 0) + size


def _sizes(table: Table, read: Read, prefix: bytes = b"") -> Iterator[tuple[bytes, int]]:
    """Yield the key and the bytes of each record, in a transaction for each page."""

    def page_from(transaction: Any, start: bytes) -> list[tuple[bytes, int]]:
        page: list[tuple[bytes, int]] = []
        with transaction.cursor(db=table.handle) as cursor:
            found = cursor.set_range(start)
            while found and len(page) < _AT_ONCE:
                key, record = cursor.item()
                if not key.startswith(prefix):
                    break
                page.append((key, len(key) + len(record)))
                found = cursor.next()
        return page

    start = prefix
    while page := read(partial(page_from, start=start)):
        yield from page
        start = page[-1][0] + b"\0"


# ---------------------------------------------------------------- verify


def verify_records(tables: Tables, read: Read) -> tuple[int, list[str]]:
    """Read every record; return how many, and what does not hold."""
    total, problems = 0, []
    for table in tables.all:
        for key, _ in _sizes(table, read):
            total += 1
            try:
                if not key:
                    raise table.corrupt(key, "has no key")
                read(partial(table.check, key=key))
            except StoreError as error:
                problems.append(str(error))
    return total, problems


def verify_checkpoints(
    tables: Tables,
    read: Read,
    touch: Callable[[Address], None],
    namespaces: Iterator[NamespaceRecord],
) -> list[str]:
    """Read every checkpoint of *namespaces*; return what does not hold together."""
    problems = []
    for namespace in namespaces:
        thread, where = namespace.thread_id, f"thread {namespace.thread_id!r}"
        try:
            read(partial(tables.check_count, address=Address(thread, namespace.namespace)))
            found = read(partial(tables.ids, namespace=namespace))
        except StoreError as error:
            problems.append(f"{where}: {error}")
            continue
        for identifier in found:
            try:
                touch(Address(thread, namespace.namespace, identifier))
            except StoreError as error:
                problems.append(f"{where}, checkpoint {identifier}: {error}")
    return problems
