"""The end of a superstep that no barrier follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowpregel._core.body_calls import BodyCalls
from flowpregel._core.records import Escaped, Raised, Task
from flowpregel._core.run import Run


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


def ending_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the planned tasks among *tasks* that wait for calls, although their bodies
    have ended in a way that ends the superstep: with a command for the parent graph, or
    with an error that no handler handles.
    """
    ending: list[Task] = []
    for task in tasks:
        body: BodyCalls | None = task.attempt.body
        outcome = None if body is None else body.outcome
        is_error = isinstance(outcome, Raised) and task.node.handler is None
        if is_error or isinstance(outcome, Escaped):
            ending.append(task)
    return ending


def took_too_long(run: Run, open_tasks: Iterable[Task]) -> TimeoutError:
    """Return the error of a superstep that has not ended within its time limit.

    Args:
        run: The run of the superstep.
        open_tasks: The tasks that have not ended.
    """
    names = ", ".join(sorted({task.name for task in open_tasks}))
    return TimeoutError(
        f"superstep {run.cursor.step} took longer than "
        f"step_timeout={run.options.step_timeout} seconds; still running: {names}"
    )
