"""A limit on the time that the calls of a failed body may still take.

A body's failure is reported when its calls have ended, so that their results are
recorded. A call that blocks would delay the report indefinitely. So the calls continue
as long as one of them ends every ``stop_grace`` seconds; then the remaining calls are
stopped. A second later, the run stops waiting for the calls that cannot be stopped,
because they run on OS threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowpregel._core.calls import below
from flowpregel._core.records import Raised, Task, Withdrawn
from flowpregel._core.run import Run

TIME_TO_END: Final = 1_000_000_000
"""The time that a call has to end after it was stopped, in nanoseconds."""
LONGEST: Final = 1e18
"""The longest time (grace) that calls can get, in nanoseconds: 31 years."""
SHOWN_CALLS: Final = 3
"""The greatest number of stopped calls that the note on a body's error lists."""


@dataclass(slots=True, eq=False)
class FailedBody:
    """A body (the code of a workflow or task) that has failed and is not retried, while
    calls of the body still run.
    """

    task: Task
    deadline: int | None = None
    """The time at which the remaining calls are stopped, in monotonic nanoseconds. It
    is None until it is set, at the end of the current wake-up.
    """
    is_stopped: bool = False
    """True if the calls of the body were stopped."""


@dataclass(slots=True, eq=False)
class FailedBodies:
    """The failed bodies of one superstep, and the times at which their calls are
    stopped.

    Args:
        grace: Seconds that the calls have after the failure, or after the last end of a
            call.
    """

    grace: float
    bodies: dict[str, FailedBody] = field(default_factory=dict)
    """The failed bodies, by task id."""

    @property
    def deadlines(self) -> list[int]:
        """The times (monotonic nanoseconds) at which calls will be stopped."""
        return [
            body.deadline for body in self.bodies.values() if body.deadline is not None
        ]

    def add(self, task: Task) -> None:
        """Add *task*, which has ended while its calls run, if it has failed. The calls
        of other bodies have no time limit.
        """
        if isinstance(task.attempt.body.outcome, Raised):
            self.bodies[task.id] = FailedBody(task)

    def call_ended(self, task: Task) -> None:
        """Note that a call of *task* has ended. The other calls of the task then have
        the whole *grace* again.
        """
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
        """Yield lists of calls that must be stopped, each with True if the run no
        longer waits for the calls.

        The run stops waiting only for calls that were stopped before.

        Args:
            running: The tasks that run or wait, by id.
            now: The present time in monotonic nanoseconds.
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


def notify_left_behind(
    run: Run,
    task: Task,
    outcome: Withdrawn,
) -> None:
    """Give the user a notice if *task* continues although its run no longer waits for
    it.
    """
    if outcome.goes_on:
        run.outbox.notify(
            f"{task.call} cannot be stopped where it runs: it continues there, but "
            "its result will not be recorded"
        )


def _add_note(
    body: Task,
    late: Sequence[Task],
    grace: float,
) -> None:
    """Add a note to the failure of *body*, because the *late* calls were stopped."""
    texts = ", ".join(task.call for task in late[:SHOWN_CALLS])
    if len(late) > SHOWN_CALLS:
        texts += ", ..."
    consequence = "it was stopped; its result was not recorded"
    if len(late) > 1:
        consequence = "they were stopped; their results were not recorded"
    error: BaseException = body.attempt.body.outcome.error
    error.add_note(
        f"{texts} had not ended {grace:g} seconds later (stop_grace={grace:g}), so "
        f"{consequence}"
    )
