"""Runs tasks one after another on the OS thread that drives the run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from flowpregel._core.effects import Call, Ended, Event
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import TaskExitError
from flowpregel.executors.attempt import perform
from flowpregel.executors.base import Capabilities, Executor, Job, JobKey, Mailbox
from flowpregel.executors.calls import CallFuture, caught_of, ends_of, resolve_future

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
        self._waiting: deque[tuple[Job, Mailbox]] = deque()

    def start(self, job: Job, mailbox: Mailbox) -> None:
        """Keep *job* until the run waits."""
        self._waiting.append((job, mailbox))

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits."""
        for item in self._waiting:
            if item[0].key == key:
                self._waiting.remove(item)
                item[1].post(Ended(*key, Withdrawn()))
                return

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Hand the caller that made *call* its outcome."""
        resolve_future(call, outcome)

    @property
    def has_work(self) -> bool:
        """Whether a job waits."""
        return bool(self._waiting)

    def work(self) -> list[Event]:
        """Run jobs, at least one and for about two milliseconds; return how they ended.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C meanwhile.
        """
        events: list[Event] = []
        started, pid = time.monotonic_ns(), os.getpid()
        until = started + _SLICE
        while self._waiting:
            job, mailbox = self._waiting.popleft()
            began = time.time_ns()
            try:
                outcome, caught = self._perform(job, mailbox)
            except BaseException:
                # What ended before is taken in when the run is told to end.
                for event in (*events, Ended(*job.key, Withdrawn())):
                    mailbox.post(event)
                raise
            ended = time.monotonic_ns()
            span = (began, (ended - started) / 1e9, "inline", pid)
            events.append(Ended(job.info.task_id, job.info.attempt, outcome, span, caught))
            if isinstance(outcome, Raised) or ended > until:
                break
            started = ended
        return events

    def _perform(self, job: Job, mailbox: Mailbox) -> tuple[Outcome, Collection[str] | None]:
        ends, made = ends_of(job, mailbox, self._turn)
        if job.variables is None:
            outcome = perform(job, ends)
        else:
            outcome = job.variables.copy().run(perform, job, ends)
        if _is_ctrl_c(outcome):
            raise KeyboardInterrupt
        return outcome, caught_of(outcome, made)

    def withdraw(self) -> None:
        """Withdraw every job that waits."""
        while self._waiting:
            job, mailbox = self._waiting.popleft()
            mailbox.post(Ended(*job.key, Withdrawn()))


def _is_ctrl_c(outcome: Outcome) -> bool:
    """Return whether a task ended by Ctrl-C, which is meant for the whole program."""
    return (
        isinstance(outcome, Raised)
        and isinstance(outcome.error, TaskExitError)
        and outcome.error.what.startswith("KeyboardInterrupt")
    )
