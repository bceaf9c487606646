"""What many tasks cost: the same each, and no memory that nobody holds on to."""

from __future__ import annotations

import gc
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
