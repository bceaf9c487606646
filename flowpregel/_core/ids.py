"""Ids that are the same on every replay: they are made of a task's place in its run."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

from flowpregel._core.records import Version

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREGORIAN_OFFSET = 0x01B21DD213814000
"""100-nanosecond intervals between 1582-10-15 and 1970-01-01 (RFC 9562, 5.1)."""

_CALL = "~__pregel_push, "
_INDEX = len(", 0000000000")
_VERSION_6 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-([0-9a-f]{4})-[0-9a-f]{12}")


def digest(*parts: object) -> str:
    """Return a digest of the text of *parts*: 32 hex digits."""
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def task_id(*parts: object) -> str:
    """Return the id of the task that *parts* describe, in the form of a UUID."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    digits = hashlib.blake2b(text, digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def call_path(caller: str, index: int) -> str:
    """Return the path of the *index*-th call of the task that has the path *caller*."""
    return f"{_CALL}{caller}, {index:010d}"


def caller_of(path: str) -> str:
    """Return the path of the task that made the call at *path*; empty: it is no call.

    Example:
        >>> caller_of(call_path("~__pregel_pull, flow", 3))
        '~__pregel_pull, flow'
    """
    return path[len(_CALL) : -_INDEX] if path.startswith(_CALL) else ""


def without_ids(namespace: str) -> str:
    """Return *namespace* without the ids of the tasks in it.

    Example:
        >>> without_ids("outer:83f1|inner:07aa")
        'outer|inner'
    """
    return "|".join(part.split(":", 1)[0] for part in namespace.split("|"))


def interrupt_id(namespace: str, index: int) -> str:
    """Return the id of the *index*-th question of the task at *namespace*: 32 hex digits."""
    text = f"{namespace}|{index}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_interrupt_id(value: object) -> bool:
    """Return whether *value* has the form that `interrupt_id` gives."""
    return isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")


def checkpoint_id(now: int, step: int) -> str:
    """Return an id that sorts by *now* (wall-clock nanoseconds): a version 6 UUID.

    The 100-nanosecond field carries the time; what is left of *now*, and the
    step, go where RFC 9562 5.6 has clock sequence and node.
    """
    intervals, rest = divmod(now, 100)
    digits = f"{intervals + _GREGORIAN_OFFSET:015x}"
    return (
        f"{digits[-15:-7]}-{digits[-7:-3]}-6{digits[-3:]}-"
        f"{0x8000 | (rest << 7):x}-{(step + 2) & 0xFFFFFFFFFFFF:012x}"
    )


def time_of(checkpoint_id: str) -> int:
    """Return the wall-clock nanoseconds that an id was made of; 0 if it is none of that kind.

    Another library's version 6 UUIDs give their time too, to 128 nanoseconds.

    Example:
        >>> time_of(checkpoint_id(1_800_000_000_123_456_789, 3))
        1800000000123456789
    """
    match = _VERSION_6.fullmatch(checkpoint_id)
    if match is None:
        return 0
    high, middle, low, sequence = (int(digits, 16) for digits in match.groups())
    stamp = (high << 28) | (middle << 12) | low
    return (stamp - _GREGORIAN_OFFSET) * 100 + (sequence >> 7 & 0x7F)


def timestamp(now: int) -> str:
    """Return wall-clock nanoseconds as an ISO 8601 text in UTC."""
    return (_EPOCH + timedelta(microseconds=now // 1000)).isoformat()


def next_version(newest: Version | None, now: int) -> Version:
    """Return a version newer than *newest*, unique among all branches of a thread.

    Versions of two branches must differ although both follow the same
    checkpoint, so they are times: a hybrid logical clock (Kulkarni et al.,
    "Logical Physical Clocks", 2014).
    """
    if newest is None:
        return now
    if isinstance(newest, str):
        counter = int(newest.split(".", 1)[0]) + 1
        return f"{counter:032}.{now}"
    return max(now, int(newest) + 1)
