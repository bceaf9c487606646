"""Runs tasks one after another on the OS thread that drives the run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from flowpregel._core.effects import Call, Ended, Event
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import TaskExitError
from flowpregel.executors.attempt import perform
from flowpregel.executors.base import Capabilities, Executor, Job, JobKey, Mailbox
from flowpregel.executors.calls import CallFuture, LocalRunClient, caught_of, resolve_future

_SLICE = 2_000_000
"""Nanoseconds of short tasks after which what they returned is taken in."""


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
        resolve_future(call, outcome)

    def work(self) -> list[Event]:
        """Run jobs, at least one and for about two milliseconds; return how they ended.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C meanwhile.
        """
        events: list[Event] = []
        started, pid = time.monotonic_ns(), os.getpid()
        until = started + _SLICE
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            began, ends = time.time_ns(), LocalRunClient(job, mailbox, self._turn)
            try:
                outcome = _outcome_of(job, ends)
                caught = caught_of(outcome, ends.made)
            except BaseException:
                # What ended before is taken in when the run is told to end.
                for event in (*events, Ended(*job.key, Withdrawn())):
                    mailbox.post(event)
                raise
            ended, info = time.monotonic_ns(), job.info
            span = (began, (ended - started) / 1e9, "inline", pid)
            events.append(Ended(info.task_id, info.attempt, outcome, span, caught))
            if isinstance(outcome, Raised) or ended > until:
                break
            started = ended
        return events

    def withdraw(self) -> None:
        """Withdraw every job that waits."""
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            mailbox.post(Ended(*job.key, Withdrawn()))


def _outcome_of(job: Job, ends: LocalRunClient) -> Outcome:
    """Run *job* and return how it ended.

    Raises:
        KeyboardInterrupt: By Ctrl-C, which is meant for the whole program.
    """
    variables = job.variables
    outcome = perform(job, ends) if variables is None else variables.copy().run(perform, job, ends)
    if isinstance(outcome, Raised):
        error = outcome.error
        if isinstance(error, TaskExitError) and error.what.startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt
    return outcome
