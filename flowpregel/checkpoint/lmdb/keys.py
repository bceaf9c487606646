"""Keys of the store: fixed-width, order-preserving bytes.

::

    scopes   thread digest (16) + namespace digest (16)     a thread's namespaces are neighbours
    ids      scope (8) + checkpoint id (its text)           in the order of the ids
    log      scope (8) + number (8) + kind (1) + ...        all of a checkpoint together
                 "c"                                        the checkpoint, and what is small
                 "d" + channel (4)                          what it added to a channel
                 "v" + channel (4)                          the channel's value
                 "w" + task (17)                            a task's pending writes

Whatever a user names is mapped to an id or a digest first, so that no name is
too long for LMDB (511 bytes), reaches another thread, or is taken for another.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b

from flowpregel.errors import ConfigurationError

CHECKPOINT, DELTA, VALUE, WRITE = b"c", b"d", b"v", b"w"
LOG_HEAD = 17
LONGEST_ID = 400

_HEAD = struct.Struct(">QQ")


def text(name: str) -> bytes:
    """Return *name* as bytes in the same order as the texts themselves."""
    return name.encode("utf-8", "surrogatepass")


def untext(data: bytes) -> str:
    """Return the name that `text` was given."""
    return data.decode("utf-8", "surrogatepass")


@lru_cache(maxsize=4096)
def scope(thread_id: str, namespace: str) -> bytes:
    """Return the key of a thread's namespace in ``scopes``."""
    return thread(thread_id) + _digest(text(namespace), 16)


@lru_cache(maxsize=4096)
def thread(thread_id: str) -> bytes:
    """Return what all keys of a thread in ``scopes`` begin with."""
    return _digest(text(thread_id), 16)


def of_scope(number: int) -> bytes:
    """Return what all keys of a scope in ``ids`` and ``log`` begin with."""
    return number.to_bytes(8, "big")


def checkpoint_id(scope_number: int, identifier: str) -> bytes:
    """Return the key of a checkpoint id in ``ids``.

    Raises:
        ConfigurationError: It is longer than a key may be.
    """
    encoded = text(identifier)
    if len(encoded) > LONGEST_ID:
        raise ConfigurationError(
            f"checkpoint id {identifier[:40]!r}... has {len(encoded)} bytes; "
            f"at most {LONGEST_ID} can be kept"
        )
    return scope_number.to_bytes(8, "big") + encoded


def numbered(number: int, *, is_there: bool) -> bytes:
    """Return what ``ids`` has of a checkpoint: its number, and whether it was written.

    An id that was only mentioned, by pending writes, has a number too.
    """
    return number.to_bytes(8, "big") + (CHECKPOINT if is_there else b"")


def log(scope_number: int, number: int, kind: bytes, tail: bytes = b"") -> bytes:
    """Return a key in ``log``."""
    return _HEAD.pack(scope_number, number) + kind + tail


def number_of(log_key: bytes) -> int:
    """Return the number of the checkpoint that a key in ``log`` belongs to."""
    return int.from_bytes(log_key[8:16], "big")


@lru_cache(maxsize=4096)
def task(task_id: str) -> bytes:
    """Return a task id as 17 bytes; the first tells a UUID from a digest."""
    packed = short(task_id)
    return b"u" + packed if isinstance(packed, bytes) else b"d" + _digest(text(task_id), 16)


def short(identifier: str) -> bytes | str:
    """Return a UUID as 16 bytes, and any other id as it is."""
    if len(identifier) != 36 or identifier[8:24:5] != "----":
        return identifier
    digits = identifier.replace("-", "")
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return identifier
    # What is there is the id that `long` gives: lower case, without blanks or further dashes.
    return packed if len(packed) == 16 and packed.hex() == digits else identifier


def long(identifier: bytes | str) -> str:
    """Return the id that `short` was given."""
    if isinstance(identifier, str):
        return identifier
    digits = identifier.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _digest(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()
