"""How long the calls of a body that has failed may still take.

A body's failure is told when its calls have ended, so that what they return is
recorded. A call that blocks for ever would keep it back for ever. So these calls go on
for as long as one of them ends every ``stop_grace`` seconds; then those that are left
are stopped. A second later, what cannot be stopped (it runs on an OS thread) is left
behind, and is waited for no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowpregel._core.calls import below
from flowpregel._core.records import Outcome, Raised, Task, Withdrawn
from flowpregel._core.run_state import Run

TIME_TO_END: Final = 1_000_000_000
"""Nanoseconds that a call which was stopped has to end."""
LONGEST: Final = 1e18
"""Nanoseconds of the longest grace: 31 years."""


@dataclass(slots=True, eq=False)
class FailedBody:
    """A body that has failed for good while calls of it run."""

    task: Task
    deadline: int | None = None
    """Monotonic nanoseconds; None: the clock is started at the end of this wake-up."""
    is_stopped: bool = False
    """Whether its calls were stopped."""


@dataclass(slots=True, eq=False)
class FailedBodies:
    """The failed bodies of one superstep, and when their calls are stopped.

    Args:
        grace: Seconds that calls have from the failure, or from the last end of one of
            them.
    """

    grace: float
    _bodies: dict[str, FailedBody] = field(default_factory=dict)
    """By task id."""

    @property
    def deadline(self) -> int | None:
        """The monotonic nanoseconds of the next stop; None: there will be none."""
        deadlines = [
            body.deadline for body in self._bodies.values() if body.deadline is not None
        ]
        return min(deadlines, default=None)

    def add(self, task: Task) -> None:
        """Note that *task* has ended while calls of it run; only a failure limits their
        time.
        """
        if isinstance(task.body.outcome, Raised):
            self._bodies[task.id] = FailedBody(task)

    def call_ended(self, task: Task) -> None:
        """Note that a call of *task* has ended: the others have the whole time
        again.
        """
        body = self._bodies.get(task.id)
        if body is None:
            return
        if not task.body.running:
            del self._bodies[task.id]
        elif not body.is_stopped:
            body.deadline = None

    def stop_late(
        self, running: Mapping[str, Task], now: int
    ) -> Iterator[tuple[list[Task], bool]]:
        """Yield calls that must be stopped *now* (monotonic), and whether to leave them
        behind.

        They are among the tasks *running*; nothing is left behind that was not stopped
        before.
        """
        for body in [*self._bodies.values()]:
            if body.deadline is None:
                body.deadline = now + int(min(self.grace * 1e9, LONGEST))
            elif body.deadline <= now:
                late = below(running, body.task)
                if not body.is_stopped:
                    _add_note(body.task, late, self.grace)
                yield late, body.is_stopped
                body.is_stopped, body.deadline = True, now + TIME_TO_END


def note_left_behind(run: Run, task: Task, outcome: Outcome) -> None:
    """Tell the user that *task* goes on although its run waits for it no longer, if it
    does.
    """
    if isinstance(outcome, Withdrawn) and outcome.goes_on:
        run.note(
            f"{task.call} cannot be stopped where it runs: it goes on there, and its "
            "result "
            "will not be recorded"
        )


def _add_note(body: Task, late: Sequence[Task], grace: float) -> None:
    """Note on what *body* failed with that the *late* calls were stopped."""
    shown = ", ".join(task.call for task in late[:3]) + (
        ", ..." if len(late) > 3 else ""
    )
    body.body.outcome.error.add_note(
        f"{shown} had not ended {grace:g} seconds later (stop_grace={grace:g}), so "
        f"{'they were' if len(late) > 1 else 'it was'} stopped; no result of "
        f"{'theirs' if len(late) > 1 else 'its'} is recorded"
    )
