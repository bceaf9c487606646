"""Runs tasks one after another on the OS thread that drives the run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from flowpregel._core.effects import Call, Ended
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import TaskExitError
from flowpregel.executors.attempt import perform
from flowpregel.executors.base import Capabilities, Executor, Job, JobKey, Mailbox, Stopwatch
from flowpregel.executors.calls import CallFuture, LocalRunClient, caught_of, settle

_SLICE: Final = 0.002
"""Seconds of short tasks after which the run takes in what they returned."""


class InlineExecutor(Executor):
    """Keeps jobs until the run waits, and runs them then. For debugging, and for trifles.

    Args:
        turn: Lets the run go on while a task waits for a call it made.
    """

    capabilities = Capabilities()

    def __init__(self, turn: Callable[[CallFuture[Any]], None]) -> None:
        self._turn = turn
        self.waiting: deque[tuple[Job, Mailbox]] = deque()
        """The jobs that wait for this OS thread."""

    def start(self, job: Job, mailbox: Mailbox) -> None:
        """Keep *job* until the run waits."""
        self.waiting.append((job, mailbox))

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits."""
        for item in self.waiting:
            if item[0].key == key:
                self.waiting.remove(item)
                item[1].post(Ended(*key, Withdrawn()))
                return

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Hand the caller that made *call* its outcome."""
        settle(call.reply, outcome)

    def work(self) -> None:
        """Run jobs: at least one, and for about two milliseconds, until one fails.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C meanwhile.
        """
        until = time.monotonic() + _SLICE
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            watch, client = Stopwatch(), LocalRunClient(job, mailbox, self._turn)
            try:
                outcome = _outcome_of(job, client)
            except BaseException:
                mailbox.post(Ended(*job.key, Withdrawn()))
                raise
            caught = caught_of(outcome, client.made)
            mailbox.post(Ended(*job.key, outcome, watch.stop("inline"), caught))
            if isinstance(outcome, Raised) or time.monotonic() > until:
                return

    def withdraw(self) -> None:
        """Withdraw every job that waits."""
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            mailbox.post(Ended(*job.key, Withdrawn()))


def _outcome_of(job: Job, client: LocalRunClient) -> Outcome:
    """Run *job* and return how it ended.

    Raises:
        KeyboardInterrupt: By Ctrl-C, which is meant for the whole program.
    """
    variables = job.variables
    if variables is None:
        outcome = perform(job, client)
    else:
        outcome = variables.copy().run(perform, job, client)
    match outcome:
        case Raised(TaskExitError(what=what)) if what.startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt
    return outcome
