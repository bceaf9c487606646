"""``python -m tests.soak.timers --tasks 100000``: tasks with a timeout of an hour.

The memory of this process and of the worker is printed after each tenth of the tasks,
with the number of timers that the pool keeps. Both must be flat: the exit status is 1
if a process has grown by more than 16 MB since the first tenth, or if timers are left.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from flowpregel import entrypoint, task
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.processes.coordinator.crash_report import memory_sizes

MB: Final = 1 << 20
MOST_GROWTH: Final = 16 * MB
MOST_TIMERS: Final = 5
"""Timers of the pool's own, which come and go."""
RUN_SIZE: Final = 1_000
"""The most tasks of one run."""


@task(timeout=3600)
def same(number: int) -> int:
    return number


def own_memory(pid: int) -> int:
    """Return the memory of a process that no other process shares, in bytes."""
    return memory_sizes(pid)["RssAnon:"]


def soak_timers(count: int) -> bool:
    """Make *count* calls; return whether memory was flat, and each result right."""
    with ProcessExecutor(1) as pool:

        @entrypoint(executor=pool)
        def flow(size: int) -> int:
            return sum(future.result() for future in same.map(range(size)))

        loop = pool._pool.loop  # noqa: SLF001 - only this loop knows its timers
        flow.invoke(10)
        timers_before = loop.timer_count
        tenth = count // 10
        first: tuple[int, int] | None = None
        is_flat = True
        for number in range(1, 11):
            remaining = tenth
            while remaining > 0:
                size = min(RUN_SIZE, remaining)
                is_flat = is_flat and sum(range(size)) == flow.invoke(size)
                remaining -= size
            sizes = own_memory(os.getpid()), own_memory(pool.worker_pids()[0])
            timers = loop.timer_count - timers_before
            print(
                f"{number * tenth:>9,} tasks: {sizes[0] / MB:6.1f} MB here, "
                f"{sizes[1] / MB:6.1f} MB in the worker, {timers:+d} timers",
                flush=True,
            )
            first = first or sizes
            growth = max(sizes[0] - first[0], sizes[1] - first[1])
            is_flat = is_flat and growth <= MOST_GROWTH and timers <= MOST_TIMERS
    return is_flat


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    sys.exit(not soak_timers(parser.parse_args().tasks))
