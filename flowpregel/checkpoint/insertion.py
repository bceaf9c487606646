"""The insertion of a checkpoint into the tables of a store.

A superstep changes few channels, and a graph may have thousands. So a checkpoint with
many channels stores only the differences from a *keyframe*, which has all channels of
an earlier checkpoint. Each checkpoint names its keyframe directly, so that no chain
must be followed, and any checkpoint may be deleted::

    keyframe    all channels     ◄─┬─┬─┐
    checkpoint  1 channel         ─┘ │ │
    checkpoint  2 channels        ───┘ │
    checkpoint  3 channels        ─────┘

When the differences have become too many, a new keyframe is written.

The metadata of a checkpoint is mostly that of the run, which is the same in each
superstep. As soon as a second checkpoint has it, it is stored as `SharedMetadata`, and
the later checkpoints of the run store only what they add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flowpregel._core.ids import packed_id
from flowpregel._core.records import Checkpoint, Version
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.layout import (
    NO_KEYFRAME,
    CheckpointRecord,
    Keyframe,
    NamespaceRecord,
    Place,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.value_references import LONGEST_INLINE
from flowpregel.errors import ConfigurationError

FEWEST = 32
"""The least number of channels and nodes for which a keyframe is written. A checkpoint
with fewer channels and nodes is stored completely, because reading a second record
would cost more than it saves.
"""
FIRST_SHARED = 2
"""The first superstep whose metadata may be stored as `SharedMetadata`. In a shorter
run, the second record would cost more than it saves.
"""
LEAST_SHARED = 64
"""The least size, in bytes, of the names and values of metadata that is stored as
`SharedMetadata`.
"""


class ChannelStates(NamedTuple):
    """The channels of a stored checkpoint: a keyframe (all channels of an earlier
    checkpoint), and the differences from it.
    """

    keyframe: Keyframe | CheckpointRecord
    keyframe_name: bytes | None
    """The name of the stored keyframe, or None if the checkpoint is complete. In that
    case, *keyframe* is the record of the checkpoint itself.
    """
    versions: Mapping[str, Version]
    places: Mapping[str, Place]

    def version(self, channel: str) -> Version | None:
        """Return the version of a channel, or None if there is no such channel."""
        if channel in self.versions:
            return self.versions[channel]
        return self.keyframe.channel_versions.get(channel)

    def place(self, channel: str) -> Place:
        """Return the value of a channel, or its location."""
        if channel in self.places:
            return self.places[channel]
        return self.keyframe.places.get(channel, layout.EMPTY)


NO_CHANNELS = ChannelStates(NO_KEYFRAME, None, {}, {})


def put_checkpoint(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    checkpoint: Checkpoint,
) -> NamespaceRecord:
    """Store a checkpoint and the values that it changed.

    Returns:
        The new record of the namespace.
    """
    if checkpoint.parent_id == checkpoint.id:
        raise ConfigurationError(
            f"checkpoint {checkpoint.id!r} cannot be its own parent"
        )
    prefix = namespace.prefix
    newest = namespace.newest or ""
    is_new = True
    if checkpoint.id <= newest:
        # Pending writes may refer to values of the replaced checkpoint, which the new
        # values may overwrite. So those references are resolved before anything is
        # stored.
        is_new = _prepare_replacement(tables, transaction, namespace, checkpoint.id)
    parent_record, parent = _parent(
        tables, transaction, namespace, checkpoint.parent_id
    )
    insertion = _Insertion(tables, transaction, namespace, checkpoint, parent)
    places = insertion.put_channels()
    record = None
    if parent.keyframe_name is not None:
        record = _relative_record(checkpoint, parent, places)
    if record is None:
        channels = _all_channels(checkpoint, parent, places)
        keyframe = None
        if len(channels.channel_versions) + len(channels.versions_seen) >= FEWEST:
            keyframe = tables.put_keyframe(transaction, prefix, channels)
            channels = NO_KEYFRAME
        record = _record(checkpoint, channels, keyframe)
    fields = tuple(record)
    if tables.shares_values and parent_record is not None:
        fields = _short_fields(tables, transaction, prefix, record, parent_record)
    key = layout.checkpoint_key(prefix, checkpoint.id)
    tables.checkpoints.put(transaction, key, tables.record_of(fields))
    return namespace._replace(
        newest=max(newest, checkpoint.id), checkpoints=namespace.checkpoints + is_new
    )


def _prepare_replacement(
    tables: Tables, transaction: Any, namespace: NamespaceRecord, checkpoint_id: str
) -> bool:
    """Prepare the tables for a checkpoint that may replace one with the same id.

    Returns:
        True if the store has no checkpoint with this id yet.
    """
    key = layout.checkpoint_key(namespace.prefix, checkpoint_id)
    data = tables.checkpoints.get(transaction, key)
    if data is None:
        return True
    replaced = CheckpointRecord(*tables.fields_of(data))
    replaced = tables.with_metadata(transaction, namespace.prefix, replaced)
    if replaced.parent_id is not None:
        tables.resolve_writes(transaction, namespace.prefix, replaced.parent_id)
    return False


def _short_fields(
    tables: Tables,
    transaction: Any,
    prefix: bytes,
    record: CheckpointRecord,
    parent: CheckpointRecord,
) -> tuple[Any, ...]:
    """Return the fields of a checkpoint's record without the metadata that it shares
    with its parent, and with the parent's id in its short form.

    Args:
        tables: The tables of the store.
        transaction: A write transaction of the store.
        prefix: The prefix of the namespace's keys.
        record: The record of the checkpoint, with all metadata.
        parent: The record of the parent, in its stored form.
    """
    metadata = record.metadata
    shared: Mapping[str, bytes] = {}
    name = parent.shared_metadata
    if name is not None:
        shared = tables.metadata(transaction, prefix, name)
        if not shared.items() <= metadata.items():
            shared = {}
            name = None
    elif record.step >= FIRST_SHARED and parent.metadata == metadata:
        size = sum(map(len, (*metadata, *metadata.values())))
        if size >= LEAST_SHARED:
            shared = metadata
            name = tables.put_metadata(transaction, prefix, metadata)
    added = {key: data for key, data in metadata.items() if key not in shared}
    record = record._replace(metadata=added, shared_metadata=name)
    _, *others = record
    return packed_id(record.parent_id or ""), *others


def _parent(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    parent_id: str | None,
) -> tuple[CheckpointRecord | None, ChannelStates]:
    """Return the parent checkpoint in its stored form, and its channels.

    If there is no parent, they are None and `NO_CHANNELS`.
    """
    if parent_id is None:
        return None, NO_CHANNELS
    record = tables.stored_checkpoint(transaction, namespace, parent_id)
    if record is None:
        return None, NO_CHANNELS
    if record.keyframe is None:
        return record, ChannelStates(record, None, {}, {})
    keyframe = tables.keyframe(transaction, namespace.prefix, record.keyframe)
    states = ChannelStates(
        keyframe, record.keyframe, record.channel_versions, record.places
    )
    return record, states


class _Insertion(NamedTuple):
    """A checkpoint that is being stored, with the transaction and the namespace."""

    tables: Tables
    transaction: Any
    namespace: NamespaceRecord
    checkpoint: Checkpoint
    parent: ChannelStates

    def put_channels(self) -> dict[str, Place]:
        """Store the large values and the deltas of the checkpoint.

        Returns:
            The values or locations of the channels that may differ from the parent's
            keyframe.
        """
        checkpoint = self.checkpoint
        places: dict[str, Place] = {}
        for name in _differing(checkpoint, self.parent):
            if name in checkpoint.values:
                places[name] = self._put_value(name)
            elif name in checkpoint.deltas:
                places[name] = self._put_delta(name)
            else:
                places[name] = self._place_of_old_value(name)
        return places

    def _put_value(self, channel: str) -> Place:
        data: Any = self.checkpoint.values[channel]
        if isinstance(data, bytes) and len(data) <= LONGEST_INLINE:
            return data
        version = self.checkpoint.channel_versions[channel]
        key = layout.value_key(self.namespace.prefix, version, channel)
        self.tables.values.put(self.transaction, key, data)
        return layout.STORED

    def _put_delta(self, channel: str) -> Place:
        delta = self.checkpoint.deltas[channel]
        base: Place = layout.EMPTY
        if delta.previous is not None:
            base = self._location(channel, delta.previous)
        record = self.tables.record_of((delta.previous, base, delta.writes))
        version = self.checkpoint.channel_versions[channel]
        key = layout.value_key(self.namespace.prefix, version, channel)
        self.tables.deltas.put(self.transaction, key, record)
        return layout.DELTA

    def _place_of_old_value(self, channel: str) -> Place:
        """Return the value, or its location, of a channel for which the checkpoint has
        neither a value nor a delta: an earlier value, or none.
        """
        version = self.checkpoint.channel_versions[channel]
        has_moved = version != self.parent.version(channel)
        if has_moved and channel in self.checkpoint.changed:
            return layout.EMPTY
        return self._location(channel, version)

    def _location(self, channel: str, version: Version) -> Place:
        """Return the value of a channel at an earlier version, or its location."""
        if self.parent.version(channel) == version:
            return self.parent.place(channel)
        return self.tables.place(self.transaction, self.namespace, channel, version)


def _differing(checkpoint: Checkpoint, parent: ChannelStates) -> list[str]:
    """Return the channels that may differ from the keyframe (the record of all
    channels) that the parent names.
    """
    versions = checkpoint.channel_versions
    known = parent.keyframe.channel_versions
    # There may be thousands of channels, so the comprehension only does what is fast:
    # it calls no function written in Python.
    moved = [name for name, version in versions.items() if known.get(name) != version]
    names = {*moved, *parent.versions, *checkpoint.values, *checkpoint.deltas}
    return sorted(names & versions.keys())


# ---------------------------------------------------------------- records


def _relative_record(
    checkpoint: Checkpoint,
    parent: ChannelStates,
    places: Mapping[str, Place],
) -> CheckpointRecord | None:
    """Return the record that has the differences from the parent's keyframe (a record
    of all channels), or None if they have become too many.

    Args:
        checkpoint: The checkpoint to store.
        parent: The channels of the parent.
        places: The values and locations of the channels that differ.
    """
    versions, seen = checkpoint.channel_versions, checkpoint.versions_seen
    earlier = parent.keyframe.versions_seen
    newly_seen = {
        node: triggers
        for node, triggers in seen.items()
        # Triggers that have not changed are nearly always the same object, and `is` is
        # faster than a comparison.
        if (before := earlier.get(node)) is not triggers and before != triggers
    }
    # A record of differences grows until the next keyframe, a record of all channels,
    # is written. If a keyframe has m items and is written when the differences reach n
    # items, a checkpoint stores on average n / 2 items for differences, and m / n items
    # as its share of the keyframe. The sum is smallest if n * n equals 2 * m.
    count = len(places) + len(newly_seen)
    if count * count > 2 * (len(versions) + len(seen)):
        return None
    # A record of differences can add and replace channels, but cannot remove any. So
    # there is none if a channel is gone.
    known = parent.keyframe.channel_versions
    if _is_any_gone(known, versions, places) or _is_any_gone(earlier, seen, newly_seen):
        return None
    differences = Keyframe(
        {name: versions[name] for name in places}, newly_seen, places
    )
    return _record(checkpoint, differences, parent.keyframe_name)


def _is_any_gone(
    earlier: Mapping[str, Any], present: Mapping[str, Any], differing: Iterable[str]
) -> bool:
    """Return whether a key of *earlier* is not in *present*.

    Args:
        earlier: The entries of a keyframe.
        present: The entries of a checkpoint.
        differing: Keys of *present*, among them all that are not in *earlier*.
    """
    added = sum(name not in earlier for name in differing)
    return len(present) - added < len(earlier)


def _all_channels(
    checkpoint: Checkpoint,
    parent: ChannelStates,
    places: Mapping[str, Place],
) -> Keyframe:
    """Return all channels of a checkpoint.

    Args:
        checkpoint: The checkpoint to store.
        parent: The channels of the parent.
        places: The values and locations of the channels that differ from the parent's
            keyframe.
    """
    versions = checkpoint.channel_versions
    known = {**parent.keyframe.places, **places}
    return Keyframe(
        versions,
        checkpoint.versions_seen,
        {
            name: location
            for name, location in known.items()
            if name in versions and location != layout.EMPTY
        },
    )


def _record(
    checkpoint: Checkpoint, channels: Keyframe, keyframe: bytes | None
) -> CheckpointRecord:
    """Return the record of a checkpoint.

    Args:
        checkpoint: The checkpoint to store.
        channels: All channels, or those that differ from the keyframe.
        keyframe: The name of the keyframe, or None.
    """
    # Two equal objects are made one, because a pickle stores an object that occurs
    # again as a short reference.
    updated = checkpoint.updated_channels
    if updated == checkpoint.changed:
        updated = checkpoint.changed
    return CheckpointRecord(
        checkpoint.parent_id,
        checkpoint.at,
        checkpoint.step,
        checkpoint.source,
        channels.channel_versions,
        channels.versions_seen,
        checkpoint.changed,
        updated,
        checkpoint.metadata,
        channels.places,
        checkpoint.follows,
        keyframe,
    )
