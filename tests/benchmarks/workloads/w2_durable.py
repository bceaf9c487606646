"""W2a, W2b: the cycle of W1 with every superstep on disk, before or beside the next
one.
"""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

SQLITE = "langgraph + SQLite"
ON_SQLITE = "flowpregel + SQLite"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 20 if quick else 1_000
    few, least = (10, 5) if quick else (300, 50)
    return [
        Workload(
            sides={
                OURS: ours("steps", count=count, kept="sync"),
                ON_SQLITE: ours("steps", count=count, kept="sync", store="sqlite"),
                SQLITE: langgraph("steps", count=count, kept="sync"),
                "dbos": peer("dbos", "steps", f"{few} steps", count=few),
                "temporal": peer("temporal", "steps", f"{least} steps", count=least),
                "huey": peer("huey", "steps", f"{least} tasks", count=least),
                "LMDB": limit("lmdb:commits", count=count),
            },
            rows=(
                Row(
                    name="W2a",
                    what="every superstep on disk, sync",
                    goals=(Goal(against=SQLITE, most=0.55),),
                ),
            ),
        ),
        Workload(
            sides={
                OURS: ours("steps", count=count, kept="async"),
                SQLITE: langgraph("steps", count=count, kept="async"),
                "LMDB without sync": limit("lmdb:commits", count=count, sync=False),
            },
            rows=(
                Row(
                    name="W2b",
                    what="every superstep on disk, async",
                    goals=(Goal(against=SQLITE, most=0.2),),
                ),
            ),
        ),
    ]
