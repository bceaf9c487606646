"""The functions of tasks, pickled as references to their tasks."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

from flowpregel._annotations import signature_of


class ByName:
    """A callable that calls a task's plain function, and is pickled as a reference to
    the task.

    The function itself cannot be pickled by its name, because in its module this name
    refers to the task.
    """

    __slots__ = ("_task",)

    def __init__(self, task: Any) -> None:
        self._task = task

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task.func(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters of the function, for messages that name its arguments."""
        return signature_of(self._task.func)

    def __reduce__(self) -> tuple[Any, ...]:
        return attrgetter("func"), (self._task,)
