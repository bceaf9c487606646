"""``concurrent.futures`` by itself: what handing over costs."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any

from tests.benchmarks import work
from tests.benchmarks.model import Working


def executor(kind: str) -> Any:
    """Return an executor of OS threads or of worker processes."""
    if kind == "threads":
        return concurrent.futures.ThreadPoolExecutor(work.CORES)
    return concurrent.futures.ProcessPoolExecutor(work.CORES)


@contextlib.contextmanager
def submits(count: int, kind: str) -> Working:
    """Yield calls, one after the other; the time is that of one."""
    with executor(kind) as pool:
        list(pool.map(work.pause, [0.1] * work.CORES))
        yield lambda: work.seconds_of(
            lambda: [pool.submit(work.same, n).result() for n in range(count)], count
        )


@contextlib.contextmanager
def gather(count: int, kind: str) -> Working:
    """Yield *count* trivial calls at once; the time is that of one."""
    with executor(kind) as pool:
        list(pool.map(work.pause, [0.1] * work.CORES))

        def turn() -> None:
            sum(
                each.result()
                for each in [pool.submit(work.same, n) for n in range(count)]
            )

        yield lambda: work.seconds_of(turn, count)


@contextlib.contextmanager
def ideal(seconds: float) -> Working:
    """Yield the time that the cores need at least for *seconds* of work."""
    yield lambda: seconds / work.CORES
