"""A state that grows: what a step costs, and the last ones beside the first; bytes;
reading.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import work


class Step:
    """Counts up to a number and then writes nothing; notes when it was asked.

    Args:
        last: The number.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self.times: list[float] = []

    def __call__(self, value: int) -> int | None:
        self.times.append(time.perf_counter())
        return value + 1 if value < self.last else None


def growth(times: list[float]) -> float:
    """Return how many times longer a step of the last fifth took than one of the
    first.
    """
    gaps = [after - before for before, after in itertools.pairwise(times)]
    part = max(1, len(gaps) // 5)
    return statistics.median(gaps[-part:]) / statistics.median(gaps[:part])


def figures(app: Any, step: Step, folder: Path, durability: str) -> dict[str, float]:
    """Run *app* with every superstep kept on disk, and return its figures.

    Args:
        app: Ours or LangGraph's, with *step* in its node and a channel ``log``.
        step: It says how many supersteps.
        folder: Where its saver keeps them.
        durability: When.
    """
    count, thread = step.last, {"configurable": {"thread_id": "t"}}
    config: Any = {**thread, "recursion_limit": count + 10}
    seconds = work.seconds_of(
        lambda: app.invoke(0, config, durability=durability), count
    )

    def read() -> None:
        assert len(app.get_state(thread).values["log"]) >= count

    def history() -> None:
        assert len(list(app.get_state_history(thread, limit=10))) == min(10, count)

    return {
        "seconds": seconds,
        "ratio": growth(step.times),
        "state": work.seconds_of(read),
        "history": work.seconds_of(history),
        "bytes": work.bytes_in(folder) / count,
    }
