"""Whether a failed attempt is followed by another: its policies decide."""

from __future__ import annotations

from flowpregel._core.program import Options
from flowpregel._core.records import Kind, Task
from flowpregel.errors import WorkerDiedError


def delay_after(
    task: Task, error: BaseException, options: Options, deaths: dict[str, int], luck: float
) -> float | None:
    """Return the seconds until the next attempt of *task*, or None to give up.

    Args:
        task: What failed. A call has its own policies alone; other tasks have
            the run's where they have none.
        error: What it failed with.
        options: The run's policies, and how many workers a task may cost.
        deaths: For each task, the workers that died of it; counted here.
        luck: A random number in [0, 1).
    """
    if isinstance(error, WorkerDiedError):
        deaths[task.id] = deaths.get(task.id, 0) + 1
        if deaths[task.id] >= options.max_worker_deaths:
            return None
    policies = task.node.retry or (() if task.kind is Kind.CALL else options.retry)
    for policy in policies:
        if policy.matches(error):
            return policy.delay(task.attempt, luck)
    return None
