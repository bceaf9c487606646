"""How many tasks may be at work at once, and those that wait until they may."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Node, Task
from flowpregel.context import RunInfo

if TYPE_CHECKING:
    from flowpregel._engine.placing import RunContext


@dataclass(slots=True, eq=False)
class TaskGroup:
    """Tasks of one node that follow each other, and all that starts them."""

    node: Node
    tasks: list[Task]
    setting: StepContext
    around: RunContext
    run: RunInfo
    executor: Any = None
    """The `Executor` that is to run them, once that is known."""

    def part(self, tasks: list[Task]) -> TaskGroup:
        """Return a stretch of some of the tasks."""
        return TaskGroup(self.node, tasks, self.setting, self.around, self.run, self.executor)


def stretches(tasks: list[Task]) -> Iterable[list[Task]]:
    """Return *tasks* by those that follow each other, of one node, called by one body or none."""
    if len(tasks) == 1:
        # As in most supersteps.
        return (tasks,)
    return [[*alike] for _, alike in groupby(tasks, attrgetter("node", "parent"))]


class ConcurrencyLimit:
    """Lets so many tasks work at once; the others wait, as little as there can be of each.

    Args:
        most: How many may.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._working: set[str] = set()
        self._line: deque[tuple[TaskGroup, deque[Task]]] = deque()
        """What waits, and what is left of it."""
        self._waiting: dict[str, Task] = {}

    def admits(self, stretch: TaskGroup) -> bool:
        """Return whether all of *stretch* may work now, and nobody waits; then they do."""
        if self._line or len(self._working) + len(stretch.tasks) > self._most:
            return False
        for task in stretch.tasks:
            self._working.add(task.id)
        return True

    def add(self, stretch: TaskGroup, *, first: bool = False) -> None:
        """Let the tasks of *stretch* wait behind those that wait, or before them, if *first*."""
        self._waiting.update((task.id, task) for task in stretch.tasks)
        waiting = stretch, deque(stretch.tasks)
        if first:
            self._line.appendleft(waiting)
        else:
            self._line.append(waiting)

    def admit(self) -> Iterator[TaskGroup]:
        """Yield those whose turn it is now."""
        while self._line and (room := self._most - len(self._working)) > 0:
            stretch, left = self._line[0]
            admitted: list[Task] = []
            while left and len(admitted) < room:
                task = left.popleft()
                if self._waiting.pop(task.id, None) is task:
                    admitted.append(task)
            if not left:
                self._line.popleft()
            if admitted:
                self._working.update(task.id for task in admitted)
                yield stretch.part(admitted)

    @property
    def has_line(self) -> bool:
        """Whether anybody waits, or has waited and was withdrawn."""
        return bool(self._line)

    def leave(self, task_ids: Iterable[str]) -> None:
        """Note that tasks do not work any more, or wait for others."""
        self._working.difference_update(task_ids)

    def withdraw(self, task_id: str) -> Task | None:
        """Take a task out of the line and return it; None: it does not wait."""
        return self._waiting.pop(task_id, None)
