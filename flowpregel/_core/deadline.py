"""When a superstep has to do something although nothing has happened."""

from __future__ import annotations

from collections.abc import Iterable

from flowpregel._core.effects import Wakeup
from flowpregel._core.progress import Run
from flowpregel._core.records import Task


class Deadline:
    """The time by which a superstep has to be over, if there is one.

    Args:
        run: The run it belongs to; its clock moves with every wake-up.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._at: int | None = None

    def begin(self, wakeup: Wakeup, seconds: float) -> None:
        """Let the superstep last *seconds* from now."""
        self._at = wakeup.monotonic + int(seconds * 1e9)

    def next(self, attempt: int | None) -> int | None:
        """Return when to wake up, in monotonic nanoseconds: in time for *attempt* too."""
        if attempt is None or self._at is None:
            return self._at if attempt is None else attempt
        return min(attempt, self._at)

    def check(self, wakeup: Wakeup, still_open: Iterable[Task]) -> None:
        """Move the clock, and end the superstep if it took too long.

        Raises:
            TimeoutError: It did; the message names the tasks that are *still_open*.
        """
        run = self._run
        run.now = max(run.now + 1, wakeup.now)
        if self._at is None or wakeup.monotonic < self._at:
            return
        names = ", ".join(sorted({task.name for task in still_open}))
        raise TimeoutError(
            f"superstep {run.step} took longer than step_timeout={run.options.step_timeout} "
            f"seconds; still running: {names}"
        )
