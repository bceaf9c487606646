"""`ProcessExecutor.map`: many plain calls at once."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import wait_until

LONG = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, which a call that was not cancelled would block."""
    with ProcessExecutor(1, grace=0.3) as pool:
        yield pool


def add(left: int, right: int) -> int:
    return left + right


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_results_come_in_the_order_of_the_calls(pool: ProcessExecutor) -> None:
    """However they were grouped; the shortest iterable says how many there are."""
    assert [3 * number for number in range(2_000)] == list(
        pool.map(add, range(2_000), range(0, 9_000, 2))
    )


def test_calls_whose_results_nobody_takes_any_more_are_stopped(
    pool: ProcessExecutor,
) -> None:
    """When the iterator of results is closed."""
    results = pool.map(nap, [0.0, LONG, LONG])
    assert 0.0 == next(results)

    results.close()  # type: ignore[attr-defined]

    assert 3 == pool.submit(add, 1, 2).result(LONG / 2)


def test_a_result_that_is_not_there_in_time_ends_the_map(pool: ProcessExecutor) -> None:
    """And stops what is left of it."""
    with pytest.raises(TimeoutError):
        list(pool.map(nap, [LONG, LONG], timeout=0.05))

    assert 3 == pool.submit(add, 1, 2).result(LONG / 2)


def test_an_error_is_raised_where_its_result_would_have_come(
    pool: ProcessExecutor,
) -> None:
    """After those before it."""
    results = pool.map(add, [1, "1"], [1, 1])

    assert 2 == next(results)
    with pytest.raises(TypeError):
        next(results)


class Closing:
    """A function that closes its pool when it is packed.

    Args:
        pool: Where it is submitted.
    """

    def __init__(self, pool: ProcessExecutor) -> None:
        self.pool = pool

    def __call__(self) -> None:
        """Never called."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.pool.close()
        return int, ()


def test_a_call_that_is_submitted_while_its_pool_is_closed_ends() -> None:
    """Though no worker was ever started for it."""
    pool = ProcessExecutor(1)

    with pytest.raises(ExecutorUnavailableError, match="closed"):
        pool.submit(Closing(pool)).result(LONG)


class Large:
    """What a task is given; refers to the last one."""

    last: weakref.ref[Large] | None = None


def is_freed(given: Large) -> bool:
    """Return whether what the last call was given is gone, without the garbage
    collector.
    """
    gc.disable()
    last, Large.last = Large.last, weakref.ref(given)
    return last is None or last() is None


def test_what_a_task_was_given_is_freed_when_it_ends(pool: ProcessExecutor) -> None:
    """A large array would stay mapped, and its memory could not be used again."""
    assert [True, True, True] == list(pool.map(is_freed, [Large(), Large(), Large()]))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_pool_may_be_ended_where_a_result_is_told(end: str) -> None:
    """In a callback of its future: other calls end too, and so do the workers."""
    pool = ProcessExecutor(2, grace=0.3)
    ended = Future[None]()

    def end_it(_: object) -> None:
        getattr(pool, end)()
        ended.set_result(None)

    other = pool.submit(nap, LONG if end == "close" else 0.5)
    pool.submit(add, 1, 2).add_done_callback(end_it)

    ended.result(LONG / 2)
    assert (end == "close") == isinstance(other.exception(LONG / 2), RuntimeError)
    wait_until(lambda: not pool.worker_pids(), LONG / 2)


@pytest.mark.slow
def test_a_worker_that_has_ended_runs_nothing() -> None:
    """Who watches a pool may look at one that ends just then."""
    with ProcessExecutor(1) as pool:
        assert 3 == pool.submit(add, 1, 2).result()
        (worker,) = pool._pool.workers  # noqa: SLF001 - as a watcher may see it

    assert worker.running() is None


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5_000])
def test_results_of_chunks_come_in_the_order_of_the_items(
    pool: ProcessExecutor, size: int
) -> None:
    """Whatever their size; the shortest iterable says how many items there are."""
    assert [3 * number for number in range(1_001)] == list(
        pool.map(add, range(1_001), range(0, 9_000, 2), chunksize=size)
    )


def test_a_chunk_is_one_call(pool: ProcessExecutor) -> None:
    """Of 10 items in chunks of 4 three messages are made, and three calls are open at
    most.
    """
    made: list[str] = []

    class Noting(ProcessExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            made.append(fn.__name__)
            return pool.submit(fn, *args, **kwargs)

    with Noting(1) as noting:
        results = noting.map(add, range(10), range(10), chunksize=4)

        assert ["add"] * 3 == made
        assert [2 * number for number in range(10)] == [*results]


def test_an_error_in_a_chunk_is_raised_as_the_standard_library_does(
    pool: ProcessExecutor,
) -> None:
    """Where the results of its chunk would have come: those of the chunks before it are
    there.
    """
    given = [1, 2, "3", 4, 5, 6], [1] * 6

    def until_error(executor: Executor) -> list[Any]:
        results = executor.map(add, *given, chunksize=2)
        seen: list[Any] = []
        try:
            seen.extend(results)
        except TypeError:
            seen.append(TypeError)
        return seen

    with ProcessPoolExecutor(1, get_context("spawn")) as theirs:
        expected = until_error(theirs)

    assert [2, 3, TypeError] == expected == until_error(pool)


@pytest.mark.parametrize("size", [0, -1])
def test_chunks_of_no_items_are_refused(pool: ProcessExecutor, size: int) -> None:
    """At the call."""
    with pytest.raises(ValueError, match="chunksize"):
        pool.map(add, [1], [1], chunksize=size)


def test_chunks_whose_results_nobody_takes_any_more_are_stopped(
    pool: ProcessExecutor,
) -> None:
    """When the iterator of results is closed."""
    results = pool.map(nap, [0.0, 0.0, LONG, LONG], chunksize=2)
    assert 0.0 == next(results)

    results.close()  # type: ignore[attr-defined]

    assert 3 == pool.submit(add, 1, 2).result(LONG / 2)
