"""Several coordinators on one cluster: when each of them gets its first result, and how
they share the slots.

Run it with ``python -m tests.benchmarks.sharing ENGINE [COORDINATORS]``, say with
``dask 10``. The cluster has a CPU for each core of this machine. Each coordinator is a
program of its own, as those of ten people are. It has more short tasks than CPUs, and
all begin at once. The tasks sleep, so that the coordinators share slots, not the time
of a core. The last line says how many results one coordinator has for each of another
one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final

from tests.benchmarks import work

PAUSE: Final = 0.05
"""The seconds for which a task sleeps."""
WINDOW: Final = 100
"""The number of tasks that each coordinator has at a time."""
MOST: Final = 2.0
"""The greatest number of results of a coordinator for each of another one."""
MARK: Final = "sharing: "
"""The beginning of the lines that a coordinator prints."""


@contextmanager
def cluster(engine: str) -> Iterator[str]:
    """Start a cluster, and return its address."""
    if engine == "dask":
        from tests.benchmarks.peers.dask import client

        with client() as dask_client:
            yield dask_client.scheduler.address
    else:
        import ray

        from tests.benchmarks.peers.ray import cluster as ray_cluster

        with ray_cluster():
            yield ray.get_runtime_context().gcs_address


def executor_on(engine: str, address: str) -> Any:
    """Return our executor on the cluster at *address*."""
    if engine == "dask":
        from flowpregel.plugins.cluster.dask import DaskExecutor

        return DaskExecutor.connect(address)
    from flowpregel.plugins.cluster.ray import RayExecutor

    return RayExecutor(address)


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


def coordinate(engine: str, address: str, seconds: float) -> None:
    """Be one of the coordinators: say that it is ready, wait for a line, run tasks, and
    print the seconds after which it has had its results.
    """
    with executor_on(engine, address) as executor:
        # The start of processes is not measured.
        executor.submit(work.pause, PAUSE).result()
        print(f"{MARK}ready", flush=True)
        sys.stdin.readline()
        start = time.monotonic()
        times = result_times(executor, start + seconds)
        seconds_of_results = [moment - start for moment in times]
        print(MARK + json.dumps(seconds_of_results), flush=True)


def next_line(lines: IO[str]) -> str:
    """Return the next line of a coordinator. Ray prints warnings in between."""
    for line in lines:
        if line.startswith(MARK):
            return line.removeprefix(MARK)
    raise RuntimeError("a coordinator has ended too early")


def measure(engine: str, coordinators: int, seconds: float) -> list[list[float]]:
    """Return the seconds after which each coordinator has had its results."""
    with cluster(engine) as address, ExitStack() as stack:
        module = "tests.benchmarks.sharing"
        command = [sys.executable, "-m", module, engine, "--join", address]
        command += ["--seconds", str(seconds)]
        programs = []
        for _ in range(coordinators):
            program = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            programs.append(stack.enter_context(program))
        outputs = [each.stdout for each in programs if each.stdout is not None]
        for output in outputs:
            next_line(output)
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("begin\n")
            program.stdin.flush()
        return [json.loads(next_line(output)) for output in outputs]


def report(engine: str, results: list[list[float]], seconds: float) -> float:
    """Print the results of each coordinator, and return how many one of them has for
    each of another one.
    """
    for times in results:
        gaps = [late - early for early, late in zip([0.0, *times], times, strict=False)]
        first, longest = (times[0], max(gaps)) if times else (seconds, seconds)
        print(
            f"{len(times):5} results, the first after {first:4.1f} s, "
            f"the longest wait {longest:4.1f} s"
        )
    counts = [len(times) for times in results]
    used = sum(counts) * PAUSE / (seconds * work.CORES)
    factor = max(counts) / max(1, min(counts))
    print(f"{engine}: {used:.0%} of the slots' time, {factor:.2f} to 1")
    return factor


def main() -> int:
    """Measure, print the results, and return 1 if they differ too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["dask", "ray"])
    parser.add_argument("coordinators", nargs="?", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--join", metavar="ADDRESS", help="be one of the coordinators")
    options = parser.parse_args()
    if options.join:
        coordinate(options.engine, options.join, options.seconds)
        return 0
    results = measure(options.engine, options.coordinators, options.seconds)
    return int(report(options.engine, results, options.seconds) > MOST)


if __name__ == "__main__":
    sys.exit(main())
