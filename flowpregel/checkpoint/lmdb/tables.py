"""The tables and records of a store, and how namespaces and checkpoints are found in them.

A record is the pickle of its fields; none is unpickled before its checksum holds.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from flowpregel._core.records import Address, Version
from flowpregel._lmdb.files import DATABASES
from flowpregel._lmdb.store import OpenStore
from flowpregel.checkpoint.lmdb import keys

Record = TypeVar("Record", bound=tuple[Any, ...])
Read = Callable[[Callable[[Any], Any]], Any]
"""Calls a function with a read transaction."""

Place = bytes | int
"""Where a channel's value at a version is: here, encoded, or `EMPTY`, `STORED` or `DELTA`."""
EMPTY, STORED, DELTA = range(3)
"""Nowhere, in ``values``, or in ``deltas``."""

_NEXT = b"next namespace"
_PIN = b"pin"
_AT_ONCE = 100


def to_bytes(record: tuple[Any, ...]) -> bytes:
    """Return *record* as `from_bytes` reads it."""
    return pickle.dumps(tuple(record), 5)


def from_bytes(kind: type[Record], data: bytes) -> Record:
    """Return the record in *data*, whose checksum must have held."""
    return kind(*pickle.loads(data))


class NamespaceRecord(NamedTuple):
    """One thread's namespace."""

    number: int
    """What its keys begin with; never used again after the thread is deleted."""
    thread_id: str
    namespace: str
    created: int
    """Wall-clock nanoseconds."""
    fence: int = 0
    """The fencing token of the newest lease that wrote it; older ones may not."""
    newest: str | None = None
    """The greatest id of its checkpoints."""
    checkpoints: int = 0
    """How many it has."""


class CheckpointRecord(NamedTuple):
    """A checkpoint: complete, but for what is kept by version."""

    parent_id: str | None
    at: int
    """Wall-clock nanoseconds."""
    step: int
    source: str
    versions: Mapping[str, Version]
    """Of all channels."""
    seen: Mapping[str, Mapping[str, Version]]
    """For each node, the versions of its triggers when it last ran."""
    changed: tuple[str, ...]
    updated: tuple[str, ...] | None
    metadata: Mapping[str, bytes]
    """Each item, encoded."""
    places: dict[str, Place]
    """Where the value of each channel is; one that is not in it is empty."""


class DeltaRecord(NamedTuple):
    """What one superstep added to a channel."""

    previous: Version | None
    """The version that it was added to."""
    base: Place
    """Where the value of that version is."""
    writes: tuple[bytes, ...]
    """What was added, each encoded."""


class WritesRecord(NamedTuple):
    """A task's pending writes on one checkpoint."""

    task_id: str
    path: str
    writes: dict[int, tuple[str, bytes]]
    """By position: channel and encoded value."""
    ran: tuple[Any, ...] | None
    """When and where it ran (a `Ran`), if these are the writes it ended with."""


class Tables:
    """The tables of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: OpenStore) -> None:
        table = store.table
        self.meta = table(b"meta")
        self.threads = table(b"threads")
        self.checkpoints = table(b"checkpoints")
        self.values = table(b"values")
        self.deltas = table(b"deltas")
        self.writes = table(b"writes")
        self.of_namespace = self.checkpoints, self.values, self.deltas, self.writes
        """Those whose keys begin with a namespace's number."""
        self.all = [table(name) for name in DATABASES if name != b"meta"]

    # ------------------------------------------------------------ namespaces

    def namespace(self, transaction: Any, thread_id: str, name: str) -> NamespaceRecord | None:
        """Return a thread's namespace, or None if nothing was ever written to it."""
        data = self.threads.get(transaction, keys.of_namespace(thread_id, name))
        return None if data is None else from_bytes(NamespaceRecord, data)

    def new_namespace(self, transaction: Any, thread_id: str, name: str) -> NamespaceRecord:
        """Return a namespace that is to be put; it begins with the fences of those around it."""
        last = self.meta.get(transaction, _NEXT)
        number = 1 + (int.from_bytes(last, "big") if last else 0)
        self.meta.put(transaction, _NEXT, number.to_bytes(8, "big"))
        fences = [
            outer.fence
            for outer in self.namespaces(transaction, thread_id)
            if not outer.namespace or name.startswith(outer.namespace + "|")
        ]
        return NamespaceRecord(number, thread_id, name, time.time_ns(), max(fences, default=0))

    def put_namespace(self, transaction: Any, record: NamespaceRecord) -> None:
        """Keep a namespace as it is now."""
        key = keys.of_namespace(record.thread_id, record.namespace)
        self.threads.put(transaction, key, to_bytes(record))

    def namespaces(self, transaction: Any, thread_id: str) -> list[NamespaceRecord]:
        """Return the namespaces of a thread."""
        found = self.threads.scan(transaction, keys.digest(thread_id))
        return [from_bytes(NamespaceRecord, data) for _, data in found]

    def fence_off(self, transaction: Any, thread_id: str, name: str, fence: int) -> None:
        """Let only leases from *fence* on write a namespace and those inside it."""
        if self.namespace(transaction, thread_id, name) is None:
            self.put_namespace(transaction, self.new_namespace(transaction, thread_id, name))
        for each in self.namespaces(transaction, thread_id):
            inside = not name or each.namespace == name or each.namespace.startswith(name + "|")
            if inside and each.fence < fence:
                self.put_namespace(transaction, each._replace(fence=fence))

    def used(self, read: Read, thread_id: str | None) -> Iterator[NamespaceRecord]:
        """Yield the namespaces (of a thread) with a checkpoint; a transaction per hundred."""
        if thread_id is not None:
            found = read(partial(self.namespaces, thread_id=thread_id))
            yield from [each for each in found if each.checkpoints]
            return
        start = b"\0"
        while page := read(partial(self._page, start=start)):
            yield from [each for _, each in page if each.checkpoints]
            start = page[-1][0] + b"\0"

    def _page(self, transaction: Any, start: bytes) -> list[tuple[bytes, NamespaceRecord]]:
        found = self.threads.scan(transaction, b"", start)
        return [
            (key, from_bytes(NamespaceRecord, data))
            for (key, data), _ in zip(found, range(_AT_ONCE), strict=False)
        ]

    # ------------------------------------------------------------ checkpoints

    def checkpoint(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> CheckpointRecord | None:
        """Return a checkpoint, or None if it is not there.

        Raises:
            StoreCorruptError: It is not there and has to be: it is the newest.
        """
        key = keys.checkpoint(namespace.number, checkpoint_id)
        data = self.checkpoints.get(transaction, key)
        if data is None and checkpoint_id == namespace.newest:
            raise self.checkpoints.corrupt(key, "is missing: the newest checkpoint of a thread")
        return None if data is None else from_bytes(CheckpointRecord, data)

    def newest_first(
        self, transaction: Any, namespace: NamespaceRecord, before: str | None = None
    ) -> Iterator[tuple[str, CheckpointRecord]]:
        """Yield the id and record of each checkpoint (smaller than *before*)."""
        bound = b"" if before is None else keys.checkpoint(namespace.number, before)
        found = self.checkpoints.scan(
            transaction, keys.prefix(namespace.number), bound, backwards=True
        )
        for key, data in found:
            yield keys.id_of(key), from_bytes(CheckpointRecord, data)

    def ids(self, transaction: Any, namespace: NamespaceRecord) -> list[str]:
        """Return the ids of a namespace's checkpoints, the newest first."""
        return [identifier for identifier, _ in self.newest_first(transaction, namespace)]

    def check_count(self, transaction: Any, address: Address) -> None:
        """Refuse a namespace that has lost a checkpoint.

        Raises:
            StoreCorruptError: It has.
        """
        namespace = self.namespace(transaction, address.thread_id, address.namespace)
        if namespace is None:
            return
        prefix = keys.prefix(namespace.number)
        found = sum(1 for _ in self.checkpoints.scan(transaction, prefix))
        if found != namespace.checkpoints:
            key = keys.of_namespace(namespace.thread_id, namespace.namespace)
            raise self.threads.corrupt(
                key, f"counts {namespace.checkpoints} checkpoints, and {found} are there"
            )

    # ------------------------------------------------------------ values by version

    def place(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        near: CheckpointRecord | None,
        channel: str,
        version: Version | None,
    ) -> Place:
        """Return where a channel's value at *version* is.

        Args:
            transaction: Open.
            namespace: The channel's.
            near: A checkpoint that is likely to know it.
            channel: Its name.
            version: One that a checkpoint made.
        """
        if near is not None and near.versions.get(channel) == version:
            return near.places.get(channel, EMPTY)
        key = keys.value(namespace.number, version, channel)
        if self.deltas.get(transaction, key) is not None:
            return DELTA
        if self.values.get(transaction, key) is not None:
            return STORED
        for _, each in self.newest_first(transaction, namespace):
            if each.versions.get(channel) == version:
                return each.places.get(channel, EMPTY)
        return EMPTY

    def chain(
        self, transaction: Any, namespace: NamespaceRecord, channel: str, version: Version | None
    ) -> Iterator[tuple[Version | None, DeltaRecord]]:
        """Yield the deltas of a channel and their versions, from *version* back to a snapshot."""
        while True:
            key = keys.value(namespace.number, version, channel)
            data = self.deltas.get(transaction, key)
            if data is None:
                raise self.deltas.corrupt(key, f"is missing: what was added to channel {channel!r}")
            delta = from_bytes(DeltaRecord, data)
            yield version, delta
            if delta.base != DELTA:
                return
            version = delta.previous

    # ------------------------------------------------------------ pins

    def pin(self, transaction: Any, number: int, checkpoint_id: str, *, pinned: bool) -> None:
        """Keep a checkpoint from being dropped by a `Retention`, or let go of it."""
        key = _PIN + keys.checkpoint(number, checkpoint_id)
        if pinned:
            self.meta.put(transaction, key, b"")
        else:
            self.meta.delete(transaction, key)

    def is_pinned(self, transaction: Any, number: int, checkpoint_id: str) -> bool:
        """Return whether a checkpoint is pinned."""
        key = _PIN + keys.checkpoint(number, checkpoint_id)
        return self.meta.get(transaction, key) is not None
