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
        _workload("W6a", f"{count} tasks, each taking its own {size}", 0.6, "total",
                  ["own", count, numbers]),
        _workload("W6b", f"{count} tasks, all taking the same {size}", 0.3, "total",
                  ["shared", count, numbers]),
        _workload("W6c", f"{count} tasks, each returning a {size}", 0.25, "make",
                  ["each", count, numbers]),
    ]  # fmt: skip


def _workload(name: str, what: str, most: float, function: str, values: list[Any]) -> Workload:
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
