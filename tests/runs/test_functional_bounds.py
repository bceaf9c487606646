"""What many tasks cost: the same each, and no memory that nobody holds on to."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task


@task
def double(n: int) -> int:
    return 2 * n


@pytest.mark.slow
def test_ten_thousand_futures_are_in_flight_at_once(drive: Any, executor: str) -> None:
    """All are submitted before the first is looked at."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return sum(future.result() for future in double.map(range(n)))

    assert 99_990_000 == drive.invoke(flow, 10_000, thread_id="1", durability="exit")


@pytest.mark.slow
def test_a_task_costs_the_same_among_many(drive: Any) -> None:
    """4,000 submitted at once cost at most twice as much each as 500 do."""

    @entrypoint(executor="inline")
    def flow(n: int) -> int:
        return sum(future.result() for future in double.map(range(n)))

    def seconds_each(n: int) -> float:
        started = time.perf_counter()
        drive.invoke(flow, n)
        return (time.perf_counter() - started) / n

    # What other tests left in memory must not be looked through on the way.
    gc.collect()
    gc.freeze()
    try:
        measured = [(seconds_each(500), seconds_each(4_000)) for _ in range(6)]
    finally:
        gc.unfreeze()

    assert min(many for _, many in measured[1:]) < 2 * min(few for few, _ in measured[1:])


class Big:
    """A result that can be watched."""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync body", "async body"])
def test_results_that_the_body_drops_are_gone(drive: Any, executor: str, is_async: bool) -> None:
    """At most one of a hundred is alive at any time, beside those on their way."""
    alive: weakref.WeakSet[Big] = weakref.WeakSet()
    most = 0

    @task
    def make(n: int) -> Big:
        big = Big()
        alive.add(big)
        return big

    def note() -> None:
        nonlocal most
        gc.collect(0)
        most = max(most, len(alive))

    @entrypoint(executor=executor)
    def flow(n: int) -> None:
        for i in range(n):
            make(i).result()
            note()

    @entrypoint(executor=executor)
    async def aflow(n: int) -> None:
        for i in range(n):
            await make(i)
            note()

    drive.invoke(aflow if is_async else flow, 100)

    assert most <= 5


@pytest.mark.slow
def test_a_resume_costs_microseconds_for_each_finished_task(executor: str) -> None:
    """Ten times as many finished tasks cost at most fifteen times as much."""
    saver = InMemorySaver()

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(given: dict[str, Any]) -> int:
        total = sum(future.result() for future in double.map(range(given["n"])))
        if given["n"] and not resumed:
            raise OSError("crash")
        return total

    def seconds(n: int) -> float:
        resumed.clear()
        with pytest.raises(OSError, match="crash"):
            flow.invoke({"n": n}, thread_id=str(n), durability="exit")
        resumed.append(n)
        started = time.perf_counter()
        flow.invoke(None, thread_id=str(n), durability="exit")
        return time.perf_counter() - started

    resumed: list[int] = []
    seconds(100)
    few, many = seconds(1_000), seconds(10_000)

    assert many < 15 * max(few, 0.02)
