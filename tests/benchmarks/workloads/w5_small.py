"""W5a, W5b, W5d: tasks of 20 µs, where handing over costs more than the work."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer

TASK = 20e-6


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    some, many = (20, 40) if quick else (1_000, 10_000)
    return [
        _some(some),
        _many(many, 1 if quick else 10),
        _chunked(many, 10 if quick else 100),
    ]


def _some(count: int) -> Workload:
    given = {"function": "spin", "given": ["each", count, TASK]}
    return Workload(
        sides={
            OURS: ours("mapped", **given),
            "langgraph": langgraph("mapped", **given),
            "langgraph Send": langgraph("sends", **given),
            "ray": peer("ray", "mapped", **given),
            "dask": peer("dask", "mapped", **given),
            "parsl": peer("parsl", "mapped", **given),
            "joblib": peer("joblib", "mapped", **given),
            "loky in chunks": limit("loky:mapped", chunk=max(1, count // 8), **given),
        },
        rows=(
            Row(
                name="W5a",
                what=f"{count:,} tasks of 20 µs",
                unit="in all",
                goals=against(joblib=3.0),
            ),
        ),
    )


def _many(count: int, share: int) -> Workload:
    given = {"function": "spin", "given": ["each", count, TASK]}
    part = f"from one in {share}"
    return Workload(
        sides={
            OURS: ours("mapped", **given),
            "langgraph Send": langgraph("sends", **given),
            "ray": peer("ray", "mapped", part, share=share, **given),
            "dask": peer("dask", "mapped", part, share=share, **given),
            "joblib": peer("joblib", "mapped", **given),
            "loky in chunks": limit("loky:mapped", chunk=max(1, count // 8), **given),
            "ideal": limit("futures:ideal", seconds=count * TASK),
        },
        rows=(
            Row(
                name="W5b",
                what=f"{count:,} tasks of 20 µs",
                unit="in all",
                goals=against(ideal=8.0),
            ),
        ),
    )


def _chunked(count: int, size: int) -> Workload:
    given = {"function": "spin", "given": ["each", count, TASK]}
    return Workload(
        sides={
            OURS: ours("in_chunks", size=size, **given),
            "joblib": peer("joblib", "mapped", **given),
            "loky in chunks": limit("loky:mapped", chunk=size, **given),
            "ideal": limit("futures:ideal", seconds=count * TASK),
        },
        rows=(
            Row(
                name="W5d",
                what=f"{count:,} of them by map(chunksize={size})",
                unit="in all",
                goals=against(ideal=1.2, joblib=1.0),
            ),
        ),
    )
