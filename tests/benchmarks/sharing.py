"""Several coordinators on one cluster: when each of them gets its first result, and how
they share the slots.

Run it with ``python -m tests.benchmarks.sharing ENGINE [COORDINATORS [SECONDS]]``, say
``dask 10 30``. The cluster has a CPU for each core of this machine. Each coordinator
has more short tasks than that, and all begin at once. The tasks sleep, so that the
coordinators share slots, not the time of a core. The last line says how many results
one coordinator has for each of another one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from tests.benchmarks import work

PAUSE: Final = 0.05
"""The seconds for which a task sleeps."""
WINDOW: Final = 100
"""The number of tasks that each coordinator has at a time."""
MOST: Final = 2.0
"""The greatest number of results of a coordinator for each of another one."""


@contextmanager
def cluster(engine: str) -> Iterator[Callable[[], Any]]:
    """Start a cluster, and return a function that opens our executor on it."""
    if engine == "dask":
        from flowpregel.plugins.cluster.dask import DaskExecutor
        from tests.benchmarks.peers.dask import client

        with client() as dask_client:
            yield partial(DaskExecutor, dask_client)
    else:
        from flowpregel.plugins.cluster.ray import RayExecutor
        from tests.benchmarks.peers.ray import cluster as ray_cluster

        with ray_cluster():
            yield RayExecutor


def result_times(executor: Any, end: float) -> list[float]:
    """Run tasks until *end*, and return the monotonic times of their results."""
    times: list[float] = []
    futures: deque[Future[None]] = deque()
    while True:
        while len(futures) < WINDOW:
            futures.append(executor.submit(work.pause, PAUSE))
        try:
            futures.popleft().result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            # An executor waits for its tasks when it is closed.
            for future in futures:
                future.cancel()
            return times
        times.append(time.monotonic())


def measure(engine: str, coordinators: int, seconds: float) -> list[list[float]]:
    """Return the seconds at which each coordinator has its results."""
    results: list[list[float]] = []
    with cluster(engine) as open_executor, ExitStack() as stack:
        executors = []
        for _ in range(coordinators):
            executor = stack.enter_context(open_executor())
            # The start of processes is not measured.
            executor.submit(work.pause, PAUSE).result()
            executors.append(executor)
        start = time.monotonic()

        def run(executor: Any) -> None:
            times = result_times(executor, start + seconds)
            results.append([moment - start for moment in times])

        threads = [threading.Thread(target=run, args=(each,)) for each in executors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def main(engine: str, coordinators: int = 10, seconds: int = 30) -> int:
    """Measure, print the results of each coordinator, and return 1 if they differ."""
    results = measure(engine, coordinators, seconds)
    for times in results:
        gaps = [late - early for early, late in zip([0.0, *times], times, strict=False)]
        first, longest = (times[0], max(gaps)) if times else (seconds, seconds)
        sys.stdout.write(
            f"{len(times):5} results, the first after {first:4.1f} s, "
            f"the longest wait {longest:4.1f} s\n"
        )
    counts = [len(times) for times in results]
    used = sum(counts) * PAUSE / (seconds * work.CORES)
    factor = max(counts) / max(1, min(counts))
    sys.stdout.write(f"{engine}: {used:.0%} of the slots' time, {factor:.2f} to 1\n")
    return int(factor > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
