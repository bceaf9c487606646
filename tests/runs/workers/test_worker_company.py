"""Workers beside other users of processes: loky, multiprocessing, threads, in and
around tasks.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import loky
import pytest

from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, value_of, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of two workers."""
    with ProcessExecutor(2, grace=0.5) as pool:
        yield pool


def pid(_: Any = None) -> int:
    return os.getpid()


def wait_for_file(file: str) -> int:
    """Run until the file is there."""
    wait_until(lambda: os.path.exists(file))
    return os.getpid()


@pytest.mark.slow
def test_another_librarys_reusable_executor_disturbs_no_task(
    run: Run, tmp_path: Any
) -> None:
    """It is made, resized and shut down while our tasks run: they are not its."""
    file = tmp_path / "go on"
    jobs = [run.start(wait_for_file, str(file)) for _ in range(2)]

    for workers, seconds in ((1, 10), (2, 20), (1, 30)):
        theirs = loky.get_reusable_executor(max_workers=workers, timeout=seconds)
        assert os.getpid() != theirs.submit(os.getpid).result(30)
    theirs.shutdown(kill_workers=True)
    file.write_text("now")

    assert 2 == len({value_of(each) for each in run.outcomes(*jobs)})


def use_multiprocessing(count: int) -> tuple[str | None, list[int]]:
    with multiprocessing.Pool(2) as pool:
        return multiprocessing.get_start_method(), pool.map(abs, range(-count, 0))


def use_loky(count: int) -> list[int]:
    with loky.ProcessPoolExecutor(2) as pool:
        return list(pool.map(abs, range(-count, 0)))


def use_threads(count: int) -> list[int]:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(abs, range(-count, 0)))


def use_a_pool_of_ours(count: int) -> list[int]:
    with ProcessExecutor(2) as pool:
        return list(pool.map(abs, range(-count, 0)))


@pytest.mark.slow
def test_a_task_may_start_a_multiprocessing_pool(run: Run) -> None:
    """By spawn: with loky's own method, its children would start themselves without
    end.
    """
    assert ("spawn", [3, 2, 1]) == value_of(run.outcome(use_multiprocessing, 3))


@pytest.mark.slow
@pytest.mark.parametrize("use", [use_loky, use_threads, use_a_pool_of_ours])
def test_a_task_may_start_other_executors(run: Run, use: Any) -> None:
    """loky's, threads, and one of ours."""
    assert [3, 2, 1] == value_of(run.outcome(use, 3))


_left: list[threading.Thread] = []


def leave_a_thread(_: Any) -> int:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    _left.append(thread)
    return os.getpid()


def test_a_thread_that_a_task_leaves_behind_keeps_no_worker(run: Run) -> None:
    """The worker takes its next task, and ends with the pool."""
    with ProcessExecutor(1) as pool:
        own = Run(pool)
        worker = value_of(own.outcome(leave_a_thread))

        assert worker == value_of(own.outcome(pid))


@pytest.mark.slow
def test_a_hundred_short_lived_os_threads_cost_no_worker(run: Run) -> None:
    """Each starts a run and ends: workers are not children of the OS thread that needed
    them.
    """
    pids = set()
    for _ in range(100):
        thread = threading.Thread(
            target=lambda: pids.add(value_of(Run(run.pool).outcome(pid)))
        )
        thread.start()
        thread.join()

    assert len(pids) <= 2
