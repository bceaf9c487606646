"""Dask and Ray as they are, and with our executor: the same work on the same kind of cluster."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors.shared import shared
from flowpregel.func import entrypoint, task
from tests.benchmarks import work
from tests.benchmarks.model import Working

BIG = 10 << 20
MODEL = 2 << 20


def part_of(number: int, model: Any) -> float:
    """Return one number of a model."""
    return float(model[number])


def doubled(array: Any) -> Any:
    """Return another array."""
    return 2 * array


def busy(number: int) -> int:
    """Use the CPU for 50 ms."""
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    return number


def calls_of(kind: str, count: int) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """Return what is called, and with what."""
    match kind:
        case "trivial":
            return work.same, [(number,) for number in range(count)]
        case "model":
            model = np.ones(MODEL // 8)
            return part_of, [(number, model) for number in range(count)]
        case "big":
            return doubled, [(np.full(BIG // 8, number, float),) for number in range(count)]
    return busy, [(number,) for number in range(count)]


@contextlib.contextmanager
def bare(engine: str, kind: str, count: int) -> Working:
    """Yield the work as the engine's own guide does it; the time is that of one task."""
    function, calls = calls_of(kind, count)
    if engine == "dask":
        from tests.benchmarks.peers.dask import client

        with client() as found:

            def by_dask() -> None:
                found.gather([found.submit(function, *each, pure=False) for each in calls])

            def mapped() -> None:
                found.gather(found.map(function, range(count), pure=False))

            once = mapped if kind in ("trivial", "cpu") else by_dask
            yield lambda: work.seconds_of(once, count)
        return
    import ray

    from tests.benchmarks.peers.ray import cluster

    with cluster():
        remote = ray.remote(function)
        yield lambda: work.seconds_of(
            lambda: ray.get([remote.remote(*each) for each in calls]), count
        )


@contextlib.contextmanager
def executor_on(engine: str) -> Iterator[Any]:
    """Yield our executor on such a cluster."""
    ours = importlib.import_module(f"flowpregel.integrations.{engine}")
    if engine == "dask":
        from tests.benchmarks.peers.dask import client

        with client() as found, ours.DaskExecutor(found) as executor:
            yield executor
        return
    from tests.benchmarks.peers.ray import cluster

    with cluster(), ours.RayExecutor() as executor:
        yield executor


@contextlib.contextmanager
def with_ours(engine: str, kind: str, count: int) -> Working:
    """Yield the work as a flow; CPU tasks are recorded on disk."""
    function, calls = calls_of(kind, count)
    called = task(function)
    runs = itertools.count()
    with executor_on(engine) as executor, work.folder() as folder, contextlib.ExitStack() as stack:
        saver = stack.enter_context(LMDBSaver(folder / "store")) if kind == "cpu" else None

        @entrypoint(executor=executor, checkpointer=saver)
        def flow(_: int) -> None:
            given = calls
            if kind == "model":
                handle = shared(calls[0][1])
                given = [(number, handle) for number, _ in calls]
            for future in [called(*each) for each in given]:
                future.result()

        def once() -> None:
            flow.invoke(0, thread_id=str(next(runs)))

        yield functools.partial(work.seconds_of, once, count)
