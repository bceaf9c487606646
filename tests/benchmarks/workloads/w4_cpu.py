"""W4: CPU work that fills the cores."""

from __future__ import annotations

from tests.benchmarks.model import OURS, Row, Workload, against
from tests.benchmarks.peers.sides import langgraph, limit, ours, peer


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    count, seconds = (2, 0.01) if quick else (16, 0.1)
    given = {"function": "spin", "given": ["each", count, seconds]}
    return [
        Workload(
            sides={
                OURS: ours("mapped", **given),
                "langgraph": langgraph("mapped", **given),
                "dbos": peer("dbos", "mapped", "OS threads", **given),
                "prefect": peer("prefect", "mapped", "worker processes", **given),
                "prefect, cold": peer(
                    "prefect",
                    "mapped",
                    "with the start of its workers, as in each run of a flow",
                    is_cold=True,
                    **given,
                ),
                "temporal": peer("temporal", "mapped", "worker processes", **given),
                "huey": peer("huey", "mapped", "worker processes", **given),
                "parsl": peer("parsl", "mapped", "worker processes", **given),
                "joblib": peer("joblib", "mapped", **given),
                "dask": peer("dask", "mapped", **given),
                "ray": peer("ray", "mapped", **given),
                "loky": limit("loky:mapped", **given),
            },
            rows=(
                Row(
                    name="W4",
                    what=f"{count} CPU tasks of {seconds * 1e3:.0f} ms",
                    unit="in all",
                    goals=against(loky=1.03),
                ),
            ),
        )
    ]
