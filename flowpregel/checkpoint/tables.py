"""The tables of a store, and the reading and writing of the records in them.

The keys and the records are described in `layout`.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from flowpregel._core.ids import unpacked_id
from flowpregel._core.records import Address, Version
from flowpregel.checkpoint.layout import (
    ARGUMENTS,
    DELTA,
    EMPTY,
    KEYFRAME_NAME,
    METADATA_NAME,
    OUTPUT,
    STORED,
    CheckpointRecord,
    DeltaRecord,
    Keyframe,
    NamespaceRecord,
    Place,
    SharedMetadata,
    checkpoint_key,
    digest,
    id_in,
    keyframe_key,
    metadata_key,
    namespace_key,
    sidecar_key,
    source_key,
    value_key,
)
from flowpregel.checkpoint.value_references import (
    WHOLE_VALUE,
    has_references,
    resolved_payload,
)
from flowpregel.storage.records import TABLE_NAMES, after
from flowpregel.storage.stores import Store, Transaction, use_renames_of

if TYPE_CHECKING:
    from flowpregel.storage.codec import ValueCodec
    from flowpregel.storage.tables import Table

Key = TypeVar("Key")
Value = TypeVar("Value")
_NEWEST_PREFIX = b"next namespace"
"""The key in ``meta`` of the prefix that the newest namespace has."""
_AT_ONCE = 100
"""The number of namespaces that are read in one transaction."""
_MOST_KEYFRAMES = 16
"""The greatest number of keyframes that are kept in memory."""
_MOST_METADATA = 256
"""The greatest number of records of shared metadata that are kept in memory."""


def _is_within_namespace(namespace: str, outer: str) -> bool:
    """Return whether a namespace is *outer* itself, or is nested inside it."""
    return not outer or namespace == outer or namespace.startswith(outer + "|")


def _remember(known: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Add *value* to the cache *known*. If the cache is full (has *most* items), empty
    it first.
    """
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
        self.stored_writes: Table = table(b"writes")
        """The table ``writes``, whose readers get payloads with references."""
        self.writes: Table = self.stored_writes
        """The table ``writes``, whose readers get the values in place of references."""
        if self.shares_values:
            self.writes = self.stored_writes.with_resolver(self._resolved)
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
            transaction: An open transaction of the store.
            address: The thread and the namespace.
        """
        key = namespace_key(address.thread_id, address.namespace)
        data = self.threads.get(transaction, key)
        return None if data is None else NamespaceRecord(*self.fields_of(data))

    def new_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return a new namespace, which is not stored yet.

        Its fence (the smallest lease number that may commit) is the greatest fence of
        the namespaces that enclose it, so that a run whose commits those namespaces
        refuse cannot commit to the new one either.

        Args:
            transaction: A write transaction of the store.
            address: The thread and the namespace.
        """
        prefix = self.new_prefix(transaction)
        name = address.namespace
        fence = 0
        for known in self.namespaces(transaction, address.thread_id):
            if _is_within_namespace(name, known.namespace):
                fence = max(fence, known.fence)
        return NamespaceRecord(prefix, address.thread_id, name, time.time_ns(), fence)

    def ensure_namespace(self, transaction: Any, address: Address) -> NamespaceRecord:
        """Return the namespace of *address*. If there is none, store a new one.

        Args:
            transaction: A write transaction of the store.
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
            transaction: A write transaction of the store.
        """
        newest = self.meta.get(transaction, _NEWEST_PREFIX) or bytes(8)
        number = 1 + int.from_bytes(newest, "big")
        prefix = number.to_bytes(8, "big")
        self.meta.put(transaction, _NEWEST_PREFIX, prefix)
        return prefix

    def put_namespace(self, transaction: Any, record: NamespaceRecord) -> None:
        """Store the record of a namespace.

        Args:
            transaction: A write transaction of the store.
            record: The record, which replaces an earlier record.
        """
        key = namespace_key(record.thread_id, record.namespace)
        self.threads.put(transaction, key, self.record_of(tuple(record)))

    looks_ahead: ClassVar[bool] = False
    """True if `look_ahead` must be called. Only the tables of a database on another
    machine set this.
    """

    def look_ahead(
        self, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
    ) -> None:
        """Make the commit of *transaction*, which stores a checkpoint, find out which
        records the next superstep need not read. The default does nothing.

        The next superstep first reads the ranges that `ranges_after` returns, which are
        usually empty. A database on another machine can check this in the round trip of
        the commit, so that empty ranges need not be read.

        Args:
            transaction: A write transaction of the store.
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
        checkpoints = (self.checkpoints.name, key + b"\0", after(namespace.prefix))
        prefixes = (key, sidecar_key(ARGUMENTS, key), sidecar_key(OUTPUT, key))
        writes = [(self.writes.name, prefix, after(prefix)) for prefix in prefixes]
        return [checkpoints, *writes]

    def namespaces(self, transaction: Any, thread_id: str) -> list[NamespaceRecord]:
        """Return the namespaces of a thread.

        Args:
            transaction: An open transaction of the store.
            thread_id: The id of the thread.
        """
        records = self.threads.scan(transaction, digest(thread_id))
        return [NamespaceRecord(*self.fields_of(data)) for _, data in records]

    def reject_leases_before(
        self, transaction: Any, address: Address, fence: int
    ) -> None:
        """From now on, refuse the commits of leases whose fence (their number) is below
        *fence*, in a namespace and in all namespaces nested inside it.

        Args:
            transaction: A write transaction of the store.
            address: The thread and the namespace.
            fence: The smallest fence that is accepted from now on.
        """
        outer = self.ensure_namespace(transaction, address).namespace
        for record in self.namespaces(transaction, address.thread_id):
            if _is_within_namespace(record.namespace, outer) and record.fence < fence:
                self.put_namespace(transaction, record._replace(fence=fence))

    def used(self, thread_id: str | None) -> Iterator[NamespaceRecord]:
        """Yield the namespaces that have a checkpoint.

        Each transaction reads up to a hundred namespaces.

        Args:
            thread_id: The thread, or None to yield the namespaces of all threads.
        """
        prefix = b"" if thread_id is None else digest(thread_id)

        first = prefix or b"\0"

        def page(start: bytes, transaction: Any) -> list[tuple[bytes, bytes]]:
            records = self.threads.scan(transaction, prefix, start)
            return list(islice(records, _AT_ONCE))

        for _, data in self.paged(self.threads, page, first, _AT_ONCE):
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
            table: The table that is read, named in the error.
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
            transaction: An open transaction of the store.
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
            transaction: An open transaction of the store.
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
            transaction: An open transaction of the store.
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

        A record has all metadata. If it names a keyframe, it has only the channels that
        differ from that keyframe.

        Args:
            transaction: An open transaction of the store.
            namespace: The record of the namespace.
            before: Yield only checkpoints with a smaller id than this.
        """
        prefix = namespace.prefix
        bound = b"" if before is None else checkpoint_key(prefix, before)
        records = self.checkpoints.scan(transaction, prefix, bound, backwards=True)
        for key, data in records:
            if bound and key >= bound:
                raise self.checkpoints.corrupt(key, "is out of order")
            record = CheckpointRecord(*self.fields_of(data))
            yield id_in(key), self.with_metadata(transaction, prefix, record)
            bound = key

    def with_channels(
        self, transaction: Any, prefix: bytes, record: CheckpointRecord
    ) -> CheckpointRecord:
        """Return a checkpoint with all channels.

        Args:
            transaction: An open transaction of the store.
            prefix: The prefix of the namespace's keys.
            record: The checkpoint, perhaps without the channels of the keyframe that it
                names.

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
            transaction: An open transaction of the store.
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
            transaction: An open transaction of the store.
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
            transaction: A write transaction of the store.
            prefix: The prefix of the namespace's keys.
            metadata: The metadata, with each value encoded.
        """
        data = self.record_of((metadata,))
        name = blake2b(data, digest_size=METADATA_NAME).digest()
        self.values.put(transaction, metadata_key(prefix, name), data)
        _remember(self._metadata, (prefix, name), metadata, _MOST_METADATA)
        return name

    def keyframe(self, transaction: Any, prefix: bytes, name: bytes) -> Keyframe:
        """Return a keyframe (a record of all channels) of a namespace.

        Args:
            transaction: An open transaction of the store.
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
        """Store a keyframe (a record of all channels), and return its name, which no
        other keyframe ever has.

        Args:
            transaction: A write transaction of the store.
            prefix: The prefix of the namespace's keys.
            keyframe: The keyframe to store.
        """
        name = os.urandom(KEYFRAME_NAME)
        key = keyframe_key(prefix, name)
        self.values.put(transaction, key, self.record_of(tuple(keyframe)))
        _remember(self._keyframes, key, keyframe, _MOST_KEYFRAMES)
        return name

    def ids(self, transaction: Any, address: Address) -> list[str]:
        """Return the ids of a namespace's checkpoints.

        Args:
            transaction: An open transaction of the store.
            address: The thread and the namespace.

        Raises:
            StoreCorruptError: A checkpoint of the namespace is missing.
        """
        namespace = self.namespace(transaction, address)
        if namespace is None:
            return []
        records = self.checkpoints.scan(transaction, namespace.prefix)
        identifiers = [id_in(key) for key, _ in records]
        count = len(identifiers)
        if count != namespace.checkpoints:
            key = namespace_key(address.thread_id, address.namespace)
            raise self.threads.corrupt(
                key,
                f"counts {namespace.checkpoints} checkpoints, and {count} are there",
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
            transaction: An open transaction of the store.
            namespace: The record of the namespace.
            channel: The name of the channel.
            version: The version in any checkpoint of the namespace.
        """
        key = value_key(namespace.prefix, version, channel)
        if self.deltas.get(transaction, key) is not None:
            return DELTA
        if self.values.get(transaction, key) is not None:
            return STORED
        for _, record in self.newest_first(transaction, namespace):
            if record.channel_versions.get(channel) == version:
                return record.places.get(channel, EMPTY)
        return EMPTY

    def value(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> bytes:
        """Return the encoded value of a channel whose location is `STORED`.

        Args:
            transaction: An open transaction of the store.
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
            transaction: An open transaction of the store.
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
            transaction: A write transaction of the store.
            prefix: The prefix of the namespace's keys.
            checkpoint_id: The id of the checkpoint.
        """
        if not self.shares_values:
            return
        pending = checkpoint_key(prefix, checkpoint_id)
        payloads = self.stored_writes.scan(transaction, pending)
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
            transaction: An open transaction of the store.
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
        """Store the source code of the task whose code has this digest.

        Args:
            transaction: A write transaction of the store.
            code: The digest of the code.
            source: The source code, compressed. Its end may be cut off.
        """
        self.meta.put(transaction, source_key(code), source)

    def source(self, transaction: Any, code: str) -> str:
        """Return the source code of the task whose code has this digest, or an empty
        string if it is not stored.

        Args:
            transaction: An open transaction of the store.
            code: The digest of the code.
        """
        data = self.meta.get(transaction, source_key(code)) or b""
        return zlib.decompressobj().decompress(data).decode("utf-8", "ignore")
