"""D1: our executor on Dask and on Ray, beside the engines as they are."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Side, Workload

WORK = {
    "trivial": (2000, 0.1, "trivial tasks"),
    "model": (100, 0.3, "tasks that take one 2 MB model"),
    "big": (10, 1.0, "tasks with 10 MB in and out"),
    "cpu": (100, 1.05, "CPU tasks of 50 ms, ours kept on disk"),
}


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    return [_of(engine, kind, quick) for engine in ("dask", "ray") for kind in WORK]


def _of(engine: str, kind: str, quick: bool) -> Workload:
    count, most, what = WORK[kind]
    count = 4 if quick else count
    options = {"engine": engine, "kind": kind, "count": count}
    needs = ({"dask": "distributed"}.get(engine, engine), "numpy")
    return Workload(
        sides={
            OURS: Side(maker="peers.clusters:with_ours", options=options, needs=needs),
            engine: Side(maker="peers.clusters:bare", options=options, needs=needs),
        },
        rows=(
            Row(
                name=f"D1 {engine} {kind}", what=f"{count} {what}, on {engine}", unit="a task",
                goals=(Goal(against=engine, most=most),),
            ),
        ),
    )  # fmt: skip
