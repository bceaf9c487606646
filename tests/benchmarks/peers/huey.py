"""huey: a queue of tasks in a SQLite file, and a consumer with worker processes.

SQLite flushes at each commit (``fsync=True``). The consumer and the program ask for
tasks and results every millisecond. By default they ask every tenth of a second, or
less often, and a turn would measure little else. The consumer runs during a turn alone,
since its questions would slow the other sides.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from huey import SqliteHuey

from tests.benchmarks import work
from tests.benchmarks.model import Working

POLL = 0.001
"""Seconds between two questions to the queue."""


def called(function: str, value: Any) -> Any:
    """Call a function of `work`."""
    return getattr(work, function)(value)


@contextlib.contextmanager
def consumer() -> Iterator[Callable[[str, Any], Any]]:
    """Yield the task of a queue in a new file, with a worker process for each core."""
    logging.getLogger("huey").setLevel(logging.ERROR)
    with work.folder() as folder:
        queue = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)
        task = queue.task()(called)
        workers = queue.create_consumer(
            workers=work.CORES,
            worker_type="process",
            periodic=False,
            initial_delay=POLL,
            max_delay=POLL,
        )
        workers.start()
        try:
            all_of(task, "same", range(work.CORES))
            yield task
        finally:
            workers.stop(graceful=True)


def all_of(task: Callable[[str, Any], Any], function: str, items: Any) -> list[Any]:
    """Call a function of `work` for each item, at once, and return the results."""
    results = [task(function, item) for item in items]
    return [result.get(blocking=True, max_delay=POLL) for result in results]


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial tasks at once; the time is that of one."""

    def turn() -> float:
        with consumer() as task:
            return work.seconds_of(lambda: all_of(task, "same", range(count)), count)

    yield turn


@contextlib.contextmanager
def steps(count: int) -> Working:
    """Yield *count* tasks, one after the other; the time is that of one."""

    def one_by_one(task: Callable[[str, Any], Any]) -> None:
        for number in range(count):
            all_of(task, "same", [number])

    def turn() -> float:
        with consumer() as task:
            return work.seconds_of(lambda: one_by_one(task), count)

    yield turn


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a map over values; the time is that of all."""

    def turn() -> float:
        items = work.values(*given)
        with consumer() as task:
            return work.seconds_of(lambda: all_of(task, function, items))

    yield turn
