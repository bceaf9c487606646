"""How much memory the workers of this program take."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from flowpregel.executors.processes.death import memory_of

if TYPE_CHECKING:
    from flowpregel.executors.processes.pool import Pool

POOLS: WeakSet[Pool] = WeakSet()
"""Every pool of this program that is in use."""


def worker_memory() -> tuple[int, int]:
    """Return how many workers there are in all pools, and the bytes of memory they take.

    Pages that workers share are counted once for each of them.
    """
    pids = [slot.pid for pool in tuple(POOLS) for slot in tuple(pool.crew.slots) if slot.is_born]
    return len(pids), sum(memory_of(pid) for pid in pids)
