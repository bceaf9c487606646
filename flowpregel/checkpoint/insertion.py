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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flowpregel._core.records import Checkpoint, Version
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.layout import (
    NO_KEYFRAME,
    CheckpointRecord,
    Keyframe,
    NamespaceRecord,
    Place,
    Tables,
)
from flowpregel.errors import ConfigurationError

LONGEST_INLINE = 128
"""The greatest size, in bytes, of a value that is stored inside the records of
checkpoints. A larger value is stored once for each version, in the table ``values``.
"""
FEWEST = 32
"""The least number of channels and nodes for which a keyframe is written. A checkpoint
with fewer channels and nodes is stored completely, because reading a second record
would cost more than it saves.
"""


class ChannelStates(NamedTuple):
    """The channels of a stored checkpoint: a keyframe, and the differences from it."""

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
    parent = _parent_states(tables, transaction, namespace, checkpoint.parent_id)
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
    key = layout.checkpoint_key(prefix, checkpoint.id)
    is_new = tables.checkpoints.get(transaction, key) is None
    tables.checkpoints.put(transaction, key, tables.record_of(tuple(record)))
    newest = max(namespace.newest or "", checkpoint.id)
    return namespace._replace(newest=newest, checkpoints=namespace.checkpoints + is_new)


def _parent_states(
    tables: Tables,
    transaction: Any,
    namespace: NamespaceRecord,
    parent_id: str | None,
) -> ChannelStates:
    """Return the channels of the parent checkpoint, or `NO_CHANNELS` if there is no
    parent.
    """
    if parent_id is None:
        return NO_CHANNELS
    record = tables.stored_checkpoint(transaction, namespace, parent_id)
    if record is None:
        return NO_CHANNELS
    if record.keyframe is None:
        return ChannelStates(record, None, {}, {})
    keyframe = tables.keyframe(transaction, namespace.prefix, record.keyframe)
    return ChannelStates(
        keyframe, record.keyframe, record.channel_versions, record.places
    )


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
                places[name] = self._unwritten(name)
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

    def _unwritten(self, channel: str) -> Place:
        """Return the value, or its location, of a channel for which the checkpoint has
        neither a value nor a delta.
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
    """Return the channels that may differ from the parent's keyframe."""
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
    """Return the record that has the differences from the parent's keyframe, or None if
    they have become too many.

    Args:
        checkpoint: The checkpoint.
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
        checkpoint: The checkpoint.
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
        checkpoint: The checkpoint.
        channels: All channels, or those that differ from the keyframe.
        keyframe: The name of the keyframe, or None.
    """
    return CheckpointRecord(
        checkpoint.parent_id,
        checkpoint.at,
        checkpoint.step,
        checkpoint.source,
        channels.channel_versions,
        channels.versions_seen,
        checkpoint.changed,
        checkpoint.updated_channels,
        checkpoint.metadata,
        channels.places,
        checkpoint.follows,
        keyframe,
    )
