"""Whether a failed attempt is followed by another: its policies decide."""

from __future__ import annotations

import heapq

from flowpregel._core.program import Options
from flowpregel._core.records import Kind, Task
from flowpregel.errors import WorkerDiedError


class Attempts:
    """The tasks that failed and wait for their next attempt.

    Args:
        options: The run's policies.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._due: list[tuple[int, str]] = []
        """(monotonic nanoseconds, task id): a heap."""
        self._deaths: dict[str, int] = {}

    @property
    def earliest(self) -> int | None:
        """When the next attempt is due, in monotonic nanoseconds; None if none is."""
        return self._due[0][0] if self._due else None

    def plan(self, task: Task, error: BaseException, monotonic: int, luck: float) -> bool:
        """Plan the next attempt of a task that failed; return whether it gets one."""
        delay = delay_after(task, error, self._options, self._deaths, luck)
        if delay is None:
            return False
        task.attempt += 1
        task.calls = task.graphs = 0
        heapq.heappush(self._due, (monotonic + int(delay * 1e9), task.id))
        return True

    def take(self, monotonic: int) -> list[str]:
        """Return the tasks whose next attempt is due by now; they wait no longer."""
        taken = []
        while self._due and self._due[0][0] <= monotonic:
            taken.append(heapq.heappop(self._due)[1])
        return taken

    def drop(self) -> set[str]:
        """Return the tasks that wait, which now do so no longer."""
        waiting = {task_id for _, task_id in self._due}
        self._due.clear()
        return waiting


def delay_after(
    task: Task, error: BaseException, options: Options, deaths: dict[str, int], luck: float
) -> float | None:
    """Return the seconds until the next attempt of *task*, or None to give up.

    Args:
        task: What failed. A call has its own policies alone; other tasks have
            the run's where they have none.
        error: What it failed with.
        options: The run's policies.
        deaths: For each task, the workers that died of it; counted here.
        luck: A random number in [0, 1).
    """
    cost = 0
    if isinstance(error, WorkerDiedError):
        cost = deaths[task.id] = deaths.get(task.id, 0) + 1
    policies = task.node.retry or (() if task.kind is Kind.CALL else options.retry)
    for policy in policies:
        if policy.matches(error):
            if cost >= policy.max_worker_deaths:
                return None
            return policy.delay(task.attempt, luck)
    return None
