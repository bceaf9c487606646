"""When a superstep has to do something although nothing has happened."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from flowpregel._core.effects import WHENEVER, Effect, Stopped, Wait, Wakeup
from flowpregel._core.progress import Run
from flowpregel._core.records import Task
from flowpregel._core.retry import Attempts


class Deadline:
    """The time by which a superstep has to be over.

    Args:
        run: The run it belongs to.
        monotonic: When it is now, in nanoseconds.
        seconds: How long it may last from now.
    """

    def __init__(self, run: Run, monotonic: int, seconds: float) -> None:
        self._run = run
        self.at = monotonic + int(seconds * 1e9)

    def check(self, monotonic: int, still_open: Iterable[Task]) -> None:
        """End the superstep if it took too long.

        Raises:
            TimeoutError: It did; the message names the tasks that are *still_open*.
        """
        if monotonic < self.at:
            return
        run = self._run
        names = ", ".join(sorted({task.name for task in still_open}))
        raise TimeoutError(
            f"superstep {run.step} took longer than step_timeout={run.options.step_timeout} "
            f"seconds; still running: {names}"
        )


def clock_of(run: Run, seconds: float) -> Generator[Effect, Wakeup, tuple[Deadline, str | None]]:
    """Learn what time it is; return the deadline of a superstep that may take so long from now.

    The last wake-up's time will not do: a reader of the stream may have paused since.
    Meanwhile the run may have been told to stop; then why is returned too.
    """
    wakeup = yield Wait(0)
    run.note_time(wakeup.now)
    reasons = [event.reason for event in wakeup.events if isinstance(event, Stopped)]
    return Deadline(run, wakeup.monotonic, seconds), reasons[-1] if reasons else None


def wait_for(attempts: Attempts | None, deadline: Deadline | None) -> Wait:
    """Return the effect that waits for events, for the next of *attempts* and the *deadline*."""
    attempt = None if attempts is None else attempts.earliest
    if deadline is None:
        return WHENEVER if attempt is None else Wait(attempt)
    return Wait(deadline.at if attempt is None else min(attempt, deadline.at))
