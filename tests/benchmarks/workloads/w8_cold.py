"""W8: how long the import takes, and a whole program with one task."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Row, Side, Workload, against
from tests.benchmarks.peers.sides import limit, ours


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    imported = {
        name: replace(limit("programs:imported", module=module), needs=(name,))
        for name, module in {
            "langgraph": "langgraph.pregel",
            "dbos": "dbos",
            "prefect": "prefect",
            "joblib": "joblib",
            "dask": "distributed",
            "ray": "ray",
        }.items()
    }
    sides: dict[str, Side] = {
        OURS: ours("peers.programs:imported", module="flowpregel.pregel"),
        **imported,
        "loky": limit("programs:imported", module="loky"),
    }
    return [
        Workload(
            sides={OURS: sides[OURS]} if quick else sides,
            rows=(
                Row(
                    name="W8 import",
                    what="import flowpregel",
                    unit="once",
                    goals=against(langgraph=0.15),
                ),
            ),
        ),
        Workload(
            sides={
                OURS: ours("peers.programs:first_task", name=OURS),
                "loky": limit("programs:first_task", name="loky"),
            },
            rows=(
                Row(
                    name="W8 cold",
                    what="a whole program with one task in a worker",
                    unit="once",
                    goals=against(loky=1.5),
                ),
            ),
        ),
    ]
