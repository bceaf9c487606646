"""Waiting for a worker, or for a task: both ends sleep."""

from __future__ import annotations

import time
from typing import Any

from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, node_of, value_of

WAIT = 0.5


def cpu_time(_: Any) -> float:
    """Return the seconds of CPU time the worker has used."""
    return time.process_time()


class Turns:
    """Counts the turns of a pool's I/O loop.

    Args:
        pool: Whose.
    """

    def __init__(self, pool: ProcessExecutor) -> None:
        loop = pool._pool.loop  # noqa: SLF001 - nobody else needs to know
        self.count = 0
        self._dispatch, loop._dispatch = loop._dispatch, self._turn  # noqa: SLF001

    def _turn(self) -> None:
        self.count += 1
        self._dispatch()


def test_a_pool_that_was_busy_with_short_tasks_sleeps_when_it_is_idle() -> None:
    """Neither end looks for more work."""
    with ProcessExecutor(1) as pool:
        run, turns = Run(pool), Turns(pool)
        node = node_of(cpu_time)
        theirs = max(value_of(run.outcome(node, n)) for n in range(300))
        before = turns.count

        assert run.some(WAIT) == {}

        assert turns.count - before <= 2
        assert value_of(run.outcome(node)) - theirs < 0.1 * WAIT


def test_a_run_that_waits_for_a_long_task_after_short_ones_sleeps() -> None:
    """The coordinator's CPU is left to others while a task takes its time."""
    with ProcessExecutor(1) as pool:
        run, turns = Run(pool), Turns(pool)
        node = node_of(cpu_time)
        for n in range(300):
            run.outcome(node, n)
        before = turns.count

        run.outcome(time.sleep, WAIT)

        assert turns.count - before <= 6
