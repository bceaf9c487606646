"""W6: arrays of 50 MB to workers and back."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.model import OURS, Row, Workload, against
from tests.benchmarks.peers.sides import limit, ours, peer


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count, numbers = (2, 1_000) if quick else (16, 6_250_000)
    size = f"{numbers * 8 / 1e6:.0f} MB array"
    return [
        _workload(
            "W6a",
            f"{count} tasks, each taking its own {size}",
            0.6,
            "total",
            ["own", count, numbers],
        ),
        _one_for_all(f"{count} tasks, all taking the same {size}", count, numbers),
        _kept(f"the same {size} by its handle, kept on disk", count, numbers),
        _workload(
            "W6c",
            f"{count} tasks, each returning a {size}",
            0.15,
            "make",
            ["each", count, numbers],
        ),
    ]


def _one_for_all(what: str, count: int, numbers: int) -> Workload:
    given: dict[str, Any] = {"function": "total", "given": ["shared", count, numbers]}
    return Workload(
        sides={
            OURS: ours("by_handle", **given),
            "flowpregel's pool": ours("by_handle", alone=True, **given),
            "without a handle": ours("mapped", **given),
            "joblib": peer("joblib", "mapped", **given),
            "dask": peer("dask", "mapped", **given),
            "ray": peer("ray", "mapped", **given),
            "loky": limit("loky:mapped", **given),
        },
        rows=(
            Row(
                name="W6b", what=what, unit="in all", goals=against(joblib=0.6, ray=1.0)
            ),
        ),
    )


def _kept(what: str, count: int, numbers: int) -> Workload:
    given: dict[str, Any] = {"function": "total", "given": ["shared", count, numbers]}
    return Workload(
        sides={
            OURS: ours("by_handle", kept="async", **given),
            "without a saver": ours("by_handle", **given),
        },
        rows=(
            Row(
                name="W6d",
                what=what,
                unit="in all",
                goals=against(**{"without a saver": 1.3}),
            ),
        ),
    )


def _workload(
    name: str, what: str, most: float, function: str, values: list[Any]
) -> Workload:
    given = {"function": function, "given": values}
    return Workload(
        sides={
            OURS: ours("mapped", **given),
            "flowpregel's pool": ours("mapped", alone=True, **given),
            "joblib": peer("joblib", "mapped", **given),
            "dask": peer("dask", "mapped", **given),
            "ray": peer("ray", "mapped", **given),
            "loky": limit("loky:mapped", **given),
        },
        rows=(Row(name=name, what=what, unit="in all", goals=against(joblib=most)),),
    )
