"""The keys and records in the tables of a store.

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

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from flowpregel._core.records import NOTHING_DUE, Version
from flowpregel.errors import ConfigurationError

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
_SOURCE = b"source"
"""The prefix of the keys of source code in ``meta``. The code's digest follows it."""
KEYFRAME_NAME = 24
"""The length of the name of a keyframe, in bytes."""
_KEYFRAME = b"k"
_METADATA = b"m"
METADATA_NAME = 12
"""The length of the name of shared metadata, in bytes."""


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
        ConfigurationError: The id is longer than `LONGEST_ID` bytes. A NUL, which is
            escaped, counts as two bytes.
    """
    encoded = checkpoint_id.encode("utf-8", "surrogatepass")
    escaped = encoded.replace(b"\0", b"\0\xff")
    if len(escaped) > LONGEST_ID:
        raise ConfigurationError(
            f"checkpoint id {checkpoint_id[:40]!r}... has {len(escaped)} bytes, if a "
            f"NUL counts twice; at most {LONGEST_ID} are allowed"
        )
    return prefix + escaped + _END


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
    """Return the key, in ``values``, of a keyframe (a record of all channels). No key
    of a single channel is like it.

    Args:
        prefix: The prefix of the namespace.
        name: The name of the keyframe, of `KEYFRAME_NAME` bytes.
    """
    return prefix + _KEYFRAME + name


def metadata_key(prefix: bytes, name: bytes) -> bytes:
    """Return the key of shared metadata in ``values``. No key of a channel is like it.

    Args:
        prefix: The prefix of the namespace.
        name: The name of the metadata.
    """
    # A large record is stored in chunks, whose keys are recognized by their greater
    # length. So this key is made as long as the other keys in the table.
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
    """The value of each channel, or its location. A channel that is no key of this
    mapping is empty.
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
    """The channel and the encoded value of each write, by the position of the write
    among those of the task.
    """
    ran: tuple[Any, ...] | None
    """The fields of an `AttemptRecord`, if the attempt ended with these writes."""
