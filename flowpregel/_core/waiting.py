"""The tasks of a superstep that wait for a time: held tasks, delayed tasks, and tasks
whose result another run computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection


class WaitingTasks(list[tuple[int, str]]):
    """A heap of waiting tasks.

    Each item is the time at which a task is due (monotonic nanoseconds), and its id.
    """

    @property
    def ids(self) -> list[str]:
        """The ids of all waiting tasks."""
        return [task_id for _, task_id in self]

    def add(self, task_id: str, due_at: int) -> None:
        """Let a task wait until *due_at*."""
        heapq.heappush(self, (due_at, task_id))

    def pop_due(self, now: int) -> str | None:
        """Remove the next task that is due *now*, and return its id.

        Returns:
            None if no task is due.
        """
        if not self or self[0][0] > now:
            return None
        _, task_id = heapq.heappop(self)
        return task_id

    def take(self, task_ids: Collection[str]) -> set[str]:
        """Remove the waiting tasks among *task_ids*, and return their ids."""
        removed = {task_id for _, task_id in self if task_id in task_ids}
        if removed:
            self[:] = [item for item in self if item[1] not in removed]
            heapq.heapify(self)
        return removed
