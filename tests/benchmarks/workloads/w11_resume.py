"""W11: a run with many finished tasks goes on; nothing of it is done again."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, ours

SQLITE = "langgraph + SQLite"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count, theirs = (20, 10) if quick else (10_000, 1_600)
    few = f"flowpregel, {theirs:,}"
    return [
        Workload(
            sides={
                OURS: ours("peers.ours_state:resumed", count=count, kept="async"),
                few: ours("peers.ours_state:resumed", count=theirs, kept="async"),
                "langgraph": langgraph("resumed", count=theirs),
                SQLITE: langgraph("resumed", count=theirs, kept="async"),
            },
            rows=(
                Row(
                    name="W11",
                    what=f"resume with {count:,} finished tasks, on disk",
                    unit="a task",
                    goals=(
                        Goal(against=SQLITE, most=0.2),
                        Goal(against=few, most=1.2),
                    ),
                ),
            ),
            warm=False,
        ),
        Workload(
            sides={
                OURS: ours("peers.ours_state:resumed", count=count * 10, kept="async"),
                SQLITE: langgraph("resumed", count=theirs, kept="async"),
            },
            rows=(
                Row(
                    name="W11 100,000",
                    what=f"resume with {count * 10:,} finished tasks, on disk",
                    unit="a task",
                    goals=(Goal(against=SQLITE, most=0.2),),
                ),
            ),
            repeats=3,
            warm=False,
        ),
    ]
