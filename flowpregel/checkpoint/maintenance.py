"""Statistics and verification of a store, and the order of enqueued runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowpregel._core.records import Address
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    Keyframe,
    NamespaceRecord,
)
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.reader import CopiedCheckpoint, Reader
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.work import Status
from flowpregel.errors import StoreError
from flowpregel.storage.tables import Table

_AT_ONCE = 256
"""The number of records that are read in one transaction. It is small because even
large records are read whole.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """The facts about a thread that `LMDBSaver.threads` returns."""

    thread_id: str
    """The id of the thread."""
    created: int
    """The time at which the thread was created, in wall-clock nanoseconds."""
    updated: int
    """The time of the newest checkpoint, in wall-clock nanoseconds."""
    step: int
    """The superstep of the newest checkpoint."""
    status: Status
    """The status of the thread: ``"running"`` if a run holds its lease, ``"waiting"``
    if a person must answer or continue, ``"failed"``, ``"stopped"`` if tasks are due,
    or ``"done"``.
    """
    metadata: Mapping[str, Any]
    """The metadata of the newest checkpoint."""


def places(threads: Iterable[ThreadInfo], now: float) -> list[str]:
    """Return the threads of the enqueued runs, in the order in which they begin.

    Args:
        threads: Any threads; those without an enqueued run are left out.
        now: The present time, in seconds since the epoch.
    """
    ranks: list[tuple[tuple[float, int, int], str]] = []
    for thread in threads:
        position = QueuePosition.of(thread.metadata)
        if thread.status == "enqueued" and position is not None:
            ranks.append((position.rank(thread.created, now), thread.thread_id))
    return [thread_id for _, thread_id in sorted(ranks)]


def newest_checkpoints(
    reader: Reader, transaction: Any, addresses: Sequence[Address]
) -> list[CopiedCheckpoint]:
    """Return a copy of the newest checkpoint at each address that has one, with the
    task writes on it, and without channel values.

    They are read from a database on another machine in three round trips, unless a
    checkpoint has many tasks.

    Args:
        reader: The reader of the checkpoints.
        transaction: An open transaction.
        addresses: The threads and namespaces.
    """
    tables = reader.tables
    namespace_keys = [
        layout.namespace_key(address.thread_id, address.namespace)
        for address in addresses
    ]
    tables.threads.expect(transaction, namespace_keys)
    newest: list[tuple[NamespaceRecord, str]] = []
    for address in addresses:
        namespace = tables.namespace(transaction, address)
        if namespace is not None and namespace.newest is not None:
            newest.append((namespace, namespace.newest))
    keys = [
        layout.checkpoint_key(namespace.prefix, identifier)
        for namespace, identifier in newest
    ]
    tables.checkpoints.expect(transaction, keys)
    tables.writes.expect_prefixes(transaction, keys)
    copies: list[CopiedCheckpoint] = []
    for namespace, identifier in newest:
        record = tables.checkpoint(transaction, namespace, identifier)
        if record is not None:
            copied = CopiedCheckpoint(identifier, record, namespace)
            reader.copy_tasks(transaction, copied)
            copies.append(copied)
    return copies


@dataclass(slots=True, kw_only=True)
class Stats:
    """The sizes and counts that `LMDBSaver.stats` returns."""

    bytes: int
    """The size of the file, including free pages, which will be reused."""
    map_size: int
    """The size of the memory map, or 0 if this kind of store has none."""
    threads: int = 0
    """The number of threads."""
    namespaces: int = 0
    """The number of namespaces."""
    checkpoints: int = 0
    """The number of checkpoints."""
    bytes_of_channels: dict[str, int] = field(default_factory=dict)
    """The bytes of the encoded values, deltas and snapshots of each channel."""
    bytes_of_checkpoints: int = 0
    """The bytes of the records of checkpoints."""
    bytes_of_writes: int = 0
    """The bytes of the records of pending writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of `LMDBSaver.verify`."""

    records: int
    """The number of records that were read."""
    problems: tuple[str, ...]
    """Descriptions of the damage, each with its location. Empty if nothing is damaged.
    """

    @property
    def ok(self) -> bool:
        """True if there is no damage."""
        return not self.problems


# ---------------------------------------------------------------- stats


def count(tables: Tables, used: int, map_size: int) -> Stats:
    """Return the statistics of *tables*, whose file takes *used* bytes."""
    stats = Stats(bytes=used, map_size=map_size)
    threads: set[str] = set()
    channels = Counter[str]()
    for namespace in tables.used(None):
        threads.add(namespace.thread_id)
        stats.namespaces += 1
        stats.checkpoints += namespace.checkpoints
        names = _count_checkpoints(tables, namespace.prefix, stats, channels)
        writes = _sizes(tables, tables.writes, namespace.prefix)
        stats.bytes_of_writes += sum(size for _, size in writes)
        for table in (tables.values, tables.deltas):
            for key, size in _sizes(tables, table, namespace.prefix):
                if layout.is_of_channel(key):
                    channels[names.get(layout.channel_in(key), "?")] += size
    stats.threads = len(threads)
    stats.bytes_of_channels = dict(channels)
    return stats


def _count_checkpoints(
    tables: Tables, prefix: bytes, stats: Stats, channels: Counter[str]
) -> dict[bytes, str]:
    """Add the sizes of a namespace's checkpoint records and keyframes to *stats*, and
    the sizes of the inline values to *channels*.

    Returns:
        The names of the channels, by their digests.
    """
    names: dict[bytes, str] = {}
    for record, size in _channel_records(tables, prefix):
        stats.bytes_of_checkpoints += size
        if record is None:
            continue
        names.update((layout.digest(name), name) for name in record.channel_versions)
        for name, value in record.places.items():
            if isinstance(value, bytes):
                channels[name] += len(value)
                stats.bytes_of_checkpoints -= len(value)
    return names


def _channel_records(
    tables: Tables, prefix: bytes
) -> Iterator[tuple[CheckpointRecord | Keyframe | None, int]]:
    """Yield the checkpoints and keyframes of a namespace, in their stored form, with
    their sizes. A large keyframe is stored in chunks with keys of their own. For such a
    chunk, for shared metadata, and for a record that was just deleted, None is yielded
    with the size.
    """
    record: CheckpointRecord | Keyframe | None
    for key, size in _sizes(tables, tables.checkpoints, prefix):
        data = tables.read(partial(tables.checkpoints.get, key=key))
        record = None
        # A checkpoint may have been deleted since its size was read.
        if data is not None:
            record = CheckpointRecord(*tables.fields_of(data))
        yield record, size
    keyframes = layout.keyframe_key(prefix, b"")
    for key, size in _sizes(tables, tables.values, keyframes):
        data = None
        if len(key) == layout.VALUE_LENGTH:
            data = tables.read(partial(tables.values.get, key=key))
        record = None
        if data is not None:
            record = Keyframe(*tables.fields_of(data))
        yield record, size
    for _, size in _sizes(tables, tables.values, layout.metadata_keys(prefix)):
        yield None, size


def _sizes(
    tables: Tables, table: Table, prefix: bytes = b""
) -> Iterator[tuple[bytes, int]]:
    """Yield the key and the size of each record. Each page (of `_AT_ONCE` records) is
    read in its own transaction.
    """

    def page(start: bytes, transaction: Any) -> list[tuple[bytes, int]]:
        keys = table.keys(transaction, prefix, start, _AT_ONCE)
        table.expect(transaction, keys)
        sizes: list[tuple[bytes, int]] = []
        for key in keys:
            # An empty key means damage. Such a record cannot be read, but it is
            # counted.
            record = table.record(transaction, key) if key else None
            sizes.append((key, len(key) + len(record or b"")))
        return sizes

    return tables.paged(table, page, prefix, _AT_ONCE)


# ---------------------------------------------------------------- verify


def verify_records(tables: Tables, reader: Reader) -> Verification:
    """Read all records and checkpoints, and return the number of records and the
    damage.
    """
    verifier = _Verifier(tables, reader)
    for table in tables.all:
        verifier.verify_table(table)
    return Verification(records=verifier.records, problems=tuple(verifier.problems))


@dataclass(slots=True, eq=False)
class _Verifier:
    """The verification of a store, with the damage that has been found so far."""

    tables: Tables
    reader: Reader
    records: int = 0
    """The number of records that were read."""
    problems: dict[str, None] = field(default_factory=dict)
    """Descriptions of the damage, in the order in which it was found."""

    @contextmanager
    def _collecting_problems(self, location: str = "") -> Iterator[None]:
        """Add an error that the store raises in the context to the problems, instead of
        raising it.
        """
        try:
            yield
        except StoreError as error:
            self.problems[f"{location}{error}"] = None

    def verify_table(self, table: Table) -> None:
        """Read all records of a table, and the checkpoints of each namespace in it."""
        # The keys of a damaged table may be out of order. Then the loop raises an
        # error.
        with self._collecting_problems():
            for key, _ in _sizes(self.tables, table):
                self.records += 1
                self._verify_record(table, key)

    def _verify_record(self, table: Table, key: bytes) -> None:
        """Read a record, and all checkpoints of the namespace that it describes, if it
        describes one.
        """
        with self._collecting_problems():
            self.tables.read(partial(table.check, key=key))
        if table.name == b"threads" and len(key) == layout.NAMESPACE_LENGTH:
            with self._collecting_problems():
                self._verify_namespace(key)

    def _verify_namespace(self, key: bytes) -> None:
        """Read all checkpoints of a namespace, with the values that they need."""
        tables = self.tables
        data = tables.read(partial(tables.threads.get, key=key))
        if data is None:
            return
        namespace = NamespaceRecord(*tables.fields_of(data))
        address = Address(namespace.thread_id, namespace.namespace)
        thread = f"thread {address.thread_id!r}"
        with self._collecting_problems(f"{thread}: "):
            identifiers = tables.read(partial(tables.ids, address=address))
            for identifier in identifiers:
                location = f"{thread}, checkpoint {identifier}: "
                checkpoint = replace(address, checkpoint_id=identifier)
                with self._collecting_problems(location):
                    tables.read(partial(self.reader.find, address=checkpoint))
