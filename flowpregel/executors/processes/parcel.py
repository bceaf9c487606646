"""A parcel: a pickle, and where in shared memory its large parts lie.

::

    count of leases | lease, lease, ... | the pickle, unless it is itself the first lease
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from flowpregel.executors.processes.payload import dumps, loads

_COUNT: Final = Struct("<HB")
_LEASE: Final = Struct("<QQQ")
SHARE_FROM: Final = 128 << 10
"""Bytes from which a part goes through shared memory: a link is faster below.

Measured, a round trip with one array, link and shared memory in turns: 165 and 200 µs with
64 KiB, 185 and 207 with 96, 250 and 210 with 128, 420 and 240 with 256, 1,040 and 420 with 1,024.
"""

_MOST_LEASES: Final = 64
"""More parts than that stay in the pickle: each may need a descriptor handed over."""


class Lease(NamedTuple):
    """A piece of shared memory that somebody reads."""

    id: int
    """Names the lease, once in the life of its owner."""
    segment: int
    """The segment it lies in."""
    size: int


class Share(Protocol):
    """Where large parts are put."""

    def share(self, data: memoryview, source: Any) -> Lease | None:
        """Put *data*, the bytes of *source*, into shared memory; None: there is no room."""

    def release(self, lease_id: int, readers: int = 1) -> None:
        """Take back what nobody will read."""


Open: TypeAlias = Callable[[Lease], memoryview]
"""Returns the bytes of a lease, read-only."""


def pack(value: Any, share: Share | None = None) -> tuple[bytes, list[Lease]]:
    """Return *value* as a parcel, and the leases it names.

    Raises:
        Exception: *value* cannot be pickled.
    """
    if share is None:
        return _COUNT.pack(0, 0) + dumps(value), []
    leases: list[Lease] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < SHARE_FROM or len(leases) >= _MOST_LEASES:
            return True
        lease = share.share(raw, raw.obj)
        if lease is None:
            return True
        leases.append(lease)
        return False

    def start_again() -> None:
        while leases:
            share.release(leases.pop().id)

    try:
        data = dumps(value, keep, start_again)
        whole = share.share(memoryview(data), None) if len(data) >= SHARE_FROM else None
    except BaseException:
        start_again()
        raise
    if whole is not None:
        leases.insert(0, whole)
        data = b""
    named = b"".join(_LEASE.pack(*lease) for lease in leases)
    return _COUNT.pack(len(leases), whole is not None) + named + data, leases


def leases_in(data: bytes) -> tuple[list[Lease], bool, int]:
    """Return the leases a parcel names, whether the first is the pickle, and where it starts."""
    count, whole = _COUNT.unpack_from(data)
    end = _COUNT.size + count * _LEASE.size
    leases = [Lease(*parts) for parts in _LEASE.iter_unpack(data[_COUNT.size : end])]
    return leases, bool(whole), end


def unpack(data: bytes, open_lease: Open | None = None) -> Any:
    """Return what `pack` was given.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    if data[:2] == b"\0\0":
        return loads(memoryview(data)[_COUNT.size :])
    leases, whole, start = leases_in(data)
    if open_lease is None:
        raise ValueError("the parcel names shared memory, and this end has none")
    views = [open_lease(lease) for lease in leases]
    if whole:
        return loads(views[0], views[1:])
    return loads(memoryview(data)[start:], views)
