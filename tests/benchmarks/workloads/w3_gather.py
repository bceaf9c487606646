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
        _kept_at_once(count),
    ]


def _plain(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count),
            "langgraph": langgraph("gather", count=count),
            "ray": peer("ray", "gather", count=count),
            "dask": peer("dask", "gather", count=count),
            "prefect": peer("prefect", "gather", "OS threads", count=count),
            "parsl": peer("parsl", "gather", "worker processes", count=count),
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


def _kept_at_once(count: int) -> Workload:
    """Return the work of W3b with each result on disk before it is used.

    The peers that have no other way are here, and not beside our ``async``.
    """
    return Workload(
        sides={
            OURS: ours("gather", count=count, kept="sync"),
            SQLITE: langgraph("gather", count=count, kept="sync"),
            "dbos": peer("dbos", "gather", "steps by asyncio.gather", count=count),
            "dbos, workflows": peer(
                "dbos", "gather_workflows", "a workflow each, OS threads", count=count
            ),
            "temporal": peer("temporal", "gather", "OS threads", count=count),
            "huey": peer("huey", "gather", "worker processes", count=count),
            "parsl": peer(
                "parsl",
                "gather",
                "worker processes; writes, but does not flush",
                count=count,
                kept=True,
            ),
        },
        rows=(
            Row(
                name="W3b sync",
                what="the same, sync",
                unit="a task",
                goals=(Goal(against=SQLITE, most=0.35),),
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
