"""The outcome of each item of a chunk: what fails costs no other item anything."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import NodeTimeoutError
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from flowpregel.runtime import Runtime
from tests.runs.crashes import Once
from tests.runs.notes import Notes

ITEMS = [1, 2, 0, 4, 5, 6]
AGAIN = RetryPolicy(max_attempts=3, initial_interval=0.0, retry_on=OSError)


@task
def inverse(n: int) -> float:
    return 1 / n


def shown(result: Any) -> Any:
    """Return *result*, or the name of the class of an exception."""
    return type(result).__name__ if isinstance(result, Exception) else result


EXPECTED = [1.0, 0.5, "ZeroDivisionError", 0.25, 0.2, 1 / 6]


@pytest.mark.parametrize("how", ["map", "imap", "unordered"])
@pytest.mark.parametrize("saves", [False, True])
def test_each_item_has_its_own_result_or_exception(
    drive: Any, executor: str, how: str, saves: bool, tmp_path: Path
) -> None:
    """With ``errors="return"``, also where nothing is stored."""

    @entrypoint(executor=executor, checkpointer=tmp_path / "store" if saves else None)
    def flow(numbers: list[int]) -> list[Any]:
        if how == "map":
            futures = inverse.map(numbers, chunksize=3, errors="return")
            return [shown(future.result()) for future in futures]
        ordered = how == "imap"
        results = inverse.imap(numbers, chunksize=3, errors="return", ordered=ordered)
        return [shown(result) for result in results]

    results = drive.invoke(flow, ITEMS, thread_id="1")

    assert sorted(map(str, EXPECTED)) == sorted(map(str, results))
    if how != "unordered":
        assert EXPECTED == results


def test_a_coroutine_awaits_each_item(drive: Any) -> None:
    """By `await`, and by ``async for``."""

    @task
    async def later(n: int) -> float:
        return 1 / n

    @entrypoint(executor="threads")
    async def flow(numbers: list[int]) -> tuple[list[Any], list[Any]]:
        futures = later.map(numbers, chunksize=3, errors="return")
        awaited = [shown(await future) for future in futures]
        stream = later.imap(numbers, chunksize=3, errors="return")
        return awaited, [shown(result) async for result in stream]

    assert [EXPECTED, EXPECTED] == [*drive.invoke(flow, ITEMS)]


def test_only_the_failed_item_raises(drive: Any, executor: str) -> None:
    """Its exception names it, and the other futures of the chunk have no exception."""

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> list[Any]:
        futures = inverse.map(numbers, chunksize=3)
        with pytest.raises(ZeroDivisionError) as caught:
            futures[2].result()
        assert futures[1].exception() is None
        assert "in item 2 of a map: inverse(0)" in "".join(caught.value.__notes__)
        return [futures[0].result(), futures[1].result()]

    assert [1.0, 0.5] == drive.invoke(flow, ITEMS)


def test_a_failed_item_that_the_body_never_reads_fails_the_run(
    drive: Any, executor: str
) -> None:
    """Although the body has read another item of the chunk."""

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> float:
        return inverse.map(numbers, chunksize=3)[0].result()

    with pytest.raises(ZeroDivisionError):
        drive.invoke(flow, ITEMS)


def test_a_retry_calls_only_what_failed(drive: Any, executor: str) -> None:
    """The results of the other items are those of the first attempt."""
    ran = Notes()

    @task(retry_policy=AGAIN)
    def flaky(n: int) -> int:
        ran.append(n)
        if n == 2 and [*ran].count(2) < 3:
            raise OSError("not yet")
        return 2 * n

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> list[int]:
        return list(flaky.imap(numbers, chunksize=3))

    assert [2, 4, 6] == drive.invoke(flow, [1, 2, 3])
    assert [1, 2, 3, 2, 2] == [*ran]


def test_the_policy_judges_the_exception_of_each_item(
    drive: Any, executor: str
) -> None:
    """An item whose exception no policy matches is not tried again with the others."""
    ran = Notes()

    @task(retry_policy=AGAIN)
    def flaky(n: int) -> int:
        ran.append(n)
        if n == 1:
            raise KeyError("final")
        if n == 2 and [*ran].count(2) < 2:
            raise OSError("not yet")
        return 2 * n

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> list[Any]:
        return [
            *map(shown, flaky.imap(numbers, chunksize=4, errors="return")),
        ]

    assert ["KeyError", 4, 6] == drive.invoke(flow, [1, 2, 3])
    assert [1, 2, 3, 2] == [*ran]


def test_a_resumed_run_repeats_only_the_failed_items(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """Of the chunk that failed the run."""
    ran, fails = Notes(), tmp_path / "fails"
    fails.touch()

    @task
    def picky(n: int) -> int:
        ran.append(n)
        if n == 3 and fails.exists():
            raise OSError("not yet")
        return 2 * n

    @entrypoint(executor=executor, checkpointer=LMDBSaver(tmp_path / "store"))
    def flow(numbers: list[int]) -> list[int]:
        return [future.result() for future in picky.map(numbers, chunksize=3)]

    for _ in range(2):
        with pytest.raises(OSError, match="not yet"):
            flow.run([1, 2, 3, 4], id="a")
    fails.unlink()

    assert [2, 4, 6, 8] == flow.run([1, 2, 3, 4], id="a")
    assert [1, 2, 3, 3, 3, 4] == sorted(ran)


def test_a_failure_that_was_returned_is_recorded(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """A run that fails later gets the same outcomes, and calls nothing again."""
    ran, crash = Notes(), Once(ConnectionError("later"))

    @task
    def picky(n: int) -> float:
        ran.append(n)
        return 1 / n

    @entrypoint(executor=executor, checkpointer=LMDBSaver(tmp_path / "store"))
    def flow(numbers: list[int]) -> list[Any]:
        results = picky.imap(numbers, chunksize=3, errors="return")
        outcomes = [shown(result) for result in results]
        crash()
        return outcomes

    with pytest.raises(ConnectionError):
        flow.run(ITEMS, id="a")

    assert EXPECTED == flow.run(ITEMS, id="a")
    assert sorted(ITEMS) == sorted(ran)


def test_a_task_may_map_chunks_too(drive: Any, executor: str) -> None:
    """A body in a worker gets the outcomes over its link."""

    @task
    def inner(numbers: list[int]) -> list[Any]:
        results = inverse.imap(numbers, chunksize=3, errors="return")
        return [shown(result) for result in results]

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> Any:
        return inner(numbers).result()

    assert EXPECTED == drive.invoke(flow, ITEMS)


@pytest.mark.slow
def test_a_worker_that_dies_in_a_retry_costs_no_earlier_result(drive: Any) -> None:
    """The items without a result have the error of the chunk."""

    @task(retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.0))
    def flaky(n: int, runtime: Runtime[Any]) -> int:
        if n == 2:
            if runtime.execution_info.node_attempt == 2:
                import os

                os._exit(1)
            raise ConnectionError("once")
        return 2 * n

    @entrypoint(executor="processes")
    def flow(numbers: list[int]) -> list[Any]:
        results = flaky.imap(numbers, chunksize=3, errors="return")
        return [shown(result) for result in results]

    assert [2, "WorkerDiedError", 6] == drive.invoke(flow, [1, 2, 3])


@pytest.mark.slow
def test_a_timeout_applies_to_the_chunk(drive: Any) -> None:
    """Each of its items has the error."""

    @task(timeout=3)
    def endless(n: int) -> int:
        if n == 2:
            threading.Event().wait()
        return n

    @entrypoint(executor="processes")
    def flow(numbers: list[int]) -> list[Any]:
        results = endless.imap(numbers, chunksize=2, errors="return")
        return [type(result) for result in results]

    assert [NodeTimeoutError] * 2 + [int] == drive.invoke(flow, [1, 2, 3])


def test_the_value_that_a_function_saved_is_not_lost(drive: Any) -> None:
    """The next attempt of the item gets it, and not the outcomes of the chunk."""

    @task(retry_policy=AGAIN, executor="threads")
    def counted(n: int, runtime: Runtime[Any]) -> Any:
        if runtime.saved is None:
            runtime.save({"half": n})
            raise OSError("not yet")
        return runtime.saved

    @entrypoint()
    def flow(numbers: list[int]) -> list[Any]:
        return list(counted.imap(numbers, chunksize=1 + len(numbers)))

    assert [{"half": 7}] == drive.invoke(flow, [7])
