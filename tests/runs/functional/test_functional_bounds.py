"""What many tasks cost: the same each, and no memory that nobody holds on to."""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task


@task
def double(n: int) -> int:
    return 2 * n


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drive", "executor"),
    [("async", "inline"), ("async", "threads"), ("sync", "processes")],
    indirect=True,
)
def test_thousands_of_futures_are_in_flight_at_once(drive: Any, executor: str) -> None:
    """All are submitted before the first is looked at."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return sum(future.result() for future in double.map(range(n)))

    assert 8_997_000 == drive.invoke(flow, 3_000, thread_id="1", durability="exit")


class Big:
    """A result of which every instance in this process is watched, wherever it came
    from.
    """

    alive: ClassVar[weakref.WeakSet[Big]] = weakref.WeakSet()

    def __init__(self) -> None:
        Big.alive.add(self)

    def __reduce__(self) -> Any:
        return Big, ()


@task
def make(n: int) -> Big:
    return Big()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync body", "async body"])
def test_results_that_the_body_drops_are_gone(
    drive: Any, executor: str, is_async: bool
) -> None:
    """At most one of a hundred is alive at any time, beside those on their way."""
    most = 0

    def note() -> None:
        nonlocal most
        gc.collect(0)
        most = max(most, len(Big.alive))

    @entrypoint(executor=executor)
    def flow(n: int) -> None:
        for i in range(n):
            big = make(i).result()
            note()
            del big

    @entrypoint(executor=executor)
    async def aflow(n: int) -> None:
        for i in range(n):
            big = await make(i)
            note()
            del big

    drive.invoke(aflow if is_async else flow, 100)

    assert 1 <= most <= 5
