"""Large results on Dask and on Ray: by the engine's own references, by our futures, and
by handles of `stored`, in turns. The time of the processors is measured beside that of
the clock, because it depends less on what else the machine does.

Run it with ``python -m tests.benchmarks.stored [turns]``, on a machine that does
nothing else. The folder of the values is on the disk that ``FLOWPREGEL_BENCH_FOLDER``
names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

from flowpregel import Stored, stored
from flowpregel.func import entrypoint, task
from tests.benchmarks import work

CHAIN, CHAIN_SIZE = 20, 32_000_000
BIG, BIG_SIZE = 10, 10 << 20


def ones(number: int) -> Any:
    """Return an array of 32 MB."""
    return np.full(CHAIN_SIZE // 8, float(number))


def total(array: Any) -> float:
    """Return one number of an array."""
    return float(array.sum())


def doubled(array: Any) -> Any:
    """Return another array."""
    return 2 * array


@task
def stored_ones(number: int, folder: str) -> Stored[Any]:
    return stored(ones(number), folder=folder)


@task
def stored_double(array: Any, folder: str) -> Stored[Any]:
    return stored(doubled(array), folder=folder)


def arrays() -> list[Any]:
    """Return arrays that the program has."""
    return [np.full(BIG_SIZE // 8, float(number)) for number in range(BIG)]


def flows_on(executor: Any) -> dict[str, Any]:
    """Return the work as flows."""
    make, add, double = task(ones), task(total), task(doubled)

    @entrypoint(executor=executor)
    def chain_of_futures(_: str) -> float:
        results = [make(number) for number in range(CHAIN)]
        return sum(call.result() for call in [add(result) for result in results])

    @entrypoint(executor=executor)
    def chain_of_handles(folder: str) -> float:
        results = [stored_ones(number, folder) for number in range(CHAIN)]
        return sum(call.result() for call in [add(result) for result in results])

    @entrypoint(executor=executor)
    def big_arrays(_: str) -> float:
        calls = [double(array) for array in arrays()]
        return sum(float(call.result()[0]) for call in calls)

    @entrypoint(executor=executor)
    def big_handles(folder: str) -> float:
        handles: list[Any] = [stored(array, folder=folder) for array in arrays()]
        calls = [stored_double(handle, folder) for handle in handles]
        return sum(float(call.result().value[0]) for call in calls)

    return {
        "chain, futures": chain_of_futures,
        "chain, handles": chain_of_handles,
        "10 MB in and out, arrays": big_arrays,
        "10 MB in and out, handles": big_handles,
    }


@contextlib.contextmanager
def on_dask() -> Iterator[tuple[Any, dict[str, Callable[[], Any]]]]:
    """Yield what makes our executor there, and the work as Dask's guide has it done."""
    from flowpregel.plugins.cluster.dask import DaskExecutor
    from tests.benchmarks.peers.dask import client

    with client() as dask:

        def chain() -> None:
            results = dask.map(ones, range(CHAIN), pure=False)
            dask.gather(dask.map(total, results, pure=False))

        def big() -> None:
            dask.gather(dask.map(doubled, arrays(), pure=False))

        yield lambda: DaskExecutor(dask), {"chain": chain, "10 MB in and out": big}


@contextlib.contextmanager
def on_ray() -> Iterator[tuple[Any, dict[str, Callable[[], Any]]]]:
    """Yield what makes our executor there, and the work as Ray's guide has it done."""
    import ray

    from flowpregel.plugins.cluster.ray import RayExecutor
    from tests.benchmarks.peers.ray import cluster

    with cluster():
        make, add, double = map(ray.remote, (ones, total, doubled))

        def chain() -> None:
            results = [make.remote(number) for number in range(CHAIN)]
            ray.get([add.remote(result) for result in results])

        def big() -> None:
            ray.get([double.remote(array) for array in arrays()])

        yield RayExecutor, {"chain": chain, "10 MB in and out": big}


def processor_times() -> dict[int, float]:
    """Return the time that this process and those below it have used so far."""
    this = psutil.Process()
    used = {}
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used


def seconds_of(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of the clock and those of the processors for some work.

    Processes that end before the work does are left out.
    """
    before = processor_times()
    seconds = work.seconds_of(run)
    after = processor_times()
    return seconds, sum(used - before.get(pid, 0.0) for pid, used in after.items())


def measure(engine: str, turns: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each kind of work, for each turn."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    with {"dask": on_dask, "ray": on_ray}[engine]() as (executor, bare):
        for turn in range(turns + 1):
            times = {kind: seconds_of(run) for kind, run in bare.items()}
            with executor() as ours, work.folder() as folder:
                ours.submit(total, np.ones(1)).result()  # has started the workers
                for kind, flow in flows_on(ours).items():
                    # Values of another turn would not be written again.
                    place = str(folder / kind)
                    times[kind] = seconds_of(lambda: flow.run(place))  # noqa: B023
            if turn:  # the first one starts worker processes
                for kind, time in times.items():
                    seconds.setdefault(kind, []).append(time)
    return seconds


def main() -> None:
    """Measure, and print the medians, and the ratios to those of the engine."""
    turns = int(sys.argv[1]) if sys.argv[1:] else 5
    for engine, module in {"dask": "distributed", "ray": "ray"}.items():
        if importlib.util.find_spec(module) is None:
            sys.stdout.write(f"skipped: {engine} is not installed\n")
            continue
        medians = {
            kind: tuple(map(statistics.median, zip(*times, strict=True)))
            for kind, times in measure(engine, turns).items()
        }
        for kind, (seconds, used) in medians.items():
            bare_seconds, bare_used = medians[kind.partition(",")[0]]
            sys.stdout.write(
                f"| {engine} | {kind} | {seconds:.2f} s | {seconds / bare_seconds:.2f} "
                f"x | {used:.2f} s of processors | {used / bare_used:.2f} x |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
