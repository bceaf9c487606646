"""Ctrl-C while tasks are being started: the run ends, though some never began."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowpregel._core.effects import Call, Ended
from flowpregel._core.records import RETURN, Outcome, Returned
from flowpregel.context import Job
from flowpregel.executors.base import Executor, JobKey, Mailbox
from flowpregel.func import entrypoint, task


class Impatient(Executor):
    """Ends the first jobs it is given; then Ctrl-C is pressed.

    Args:
        first: How many it ends.
    """

    def __init__(self, first: int) -> None:
        self._left = first
        self.cancelled: list[JobKey] = []

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """End the jobs at once."""
        for job in jobs:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            mailbox.post(Ended(*job.key, Returned(((RETURN, 1),))))

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Note it: a job that was never started has nothing to be stopped."""
        self.cancelled.append(key)

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Answer the body."""
        call.reply.settle(outcome)


@task
def step(number: int) -> int:
    """Never run: its executor answers in its place."""
    return number


@pytest.mark.parametrize("first", [0, 3])
def test_a_run_that_is_interrupted_while_it_starts_tasks_ends(first: int) -> None:
    """It does not wait for those that were not started."""

    @entrypoint(executor=Impatient(first))
    def flow(count: int) -> int:
        return sum(future.result() for future in step.map(range(count)))

    with pytest.raises(KeyboardInterrupt):
        flow.invoke(10)
