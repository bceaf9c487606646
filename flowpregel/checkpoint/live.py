"""What a run shows of itself beside its lease, for those who watch it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from flowpregel._lmdb.records import Table
from flowpregel.checkpoint.base import Lease
from flowpregel.errors import StoreCorruptError

WATCHED_FOR: Final = 5
"""Seconds for which a run is watched by somebody who has asked what it does."""
_SHARE: Final = 100
"""The part of its time that a run has for those who watch it: one of so many."""


@dataclass(slots=True, eq=False)
class LiveState:
    """Tells what the owner of a lease does: sealed, and with a hundredth of the time."""

    lease: Lease
    table: Table
    """Seals it as the store's records are."""
    place: bytes
    """What stands for the lease where it is sealed."""
    started: int = field(default_factory=time.time_ns)
    """Since when the lease is held: wall-clock nanoseconds."""
    due: float = 0.0
    """When it may tell something again: monotonic seconds."""

    def sealed(self) -> bytes | None:
        """Return what the owner does now; None: it cannot tell, or has only just done so."""
        if self.lease.live is None or time.monotonic() < self.due:
            return None
        began = time.thread_time()
        state = {**self.lease.live(), "drawing": self.lease.drawing and self.lease.drawing()}
        state |= {"started": self.started, "at": time.time_ns()}
        data = self.table.sealed(self.place, 0, json.dumps(state).encode())
        self.due = time.monotonic() + _SHARE * (time.thread_time() - began)
        return data


def opened(table: Table, place: bytes, data: bytes) -> dict[str, Any] | None:
    """Return what `LiveState.sealed` told; None: it is being written, or comes from elsewhere."""
    with suppress(StoreCorruptError):
        _, told = table.opened(place, data)
        # JSON has no infinite numbers, though Python writes them.
        state: dict[str, Any] = json.loads(told, parse_constant=lambda _: None)
        return state
    return None
