"""Parsl: apps in worker processes of its high-throughput executor, on this machine.

With ``kept`` it writes a checkpoint file at the end of each task (``task_exit``), from
which a later run is answered. It does not flush that file.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parsl
from parsl.app.app import python_app
from parsl.config import Config
from parsl.dataflow.memoization import BasicMemoizer
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

from tests.benchmarks import work
from tests.benchmarks.model import Working


def configuration(folder: Path, *, kept: bool) -> Config:
    """Return a configuration with a worker process for each core."""
    executor = HighThroughputExecutor(
        label="bench",
        address="127.0.0.1",
        max_workers_per_node=work.CORES,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    return Config(
        executors=[executor],
        memoizer=BasicMemoizer(checkpoint_mode="task_exit") if kept else None,
        run_dir=str(folder),
        initialize_logging=False,
        usage_tracking=0,
    )


@contextlib.contextmanager
def loaded(*, kept: bool = False) -> Iterator[Callable[..., Any]]:
    """Yield a maker of apps, with warm workers."""
    with work.folder() as folder:
        kernel = parsl.load(configuration(folder, kept=kept))
        try:
            pause = python_app(work.pause)
            for future in [pause(0.2) for _ in range(work.CORES)]:
                future.result()
            yield lambda function: python_app(function, cache=kept)
        finally:
            kernel.cleanup()
            parsl.clear()


@contextlib.contextmanager
def gather(count: int, kept: bool = False) -> Working:
    """Yield *count* trivial tasks at once; the time is that of one.

    Args:
        count: How many.
        kept: Whether a checkpoint is written for each. No two tasks are equal, since
            an equal one would be answered from the checkpoint.
    """
    numbers = itertools.count()
    with loaded(kept=kept) as app:
        same = app(work.same)

        def turn() -> None:
            futures = [same(next(numbers)) for _ in range(count)]
            sum(future.result() for future in futures)

        yield lambda: work.seconds_of(turn, count)


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a map over values; the time is that of all."""
    with loaded() as app:
        called = app(getattr(work, function))

        def turn() -> float:
            items = work.values(*given)
            return work.seconds_of(
                lambda: [future.result() for future in [called(item) for item in items]]
            )

        yield turn
