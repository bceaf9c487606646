"""W2d: every superstep on a disk that takes a millisecond more for each flush."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

SQLITE = "langgraph + SQLite"
ON_SQLITE = "flowpregel + SQLite"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 10 if quick else 200
    sides = {
        OURS: ours("steps", count=count, kept="sync"),
        ON_SQLITE: ours("steps", count=count, kept="sync", store="sqlite"),
        SQLITE: langgraph("steps", count=count, kept="sync"),
        "dbos": peer("dbos", "steps", count=count),
        "LMDB": limit("lmdb:commits", count=count),
    }
    return [
        Workload(
            sides={name: replace(side, slow_disk=True) for name, side in sides.items()},
            rows=(
                Row(
                    name="W2d",
                    what="sync on a disk that takes 1 ms more a flush",
                    goals=(Goal(against=SQLITE, most=0.8),),
                ),
            ),
        )
    ]
