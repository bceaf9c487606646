"""LIM: trivial tasks that say what they take, beside the same tasks that say
nothing.
"""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import ours

CPUS, MEMORY, NONE = (
    f"flowpregel, {kind}" for kind in ("cpus=", "memory=", "none of them")
)


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 20 if quick else 2_000
    return [
        Workload(
            sides={
                OURS: ours("limited", count=count, limit="api"),
                CPUS: ours("limited", count=count, cpus=1),
                MEMORY: ours("limited", count=count, memory="1MB"),
                NONE: ours("limited", count=count),
            },
            rows=(
                Row(
                    name="LIM",
                    unit="a task",
                    figure="coordinator",
                    what=(
                        f"{count:,} trivial tasks with limit=, CPU time of the "
                        "coordinator"
                    ),
                    goals=tuple(
                        Goal(side=side, against=NONE, most=1.5)
                        for side in (OURS, CPUS, MEMORY)
                    ),
                ),
            ),
        ),
    ]
