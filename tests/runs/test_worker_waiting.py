"""Waiting for a worker, or for a task, costs no CPU time."""

from __future__ import annotations

import time
from typing import Any

from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, node_of, value_of

WAIT = 0.5


def cpu_time(_: Any) -> float:
    """Return the seconds of CPU time the worker has used."""
    return time.process_time()


def test_a_pool_that_was_busy_with_short_tasks_uses_no_cpu_when_it_is_idle() -> None:
    """Both ends look for more work for a moment, and then sleep."""
    with ProcessExecutor(1) as pool:
        run = Run(pool)
        node = node_of(cpu_time)
        theirs = max(value_of(run.outcome(node, n)) for n in range(300))
        ours = time.process_time()

        assert run.some(WAIT) == {}

        assert time.process_time() - ours < 0.1 * WAIT
        assert value_of(run.outcome(node)) - theirs < 0.1 * WAIT


def test_a_run_that_waits_for_a_long_task_after_short_ones_sleeps() -> None:
    """The coordinator's CPU is left to others while a task takes its time."""
    with ProcessExecutor(1) as pool:
        run = Run(pool)
        node = node_of(cpu_time)
        for n in range(300):
            run.outcome(node, n)
        ours = time.process_time()

        run.outcome(time.sleep, WAIT)

        assert time.process_time() - ours < 0.1 * WAIT
