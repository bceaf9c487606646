"""W3: many trivial tasks called at once and gathered; nothing kept, and on disk."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.model import OURS, Goal, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

PLAIN, SQLITE = "langgraph", "langgraph + SQLite"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 10 if quick else 200
    threads, loop = {"executor": "threads"}, {"executor": "loop"}
    return [
        _plain(count),
        _beside(
            PLAIN, 0.25, "W3a threads", "the same in OS threads", threads, count=count
        ),
        _beside(
            PLAIN,
            0.5,
            "W3a async",
            "the same as coroutines on an event loop",
            loop,
            count=count,
            async_body=True,
        ),
        _kept(count),
        _beside(
            SQLITE, 0.35, "W3b sync", "the same, sync", {}, count=count, kept="sync"
        ),
    ]


def _plain(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count),
            "langgraph": langgraph("gather", count=count),
            "ray": peer("ray", "gather", count=count),
            "dask": peer("dask", "gather", count=count),
            "prefect": peer("prefect", "gather", "OS threads", count=count),
            "loky": limit("loky:gather", count=count),
            "OS threads": limit("futures:gather", count=count, kind="threads"),
        },
        rows=(
            Row(
                name="W3a",
                what=f"{count} trivial tasks gathered, worker processes",
                unit="a task",
                goals=against(langgraph=0.25, loky=1.0),
            ),
        ),
    )


def _kept(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count, kept="async"),
            SQLITE: langgraph("gather", count=count, kept="async"),
            "dbos": peer("dbos", "gather", "OS threads", count=count),
        },
        rows=(
            Row(
                name="W3b",
                what=f"{count} tasks gathered, on disk, async",
                unit="a task",
                goals=(Goal(against=SQLITE, most=0.2),),
            ),
        ),
    )


def _beside(
    rival: str, most: float, row: str, what: str, ours_too: Any, **both: Any
) -> Workload:
    """Return the work of ours and of LangGraph alone, with options that *both* have."""
    return Workload(
        sides={
            OURS: ours("gather", **both, **ours_too),
            rival: langgraph("gather", **both),
        },
        rows=(
            Row(
                name=row,
                what=what,
                unit="a task",
                goals=(Goal(against=rival, most=most),),
            ),
        ),
    )
