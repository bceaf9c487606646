"""The contract of an executor: it is given jobs, and posts what becomes of them.

::

    coordinator                                   executor
    -----------                                   --------
    start(jobs, mailbox)  ------------------->    starts it somewhere
    cancel(key, kill)     ------------------->    stops it
    resolve(call, outcome) ------------------>    answers a caller
    mailbox.take(...)     <--- Ended, Call, Emitted -----  mailbox.post(event)
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol, TypeAlias

from flowpregel._core.effects import Call, Event, SaveState
from flowpregel._core.records import Outcome
from flowpregel.context import Job
from flowpregel.executors.resources import SharedLimits
from flowpregel.executors.unread import UnreadEvent

BACKLOG: Final = 8 << 20
"""Bytes of chunks that a run may be behind before its tasks are held back."""

JobKey: TypeAlias = tuple[str, int]
"""(task id, attempt): names one attempt of one task, once in the life of a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of an executor; a run that needs another one fails when it
    starts.
    """

    isolates: bool = False
    """A crash of a task is not a crash of the coordinator."""
    times_out: bool = False
    """It can stop a task that takes too long."""
    cancels: bool = False
    """It can stop a task that runs."""
    admits: bool = False
    """It can keep a task waiting until what it needs is free: CPUs, memory, places of a
    limit.
    """
    runs_here: bool = False
    """True if the tasks run in this process, so that the run keeps them waiting for
    limits and rates.
    """
    streams: bool = True
    """The chunks of a task arrive while it runs."""
    calls: bool = True
    """A task can call `@task` functions and graphs."""


@dataclass(slots=True, eq=False)
class Backlog:
    """Back-pressure: what was posted to a run and has not been taken in yet, in bytes.

    Executors that can make a task wait count here what they post, and hold back
    the task when it is too much. Safe from any OS thread.
    """

    size: int = 0
    limit: int = BACKLOG
    """Bytes from which on tasks are held back."""
    _held: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> bool:
        """Count what is about to be posted; return whether it is too much now."""
        with self._lock:
            self.size += size
            return self.size > self.limit

    def hold(self, release: Callable[[], None]) -> bool:
        """Have *release* called when the run has taken everything; False: it has
        already.
        """
        with self._lock:
            if self.size:
                self._held.append(release)
            return bool(self.size)

    def clear(self) -> None:
        """Note that the run has taken everything in."""
        with self._lock:
            self.size, self.limit = 0, BACKLOG
            held, self._held = self._held, []
        for release in held:
            release()


HOST: Final = os.uname().nodename
"""The name of this machine."""


class Mailbox(Protocol):
    """The receiver of the events of a run. Safe from any OS thread."""

    @property
    def backlog(self) -> Backlog | None:
        """Counts what the run has not taken in yet; None: nothing is held back for
        it.
        """

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, in their order; those that are unread are read where they are
        taken.
        """


def default_executor() -> str:
    """Return the executor of programs that name none: ``FLOWPREGEL_EXECUTOR``, or
    processes.
    """
    return os.environ.get("FLOWPREGEL_EXECUTOR") or "processes"


class Executor(ABC):
    """Starts jobs and posts their events. One executor may serve many runs at once."""

    capabilities: Capabilities = Capabilities()
    room: int | None = None
    """The number of places for jobs of a run; None: there is no limit.

    A job takes a place, and one more for each MiB in its input. The other jobs wait
    with their run, which has less in memory for each.
    """
    shared_limits: SharedLimits | None = None
    """The named limits that tasks in this process count for, if it has any."""
    is_closed = False
    """Whether it was closed, and takes no more jobs."""

    @abstractmethod
    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start *jobs*, in order; the `Ended` of each is posted exactly once, whatever
        happens.

        Must not block. What cannot even be started ends as `Raised`.
        """

    @abstractmethod
    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; stop a running one if *kill* and it can be.

        A job that is stopped ends as `Withdrawn`; one that cannot be goes on and
        ends as it ends. An unknown key is ignored: it may have ended.
        """

    def warn(self, key: JobKey) -> None:
        """Withdraw a job that waits; warn one that runs that its run will end soon."""
        self.cancel(key, kill=False)

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Give the caller of *call*, or the task that saves a value, its outcome."""
        call.reply.settle(outcome)

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:  # noqa: B027
        """Leave the contexts of a run that ended with *error*, or well, in other
        processes.

        Returns when they have been left in every process that entered them, or that
        process has died. May block, for a bounded time.

        Args:
            contexts: Their tokens. In this process the run leaves them itself.
            error: What it ended with.
        """

    def free(self) -> float:
        """Return how many more jobs it would start at once, rather than keep them
        waiting.
        """
        return inf

    def running(self) -> Mapping[JobKey, tuple[int, int]]:
        """Return the jobs that run now: the pid of each, and when it began, as far as
        is known.

        That is wall-clock nanoseconds; 0: not known. For those who watch a run, on any
        OS thread. Of an executor that cannot tell, all jobs seem to wait.
        """
        return {}

    def worker_pids(self) -> list[int]:
        """Return the pids of the worker processes, if there are any."""
        return []

    def close(self) -> None:  # noqa: B027 - some executors hold nothing to release
        """Wait for what cannot be stopped, and release everything. May be called
        again.
        """
