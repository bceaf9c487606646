"""Tasks on executors that somebody else made, and plain functions on ours."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.errors import ExecutorUnavailableError, WorkerDiedError
from flowpregel.executors.adapter import FuturesExecutor
from flowpregel.executors.processes import ProcessExecutor, default_pool
from flowpregel.store.memory import InMemoryStore
from tests.runs import jobs
from tests.runs.pooling import Run, error_of, parent, value_of

ENGINES = ["threads", "processes", "loky"]


def engine_of(kind: str) -> concurrent.futures.Executor:
    """Return an engine with two workers."""
    if kind == "threads":
        return concurrent.futures.ThreadPoolExecutor(2)
    if kind == "processes":
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(2, mp_context=context)
    import loky

    return loky.ProcessPoolExecutor(2)


@pytest.fixture(scope="module", params=ENGINES)
def adapted(request: pytest.FixtureRequest) -> Iterator[FuturesExecutor]:
    """An adapter around each kind of engine."""
    with engine_of(request.param) as engine:
        yield FuturesExecutor(engine)


@pytest.mark.slow
def test_a_task_runs_on_any_engine(adapted: Any) -> None:
    """It needs nothing but a plain submit."""
    assert 10 == value_of(Run(adapted).outcome(jobs.double, 5))


@pytest.mark.slow
def test_an_error_comes_back_from_any_engine(adapted: Any) -> None:
    """As itself."""
    assert isinstance(error_of(Run(adapted).outcome(jobs.fail)), ValueError)


@pytest.mark.slow
def test_a_call_from_a_task_is_refused_where_it_cannot_be_carried(adapted: Any) -> None:
    """Loudly, with what to use instead."""
    error = error_of(Run(adapted).outcome(parent, 1))

    assert isinstance(error, ExecutorUnavailableError)
    assert "executor='processes'" in str(error)


def test_the_store_is_refused_where_it_cannot_be_reached() -> None:
    """With what to do instead."""
    with engine_of("threads") as engine:
        error = error_of(
            Run(FuturesExecutor(engine)).outcome(jobs.put, store=InMemoryStore())
        )

    assert isinstance(error, ExecutorUnavailableError)
    assert "store" in str(error)


@pytest.mark.slow
def test_an_engine_that_breaks_fails_its_tasks() -> None:
    """A standard pool dies as a whole; the task is told what died."""
    with engine_of("processes") as engine:
        error = error_of(Run(FuturesExecutor(engine)).outcome(jobs.leave, 3))

    assert isinstance(error, WorkerDiedError)


def test_an_engine_says_what_it_cannot_do() -> None:
    """Asking for it fails at start."""
    with engine_of("threads") as engine:
        able = FuturesExecutor(engine).capabilities

    assert (False, False, False) == (able.times_out, able.streams, able.calls)


# ------------------------------------------------ ours, for plain functions


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers."""
    with ProcessExecutor(2, grace=0.3) as pool:
        yield pool


def test_plain_functions_run_in_workers(pool: ProcessExecutor) -> None:
    """Submitted, mapped and waited for as on any executor."""
    first = pool.submit(jobs.double, 2)
    done, _ = concurrent.futures.wait([first, pool.submit(os.getpid)])

    assert 2 == len(done)
    assert 4 == first.result()
    assert [0, 2, 4] == list(pool.map(jobs.double, range(3)))
    assert {1} == {
        each.result() for each in concurrent.futures.as_completed([pool.submit(int, 1)])
    }


def test_a_plain_function_raises_its_own_error(pool: ProcessExecutor) -> None:
    """As on any executor."""
    with pytest.raises(ValueError, match="boom"):
        pool.submit(jobs.fail, 1).result()


@pytest.mark.slow
def test_a_running_plain_function_can_be_cancelled(pool: ProcessExecutor) -> None:
    """Which other executors cannot."""
    futures = [pool.submit(time.sleep, 60) for _ in range(2)]

    assert all(future.cancel() for future in futures)
    assert 4 == pool.submit(jobs.double, 2).result(10)


def test_a_pool_that_was_shut_down_takes_nothing() -> None:
    """And its last calls have ended."""
    pool = ProcessExecutor(1)
    last = pool.submit(jobs.double, 3)
    pool.shutdown()

    assert 6 == last.result(0)
    with pytest.raises(RuntimeError):
        pool.submit(jobs.double, 3)


def test_a_job_for_a_closed_pool_fails() -> None:
    """Its run is told, as of any failure."""
    pool = ProcessExecutor(1)
    pool.close()

    assert isinstance(
        error_of(Run(pool).outcome(jobs.double, 1)), ExecutorUnavailableError
    )


def test_the_default_pool_is_one_and_is_made_anew_after_it_was_closed() -> None:
    """Whoever closes it disturbs nobody who comes later."""
    first = default_pool()
    assert first is default_pool()
    first.close()

    assert first is not default_pool()
    default_pool().close()


@pytest.mark.slow
def test_an_initializer_that_fails_says_why() -> None:
    """To the tasks that wait for it."""
    with ProcessExecutor(1, initializer=jobs.refuse) as pool:
        error = error_of(Run(pool).outcome(jobs.double, 1))

    assert "no licence" in str(error)


@pytest.mark.slow
def test_a_worker_is_replaced_after_its_tasks() -> None:
    """A leak cannot grow for ever."""
    with ProcessExecutor(1, worker_max_tasks=2) as pool:
        pids = [value_of(Run(pool).outcome(jobs.pid)) for _ in range(4)]

    assert 2 == len(set(pids))


@pytest.mark.slow
def test_a_worker_that_has_grown_too_large_is_replaced() -> None:
    """Between tasks."""
    with ProcessExecutor(1, worker_max_rss=150 << 20) as pool:
        large = value_of(Run(pool).outcome(jobs.leak, 150 << 20))

        assert large != value_of(Run(pool).outcome(jobs.pid))


def test_a_resource_is_made_once_in_a_worker() -> None:
    """And used by all its tasks."""
    with ProcessExecutor(1) as pool:
        used = {value_of(Run(pool).outcome(jobs.use_model)) for _ in range(3)}

    assert 1 == len(used)


def test_numeric_libraries_get_their_share_of_the_cpus() -> None:
    """Before they are imported, unless the user has decided."""
    with ProcessExecutor(1, env={"OPENBLAS_NUM_THREADS": "7"}) as pool:
        assert "7" == value_of(Run(pool).outcome(jobs.caps))
