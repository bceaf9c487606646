"""W1: a cycle of supersteps with one trivial node; nothing kept, in memory, in a
worker.
"""

from __future__ import annotations

from tests.benchmarks.model import OURS, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 20 if quick else 1_000
    few = 5 if quick else 100
    return [
        Workload(
            sides={
                OURS: ours("steps", count=count),
                "langgraph": langgraph("steps", count=count),
                "prefect": peer("prefect", "steps", f"{few} steps", count=few),
                "OS thread": limit("futures:submits", count=count, kind="threads"),
            },
            rows=(
                Row(
                    name="W1a",
                    what=f"cycle of {count:,} supersteps, inline, no saver",
                    goals=against(langgraph=0.33),
                ),
            ),
        ),
        Workload(
            sides={
                OURS: ours("steps", count=count, kept="memory"),
                "langgraph": langgraph("steps", count=count, kept="memory"),
            },
            rows=(
                Row(
                    name="W1b",
                    what="the same with the in-memory saver",
                    goals=against(langgraph=0.30),
                ),
            ),
        ),
        Workload(
            sides={
                OURS: ours("steps", count=count, executor="processes"),
                "langgraph": langgraph("steps", count=count),
                "loky": limit("loky:submits", count=count),
                "ProcessPoolExecutor": limit(
                    "futures:submits", count=count, kind="processes"
                ),
            },
            rows=(
                Row(
                    name="W1c",
                    what="the same, node in a worker process (peer: OS thread)",
                    goals=against(langgraph=0.85),
                ),
            ),
        ),
    ]
