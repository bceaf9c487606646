"""The tables, keys and records of a store, and the lookups of namespaces and
checkpoints.

::

    threads     thread digest (16) + namespace digest (16)       ► `NamespaceRecord`
    checkpoints namespace (8) + checkpoint id                    ► `CheckpointRecord`
    values      namespace (8) + version (9) + channel (16)       ► an encoded value
                namespace (8) + "k" + random name (24)           ► `Keyframe`
                namespace (8) + "m" + digest (12) + 0 (12)       ► `SharedMetadata`
    deltas      namespace (8) + version (9) + channel (16)       ► `DeltaRecord`
    writes      namespace (8) + checkpoint id + task (16)        ► `WritesRecord`
                namespace (8) + 0, 2 + checkpoint id + task (16) ► a failed task's input
                namespace (8) + 0, 3 + name (16) + number (8)    ► a signal, its owner
                namespace (8) + 0, 4 + checkpoint id + task (16) ► a task's output
                namespace (8) + 0, 5 + checkpoint id             ► nothing: a pin
                namespace (8) + 0, 6 + checkpoint id + task (16) ► a call's media

The records of a namespace are stored next to each other, in the order in which a run
makes them. In a key, a name that the user chose is replaced by a digest or by a small
number, or is escaped. So no key is too long for LMDB (511 bytes), belongs to
another thread, or is the key of another name.

A record is a pickled tuple of fields. It is unpickled only after its checksum has been
verified.

Theory of operation. A reader goes from one table to the next. The record in ``threads``
contains the number of 8 bytes with which all other keys of the namespace begin. The
record of a checkpoint contains, for each channel, a version and a `Place`:

===============  =======================================================================
place            the value of the channel
===============  =======================================================================
bytes            the encoded value itself, if it is small
`STORED`         in ``values``, under the version and the channel
`DELTA`          the writes in ``deltas``, under the version and the channel, added to
                 the value at an earlier version, whose place the `DeltaRecord` contains
none or `EMPTY`  the channel is empty; only differences from a keyframe have `EMPTY`
===============  =======================================================================

A value is stored once, by the checkpoint that changed it. Later checkpoints refer to
its version. Nearly all versions are those of the parent, so a checkpoint may store only
the differences from a `Keyframe`. The metadata that is the same in all supersteps of a
run is a record of its own, the `SharedMetadata`. A deletion must therefore keep all
values, deltas, keyframes and metadata to which a remaining checkpoint refers
(`retention`).

The records in ``writes`` belong to the checkpoint from which their task started. The
keys of the other records there have a 0 and a number behind the namespace. No
checkpoint id in a key begins so, and a scan of pending writes does not reach them.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from flowpregel._core.ids import unpacked_id
from flowpregel._core.records import NOTHING_DUE, Address, Version
from flowpregel.checkpoint.value_references import (
    WHOLE_VALUE,
    has_references,
    resolved_payload,
)
from flowpregel.errors import ConfigurationError
from flowpregel.storage.records import TABLE_NAMES, after
from flowpregel.storage.stores import Store, Transaction, use_renames_of

if TYPE_CHECKING:
    from flowpregel.storage.codec import ValueCodec
    from flowpregel.storage.tables import Table

Key = TypeVar("Key")
Value = TypeVar("Value")
Place = bytes | int
"""The encoded value of a channel at a version, or the location of that value: `EMPTY`,
`STORED` or `DELTA`.
"""
EMPTY, STORED, DELTA = range(3)
"""The locations of a channel's value: there is no value (`EMPTY`), or the value is in
the table ``values`` (`STORED`) or ``deltas`` (`DELTA`).
"""

ARGUMENTS, SIGNALS, OUTPUT, PIN = b"\0\2", b"\0\3", b"\0\4", b"\0\5"
MEDIA = b"\0\6"
"""The kinds of records that are stored beside pending writes, in the table ``writes``.
Each kind is a prefix with which no checkpoint id in a key can begin.
"""
_SIDECARS: Final = frozenset({ARGUMENTS, SIGNALS, OUTPUT, PIN, MEDIA})

LONGEST_ID = 400
NAMESPACE_LENGTH, VALUE_LENGTH = 32, 33
"""The lengths, in bytes, of the keys that `namespace_key` and `value_key` return. The
keys of a large value's chunks are longer.
"""
_END = b"\0\1"
"""The end of a checkpoint id in a key. A NUL byte inside the id is escaped by a
following 255, so it cannot be taken for the end.
"""
_NEXT = b"next namespace"
_SOURCE = b"source"
"""The prefix of the keys of source code in ``meta``. The code's digest follows it."""
_AT_ONCE = 100
KEYFRAME_NAME = 24
"""The length of the name of a keyframe, in bytes."""
_KEYFRAME = b"k"
_METADATA = b"m"
_METADATA_DIGEST = 12
"""The length of the name of shared metadata, in bytes."""
_MOST_KEYFRAMES = 16
"""The number of keyframes that are kept in memory."""
_MOST_METADATA = 256
"""The number of records of shared metadata that are kept in memory."""


# ---------------------------------------------------------------- keys


def digest(name: str, size: int = 16) -> bytes:
    """Return the digest by which a key names a thread, a namespace, a channel or a
    task.
    """
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).digest()


@lru_cache(1_000)
def namespace_key(thread_id: str, namespace: str) -> bytes:
    """Return the key of a thread's namespace in ``threads``."""
    return digest(thread_id) + digest(namespace)


@lru_cache(1_000)
def checkpoint_key(prefix: bytes, checkpoint_id: str) -> bytes:
    """Return the key of a checkpoint. Keys of one namespace sort by checkpoint id.

    In ``writes``, this is the prefix of the keys of the checkpoint's pending writes.

    Args:
        prefix: The prefix of the namespace.
        checkpoint_id: Any string.

    Raises:
        ConfigurationError: The id is longer than `LONGEST_ID` bytes.
    """
    encoded = checkpoint_id.encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_ID:
        raise ConfigurationError(
            f"checkpoint id {checkpoint_id[:40]!r}... has {len(encoded)} bytes; at "
            f"most {LONGEST_ID} are allowed"
        )
    return prefix + encoded.replace(b"\0", b"\0\xff") + _END


def sidecar_key(kind: bytes, pending: bytes) -> bytes:
    """Return the prefix of the keys under which one kind of record is stored beside
    pending writes, in ``writes``.

    Args:
        kind: `ARGUMENTS`, `SIGNALS`, `OUTPUT`, `PIN` or `MEDIA`.
        pending: The prefix of the pending writes' keys, which is the prefix of a
            checkpoint or of a namespace.
    """
    return pending[:8] + kind + pending[8:]


def is_sidecar(key: bytes) -> bool:
    """Return whether a key in ``writes`` begins with a prefix of `sidecar_key`."""
    return key[8:10] in _SIDECARS


def id_in(key: bytes) -> str:
    """Return the checkpoint id in the key of a checkpoint."""
    return (
        key[8 : -len(_END)].replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass")
    )


_channel_digest: Final = lru_cache(10_000)(digest)


def value_key(prefix: bytes, version: Version | None, channel: str) -> bytes:
    """Return the key of a channel at a version, in the tables ``values`` and
    ``deltas``.
    """
    if isinstance(version, int) and 0 <= version < 1 << 63:
        ordered = b"i" + version.to_bytes(8, "big")
    else:
        ordered = b"o" + digest(f"{type(version).__name__} {version!r}", 8)
    return prefix + ordered + _channel_digest(channel)


def keyframe_key(prefix: bytes, name: bytes) -> bytes:
    """Return the key of a keyframe in ``values``, unlike any key of a channel.

    Args:
        prefix: The prefix of the namespace.
        name: The name of the keyframe, of `KEYFRAME_NAME` bytes.
    """
    return prefix + _KEYFRAME + name


def metadata_key(prefix: bytes, name: bytes) -> bytes:
    """Return the key of shared metadata in ``values``, unlike any key of a channel.

    Args:
        prefix: The prefix of the namespace.
        name: The name of the metadata.
    """
    # The key is as long as other keys in the table, so that the key of a chunk of a
    # large record is longer.
    return (prefix + _METADATA + name).ljust(VALUE_LENGTH, b"\0")


def metadata_keys(prefix: bytes) -> bytes:
    """Return the prefix of the keys of all shared metadata of a namespace.

    Args:
        prefix: The prefix of the namespace.
    """
    return prefix + _METADATA


def is_metadata(key: bytes) -> bool:
    """Return whether a key in ``values`` is the key of shared metadata."""
    return key[8:9] == _METADATA


def is_of_channel(key: bytes) -> bool:
    """Return whether a key in ``values`` is the key of a channel's value."""
    return key[8:9] not in (_KEYFRAME, _METADATA)


def source_key(code: str) -> bytes:
    """Return the key, in the table ``meta``, of the source of the code with this
    digest.

    Args:
        code: The digest of the code, or the result of `parts_key` for it.
    """
    return _SOURCE + code.encode()


def is_source(key: bytes) -> bool:
    """Return whether a key in ``meta`` is one that `source_key` returns."""
    return key.startswith(_SOURCE)


def channel_in(key: bytes) -> bytes:
    """Return the digest of the channel in a key that `value_key` returned."""
    return key[17:VALUE_LENGTH]


# ---------------------------------------------------------------- records


class NamespaceRecord(NamedTuple):
    """A namespace of a thread."""

    prefix: bytes
    """The prefix of the namespace's keys: a number of 8 bytes. It is never reused, not
    even after the thread is deleted.
    """
    thread_id: str
    """The id of the thread."""
    namespace: str
    """The name of the namespace; empty for the outermost graph."""
    created: int
    """The time at which the namespace was created, in wall-clock nanoseconds."""
    fence: int = 0
    """The fence (a growing number) of the newest lease in the namespace. The commits of
    owners of older leases are refused.
    """
    newest: str | None = None
    """The greatest checkpoint id in the namespace."""
    checkpoints: int = 0
    """The number of checkpoints."""
    swept: int = 0
    """The number of checkpoints that the namespace had after retention was last
    applied.
    """


class Keyframe(NamedTuple):
    """All channels of a checkpoint. Later checkpoints that name this keyframe store
    only their differences from it. A stored keyframe never changes.
    """

    channel_versions: Mapping[str, Version]
    versions_seen: Mapping[str, Mapping[str, Version]]
    places: Mapping[str, Place]


NO_KEYFRAME = Keyframe({}, {}, {})


class SharedMetadata(NamedTuple):
    """The metadata that the supersteps of a run have in common."""

    metadata: Mapping[str, bytes]
    """The metadata, with each value encoded."""


class CheckpointRecord(NamedTuple):
    """The fields of a `Checkpoint`, without the values that are stored once for each
    version.

    If a stored record names a keyframe, its mappings of channels have only the
    differences from that keyframe; if it names shared metadata, its metadata has only
    additions. `Tables.checkpoint` returns records with complete mappings.
    """

    parent_id: str | None
    """The id of the parent. The stored form is that of `packed_id`."""
    at: int
    """The time of the checkpoint, in wall-clock nanoseconds."""
    step: int
    source: str
    channel_versions: Mapping[str, Version]
    """The versions of all channels."""
    versions_seen: Mapping[str, Mapping[str, Version]]
    """The versions of the triggers of each node when the node last ran."""
    changed: tuple[str, ...]
    updated_channels: tuple[str, ...] | None
    metadata: Mapping[str, bytes]
    """The metadata, with each value encoded."""
    places: Mapping[str, Place]
    """The value of each channel, or its location. A channel that is not a key here is
    empty.
    """
    follows: int = NOTHING_DUE
    """The number that states how the run continues, as in `Checkpoint`."""
    keyframe: bytes | None = None
    """The name of the keyframe, or None if the stored record is complete."""
    shared_metadata: bytes | None = None
    """The name of the `SharedMetadata`, or None if the stored metadata is complete."""

    def with_keyframe(self, keyframe: Keyframe) -> CheckpointRecord:
        """Return this record with all channels.

        Args:
            keyframe: The keyframe that the record names. The channels that do not
                differ from the keyframe are copied from it.
        """
        places = {**keyframe.places, **self.places}
        return self._replace(
            channel_versions={**keyframe.channel_versions, **self.channel_versions},
            versions_seen={**keyframe.versions_seen, **self.versions_seen},
            places={
                name: location for name, location in places.items() if location != EMPTY
            },
        )

    def shared_keys(self, prefix: bytes) -> list[bytes]:
        """Return the keys, in ``values``, of the keyframe and the shared metadata that
        the record names.

        Args:
            prefix: The prefix of the namespace.
        """
        keys: list[bytes] = []
        if self.keyframe is not None:
            keys.append(keyframe_key(prefix, self.keyframe))
        if self.shared_metadata is not None:
            keys.append(metadata_key(prefix, self.shared_metadata))
        return keys


class DeltaRecord(NamedTuple):
    """The writes that one superstep added to a channel."""

    previous: Version | None
    """The version to which the writes were added."""
    base: Place
    """The value of the channel at *previous*, or its location."""
    writes: tuple[bytes, ...]
    """The added writes, each encoded."""


class WritesRecord(NamedTuple):
    """A task's pending writes on one checkpoint."""

    task_id: str
    path: str
    writes: dict[int, tuple[str, bytes]]
    """The channel and the encoded value of each write, by its position."""
    ran: tuple[Any, ...] | None
    """The fields of an `AttemptRecord`, if the attempt ended with these writes."""


# ---------------------------------------------------------------- tables


def _remember(known: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Add *value* to *known*, which is emptied first if it has *most* items."""
    if len(known) >= most:
        known.clear()
    known[key] = value


class Tables:
    """The tables of a store, and the reading and writing of the records in them.

    Args:
        store: The open store.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.storage import PythonCodec
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     store, _ = saver.opened_to_look(PythonCodec())
        ...     tables = Tables(store)
        ...     tables.read(lambda transaction: tables.namespaces(transaction, "1"))
        ...     store.close()
        []
    """

    def __init__(self, store: Store) -> None:
        table = store.table
        self.read: Callable[[Callable[[Transaction], Any]], Any] = store.read
        self.write: Callable[[Callable[[Transaction], Any]], Any] = store.write
        self.codec: ValueCodec = store.codec
        self.fields_of: Callable[[Any], Any] = store.codec.fields_of
        self.record_of: Callable[[Any], Any] = store.codec.record_of
        use_renames_of(store)
        self.meta: Table = table(b"meta")
        self.threads: Table = table(b"threads")
        self.checkpoints: Table = table(b"checkpoints")
        self.values: Table = table(b"values")
        self.deltas: Table = table(b"deltas")
        self._stored_writes: Table = table(b"writes")
        """The table ``writes``, whose readers get payloads with references."""
        self.writes: Table = self._stored_writes
        """The table ``writes``, whose readers get the values in place of references."""
        if self.shares_values:
            self.writes = self._stored_writes.with_resolver(self._resolved)
        self.of_namespace: tuple[Table, ...] = (
            self.checkpoints,
            self.values,
            self.deltas,
            self.writes,
        )
        """The tables whose keys begin with the prefix of a namespace."""
        self.all: list[Table] = [table(name) for name in TABLE_NAMES]
        self._keyframes: dict[bytes, Keyframe] = {}
        """Keyframes that were read or written lately, by key."""
        self._metadata: dict[tuple[bytes, bytes], Mapping[str, bytes]] = {}
        """Shared metadata that was read or written lately, by prefix and name."""

    shares_values: ClassVar[bool] = True
    """True if a record may refer to a value in another record, which costs readers a
    second access. The tables in memory and those of remote databases set it to False.
    """

    # ------------------------------------------------------------ namespaces

    def namespace(self, transaction: Any, address: Address) -> NamespaceRecord | None:
        """Return the namespace of *address*, or None if it is not in the store.

        Args:
            transaction: The transaction.
            address: The thread and the namespace.
        """
        key = namespace_key(address.thread_id, address.namespace)
        data = self.threads.get(transaction, key)
        return None if data is None else NamespaceRecord(*self.fields_of(data))

    def new_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return a new namespace, which is not stored yet.

        Its fence is the greatest fence of the namespaces that enclose it, so that an
        owner whose commits these refuse cannot commit here either.

        Args:
            transaction: The transaction.
            address: The thread and the namespace.
        """
        prefix = self.new_prefix(transaction)
        name = address.namespace
        fences = [
            outer.fence
            for outer in self.namespaces(transaction, address.thread_id)
            if not outer.namespace or name.startswith(outer.namespace + "|")
        ]
        fence = max(fences, default=0)
        return NamespaceRecord(prefix, address.thread_id, name, time.time_ns(), fence)

    def ensure_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return the namespace of *address*. If there is none, store a new one.

        Args:
            transaction: The transaction.
            address: The thread and the namespace.
        """
        namespace = self.namespace(transaction, address)
        if namespace is None:
            namespace = self.new_namespace(transaction, address)
            self.put_namespace(transaction, namespace)
        return namespace

    def new_prefix(self, transaction: Any) -> bytes:
        """Return the prefix of the keys of a new namespace.

        Args:
            transaction: The transaction.
        """
        number = 1 + int.from_bytes(self.meta.get(transaction, _NEXT) or b"", "big")
        prefix = number.to_bytes(8, "big")
        self.meta.put(transaction, _NEXT, prefix)
        return prefix

    def put_namespace(self, transaction: Any, record: NamespaceRecord) -> None:
        """Store the record of a namespace.

        Args:
            transaction: The transaction.
            record: The record, which replaces an earlier record.
        """
        key = namespace_key(record.thread_id, record.namespace)
        self.threads.put(transaction, key, self.record_of(tuple(record)))

    looks_ahead: ClassVar[bool] = False
    """True if `note_checkpoint` must be called. Only the tables of a database on
    another machine set this.
    """

    def note_checkpoint(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> None:
        """Take note that a checkpoint was put into *transaction*. The default does
        nothing.

        The next superstep first reads the ranges that `ranges_after` returns, which are
        usually empty. A database on another machine can check this in the round trip of
        the commit, so that empty ranges need not be read.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            checkpoint_id: The id of the checkpoint.
        """

    def ranges_after(
        self, namespace: NamespaceRecord, checkpoint_id: str
    ) -> list[tuple[bytes, bytes, bytes]]:
        """Return the ranges of keys that the superstep after a checkpoint reads first.

        They are empty if the checkpoint is the newest. Each range consists of the name
        of a table, the first key, and the first key after the range.

        Args:
            namespace: The record of the namespace.
            checkpoint_id: The id of the checkpoint.
        """
        key = checkpoint_key(namespace.prefix, checkpoint_id)
        name = self.writes.name
        prefixes = key, sidecar_key(ARGUMENTS, key), sidecar_key(OUTPUT, key)
        return [
            (self.checkpoints.name, key + b"\0", after(namespace.prefix)),
            *((name, prefix, after(prefix)) for prefix in prefixes),
        ]

    def namespaces(self, transaction: Any, thread_id: str) -> list[NamespaceRecord]:
        """Return the namespaces of a thread.

        Args:
            transaction: The transaction.
            thread_id: The id of the thread.
        """
        records = self.threads.scan(transaction, digest(thread_id))
        return [NamespaceRecord(*self.fields_of(data)) for _, data in records]

    def reject_leases_before(
        self, transaction: Any, address: Address, fence: int
    ) -> None:
        """From now on, refuse the commits of leases with a fence below *fence*, in a
        namespace and in all namespaces nested inside it.

        Args:
            transaction: The transaction.
            address: The thread and the namespace.
            fence: The smallest fence that is accepted from now on.
        """
        outer = self.ensure_namespace(transaction, address).namespace
        for record in self.namespaces(transaction, address.thread_id):
            name = record.namespace
            inside = not outer or name == outer or name.startswith(outer + "|")
            if inside and record.fence < fence:
                self.put_namespace(transaction, record._replace(fence=fence))

    def used(self, thread_id: str | None) -> Iterator[NamespaceRecord]:
        """Yield the namespaces that have a checkpoint.

        Each transaction reads up to a hundred namespaces.

        Args:
            thread_id: The thread, or None to yield the namespaces of all threads.
        """
        prefix = b"" if thread_id is None else digest(thread_id)

        def page(start: bytes, transaction: Any) -> list[tuple[bytes, bytes]]:
            return [*islice(self.threads.scan(transaction, prefix, start), _AT_ONCE)]

        for _, data in self.paged(self.threads, page, prefix or b"\0", _AT_ONCE):
            record = NamespaceRecord(*self.fields_of(data))
            if record.checkpoints:
                yield record

    def paged(
        self,
        table: Table,
        page: Callable[[bytes, Any], Sequence[tuple[bytes, Value]]],
        start: bytes,
        size: int,
    ) -> Iterator[tuple[bytes, Value]]:
        """Yield the items of a table. Each page is read in its own transaction.

        Args:
            table: The table that is read, for the error.
            page: A function that returns the next items, by key. Its arguments are the
                smallest key to return and the transaction.
            start: The smallest key.
            size: The number of items that *page* returns if there are as many.

        Raises:
            StoreCorruptError: The keys are out of order, so pages might repeat.
        """
        is_last = False
        while not is_last:
            items = self.read(partial(page, start))
            is_last = len(items) < size
            for key, value in items:
                yield key, value
                if key < start:
                    raise table.corrupt(key, "is out of order")
                start = key + b"\0"

    # ------------------------------------------------------------ checkpoints

    def checkpoint(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> CheckpointRecord | None:
        """Return a checkpoint, or None if it does not exist.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            checkpoint_id: The id of the checkpoint.

        Raises:
            StoreCorruptError: The newest checkpoint of the namespace is missing, or a
                record that the checkpoint names.
        """
        record = self.stored_checkpoint(transaction, namespace, checkpoint_id)
        if record is None:
            return None
        record = self.with_metadata(transaction, namespace.prefix, record)
        return self.with_channels(transaction, namespace.prefix, record)

    def stored_checkpoint(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> CheckpointRecord | None:
        """Return a checkpoint in its stored form, or None if it does not exist.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            checkpoint_id: The id of the checkpoint.

        Raises:
            StoreCorruptError: The newest checkpoint of the namespace is missing.
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
        """Yield the id and record of each checkpoint, newest first.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            before: Yield only checkpoints with a smaller id than this.
        """
        records = self.newest_first_without_keyframes(transaction, namespace, before)
        for id, record in records:
            yield id, self.with_channels(transaction, namespace.prefix, record)

    def newest_first_without_keyframes(
        self, transaction: Any, namespace: NamespaceRecord, before: str | None = None
    ) -> Iterator[tuple[str, CheckpointRecord]]:
        """Yield the id and record of each checkpoint, newest first.

        A record has all metadata, but of its channels only those that it stores itself:
        the differences from its keyframe, if it names one.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            before: Yield only checkpoints with a smaller id than this.
        """
        prefix = namespace.prefix
        bound = b"" if before is None else checkpoint_key(prefix, before)
        for key, data in self.checkpoints.scan(
            transaction, prefix, bound, backwards=True
        ):
            if bound and key >= bound:
                raise self.checkpoints.corrupt(key, "is out of order")
            record = CheckpointRecord(*self.fields_of(data))
            yield id_in(key), self.with_metadata(transaction, prefix, record)
            bound = key

    def with_channels(
        self, transaction: Any, prefix: bytes, record: CheckpointRecord
    ) -> CheckpointRecord:
        """Return a checkpoint with all channels, including those of its keyframe.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            record: The checkpoint with the channels that it stores itself.

        Raises:
            StoreCorruptError: The keyframe is missing.
        """
        if record.keyframe is None:
            return record
        keyframe = self.keyframe(transaction, prefix, record.keyframe)
        return record.with_keyframe(keyframe)

    def with_metadata(
        self, transaction: Any, prefix: bytes, record: CheckpointRecord
    ) -> CheckpointRecord:
        """Return a checkpoint with all metadata, and with its parent's id as a str.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            record: The checkpoint in its stored form.

        Raises:
            StoreCorruptError: The shared metadata is missing.
        """
        parent_id = record.parent_id
        if isinstance(parent_id, bytes):
            record = record._replace(parent_id=unpacked_id(parent_id))
        if record.shared_metadata is None:
            return record
        shared = self.metadata(transaction, prefix, record.shared_metadata)
        return record._replace(metadata={**shared, **record.metadata})

    def metadata(
        self, transaction: Any, prefix: bytes, name: bytes
    ) -> Mapping[str, bytes]:
        """Return the metadata that checkpoints of a namespace share.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            name: The name that `put_metadata` returned.

        Raises:
            StoreCorruptError: The metadata is missing.
        """
        known = self._metadata.get((prefix, name))
        if known is not None:
            return known
        key = metadata_key(prefix, name)
        data = self.values.get(transaction, key)
        if data is None:
            raise self.values.corrupt(
                key, "is missing: the metadata that some checkpoints have in common"
            )
        shared = SharedMetadata(*self.fields_of(data))
        _remember(self._metadata, (prefix, name), shared.metadata, _MOST_METADATA)
        return shared.metadata

    def put_metadata(
        self, transaction: Any, prefix: bytes, metadata: Mapping[str, bytes]
    ) -> bytes:
        """Store metadata that checkpoints share, and return its name, a digest of it.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            metadata: The metadata, with each value encoded.
        """
        data = self.record_of((metadata,))
        name = blake2b(data, digest_size=_METADATA_DIGEST).digest()
        self.values.put(transaction, metadata_key(prefix, name), data)
        _remember(self._metadata, (prefix, name), metadata, _MOST_METADATA)
        return name

    def keyframe(self, transaction: Any, prefix: bytes, name: bytes) -> Keyframe:
        """Return a keyframe of a namespace.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            name: The name that `put_keyframe` returned.

        Raises:
            StoreCorruptError: The keyframe is missing.
        """
        key = keyframe_key(prefix, name)
        known = self._keyframes.get(key)
        if known is not None:
            return known
        data = self.values.get(transaction, key)
        if data is None:
            raise self.values.corrupt(
                key, "is missing: the channels that some checkpoints have in common"
            )
        keyframe = Keyframe(*self.fields_of(data))
        _remember(self._keyframes, key, keyframe, _MOST_KEYFRAMES)
        return keyframe

    def put_keyframe(
        self, transaction: Any, prefix: bytes, keyframe: Keyframe
    ) -> bytes:
        """Store a keyframe, and return its name, which no other keyframe ever has.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            keyframe: The keyframe.
        """
        name = os.urandom(KEYFRAME_NAME)
        key = keyframe_key(prefix, name)
        self.values.put(transaction, key, self.record_of(tuple(keyframe)))
        _remember(self._keyframes, key, keyframe, _MOST_KEYFRAMES)
        return name

    def ids(self, transaction: Any, address: Address) -> list[str]:
        """Return the ids of a namespace's checkpoints.

        Args:
            transaction: The transaction.
            address: The thread and the namespace.

        Raises:
            StoreCorruptError: A checkpoint of the namespace is missing.
        """
        namespace = self.namespace(transaction, address)
        if namespace is None:
            return []
        identifiers = [
            id_in(key)
            for key, _ in self.checkpoints.scan(transaction, namespace.prefix)
        ]
        if len(identifiers) != namespace.checkpoints:
            problem = (
                f"counts {namespace.checkpoints} checkpoints, and {len(identifiers)} "
                "are there"
            )
            raise self.threads.corrupt(
                namespace_key(address.thread_id, address.namespace), problem
            )
        return identifiers

    # ------------------------------------------------------------ values by version

    def place(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        channel: str,
        version: Version | None,
    ) -> Place:
        """Return the value of a channel at *version*, or the location of that value.

        Args:
            transaction: The transaction.
            namespace: The record of the namespace.
            channel: The name of the channel.
            version: The version in any checkpoint of the namespace.
        """
        key = value_key(namespace.prefix, version, channel)
        for table, location in ((self.deltas, DELTA), (self.values, STORED)):
            if table.get(transaction, key) is not None:
                return location
        for _, record in self.newest_first(transaction, namespace):
            if record.channel_versions.get(channel) == version:
                return record.places.get(channel, EMPTY)
        return EMPTY

    def value(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> bytes:
        """Return the encoded value of a channel whose location is `STORED`.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            channel: The name of the channel.
            version: The version of the channel.

        Raises:
            StoreCorruptError: The value is missing.
        """
        key = value_key(prefix, version, channel)
        data = self.values.get(transaction, key)
        if data is None:
            raise self.values.corrupt(
                key, f"is missing: the value of channel {channel!r}"
            )
        return data

    def _shared_value(
        self,
        transaction: Any,
        prefix: bytes,
        channel: str,
        reference: tuple[Version, int],
    ) -> bytes:
        """Return the value to which a record of the table ``writes`` refers.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            channel: The name of the channel.
            reference: The version of the channel that the write made, and the index of
                the write in the delta, or `WHOLE_VALUE`.

        Raises:
            StoreCorruptError: The value is missing.
        """
        version, index = reference
        if index == WHOLE_VALUE:
            return self.value(transaction, prefix, channel, version)
        _, delta = next(self.chain(transaction, prefix, channel, version))
        if not 0 <= index < len(delta.writes):
            key = value_key(prefix, version, channel)
            raise self.deltas.corrupt(
                key, f"lacks a write that a task made to channel {channel!r}"
            )
        return delta.writes[index]

    def resolve_writes(
        self, transaction: Any, prefix: bytes, checkpoint_id: str
    ) -> None:
        """Replace references in the pending writes of a checkpoint by the values.

        Call this before a child of the checkpoint is deleted or replaced, because it is
        the child that has stored these values.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            checkpoint_id: The id of the checkpoint.
        """
        if not self.shares_values:
            return
        pending = checkpoint_key(prefix, checkpoint_id)
        payloads = self._stored_writes.scan(transaction, pending)
        keys = [key for key, payload in payloads if has_references(payload)]
        for key in keys:
            payload = self.writes.get(transaction, key)
            assert payload is not None
            self.writes.put(transaction, key, payload)

    def _resolved(self, transaction: Any, key: bytes, payload: bytes) -> bytes:
        """Return a payload of the table ``writes`` with the values in place of
        references.
        """
        if not has_references(payload):
            return payload
        value_of = partial(self._shared_value, transaction, key[:8])
        return resolved_payload(payload, value_of, self.fields_of, self.record_of)

    def chain(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> Iterator[tuple[Version | None, DeltaRecord]]:
        """Yield the versions and deltas of a channel, backwards from *version* to the
        delta that follows a snapshot or an empty channel.

        Args:
            transaction: The transaction.
            prefix: The prefix of the namespace's keys.
            channel: The name of the channel.
            version: The version of the last delta.

        Raises:
            StoreCorruptError: A delta is missing, or the deltas form a circle.
        """
        known: set[Version | None] = set()
        base: Place = DELTA
        while base == DELTA:
            key = value_key(prefix, version, channel)
            data = self.deltas.get(transaction, key)
            if data is None:
                raise self.deltas.corrupt(
                    key, f"is missing: what was added to channel {channel!r}"
                )
            if version in known:
                raise self.deltas.corrupt(
                    key, f"leads back to itself: what was added to channel {channel!r}"
                )
            known.add(version)
            delta = DeltaRecord(*self.fields_of(data))
            yield version, delta
            base = delta.base
            version = delta.previous

    # ------------------------------------------------------------ sources

    def put_source(self, transaction: Any, code: str, source: bytes) -> None:
        """Store the source of the task whose code has this digest.

        Args:
            transaction: The transaction.
            code: The digest of the code.
            source: The source, compressed, which may be cut off at its end.
        """
        self.meta.put(transaction, source_key(code), source)

    def source(self, transaction: Any, code: str) -> str:
        """Return the source of the task whose code has this digest, or an empty string
        if it is not stored.

        Args:
            transaction: The transaction.
            code: The digest of the code.
        """
        data = self.meta.get(transaction, source_key(code)) or b""
        return zlib.decompressobj().decompress(data).decode("utf-8", "ignore")
