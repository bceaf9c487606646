"""W3: many trivial tasks called at once and gathered; nothing kept, and on disk."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

SQLITE = "langgraph + SQLite"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count = 10 if quick else 200
    return [_plain(count), _threads(count), _async(count), _kept(count), _sync(count)]


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
                name="W3a", what=f"{count} trivial tasks gathered, worker processes", unit="a task",
                goals=against(langgraph=0.25),
            ),
        ),
    )  # fmt: skip


def _threads(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count, executor="threads"),
            "langgraph": langgraph("gather", count=count),
        },
        rows=(
            Row(
                name="W3a threads", what="the same in OS threads", unit="a task",
                goals=against(langgraph=0.25),
            ),
        ),
    )  # fmt: skip


def _async(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count, executor="loop", async_body=True),
            "langgraph": langgraph("gather", count=count, async_body=True),
        },
        rows=(
            Row(
                name="W3a async", what="the same as coroutines on an event loop", unit="a task",
                goals=against(langgraph=0.5),
            ),
        ),
    )  # fmt: skip


def _kept(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count, kept="async"),
            SQLITE: langgraph("gather", count=count, kept="async"),
            "dbos": peer("dbos", "gather", "OS threads", count=count),
        },
        rows=(
            Row(
                name="W3b", what=f"{count} tasks gathered, on disk, async", unit="a task",
                goals=(Goal(against=SQLITE, most=0.15), *against(dbos=0.06)),
            ),
        ),
    )  # fmt: skip


def _sync(count: int) -> Workload:
    return Workload(
        sides={
            OURS: ours("gather", count=count, kept="sync"),
            SQLITE: langgraph("gather", count=count, kept="sync"),
        },
        rows=(
            Row(
                name="W3b sync", what="the same, sync", unit="a task",
                goals=(Goal(against=SQLITE, most=0.35),),
            ),
        ),
    )  # fmt: skip
