"""A parcel: a pickle, and where in shared memory its large parts lie.

::

    count of leases | lease, lease, ... | the pickle, unless it is itself the first lease
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from flowpregel.executors.processes.payload import PROTOCOL, dumps, loads

_COUNT: Final = Struct("<HB")
NO_LEASES: Final = _COUNT.pack(0, 0)
"""Before a pickle that is the whole parcel."""
_LEASE: Final = Struct("<QQQ")
SHARE_FROM: Final = 128 << 10
"""Bytes from which a part goes through shared memory: a link is faster below.

Measured, a round trip with one array, link and shared memory in turns: 165 and 200 µs with
64 KiB, 185 and 207 with 96, 250 and 210 with 128, 420 and 240 with 256, 1,040 and 420 with 1,024.
"""

SMALL: Final = 4096
"""Bytes that are copied in less time than it takes to look at them in place."""
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


class _Apart:
    """Puts the large buffers of one value into shared memory."""

    __slots__ = ("_share", "leases")

    def __init__(self, share: Share) -> None:
        self._share = share
        self.leases: list[Lease] = []

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether *buffer* is to stay in the pickle."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < SHARE_FROM or len(self.leases) >= _MOST_LEASES:
            return True
        lease = self._share.share(raw, raw.obj)
        if lease is None:
            return True
        self.leases.append(lease)
        return False

    def start_again(self) -> None:
        """Take back what was put there so far."""
        while self.leases:
            self._share.release(self.leases.pop().id)


def pack(value: Any, share: Share | None = None) -> tuple[bytes, list[Lease]]:
    """Return *value* as a parcel, and the leases it names.

    Raises:
        Exception: *value* cannot be pickled.
    """
    if share is None:
        return NO_LEASES + dumps(value), []
    apart = _Apart(share)
    leases = apart.leases
    try:
        data = dumps(value, apart, apart.start_again)
        if len(data) < SHARE_FROM and not leases:
            return NO_LEASES + data, leases
        return _with_leases(data, leases, share)
    except BaseException:
        apart.start_again()
        raise


def pack_plain(value: Any, share: Share | None) -> tuple[bytes, list[Lease]]:
    """`pack` a *value* of numbers, text and bytes alone, of which C's pickle is exact."""
    data = pickle.dumps(value, PROTOCOL)
    if share is None or len(data) < SHARE_FROM:
        return NO_LEASES + data, []
    return _with_leases(data, [], share)


def _with_leases(data: bytes, leases: list[Lease], share: Share) -> tuple[bytes, list[Lease]]:
    """Return a pickle as a parcel that names *leases*, and one more if it is itself large."""
    whole = share.share(memoryview(data), None) if len(data) >= SHARE_FROM else None
    if whole is not None:
        leases.insert(0, whole)
        data = b""
    named = b"".join(_LEASE.pack(*lease) for lease in leases)
    return _COUNT.pack(len(leases), whole is not None) + named + data, leases


def leases_in(data: bytes | memoryview) -> tuple[list[Lease], bool, int]:
    """Return the leases a parcel names, whether the first is the pickle, and where it starts."""
    count, whole = _COUNT.unpack_from(data)
    end = _COUNT.size + count * _LEASE.size
    leases = [Lease(*parts) for parts in _LEASE.iter_unpack(data[_COUNT.size : end])]
    return leases, bool(whole), end


def unpack(data: bytes | memoryview, open_lease: Open | None = None, at: int = 0) -> Any:
    """Return what `pack` was given.

    Args:
        data: Has the parcel in it, at its end.
        open_lease: Opens shared memory.
        at: Where the parcel begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    if data[at : at + 2] == b"\0\0":
        start = at + _COUNT.size
        return loads(data[start:] if len(data) - start < SMALL else memoryview(data)[start:])
    data = data[at:]
    leases, whole, start = leases_in(data)
    if open_lease is None:
        raise ValueError("the parcel names shared memory, and this end has none")
    views = [open_lease(lease) for lease in leases]
    if whole:
        return loads(views[0], views[1:])
    return loads(memoryview(data)[start:], views)
