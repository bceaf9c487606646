"""The time that the calls of a failed body may still take.

A body's failure is reported when its calls have ended, so that their results are
recorded. A call that blocks would hold the failure back indefinitely. So the calls
continue as long as one of them ends every ``stop_grace`` seconds; then those that are
left are stopped. A second later, the run leaves behind the calls that cannot be stopped
(they run on an OS thread), and waits for them no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowpregel._core.calls import below
from flowpregel._core.records import Raised, Task, Withdrawn
from flowpregel._core.run import Run

TIME_TO_END: Final = 1_000_000_000
"""Nanoseconds that a stopped call has to end."""
LONGEST: Final = 1e18
"""Nanoseconds of the longest grace: 31 years."""
SHOWN_CALLS: Final = 3
"""The number of calls that a note lists."""


@dataclass(slots=True, eq=False)
class FailedBody:
    """A body that has failed for good while calls of it run."""

    task: Task
    deadline: int | None = None
    """Monotonic nanoseconds; None: the clock starts at the end of this wake-up."""
    is_stopped: bool = False
    """True if its calls were stopped."""


@dataclass(slots=True, eq=False)
class FailedBodies:
    """The failed bodies of one superstep, and the deadlines of their calls.

    Args:
        grace: Seconds that calls have from the failure, or from the last end of one of
            them.
    """

    grace: float
    bodies: dict[str, FailedBody] = field(default_factory=dict)
    """The failed bodies, by task id."""

    @property
    def deadline(self) -> int | None:
        """The monotonic nanoseconds of the next stop; None: there will be none."""
        deadlines = [
            body.deadline for body in self.bodies.values() if body.deadline is not None
        ]
        return min(deadlines, default=None)

    def add(self, task: Task) -> None:
        """Note that *task* has ended while calls of it run; only a failure limits their
        time.
        """
        if isinstance(task.attempt.body.outcome, Raised):
            self.bodies[task.id] = FailedBody(task)

    def call_ended(self, task: Task) -> None:
        """Note that a call of *task* has ended: the time of the others starts again."""
        body = self.bodies.get(task.id)
        if body is None:
            return
        if not task.attempt.body.running:
            del self.bodies[task.id]
        elif not body.is_stopped:
            body.deadline = None

    def stop_late(
        self, running: Mapping[str, Task], now: int
    ) -> Iterator[tuple[list[Task], bool]]:
        """Yield calls that must be stopped, and whether they are left behind.

        A call is left behind only if it was stopped before.

        Args:
            running: The tasks that run or wait, by id.
            now: The monotonic nanoseconds.
        """
        for body in list(self.bodies.values()):
            if body.deadline is None:
                body.deadline = now + int(min(self.grace * 1e9, LONGEST))
            elif body.deadline <= now:
                late = below(running, body.task)
                if not body.is_stopped:
                    _add_note(body.task, late, self.grace)
                yield late, body.is_stopped
                body.is_stopped = True
                body.deadline = now + TIME_TO_END


def note_left_behind(
    run: Run,
    task: Task,
    outcome: Withdrawn,
) -> None:
    """Give the user a notice if *task* goes on while its run does not wait for it."""
    if outcome.goes_on:
        run.outbox.note(
            f"{task.call} cannot be stopped where it runs: it goes on there, and its "
            "result will not be recorded"
        )


def _add_note(
    body: Task,
    late: Sequence[Task],
    grace: float,
) -> None:
    """Note on the failure of *body* that the *late* calls were stopped."""
    texts = ", ".join(task.call for task in late[:SHOWN_CALLS])
    if len(late) > SHOWN_CALLS:
        texts += ", ..."
    stopped, owner = ("they were", "theirs") if len(late) > 1 else ("it was", "its")
    body.attempt.body.outcome.error.add_note(
        f"{texts} had not ended {grace:g} seconds later (stop_grace={grace:g}), so "
        f"{stopped} stopped; no result of {owner} is recorded"
    )
