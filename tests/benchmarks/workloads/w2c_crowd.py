"""W2c: many runs at once on a disk with slow flushes: one flush serves many of them."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import ours

ALONE = "flowpregel, one run"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    runs, count = (5, 5) if quick else (200, 60)
    sides = {
        OURS: ours("crowd", runs=runs, count=count, on_loop=True),
        "flowpregel, OS threads": ours("crowd", runs=runs, count=count, on_loop=False),
        ALONE: ours("steps", count=count * 10, kept="sync"),
    }
    what = f"{runs} runs at once on a loop, sync, 1 ms more a flush: a superstep of any"
    return [
        Workload(
            sides={name: replace(side, slow_disk=True) for name, side in sides.items()},
            rows=(Row(name="W2c", what=what, goals=(Goal(against=ALONE, most=0.2),)),),
        ),
    ]
