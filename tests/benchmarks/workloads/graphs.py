"""G1 to G4: StateGraphs; nothing kept, in memory, on disk."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.model import OURS, Row, Side, Workload, against
from tests.benchmarks.peers.sides import ours

HOW = (
    ("a", None, "no saver", 0.4),
    ("b", "memory", "in-memory saver", 0.4),
    ("c", "async", "LMDB beside SQLite, async", 0.3),
)


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    graphs = (
        ("G1", "fan_out", 5 if quick else 100, "fan-out to {:,} nodes"),
        ("G2", "wide_state", 2 if quick else 10, "{} nodes, 300 fields"),
        ("G3", "line", 10 if quick else 1_000, "line of {:,} nodes"),
        ("G4", "loop", 10 if quick else 1_000, "loop of {:,} with a conditional edge"),
    )
    return [
        _workload(
            f"{name}{letter}",
            f"{what.format(size)}, {how}",
            most,
            {"name": graph, "size": size, "kept": kept},
        )
        for name, graph, size, what in graphs
        for letter, kept, how, most in HOW
    ]


def _workload(name: str, what: str, most: float, options: dict[str, Any]) -> Workload:
    needs = ["langgraph"]
    needs += ["langgraph.checkpoint.sqlite"] if options["kept"] == "async" else []
    return Workload(
        sides={
            OURS: ours("peers.graphs:run", package=OURS, **options),
            "langgraph": Side(
                maker="peers.graphs:run",
                options={"package": "langgraph", **options},
                needs=tuple(needs),
            ),
        },
        rows=(Row(name=name, what=what, unit="a node", goals=against(langgraph=most)),),
    )
