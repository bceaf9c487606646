"""W2c: many runs at once, every superstep of each on disk: one flush serves many."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import limit, ours

ALONE = "flowpregel, one run"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    runs, count = (5, 5) if quick else (200, 60)
    sides = {
        OURS: ours("crowd", runs=runs, count=count, on_loop=True),
        "flowpregel, OS threads": ours("crowd", runs=runs, count=count, on_loop=False),
        ALONE: ours("steps", count=count * 10, kept="sync"),
    }
    groups = {"LMDB, groups of 1,000": limit("lmdb:commits", count=1_000, group=1_000)}
    what = f"{runs} runs at once on a loop, sync: a superstep of any"
    goals = (Goal(against=ALONE, most=0.2),)
    return [
        Workload(sides=sides | groups, rows=(Row(name="W2c", what=what, goals=goals),)),
        Workload(
            sides={name: replace(side, slow_disk=True) for name, side in sides.items()},
            rows=(
                Row(
                    name="W2c slow disk",
                    what=f"{what}, on a disk that takes 1 ms more a flush",
                    goals=goals,
                ),
            ),
        ),
    ]
