"""The main job beside a loop by hand that keeps nothing, and a round trip to a
worker.
"""

from __future__ import annotations

from tests.benchmarks.model import OURS, Goal, Row, Workload, against
from tests.benchmarks.peers.sides import limit, ours

BY_HAND = "loky by hand"


def workloads(quick: bool) -> list[Workload]:
    """Return them."""
    # The whole standard library, which takes ten seconds: three turns are enough.
    files, count = (3, 10) if quick else (None, 1_000)
    return [
        Workload(
            sides={
                OURS: ours("peers.programs:census", files=files),
                BY_HAND: limit("programs:census", files=files, by_hand=True),
            },
            rows=(
                Row(
                    name="census",
                    what="the census of the standard library, a whole program",
                    unit="in all",
                    goals=(Goal(against=BY_HAND, most=1.1),),
                ),
                Row(
                    name="census CPU",
                    what="its CPU time, user and system, of all processes",
                    unit="in all",
                    figure="cpu",
                    goals=(Goal(against=BY_HAND, most=1.1),),
                ),
            ),
            repeats=3,
            warm=False,
        ),
        Workload(
            sides={
                OURS: ours("round_trips", count=count),
                "flowpregel, submit()": ours("submits", count=count),
                "loky": limit("loky:submits", count=count),
                "ProcessPoolExecutor": limit(
                    "futures:submits", count=count, kind="processes"
                ),
            },
            rows=(
                Row(
                    name="RT",
                    what="a round trip to a worker",
                    unit="each",
                    goals=against(loky=0.5),
                ),
            ),
        ),
    ]
