"""Runs tasks on OS threads of this process: some of its own, or the one that drives the run."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from flowpregel._core.effects import Ended
from flowpregel._core.records import Raised, Withdrawn
from flowpregel._interrupts import interruptible
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError, TaskExitError
from flowpregel.executors.attempt import Stopwatch, perform
from flowpregel.executors.base import Executor, JobKey, Mailbox
from flowpregel.executors.calls import CallFuture, OpenCalls
from flowpregel.executors.local_client import LocalRunClient, caught_of, stop_calls

Waiting: TypeAlias = deque[tuple[Job, Mailbox]]
_SLICE: Final = 0.002
"""Seconds of short tasks after which the run takes in what they returned."""


def _withdrawn(waiting: Waiting, key: JobKey) -> bool:
    """End the job of that key as withdrawn; return whether it waited."""
    for item in waiting:
        if item[0].key == key:
            waiting.remove(item)
            item[1].post(Ended(*key, Withdrawn()))
            return True
    return False


class ThreadExecutor(Executor):
    """OS threads, made when needed and kept until `close`.

    A task that waits for calls it made does not count, so nested calls cannot
    deadlock. A task on an OS thread cannot be stopped.

    Args:
        max_workers: How many tasks may run at once; the default is four more
            than there are processors, at most 32.
        name: Begins the names of its OS threads.
    """

    def __init__(self, max_workers: int | None = None, *, name: str = "flowpregel") -> None:
        self._limit = max_workers or min(32, (os.cpu_count() or 1) + 4)
        self._name = name
        self._changed = threading.Condition()
        self._waiting: Waiting = deque()
        self._threads: list[threading.Thread] = []
        self._running: dict[JobKey, OpenCalls] = {}
        self._parents: set[JobKey] = set()
        """The jobs that made a call: they may be waiting, so they do not count."""
        self._closing = False

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job when a place is free."""
        for job in jobs:
            item = job, mailbox
            with self._changed:
                self._waiting.append(item)
                try:
                    self._make_room()
                except RuntimeError as error:
                    self._waiting.remove(item)
                    failure = ExecutorUnavailableError(
                        f"no OS thread can be started for task {job.task.name!r} ({error}): let "
                        "the program have more (`ulimit -u`, the container's pids limit), or run "
                        "fewer"
                    )
                    mailbox.post(Ended(*job.key, Raised(failure)))

    def _make_room(self) -> None:
        """Wake an idle OS thread for what waits, or make one."""
        free = self._limit - (len(self._running) - len(self._parents))
        wanted = min(free, len(self._waiting))
        # Threads that were made a moment ago count as idle, though they do not wait yet.
        idle = len(self._threads) - len(self._running)
        for _ in range(wanted - idle):
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system gives no more
                if len(self._threads) > len(self._parents):
                    break  # there are some that do not wait for others: they do it later
                raise
            self._threads.append(thread)
        self._changed.notify(wanted)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; one that runs learns of it at its next call."""
        with self._changed:
            if _withdrawn(self._waiting, key):
                return
            calls = self._running.get(key) if kill else None
        stop_calls(calls or (), "the run was stopped")

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the jobs that run now."""
        with self._changed:
            return dict.fromkeys(self._running, (os.getpid(), 0))

    def close(self) -> None:
        """Wait for the running tasks, and end all OS threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """End the idle OS threads, and leave the others to end when their tasks do."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._is_due())
                if not self._is_due():
                    return
                job, mailbox = self._waiting.popleft()
                note = partial(self._note_parent, job.key)
                client = LocalRunClient(job, mailbox, before_first=note)
                self._running[job.key] = client.made
            watch = Stopwatch()
            outcome = job.variables.copy().run(perform, job, client)
            caught = caught_of(outcome, client.made)
            with self._changed:
                del self._running[job.key]
                self._parents.discard(job.key)
            mailbox.post(Ended(*job.key, outcome, watch.stop("threads"), caught))

    def _is_due(self) -> bool:
        """Return whether a job waits, and may run now."""
        return bool(self._waiting) and len(self._running) - len(self._parents) < self._limit

    def _note_parent(self, key: JobKey) -> None:
        with self._changed, suppress(RuntimeError):  # those that wait go on waiting
            self._parents.add(key)
            self._make_room()


# ------------------------------------------------ the OS thread of the run


class InlineExecutor(Executor):
    """Keeps jobs until the run waits, and runs them then. For debugging, and for trifles.

    Args:
        turn: Lets the run go on while a task waits for a call it made.
    """

    def __init__(self, turn: Callable[[CallFuture[Any]], None]) -> None:
        self._turn = turn
        self.waiting: Waiting = deque()
        """The jobs that wait for this OS thread."""
        self._running: list[JobKey] = []
        """Those that run: the others wait for calls that they made."""

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Keep *jobs* until the run waits."""
        self.waiting.extend((job, mailbox) for job in jobs)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits."""
        _withdrawn(self.waiting, key)

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the job that runs, and those that wait for calls that they made."""
        return dict.fromkeys([*self._running], (os.getpid(), 0))

    def work(self) -> None:
        """Run jobs: at least one, and for about two milliseconds, until one fails.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C meanwhile.
        """
        until = time.monotonic() + _SLICE
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            watch, client = Stopwatch(), LocalRunClient(job, mailbox, self._turn)
            self._running.append(job.key)
            try:
                outcome = interruptible(job.variables.copy().run, perform, job, client)
            except BaseException:
                mailbox.post(Ended(*job.key, Withdrawn()))
                raise
            finally:
                self._running.remove(job.key)
            match outcome:
                case Raised(TaskExitError(what=what)) if what.startswith("KeyboardInterrupt"):
                    mailbox.post(Ended(*job.key, Withdrawn()))
                    raise KeyboardInterrupt  # it is meant for the whole program
            caught = caught_of(outcome, client.made)
            mailbox.post(Ended(*job.key, outcome, watch.stop("inline"), caught))
            if isinstance(outcome, Raised) or time.monotonic() > until:
                return

    def withdraw(self) -> None:
        """Withdraw every job that waits."""
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            mailbox.post(Ended(*job.key, Withdrawn()))
