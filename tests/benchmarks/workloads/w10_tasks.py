"""W10: thousands of tasks submitted at once cost no more each than hundreds."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload
from tests.benchmarks.peers.sides import langgraph, ours


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    many, few = (20, 10) if quick else (4_000, 500)
    found = [
        _workload(many, few, executor)
        for executor in ("processes", "threads", "inline")
    ]
    sides = {**found[0].sides, "langgraph": langgraph("gather", count=many)}
    sides[f"langgraph, {few:,}"] = langgraph("gather", count=few)
    return [Workload(sides=sides, rows=found[0].rows), *found[1:]]


def _workload(many: int, few: int, executor: str) -> Workload:
    name = f"flowpregel, {few:,}"
    return Workload(
        sides={
            OURS: ours("gather", count=many, executor=executor),
            name: ours("gather", count=few, executor=executor),
        },
        rows=(
            Row(
                name="W10" if executor == "processes" else f"W10 {executor}",
                unit="a task",
                what=f"{many:,} tasks submitted at once, {executor}, beside {few:,}",
                goals=(Goal(against=name, most=1.2),),
            ),
        ),
    )
