"""The tasks of a superstep that wait for a time: calls that are held back, tasks whose
next attempt is delayed, and tasks whose result another run computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Set


class WaitingTasks(dict[str, int]):
    """The ids of the waiting tasks, each with the time at which the task is due
    (monotonic nanoseconds).
    """

    _heap: list[tuple[int, str]]
    """The times and ids as a heap. Items of tasks that do not wait any more are removed
    when they become the first.
    """

    @property
    def first_due_at(self) -> int:
        """The time at which the next waiting task is due. A task must be waiting."""
        due_at, task_id = self._heap[0]
        while self.get(task_id) != due_at:
            heapq.heappop(self._heap)
            due_at, task_id = self._heap[0]
        return due_at

    def add(self, task_id: str, due_at: int) -> None:
        """Let a task wait until *due_at*."""
        if not self:
            # If there is a heap, its items belong to tasks that do not wait any more.
            self._heap = []
        self[task_id] = due_at
        heapq.heappush(self._heap, (due_at, task_id))

    def pop_due(self, now: int) -> str | None:
        """Remove the next task that is due *now*, and return its id.

        Returns:
            None if no task is due.
        """
        if not self or self.first_due_at > now:
            return None
        _, task_id = heapq.heappop(self._heap)
        del self[task_id]
        return task_id

    def take(self, task_ids: Set[str]) -> set[str]:
        """Remove the waiting tasks among *task_ids*, and return their ids."""
        removed = task_ids & self.keys()
        for task_id in removed:
            del self[task_id]
        return {*removed}
