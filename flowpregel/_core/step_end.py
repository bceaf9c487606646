"""The end of a superstep that no barrier follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowpregel._core.records import Task


@dataclass(slots=True)
class StepEnd:
    """The reasons why a superstep ends without a barrier."""

    is_paused: bool = False
    """True if a task asks a question, so that the run pauses."""
    failure: BaseException | None = None
    """The first error that makes the run fail."""
    command: object = None
    """The `Command` for the parent graph with which a task ended, or None."""

    def fail(self, error: BaseException) -> bool:
        """Record *error* as the failure of the superstep, and return whether it is the
        first failure.
        """
        is_first = self.failure is None
        if is_first:
            self.failure = error
        return is_first


def took_too_long(
    step: int, timeout: float | None, open_tasks: Iterable[Task]
) -> TimeoutError:
    """Return the error of a superstep that has not ended within its time limit.

    Args:
        step: The number of the superstep.
        timeout: The time limit in seconds.
        open_tasks: The tasks that have not ended.
    """
    names = ", ".join(sorted({task.name for task in open_tasks}))
    return TimeoutError(
        f"superstep {step} took longer than step_timeout={timeout} seconds; still "
        f"running: {names}"
    )
