"""``python -m tests.soak.code --runs 1000``: runs whose tasks take a megabyte along,
each its own.

Each run defines a task that closes over bytes of its own, and calls it in a worker. The
memory of this process and of the worker is printed as the runs go by. It has to be
flat: the exit status is 1 if either has grown by more than 64 MB since the first tenth
of the runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from flowpregel import entrypoint, task
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.processes.coordinator.crash_report import memory_sizes

MB: Final = 1 << 20
MOST_GROWTH: Final = 64 * MB


def memory_here_and_there(pid: int) -> tuple[int, int]:
    """Return the memory of this process and of the worker *pid*, but for what they
    share.
    """
    here, there = memory_sizes(os.getpid()), memory_sizes(pid)
    return here["RssAnon:"], there["RssAnon:"]


def soak_code(runs: int, size: int) -> bool:
    """Make that many runs; return whether memory was flat, and each result right."""
    with ProcessExecutor(1) as pool:

        @entrypoint(executor=pool)
        def flow(number: int) -> int:
            table = number.to_bytes(size, "little")

            @task
            def work() -> int:
                return int.from_bytes(table[:8], "little")

            return work().result()

        first, holds = (0, 0), True
        for number in range(1, runs + 1):
            holds = holds and number == flow.invoke(number)
            if number % max(1, runs // 10):
                continue
            sizes = memory_here_and_there(pool.worker_pids()[0])
            here, there = (size / MB for size in sizes)
            print(
                f"{number:>6,} runs: {here:6.1f} MB here, {there:6.1f} MB in the "
                "worker, "
                f"{codes.size / MB:5.1f} MB of code kept here",
                flush=True,
            )
            first = first if any(first) else sizes
            growth = max(now - before for now, before in zip(sizes, first, strict=True))
            holds = holds and growth <= MOST_GROWTH
    return holds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument(
        "--size", type=int, default=MB, help="bytes that each task takes along"
    )
    given = parser.parse_args()
    sys.exit(not soak_code(given.runs, given.size))
