"""loky by itself: worker processes, nothing kept, nothing remembered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import loky

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def pool() -> Iterator[Any]:
    """Yield a warm pool with a worker for each core."""
    found = loky.ProcessPoolExecutor(work.CORES)
    try:
        list(found.map(work.pause, [0.2] * work.CORES))
        yield found
    finally:
        found.shutdown()


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial calls at once; the time is that of one."""
    with pool() as found:

        def turn() -> None:
            sum(
                each.result()
                for each in [found.submit(work.same, n) for n in range(count)]
            )

        yield lambda: work.seconds_of(turn, count)


@contextlib.contextmanager
def mapped(function: str, given: list[Any], chunk: int = 1) -> Working:
    """Yield a map over values; the time is that of all."""
    called = getattr(work, function)
    with pool() as found:

        def turn() -> float:
            items = work.values(*given)
            return work.seconds_of(
                lambda: list(found.map(called, items, chunksize=chunk))
            )

        yield turn


@contextlib.contextmanager
def submits(count: int) -> Working:
    """Yield calls, one after the other; the time is that of one."""
    with pool() as found:
        yield lambda: work.seconds_of(
            lambda: [found.submit(work.same, n).result() for n in range(count)], count
        )
