"""What every task of a run may know about it: sent once to each process that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class RunValues(NamedTuple):
    """What the user gave a run, and its thread."""

    config: Mapping[str, Any]
    """The run's config; `get_config` adds what is the task's own."""
    context: Any
    """The run's context, as the user gave it."""
    previous: Any
    """What the thread's previous run saved (functional API)."""


_NO_VALUES = RunValues({}, None, None)


class RunInfo:
    """What every task of a run may know about it.

    Args:
        values: What the user gave the run, or what makes it: a task in another
            process seldom asks, and then has its own copy.
        thread_id: Its thread.
        run_id: Its id.
        has_saver: Whether questions can be kept until they are answered.
        executor: Where those of its nodes run that name no executor; unknown in a worker.
    """

    __slots__ = ("_values", "executor", "has_saver", "run_id", "sent", "thread_id")

    def __init__(
        self,
        values: RunValues | Callable[[], RunValues] = _NO_VALUES,
        thread_id: str | None = None,
        run_id: str | None = None,
        has_saver: bool = False,
        executor: Any = None,
    ) -> None:
        self._values = values
        self.thread_id = thread_id
        self.run_id = run_id
        self.has_saver = has_saver
        self.executor = executor
        self.sent: Any = None
        """Where an executor keeps how it sends this; opaque here."""

    @property
    def values(self) -> RunValues:
        """What the user gave the run."""
        if callable(self._values):
            self._values = self._values()
        return self._values
