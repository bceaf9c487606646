"""Prefect: flows and tasks, with a server of its own for the time of the
measurement.
"""

from __future__ import annotations

import contextlib
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
def mapped(function: str, given: list[Any], executor: str = "processes") -> Working:
    """Yield a map over values; the time is that of all."""
    step = task(getattr(work, function))

    @flow(task_runner=runner(executor), validate_parameters=False)
    def map_all(items: list[Any]) -> int:
        return len([each.result() for each in [step.submit(item) for item in items]])

    with server():

        def turn() -> float:
            items = work.values(*given)
            return work.seconds_of(lambda: map_all(items))

        yield turn
