"""W8: how long the imports of a durable program take, and a whole program with one
task.
"""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.model import OURS, Row, Side, Workload, against
from tests.benchmarks.peers.sides import limit, ours


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    modules = {
        "langgraph": "langgraph",
        "dbos": "dbos",
        "prefect": "prefect",
        "temporal": "temporalio",
        "huey": "huey",
        "parsl": "parsl",
        "joblib": "joblib",
        "dask": "distributed",
        "ray": "ray",
    }
    keep_nothing = ("dask", "ray", "loky")
    imported = {
        name: replace(
            limit("programs:imported", module=module),
            needs=(module,),
            note="keeps nothing" if name in keep_nothing else "",
        )
        for name, module in modules.items()
    }
    sides: dict[str, Side] = {
        OURS: ours("peers.programs:imported", module=OURS),
        **imported,
        "loky": replace(
            limit("programs:imported", module="loky"), note="keeps nothing"
        ),
    }
    return [
        Workload(
            sides={OURS: sides[OURS]} if quick else sides,
            rows=(
                Row(
                    name="W8 import",
                    what="the imports of a program that keeps its results",
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
