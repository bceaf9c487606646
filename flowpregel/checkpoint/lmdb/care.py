"""Looking after a store: what is in it, whether it holds, and copies of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from flowpregel._core.records import ERROR, INTERRUPT, Address, Saved
from flowpregel._lmdb.environment import Environment
from flowpregel._lmdb.table import Table
from flowpregel.checkpoint.lmdb import keys, plain, staterecord
from flowpregel.checkpoint.lmdb.book import Book, Read
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.errors import StoreError

_AT_ONCE = 2_000
_KINDS = {
    keys.CHECKPOINT: "(checkpoints)",
    keys.WRITE: "(pending writes)",
}


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


def info_of(scope: Scope, newest: Saved, *, running: bool) -> ThreadInfo:
    """Return what is known of the thread whose outermost namespace is *scope*."""
    channels = {write.channel for write in newest.writes}
    status: Literal["running", "interrupted", "failed", "idle"] = "idle"
    if running:
        status = "running"
    elif INTERRUPT in channels:
        status = "interrupted"
    elif ERROR in channels:
        status = "failed"
    return ThreadInfo(
        thread_id=scope.thread_id,
        created=scope.created,
        updated=newest.checkpoint.at,
        step=newest.checkpoint.step,
        status=status,
    )


def count(book: Book, read: Read, scopes: Iterator[Scope], stats: Stats) -> Stats:
    """Add what is in *scopes* to *stats*."""
    threads = set()
    for scope in scopes:
        threads.add(scope.thread_id)
        stats.namespaces += 1
        start = prefix = keys.of_scope(scope.number)
        while page := read(partial(_sizes, book.log, prefix=prefix, start=start)):
            for key, size in page:
                _count_record(book, read, stats, key, size)
            start = page[-1][0] + b"\0"
    stats.threads = len(threads)
    return stats


def _sizes(table: Table, transaction: Any, prefix: bytes, start: bytes) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    with transaction.cursor(db=table.handle) as cursor:
        there = cursor.set_range(start)
        while there and len(found) < _AT_ONCE:
            key, record = cursor.item()
            if not key.startswith(prefix):
                break
            found.append((key, len(key) + len(record)))
            there = cursor.next()
    return found


def _count_record(book: Book, read: Read, stats: Stats, key: bytes, size: int) -> None:
    kind = key[16:17]
    if kind == keys.CHECKPOINT:
        stats.checkpoints += 1
        stats.bytes_of_checkpoints += size
        read(partial(_count_held, book, stats, key))
    elif kind == keys.WRITE:
        stats.bytes_of_writes += size
    else:
        number = int.from_bytes(key[keys.LOG_HEAD : keys.LOG_HEAD + 4], "big")
        _add(stats, read(lambda t: book.names.name(t, number)), size)


def _count_held(book: Book, stats: Stats, key: bytes, transaction: Any) -> None:
    """Count what a checkpoint's record holds where it belongs."""
    record = book.log.get(transaction, key)
    if record is None:
        return
    held = staterecord.held_in(record)
    # Bytes that are a write and a channel's are there once, and are counted as the channel's.
    shared = {id(value) for value in held.values.values()}
    shared.update(id(part) for _, _, body in held.deltas.values() for part in body)
    writes = [value for task in held.tasks for value in task[4] if id(value) not in shared]
    bytes_of_writes = sum(map(plain.bytes_of, writes))
    stats.bytes_of_writes += bytes_of_writes
    sizes = {channel: plain.bytes_of(value) for channel, value in held.values.items()}
    for channel, (_, _, body) in held.deltas.items():
        parts = (body,) if isinstance(body, bytes) else body
        sizes[channel] = sum(map(plain.bytes_of, parts))
    stats.bytes_of_checkpoints -= sum(sizes.values()) + bytes_of_writes
    for channel, size in sizes.items():
        _add(stats, book.names.name(transaction, channel), size)


def _add(stats: Stats, channel: str, size: int) -> None:
    stats.bytes_of_channels[channel] = stats.bytes_of_channels.get(channel, 0) + size


# ---------------------------------------------------------------- verify


def verify_records(environment: Environment, tables: list[Table]) -> tuple[int, list[str]]:
    """Read every record of *tables*; return how many, and what does not hold."""
    count, problems = 0, []
    for table in tables:
        start = b""
        while page := environment.read(partial(_sizes, table, prefix=b"", start=start)):
            count += len(page)
            places = [key for key, _ in page]
            if not places[0]:
                problems.append(str(table.corrupt(places.pop(0), "has no key")))
            problems += environment.read(partial(_unsound, table, places=places))
            start = page[-1][0] + b"\0"
    return count, problems


def _unsound(table: Table, transaction: Any, places: list[bytes]) -> list[str]:
    problems = []
    for key in places:
        try:
            table.check(transaction, key)
        except StoreError as error:
            problems.append(str(error))
    return problems


def _ids(book: Book, transaction: Any, scope: Scope) -> list[tuple[str, int]]:
    """Return the ids of a scope's checkpoints, after seeing that none of them is missing."""
    found = [*book.newest_first(transaction, scope)]
    known = {number for _, number in found}
    for key in book.log.keys(transaction, keys.of_scope(scope.number)):
        if key[16:] == keys.CHECKPOINT and keys.number_of(key) not in known:
            raise book.log.corrupt(key, "is a checkpoint whose id is missing")
    return found


def verify_states(
    book: Book, read: Read, load: Callable[[Address], Any], scopes: Iterator[Scope]
) -> list[str]:
    """Read every checkpoint of *scopes*; return what does not hold together."""
    problems = []
    for scope in scopes:
        try:
            found = read(partial(_ids, book, scope=scope))
        except StoreError as error:
            problems.append(f"thread {scope.thread_id!r}: {error}")
            continue
        for identifier, _ in found:
            try:
                load(Address(scope.thread_id, scope.namespace, identifier))
            except StoreError as error:
                problems.append(f"thread {scope.thread_id!r}, checkpoint {identifier}: {error}")
    return problems
