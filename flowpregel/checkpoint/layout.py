"""The tables, keys and records of a store, and how namespaces and checkpoints are found
in them.

::

    threads     thread digest (16) + namespace digest (16)       ► `NamespaceRecord`
    checkpoints namespace (8) + checkpoint id                    ► `CheckpointRecord`
    values      namespace (8) + version (9) + channel (16)       ► an encoded value
    deltas      namespace (8) + version (9) + channel (16)       ► `DeltaRecord`
    writes      namespace (8) + checkpoint id + task (16)        ► `WritesRecord`
                namespace (8) + 0, 2 + checkpoint id + task (16) ► a failed task's input
                namespace (8) + 0, 3 + name (16) + number (8)    ► a signal, its owner
                namespace (8) + 0, 4 + checkpoint id + task (16) ► a task's output
                namespace (8) + 0, 5 + checkpoint id             ► nothing: a pin

All records of a namespace are neighbours, in the order in which a run makes them.
Whatever a user names is a digest, a small number or escaped in a key, so that no name
is too long for LMDB (511 bytes), reaches another thread, or is taken for another.

A record is the pickle of its fields; none is unpickled before its checksum holds.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from flowpregel._core.records import NOTHING_DUE, Address, Version
from flowpregel.errors import ConfigurationError
from flowpregel.storage.records import TABLE_NAMES
from flowpregel.storage.stores import Store
from flowpregel.storage.tables import Table

Value = TypeVar("Value")
Place = bytes | int
"""Where a channel's value at a version is: here, encoded, or `EMPTY`, `STORED` or
`DELTA`.
"""
EMPTY, STORED, DELTA = range(3)
"""Nowhere, in ``values``, or in ``deltas``."""

ARGUMENTS, SIGNALS, OUTPUT, PIN = b"\0\2", b"\0\3", b"\0\4", b"\0\5"
"""What lies beside pending writes; no checkpoint id, as it is in a key, begins like
this.
"""

LONGEST_ID = 400
NAMESPACE_LENGTH, VALUE_LENGTH = 32, 33
"""Bytes of what `namespace_key` and `value_key` return; the keys of chunks are
longer.
"""
_END = b"\0\1"
"""Ends a checkpoint id; a NUL within one is followed by 255."""
_NEXT = b"next namespace"
_SOURCE = b"source"
"""What the keys of the sources of code begin with, in ``meta``; a digest follows."""
_AT_ONCE = 100


# ---------------------------------------------------------------- keys


def thread_name(thread_id: Any) -> str:
    """Return the text that *thread_id* is kept under: numbers and UUIDs are ids too.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(thread_id, str):
        return thread_id
    if isinstance(thread_id, int | UUID) and not isinstance(thread_id, bool):
        return str(thread_id)
    raise ConfigurationError(f"thread_id must be text, not {thread_id!r}")


def digest(name: str, size: int = 16) -> bytes:
    """Return what stands for a thread, a namespace, a channel or a task in a key."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).digest()


@lru_cache(1_000)
def namespace_key(thread_id: str, namespace: str) -> bytes:
    """Return the key of a thread's namespace in ``threads``."""
    return digest(thread_id) + digest(namespace)


def checkpoint_key(prefix: bytes, checkpoint_id: str) -> bytes:
    """Return the key of a checkpoint: those of a namespace are in the order of their
    ids.

    In ``writes``, what the keys of its pending writes begin with.

    Args:
        prefix: The namespace's.
        checkpoint_id: Any text.

    Raises:
        ConfigurationError: The id is longer than a key may be.
    """
    encoded = checkpoint_id.encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_ID:
        raise ConfigurationError(
            f"checkpoint id {checkpoint_id[:40]!r}... has {len(encoded)} bytes; "
            f"at most {LONGEST_ID} can be kept"
        )
    return prefix + encoded.replace(b"\0", b"\0\xff") + _END


def beside(kind: bytes, pending: bytes) -> bytes:
    """Return what the keys in ``writes`` begin with of what lies beside pending writes.

    Args:
        kind: `ARGUMENTS`, `SIGNALS`, `OUTPUT` or `PIN`.
        pending: What the keys of pending writes begin with: a checkpoint's, or a
            namespace's.
    """
    return pending[:8] + kind + pending[8:]


def id_in(key: bytes) -> str:
    """Return the checkpoint id in the key of a checkpoint."""
    return (
        key[8 : -len(_END)].replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass")
    )


def value_key(prefix: bytes, version: Version | None, channel: str) -> bytes:
    """Return the key of what a channel held, or what was added to it, at a version."""
    if isinstance(version, int) and 0 <= version < 1 << 63:
        ordered = b"i" + version.to_bytes(8, "big")
    else:
        ordered = b"o" + digest(f"{type(version).__name__} {version!r}", 8)
    return prefix + ordered + digest(channel)


def channel_in(key: bytes) -> bytes:
    """Return what stands for the channel in a key that `value_key` returned."""
    return key[17:VALUE_LENGTH]


# ---------------------------------------------------------------- records


class NamespaceRecord(NamedTuple):
    """One thread's namespace."""

    prefix: bytes
    """What its keys begin with: a number (8) that is never used again after the thread
    is deleted.
    """
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
    swept: int = 0
    """How many it had when it was last seen which of them are kept."""


class CheckpointRecord(NamedTuple):
    """A checkpoint: complete, but for what is kept by version; fields as in
    `Checkpoint`.
    """

    parent_id: str | None
    at: int
    """Wall-clock nanoseconds."""
    step: int
    source: str
    channel_versions: Mapping[str, Version]
    """Of all channels."""
    versions_seen: Mapping[str, Mapping[str, Version]]
    """For each node, the versions of its triggers when it last ran."""
    changed: tuple[str, ...]
    updated_channels: tuple[str, ...] | None
    metadata: Mapping[str, bytes]
    """Each item, encoded."""
    places: dict[str, Place]
    """Where the value of each channel is; one that is not in it is empty."""
    follows: int = NOTHING_DUE
    """What follows it."""


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
    """The fields of an `AttemptRecord`, if these are the writes it ended with."""


# ---------------------------------------------------------------- tables


class Tables:
    """The tables of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        table = store.table
        self.read, self.write, self.codec = store.read, store.write, store.codec
        self.fields_of, self.record_of = store.codec.fields_of, store.codec.record_of
        self.meta = table(b"meta")
        self.threads = table(b"threads")
        self.checkpoints = table(b"checkpoints")
        self.values = table(b"values")
        self.deltas = table(b"deltas")
        self.writes = table(b"writes")
        self.of_namespace = self.checkpoints, self.values, self.deltas, self.writes
        """Those whose keys begin with a namespace's prefix."""
        self.all = [*map(table, TABLE_NAMES)]

    # ------------------------------------------------------------ namespaces

    def namespace(self, transaction: Any, address: Address) -> NamespaceRecord | None:
        """Return the namespace of *address*, or None if nothing was ever written to
        it.
        """
        key = namespace_key(address.thread_id, address.namespace)
        data = self.threads.get(transaction, key)
        return None if data is None else NamespaceRecord(*self.fields_of(data))

    def new_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return a namespace that is to be put; it begins with the fences of those
        around it.
        """
        prefix, name = self.new_prefix(transaction), address.namespace
        fences = [
            outer.fence
            for outer in self.namespaces(transaction, address.thread_id)
            if not outer.namespace or name.startswith(outer.namespace + "|")
        ]
        fence = max(fences, default=0)
        return NamespaceRecord(prefix, address.thread_id, name, time.time_ns(), fence)

    def ensure_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return the namespace of *address*, which is there from now on."""
        found = self.namespace(transaction, address)
        if found is None:
            found = self.new_namespace(transaction, address)
            self.put_namespace(transaction, found)
        return found

    def new_prefix(self, transaction: Any) -> bytes:
        """Return what the keys of a new namespace begin with."""
        number = 1 + int.from_bytes(self.meta.get(transaction, _NEXT) or b"", "big")
        prefix = number.to_bytes(8, "big")
        self.meta.put(transaction, _NEXT, prefix)
        return prefix

    def put_namespace(self, transaction: Any, record: NamespaceRecord) -> None:
        """Keep a namespace as it is now."""
        key = namespace_key(record.thread_id, record.namespace)
        self.threads.put(transaction, key, self.record_of(tuple(record)))

    def namespaces(self, transaction: Any, thread_id: str) -> list[NamespaceRecord]:
        """Return the namespaces of a thread."""
        found = self.threads.scan(transaction, digest(thread_id))
        return [NamespaceRecord(*self.fields_of(data)) for _, data in found]

    def fence_off(self, transaction: Any, address: Address, fence: int) -> None:
        """Let only leases from *fence* on write a namespace and those inside it."""
        name = self.ensure_namespace(transaction, address).namespace
        for each in self.namespaces(transaction, address.thread_id):
            inside = (
                not name
                or each.namespace == name
                or each.namespace.startswith(name + "|")
            )
            if inside and each.fence < fence:
                self.put_namespace(transaction, each._replace(fence=fence))

    def used(self, thread_id: str | None) -> Iterator[NamespaceRecord]:
        """Yield the namespaces (of a thread) with a checkpoint; a transaction per
        hundred.
        """
        prefix = b"" if thread_id is None else digest(thread_id)

        def page(start: bytes, transaction: Any) -> list[tuple[bytes, bytes]]:
            return [*islice(self.threads.scan(transaction, prefix, start), _AT_ONCE)]

        for _, data in self.paged(self.threads, page, prefix or b"\0"):
            record = NamespaceRecord(*self.fields_of(data))
            if record.checkpoints:
                yield record

    def paged(
        self,
        table: Table,
        page: Callable[[bytes, Any], Sequence[tuple[bytes, Value]]],
        start: bytes,
    ) -> Iterator[tuple[bytes, Value]]:
        """Yield what *page* finds from the key *start* on, in a transaction for each
        page of it.

        Raises:
            StoreCorruptError: The keys are in no order, and it would not end.
        """
        while found := self.read(partial(page, start)):
            yield from found
            last = found[-1][0]
            if last < start:
                raise table.corrupt(last, "is out of its order")
            start = last + b"\0"

    # ------------------------------------------------------------ checkpoints

    def checkpoint(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> CheckpointRecord | None:
        """Return a checkpoint, or None if it is not there.

        Raises:
            StoreCorruptError: It is not there and has to be: it is the newest.
        """
        key = checkpoint_key(namespace.prefix, checkpoint_id)
        data = self.checkpoints.get(transaction, key)
        if data is None and checkpoint_id == namespace.newest:
            raise self.checkpoints.corrupt(
                key, "is missing: the newest checkpoint of a thread"
            )
        return None if data is None else CheckpointRecord(*self.fields_of(data))

    def newest_first(
        self, transaction: Any, namespace: NamespaceRecord, before: str | None = None
    ) -> Iterator[tuple[str, CheckpointRecord]]:
        """Yield the id and record of each checkpoint (smaller than *before*), in this
        order.
        """
        prefix = namespace.prefix
        bound = b"" if before is None else checkpoint_key(prefix, before)
        for key, data in self.checkpoints.scan(
            transaction, prefix, bound, backwards=True
        ):
            if bound and key >= bound:
                raise self.checkpoints.corrupt(key, "is out of its order")
            yield id_in(key), CheckpointRecord(*self.fields_of(data))
            bound = key

    def ids(self, transaction: Any, address: Address) -> list[str]:
        """Return the ids of the checkpoints of a namespace.

        Raises:
            StoreCorruptError: It has lost one.
        """
        namespace = self.namespace(transaction, address)
        if namespace is None:
            return []
        found = [
            id_in(key)
            for key, _ in self.checkpoints.scan(transaction, namespace.prefix)
        ]
        if len(found) != namespace.checkpoints:
            what = (
                f"counts {namespace.checkpoints} checkpoints, and {len(found)} are "
                "there"
            )
            raise self.threads.corrupt(
                namespace_key(address.thread_id, address.namespace), what
            )
        return found

    # ------------------------------------------------------------ values by version

    def place(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        channel: str,
        version: Version | None,
    ) -> Place:
        """Return where a channel's value is at a *version* that a checkpoint made."""
        key = value_key(namespace.prefix, version, channel)
        for table, place in ((self.deltas, DELTA), (self.values, STORED)):
            if table.get(transaction, key) is not None:
                return place
        for _, each in self.newest_first(transaction, namespace):
            if each.channel_versions.get(channel) == version:
                return each.places.get(channel, EMPTY)
        return EMPTY

    def value(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> bytes:
        """Return a channel's value, encoded, which is `STORED`."""
        key = value_key(prefix, version, channel)
        data = self.values.get(transaction, key)
        if data is None:
            raise self.values.corrupt(
                key, f"is missing: the value of channel {channel!r}"
            )
        return data

    def chain(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> Iterator[tuple[Version | None, DeltaRecord]]:
        """Yield the deltas of a channel and their versions, from *version* back to a
        snapshot.
        """
        base: Place = DELTA
        while base == DELTA:
            key = value_key(prefix, version, channel)
            data = self.deltas.get(transaction, key)
            if data is None:
                raise self.deltas.corrupt(
                    key, f"is missing: what was added to channel {channel!r}"
                )
            delta = DeltaRecord(*self.fields_of(data))
            yield version, delta
            base, version = delta.base, delta.previous

    # ------------------------------------------------------------ sources

    def put_source(self, transaction: Any, code: str, source: bytes) -> None:
        """Keep the source of the task whose code has this digest, compressed, maybe cut
        off.
        """
        self.meta.put(transaction, _SOURCE + code.encode(), source)

    def source(self, transaction: Any, code: str) -> str:
        """Return the source of the task whose code has this digest; empty: it is not
        kept.
        """
        data = self.meta.get(transaction, _SOURCE + code.encode()) or b""
        return zlib.decompressobj().decompress(data).decode("utf-8", "ignore")
