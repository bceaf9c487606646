"""D1: the same work on Dask and on Ray, by their own means and by our executor, in
turns.

Run it with ``python -m tests.benchmarks.clusters [turns [row ...]]``, say ``3 dask-big
ray-big``, on a machine that does nothing else. Each cluster has a process a core on
this machine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors.shared import shared
from flowpregel.func import entrypoint, task
from tests.benchmarks import work

WORK = {
    "trivial": (2000, 0.1, "trivial tasks"),
    "model": (100, 0.3, "tasks that take the same 2 MB array"),
    "big": (10, 1.0, "tasks with 10 MB in and out"),
    "cpu": (100, 1.05, "CPU tasks of 50 ms, ours recorded on disk"),
}
"""How many tasks, what part of the engine's time ours may take, and what they are."""
ENGINES = {"dask": "distributed", "ray": "ray"}
MODEL = 2 << 20
BIG = 10 << 20


def part_of(number: int, model: Any) -> float:
    """Return one number of an array."""
    return float(model[number])


def doubled(array: Any) -> Any:
    """Return another array."""
    return 2 * array


def busy(number: int) -> int:
    """Use the CPU for 50 ms."""
    work.spin(0.05)
    return number


def calls_of(kind: str) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """Return what is called, and with what."""
    numbers = range(WORK[kind][0])
    match kind:
        case "model":
            model = np.ones(MODEL // 8)
            return part_of, [(number, model) for number in numbers]
        case "big":
            return doubled, [(np.full(BIG // 8, number, float),) for number in numbers]
    return busy if kind == "cpu" else work.same, [(number,) for number in numbers]


@contextlib.contextmanager
def by_dask(function: Any, calls: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the work as Dask's guide has it done, and what makes our executor there."""
    from flowpregel.plugins.cluster.dask import DaskExecutor
    from tests.benchmarks.peers.dask import client

    with client() as found:

        def bare() -> None:
            if len(calls[0]) == 1:
                found.gather(
                    found.map(function, [only for (only,) in calls], pure=False)
                )
            else:
                found.gather(
                    [found.submit(function, *each, pure=False) for each in calls]
                )

        yield bare, lambda: DaskExecutor(found)


@contextlib.contextmanager
def by_ray(function: Any, calls: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the work as Ray's guide has it done, and what makes our executor there."""
    import ray

    from flowpregel.plugins.cluster.ray import RayExecutor
    from tests.benchmarks.peers.ray import cluster

    with cluster():
        remote = ray.remote(function)
        yield lambda: ray.get([remote.remote(*each) for each in calls]), RayExecutor


def ours(kind: str, executor: Any, saver: Any) -> Callable[[], Any]:
    """Return the work as a flow."""
    function, calls = calls_of(kind)
    called, runs = task(function), itertools.count()

    @entrypoint(executor=executor, checkpointer=saver)
    def flow(_: int) -> None:
        given = calls
        if kind == "model":
            handle = shared(calls[0][1])
            given = [(number, handle) for number, _ in calls]
        for future in [called(*each) for each in given]:
            future.result()

    return lambda: flow.invoke(0, thread_id=f"{id(flow)}-{next(runs)}")


def measure(engine: str, kind: str, turns: int) -> tuple[float, float]:
    """Return the seconds of a task by the engine itself and by ours: medians of the
    turns.
    """
    found: tuple[list[float], list[float]] = [], []
    count = WORK[kind][0]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(work.folder())
        saver = (
            stack.enter_context(LMDBSaver(folder / "store")) if kind == "cpu" else None
        )
        by_engine = {"dask": by_dask, "ray": by_ray}[engine]
        bare, executor = stack.enter_context(by_engine(*calls_of(kind)))
        bare()
        for _ in range(turns):
            found[0].append(work.seconds_of(bare, count))
            # Closed after each turn, so that none of its slots is in the other's way.
            with executor() as ours_there:
                flow = ours(kind, ours_there, saver)
                flow()
                found[1].append(work.seconds_of(flow, count))
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> int:
    """Measure, print what was found, and return 1 if a goal is missed."""
    turns = int(sys.argv[1]) if sys.argv[1:] else 5
    missed = False
    for engine, module in ENGINES.items():
        if importlib.util.find_spec(module) is None:
            sys.stdout.write(f"skipped: {engine} is not installed\n")
            continue
        for kind, (count, most, what) in WORK.items():
            if sys.argv[2:] and f"{engine}-{kind}" not in sys.argv[2:]:
                continue
            bare, own = measure(engine, kind, turns)
            missed |= own > most * bare
            sys.stdout.write(
                f"| {engine} | {count} {what} | {bare * 1e6:,.0f} µs | "
                f"{own * 1e6:,.0f} µs "
                f"| {own / bare:.2f} x | {most} x |\n"
            )
            sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
