"""W7: 200 bytes appended to a DeltaChannel a superstep, on disk."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

SQLITE = "langgraph + SQLite"
ON_SQLITE = "flowpregel + SQLite"
SNAPSHOTS = "flowpregel, snapshots"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count, some, few = (20, 10, 10) if quick else (5_000, 2_000, 500)
    plain = langgraph("appended", count=some, channel="plain")
    sides = {
        OURS: ours("peers.ours_state:appended", count=count),
        ON_SQLITE: ours("peers.ours_state:appended", count=count, store="sqlite"),
        SNAPSHOTS: replace(
            ours("peers.ours_state:appended", count=count, snapshots=100),
            note="a snapshot every 100 steps, as LangGraph's",
        ),
        SQLITE: langgraph("appended", count=count),
        "langgraph, plain reducer": replace(
            plain, repeats=1, note=f"{some:,} steps, once"
        ),
        "dbos": peer("dbos", "appended", f"{few} steps", count=few),
        "LMDB": limit("lmdb:appended", count=count),
    }
    return [
        Workload(
            sides=sides,
            rows=(
                Row(
                    name="W7",
                    what=f"append to a DeltaChannel, {count:,} supersteps, sync",
                    goals=(Goal(against=SQLITE, most=0.55),),
                ),
                Row(
                    name="W7 flat",
                    what="its last fifth of the steps beside its first",
                    unit="times",
                    figure="ratio",
                    goals=(Goal(most=1.2),),
                ),
                Row(
                    name="W7 bytes",
                    what="bytes on disk",
                    unit="a step",
                    figure="bytes",
                    goals=(Goal(most=1_000),),
                ),
                Row(
                    name="W7 state",
                    what="read the newest state",
                    unit="once",
                    figure="state",
                    goals=(
                        Goal(against=SQLITE, most=10),
                        Goal(against=SQLITE, most=1, side=SNAPSHOTS),
                    ),
                ),
                Row(
                    name="W7 history",
                    what="read the newest 10 of the history",
                    unit="once",
                    figure="history",
                    goals=(
                        Goal(against=SQLITE, most=10),
                        Goal(against=SQLITE, most=0.6, side=SNAPSHOTS),
                    ),
                ),
            ),
            warm=False,
        )
    ]
