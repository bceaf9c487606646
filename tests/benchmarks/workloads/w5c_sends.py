"""W5c: many Sends to a trivial node; as many as that cost no more each."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, ours

FEW = "flowpregel, a tenth"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 50 if quick else 10_000
    theirs = {"function": "same", "given": ["each", count, 1], "each": True}
    return [
        Workload(
            sides={
                OURS: ours("peers.ours_state:sends", count=count),
                FEW: ours("peers.ours_state:sends", count=count // 10),
                "langgraph": langgraph("sends", **theirs),
            },
            rows=(
                Row(
                    name="W5c",
                    what=f"{count:,} Sends, inline",
                    unit="an item",
                    goals=(*against(langgraph=0.1), Goal(against=FEW, most=1.5)),
                ),
            ),
            warm=False,
        )
    ]
