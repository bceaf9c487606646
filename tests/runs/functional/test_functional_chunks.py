"""`task.map(chunksize=n)`: many items in one recorded call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_config
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.policies import CachePolicy, RetryPolicy

SAVERS = pytest.mark.parametrize(
    "saver", [None, InMemorySaver], ids=["volatile", "durable"]
)


@task
def double(n: int) -> int:
    return 2 * n


@task
async def double_later(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def sync_flow(called: Any, executor: str, **options: Any) -> Any:
    @entrypoint(executor=executor, **options)
    def flow(numbers: list[int]) -> list[int]:
        return [future.result() for future in called.map(numbers, chunksize=3)]

    return flow


def async_flow(called: Any, executor: str, **options: Any) -> Any:
    @entrypoint(executor=executor, **options)
    async def flow(numbers: list[int]) -> list[int]:
        return list(await asyncio.gather(*called.map(numbers, chunksize=3)))

    return flow


@SAVERS
@pytest.mark.parametrize(
    "called", [double, double_later], ids=["sync task", "async task"]
)
@pytest.mark.parametrize(
    "make", [sync_flow, async_flow], ids=["sync body", "async body"]
)
def test_results_come_in_the_order_of_the_items(
    drive: Any, executor: str, make: Callable[..., Any], called: Any, saver: Any
) -> None:
    """Also where the last chunk is shorter."""
    flow = make(called, executor, checkpointer=saver and saver())

    assert [0, 2, 4, 6, 8, 10, 12] == drive.invoke(flow, list(range(7)), thread_id="1")


@task
def power(base: int, exponent: int) -> int:
    return int(base**exponent)


def test_several_iterables_give_several_arguments(drive: Any, executor: str) -> None:
    """As without chunks; and they have to be equally long."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[int]:
        with pytest.raises(ValueError, match="zip"):
            power.map([1], [2, 3], chunksize=2)
        return [each.result() for each in power.map([2, 3, 4], [3, 2, 1], chunksize=2)]

    assert [8, 9, 4] == drive.invoke(flow, 0)


@task
def inverse(n: int) -> float:
    return 1 / n


def test_an_item_that_fails_is_named(drive: Any, executor: str) -> None:
    """The other items of its chunk do not fail."""

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> tuple[float, list[str]]:
        futures = inverse.map(numbers, chunksize=2)
        error = futures[3].exception()
        assert isinstance(error, ZeroDivisionError)
        assert futures[2].exception() is None
        assert 0.25 == futures[2].result()
        return futures[0].result(), error.__notes__

    first, notes = drive.invoke(flow, [1, 2, 4, 0, 5])

    assert 1.0 == first
    assert any("in item 3 of a map: inverse(0)" in note for note in notes)


@task
def thread_of(n: int, config: Any) -> tuple[int, str]:
    return n, config["configurable"]["thread_id"]


@task
def thread_asked(n: int) -> tuple[int, str]:
    return n, get_config()["configurable"]["thread_id"]


@pytest.mark.parametrize("called", [thread_of, thread_asked])
def test_what_a_task_asks_for_is_given_to_each_item(
    drive: Any, executor: str, called: Any
) -> None:
    """By parameter or by function."""
    flow = sync_flow(called, executor)

    found = drive.invoke(flow, [1, 2, 3, 4], thread_id="a thread")

    assert [(n, "a thread") for n in (1, 2, 3, 4)] == [tuple(each) for each in found]


@task
def note(path: str, n: int) -> int:
    with Path(path).open("a") as file:
        file.write(f"{n} ")
    return n


def test_a_chunk_that_was_recorded_is_not_run_again(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """Nor is it run again by a body that has more items now."""
    ran = tmp_path / "ran"
    fails = [True]

    @entrypoint(executor=executor, checkpointer=LMDBSaver(tmp_path / "store"))
    def flow(numbers: list[int]) -> int:
        made = note.map([str(ran)] * len(numbers), numbers, chunksize=2)
        total = sum(each.result() for each in made)
        if fails.pop():
            raise RuntimeError("once")
        return total

    fails.append(False)
    fails.reverse()
    with pytest.raises(RuntimeError, match="once"):
        drive.invoke(flow, [1, 2, 3, 4, 5], thread_id="1")

    assert 15 == drive.invoke(flow, None, thread_id="1")
    assert [1, 2, 3, 4, 5] == sorted(map(int, ran.read_text().split()))


@task(retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.0, retry_on=OSError))
def fails_once(path: str, n: int) -> int:
    marker = Path(path)
    if n == 2 and not marker.exists():
        marker.touch()
        raise OSError("not yet")
    return n


def test_a_chunk_is_tried_again(drive: Any, executor: str, tmp_path: Path) -> None:
    """By the task's own policy."""

    @entrypoint(executor=executor)
    def flow(path: str) -> list[int]:
        made = fails_once.map([path] * 3, [1, 2, 3], chunksize=3)
        return [each.result() for each in made]

    assert [1, 2, 3] == drive.invoke(flow, str(tmp_path / "marker"))


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_makes_no_sense_is_refused(drive: Any, size: int) -> None:
    """By name."""

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        double.map([1], chunksize=size)

    with pytest.raises(ConfigurationError, match="chunksize"):
        drive.invoke(flow, 0)


def test_a_task_with_a_cache_policy_is_not_mapped_in_chunks(drive: Any) -> None:
    """Its results are shared call by call."""
    cached = double.with_options(cache_policy=CachePolicy())

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        cached.map([1], chunksize=2)

    with pytest.raises(ConfigurationError, match="shares its results"):
        drive.invoke(flow, 0)
