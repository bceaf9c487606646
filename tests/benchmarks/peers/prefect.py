"""Prefect: flows and tasks, with a server of its own for the time of the
measurement.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from prefect.testing.utilities import prefect_test_harness

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def server() -> Iterator[None]:
    """Start a server on a new SQLite database."""
    with prefect_test_harness(server_startup_timeout=60):
        yield


def runner(executor: str) -> Any:
    """Return a task runner of OS threads or of worker processes."""
    if executor == "threads":
        return ThreadPoolTaskRunner()
    return ProcessPoolTaskRunner(max_workers=work.CORES)


@contextlib.contextmanager
def steps(count: int) -> Working:
    """Yield a flow of *count* tasks, one after the other; the time is that of one."""
    step = task(work.same)

    @flow
    def one_by_one(count: int) -> int:
        return sum(step(n) for n in range(count))

    with server():
        yield lambda: work.seconds_of(lambda: one_by_one(count), count)


@contextlib.contextmanager
def gather(count: int, executor: str = "threads") -> Working:
    """Yield *count* trivial tasks at once; the time is that of one."""
    step = task(work.same)

    @flow(task_runner=runner(executor))
    def all_at_once(count: int) -> int:
        return sum(each.result() for each in [step.submit(n) for n in range(count)])

    with server():
        yield lambda: work.seconds_of(lambda: all_at_once(count), count)


@contextlib.contextmanager
def mapped(
    function: str, given: list[Any], executor: str = "processes", is_cold: bool = False
) -> Working:
    """Yield a map over values; the time is that of all.

    Args:
        function: Of `work`.
        given: The arguments of `work.values`.
        executor: Where the tasks run.
        is_cold: Whether the time includes the start of the workers. Prefect starts
            them for each run of a flow, and stops them at its end. If it does not, the
            time is taken within the flow, after a task for each worker.
    """
    step, pause = task(getattr(work, function)), task(work.pause)

    def map_all(items: list[Any]) -> int:
        return len([each.result() for each in [step.submit(item) for item in items]])

    @flow(task_runner=runner(executor), validate_parameters=False)
    def mapping(items: list[Any]) -> float:
        if not is_cold:
            for each in [pause.submit(0.2) for _ in range(work.CORES)]:
                each.result()
        return work.seconds_of(lambda: map_all(items))

    with server():

        def turn() -> float:
            items = work.values(*given)
            begun = time.perf_counter()
            seconds = mapping(items)
            return time.perf_counter() - begun if is_cold else seconds

        yield turn
