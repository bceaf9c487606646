"""Plain functions in the workers of a pool: the test plays the workers, or they are
forks.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flowpregel._core.records import Raised
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.processes.wire import protocol
from tests.unit.executors.quick_pools import (
    LONG,
    Events,
    ForkedPool,
    PoolMaker,
    job_of,
    quick_pools,
)

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def forks_of() -> Iterator[Callable[..., ForkedPool]]:
    """Return what makes pools of a size whose workers are forks."""
    yield from quick_pools(ForkedPool)


@pytest.fixture
def pool(forks_of: Callable[..., ForkedPool]) -> ForkedPool:
    """Return a pool whose worker is a fork."""
    return forks_of(1)


# ------------------------------------------------ results


def test_a_function_is_called_elsewhere_and_its_result_comes_back(
    pool: ForkedPool,
) -> None:
    """Or its own error."""
    assert os.getpid() != pool.submit(os.getpid).result(LONG)
    assert 255 == pool.submit(int, "ff", base=16).result(LONG)
    assert isinstance(pool.submit(int, "x").exception(LONG), ValueError)


def test_a_call_that_fails_is_known_as_such_before_its_error_is_read(
    pool_of: PoolMaker,
) -> None:
    """Who waits for the first failure need not wait for the others."""
    pool = pool_of(1)
    futures = [pool.submit(abs, number) for number in range(3)]
    worker = pool.worker().ready()
    worker.run(0)
    worker.end_task(worker.order(), Raised(ValueError("no luck")))

    done, _ = concurrent.futures.wait(futures, LONG, concurrent.futures.FIRST_EXCEPTION)

    assert {*futures[:2]} == done
    assert "no luck" == str(futures[1].exception())
    assert 0 == futures[0].result()


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("x",)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_call_that_cannot_travel_fails(is_sent: bool, pool_of: PoolMaker) -> None:
    """With an error that names it, whichever way it was to go."""
    pool = pool_of(1)
    future = pool.submit(len, "" if is_sent else threading.Lock())  # type: ignore[arg-type]
    if is_sent:
        pool.worker().ready().run(Unreadable())

    error = future.exception(LONG)

    assert isinstance(error, TaskSerializationError)
    assert "'len'" in str(error)


@pytest.mark.parametrize("chunksize", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(
    chunksize: int, pool: ForkedPool
) -> None:
    """However many are sent as one call; the shortest of the iterables ends it."""
    results = pool.map(pow, [2, 3, 4], [5, 2, 3, 9], chunksize=chunksize, timeout=LONG)

    assert [32, 9, 64] == [*results]


@pytest.mark.parametrize("chunksize", [0, -1])
def test_chunks_without_items_are_refused(chunksize: int, pool_of: PoolMaker) -> None:
    """At once."""
    with pytest.raises(ValueError, match=f"chunksize is {chunksize}"):
        pool_of(1).map(abs, [1], chunksize=chunksize)


def test_a_chunk_is_one_call(pool_of: PoolMaker) -> None:
    """It has the name of the function."""
    pool = pool_of(1)
    results = pool.map(abs, [-1, -2, -3], chunksize=2)
    worker = pool.worker().ready()

    orders = [worker.run([1, 2]), worker.run([3])]

    assert [1, 2, 3] == [*results]
    assert ["abs", "abs"] == [order.name for order in orders]


def test_an_item_alone_is_the_argument_of_its_call(pool_of: PoolMaker) -> None:
    """The result is the call's own."""
    pool = pool_of(1)
    results = pool.map(abs, [-1, -2], timeout=LONG)
    worker = pool.worker().ready()

    for result in (1, 2):
        worker.run(result)

    assert [1, 2] == [*results]


@pytest.mark.parametrize("timeout", [0.0, -0.5])
def test_a_result_that_has_arrived_is_returned_though_no_time_is_left(
    timeout: float, pool_of: PoolMaker
) -> None:
    """As the futures of the standard library do."""
    pool = pool_of(1)
    futures = [pool.submit(abs, -1), pool.submit(abs, -2)]
    worker = pool.worker().ready()
    for result in (1, 2):
        worker.run(result)
    concurrent.futures.wait(futures, LONG)

    assert 1 == futures[0].result(timeout)
    assert futures[1].exception(timeout) is None


def test_a_callback_is_called_where_it_holds_up_no_run(pool_of: PoolMaker) -> None:
    """With the future, on an OS thread that is not the pool's; at once, if the call has
    ended.
    """
    pool = pool_of(1)
    called: list[tuple[object, threading.Thread]] = []
    is_called = threading.Event()

    def note(future: object) -> None:
        called.append((future, threading.current_thread()))
        is_called.set()

    future = pool.submit(abs, -1)
    future.add_done_callback(note)
    pool.worker().ready().run(1)
    assert is_called.wait(LONG)
    future.add_done_callback(note)

    assert [future, future] == [given for given, _ in called]
    assert "flowpregel-callbacks" == called[0][1].name
    assert threading.current_thread() is called[1][1]


# ------------------------------------------------ cancelling


def test_a_running_call_that_is_cancelled_is_stopped(pool_of: PoolMaker) -> None:
    """One that has ended is not: it has its result."""
    pool = pool_of(1)
    future = pool.submit(abs, -1)
    worker = pool.worker().ready()
    order = worker.order()

    assert future.cancel()

    pool.until(worker.process.has_stop_signal)
    assert future.cancelled()
    worker.end_task(order, Raised(ValueError()), flags=protocol.STOPPED)
    ended = pool.submit(abs, -2)
    worker.run(2)
    assert 2 == ended.result(LONG)
    assert not ended.cancel()


def test_what_runs_is_known_with_its_worker_and_since_when(pool_of: PoolMaker) -> None:
    """What waits behind it is not."""
    before = time.time_ns()
    pool, events = pool_of(1), Events()
    jobs = [job_of() for _ in range(2)]
    pool.start(jobs, events)
    worker = pool.worker().ready()
    order = worker.order()

    ((key, (pid, began)),) = pool.running().items()

    assert (jobs[0].key, worker.pid) == (key, pid)
    assert before <= began <= time.time_ns()
    assert worker.pid in pool.worker_pids()
    worker.end_task(order)


# ------------------------------------------------ the end of a pool


@pytest.mark.parametrize("wait", [True, False])
def test_a_pool_that_is_shut_down_ends_when_its_calls_have(
    wait: bool, pool_of: PoolMaker
) -> None:
    """It takes no more of them meanwhile."""
    pool = pool_of(1)
    future = pool.submit(abs, -1)
    worker = pool.worker().ready()
    order = worker.order()
    shut_down = partial(pool.shutdown, wait=wait)
    closing = threading.Thread(target=shut_down)
    closing.start()
    if not wait:
        closing.join(LONG)
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(abs, -2)
    assert wait == closing.is_alive()

    worker.end_task(order, 1)

    assert 1 == future.result(LONG)
    worker.exit()
    closing.join(LONG)
    assert not closing.is_alive()
    pool.until(lambda: pool.is_closed)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, -2)


def test_a_pool_that_is_shut_down_may_cancel_its_calls(pool_of: PoolMaker) -> None:
    """Those that run are stopped."""
    pool = pool_of(1, grace=0.01)
    futures = [pool.submit(abs, -1) for _ in range(3)]
    pool.worker().ready().order()

    pool.shutdown(cancel_futures=True)

    assert all(future.cancelled() for future in futures)
    assert pool.is_closed


def test_a_call_that_is_open_when_its_pool_is_closed_ends(pool_of: PoolMaker) -> None:
    """Nobody waits for it for ever; a pool may be closed twice."""
    pool = pool_of(1)
    future = pool.submit(abs, -1)
    pool.worker().ready().order()

    pool.close()
    pool.close()

    with pytest.raises(RuntimeError, match="closed"):
        future.result(LONG)
