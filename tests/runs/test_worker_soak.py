"""Many tasks under random faults: exact results, nothing leaked."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from flowpregel._core.records import Outcome, Raised, Returned
from flowpregel.errors import NodeTimeoutError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.pooling import Run, node_of, value_of, wait_until

TASKS = 2_000


def work(order: tuple[str, int]) -> int:
    """Do as ordered."""
    kind, number = order
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise ValueError(number)
    if kind == "hang":
        time.sleep(60)
    return number * number


def is_right(order: tuple[str, int], outcome: Outcome) -> bool:
    """Return whether *outcome* is what was ordered."""
    kind, number = order
    if kind == "work":
        return isinstance(outcome, Returned) and value_of(outcome) == number * number
    expected = {"kill": WorkerDiedError, "raise": ValueError, "hang": NodeTimeoutError}[kind]
    return isinstance(outcome, Raised) and isinstance(outcome.error, expected)


@pytest.mark.slow
def test_every_task_ends_as_it_should_under_random_faults() -> None:
    """Kills, errors and timeouts cost the tasks they hit, and no descriptor stays open."""
    luck = random.Random(7)
    kinds = luck.choices(["work", "raise", "kill", "hang"], [960, 30, 7, 3], k=TASKS)
    orders = list(zip(kinds, range(TASKS), strict=True))
    with ProcessExecutor(2, grace=0.2) as pool:
        run = Run(pool)
        node = node_of(work)
        run.outcome(node, ("work", 1))
        before = len(os.listdir("/proc/self/fd"))
        jobs = [
            run.start(node, order, timeout=0.5 if order[0] == "hang" else None) for order in orders
        ]

        outcomes = run.outcomes(*jobs, seconds=120)

        wrong = [
            (order, outcome)
            for order, outcome in zip(orders, outcomes, strict=True)
            if not is_right(order, outcome)
        ]
        assert [] == wrong
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 20)
