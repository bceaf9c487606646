"""W9: many channels, of which a superstep writes one."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, ours

FEW = "flowpregel, 10 channels"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    channels, count = (20, 20) if quick else (1_000, 1_000)
    return [
        Workload(
            sides={
                OURS: ours("peers.ours_state:wide", channels=channels, count=count),
                FEW: ours("peers.ours_state:wide", channels=10, count=count),
                "langgraph": langgraph("wide", channels=channels, count=count),
                "langgraph, 10 channels": langgraph("wide", channels=10, count=count),
            },
            rows=(
                Row(
                    name="W9",
                    what=f"{channels:,} channels, one written a step",
                    goals=(Goal(against=FEW, most=1.7),),
                ),
            ),
        )
    ]
