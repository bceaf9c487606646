"""The tasks of a superstep that wait for a time: calls that are held back, tasks whose
next attempt is delayed, and tasks whose result another run computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection


class WaitingTasks(list[tuple[int, str]]):
    """A heap of waiting tasks.

    Each item is the time at which a task is due (monotonic nanoseconds), and its id.
    """

    @property
    def first_due_at(self) -> int:
        """The time at which the next waiting task is due. A task must be waiting."""
        due_at, _ = self[0]
        return due_at

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
        if not self or self.first_due_at > now:
            return None
        _, task_id = heapq.heappop(self)
        return task_id

    def take(self, task_ids: Collection[str]) -> set[str]:
        """Remove the waiting tasks among *task_ids*, and return their ids."""
        removed: set[str] = set()
        remaining: list[tuple[int, str]] = []
        for due_at, task_id in self:
            if task_id in task_ids:
                removed.add(task_id)
            else:
                remaining.append((due_at, task_id))
        if removed:
            self[:] = remaining
            heapq.heapify(self)
        return removed
