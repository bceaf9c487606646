"""What is in a store, and whether it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowpregel._core.records import Address
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.layout import CheckpointRecord, NamespaceRecord, Tables
from flowpregel.checkpoint.reader import Reader
from flowpregel.checkpoint.work import Status
from flowpregel.errors import StoreError
from flowpregel.storage.tables import Table

_AT_ONCE = 256
"""Records of a page: a large one is read whole."""


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
    status: Status
    """*running*: a run holds its lease; *waiting*: it waits for an answer; *failed*: a
    task raised; *stopped*: a superstep had begun and was not ended; *done*: none of
    these.
    """
    metadata: Mapping[str, Any]
    """That of its newest checkpoint."""


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


# ---------------------------------------------------------------- stats


def count(tables: Tables, used: int, map_size: int) -> Stats:
    """Return how much is kept in *tables*, of which *used* bytes are taken up."""
    stats = Stats(bytes=used, map_size=map_size)
    threads, channels = set(), Counter[str]()
    for namespace in tables.used(None):
        threads.add(namespace.thread_id)
        stats.namespaces += 1
        stats.checkpoints += namespace.checkpoints
        names: dict[bytes, str] = {}
        for key, size in _sizes(tables, tables.checkpoints, namespace.prefix):
            data = tables.read(partial(tables.checkpoints.get, key=key))
            if data is None:
                continue
            record = CheckpointRecord(*tables.fields_of(data))
            names.update(
                (layout.digest(name), name) for name in record.channel_versions
            )
            stats.bytes_of_checkpoints += size
            for name, place in record.places.items():
                if isinstance(place, bytes):
                    channels[name] += len(place)
                    stats.bytes_of_checkpoints -= len(place)
        writes = _sizes(tables, tables.writes, namespace.prefix)
        stats.bytes_of_writes += sum(size for _, size in writes)
        for table in (tables.values, tables.deltas):
            for key, size in _sizes(tables, table, namespace.prefix):
                channels[names.get(layout.channel_in(key), "?")] += size
    stats.threads = len(threads)
    stats.bytes_of_channels = dict(channels)
    return stats


def _sizes(
    tables: Tables, table: Table, prefix: bytes = b""
) -> Iterator[tuple[bytes, int]]:
    """Yield the key and the bytes of each record, in a transaction for each page."""

    def page(start: bytes, transaction: Any) -> list[tuple[bytes, int]]:
        keys = table.keys(transaction, prefix, start, _AT_ONCE)
        table.expect(transaction, keys)
        # A record that has lost its key is counted, and is not there to be read.
        records = [
            (key, table.record(transaction, key) if key else None) for key in keys
        ]
        return [(key, len(key) + len(record or b"")) for key, record in records]

    return tables.paged(table, page, prefix)


# ---------------------------------------------------------------- verify


def verify_records(tables: Tables, reader: Reader) -> Verification:
    """Read every record, and every checkpoint; return how many, and what does not
    hold.
    """
    total, problems = 0, dict[str, None]()

    @contextmanager
    def noted(where: str = "") -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            problems[f"{where}{error}"] = None

    def look_at(key: bytes) -> None:
        if (data := tables.read(partial(tables.threads.get, key=key))) is None:
            return
        namespace = NamespaceRecord(*tables.fields_of(data))
        address = Address(namespace.thread_id, namespace.namespace)
        where = f"thread {address.thread_id!r}"
        with noted(f"{where}: "):
            for identifier in tables.read(partial(tables.ids, address=address)):
                one = replace(address, checkpoint_id=identifier)
                with noted(f"{where}, checkpoint {identifier}: "):
                    tables.read(partial(reader.find, address=one))

    for table in tables.all:
        with noted():  # its keys may be in no order
            for key, _ in _sizes(tables, table):
                total += 1
                with noted():
                    tables.read(partial(table.check, key=key))
                if table.name == b"threads" and len(key) == layout.NAMESPACE_LENGTH:
                    with noted():
                        look_at(key)
    return Verification(records=total, problems=tuple(problems))
