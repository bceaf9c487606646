"""Keys of the store: order-preserving bytes, fixed in width but for checkpoint ids.

::

    threads       thread digest (16) + namespace digest (16)       ► `NamespaceRecord`
    checkpoints   namespace (8) + checkpoint id                    ► `CheckpointRecord`
    values        namespace (8) + version (9) + channel (16)       ► an encoded value
    deltas        namespace (8) + version (9) + channel (16)       ► `DeltaRecord`
    writes        namespace (8) + checkpoint id + task (16)        ► `WritesRecord`

All records of a namespace are neighbours, in the order in which a run makes them.
Whatever a user names is a digest, a small number or escaped in a key, so that no name is
too long for LMDB (511 bytes), reaches another thread, or is taken for another.
"""

from __future__ import annotations

from hashlib import blake2b

from flowpregel._core.records import Version
from flowpregel.errors import ConfigurationError

LONGEST_ID = 400
_END = b"\0\1"
"""Ends a checkpoint id; a NUL within one is followed by 255."""


def of_namespace(thread_id: str, namespace: str) -> bytes:
    """Return the key of a thread's namespace in ``threads``."""
    return digest(thread_id) + digest(namespace)


def prefix(number: int) -> bytes:
    """Return what all keys of the namespace that has *number* begin with."""
    return number.to_bytes(8, "big")


def checkpoint(number: int, checkpoint_id: str) -> bytes:
    """Return the key of a checkpoint: those of a namespace are in the order of their ids.

    In ``writes``, what the keys of its pending writes begin with.

    Raises:
        ConfigurationError: The id is longer than a key may be.
    """
    encoded = checkpoint_id.encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_ID:
        raise ConfigurationError(
            f"checkpoint id {checkpoint_id[:40]!r}... has {len(encoded)} bytes; "
            f"at most {LONGEST_ID} can be kept"
        )
    return number.to_bytes(8, "big") + encoded.replace(b"\0", b"\0\xff") + _END


def id_of(key: bytes) -> str:
    """Return the checkpoint id in the key of a checkpoint."""
    return key[8 : -len(_END)].replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass")


def value(number: int, version: Version | None, channel: str) -> bytes:
    """Return the key of what a channel held, or what was added to it, at a version."""
    if isinstance(version, int) and 0 <= version < 1 << 63:
        ordered = b"i" + version.to_bytes(8, "big")
    else:
        ordered = b"o" + digest(f"{type(version).__name__} {version!r}", 8)
    return number.to_bytes(8, "big") + ordered + digest(channel)


VALUE_LENGTH = 33
"""Bytes of what `value` returns; the keys of chunks are longer."""


def channel_in(key: bytes) -> bytes:
    """Return what stands for the channel in a key that `value` returned."""
    return key[17:VALUE_LENGTH]


def digest(name: str, size: int = 16) -> bytes:
    """Return what stands for a thread, a namespace, a channel or a task in a key."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).digest()
