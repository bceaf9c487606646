"""The contract of an executor: it gets jobs (attempts of tasks), and posts their events
to the mailbox of the run.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol, TypeAlias

from flowpregel._core.effects import Call, Event, SaveState
from flowpregel._core.records import Outcome
from flowpregel.context import Job
from flowpregel.executors.resources import SharedLimits
from flowpregel.executors.unread import UnreadEvent

BACKLOG: Final = 8 << 20
"""The size, in bytes, of the streamed chunks that a run has not handled yet. If it is
exceeded, the run's tasks are paused.
"""

JobKey: TypeAlias = tuple[str, int]
"""The id of a task and the number of an attempt, which together are unique in a
program.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of an executor. A run that needs a missing capability fails when
    it starts.
    """

    isolates: bool = False
    """True if the coordinator survives the crash of a task."""
    times_out: bool = False
    """True if the executor can stop a task that takes too long."""
    cancels: bool = False
    """True if the executor can stop a running task on request."""
    admits: bool = False
    """True if the executor itself keeps a task waiting until its resources are free:
    CPUs, memory, and slots of named limits.
    """
    runs_here: bool = False
    """True if the tasks run in this process. The run, not the executor, then keeps a
    task waiting until its limits and rates allow it to start.
    """
    streams: bool = True
    """True if the chunks that a task streams arrive while the task runs."""
    calls: bool = True
    """True if a task can call `@task` functions and graphs."""


class ExecutorCheck(NamedTuple):
    """A line of ``flowpregel doctor`` about an executor."""

    name: str
    """The subject of the check, such as the name of a machine."""
    ok: bool
    """True if the check succeeded, False if a run would fail."""
    finding: str
    """The result of the check and, if it failed, what to do, as a text for people."""


@dataclass(slots=True, eq=False)
class Backlog:
    """The size, in bytes, of the posted events that a run has not handled yet. Tasks
    that produce events faster than the run handles them are paused (back-pressure).

    An executor that can make a task wait adds the size of the events that it posts, and
    pauses the task when the limit is exceeded. Any OS thread may use this object.
    """

    size: int = 0
    limit: int = BACKLOG
    """The number of bytes above which tasks of the run are paused."""
    _held: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> bool:
        """Add the *size* of an event that will be posted, and return whether the limit
        is exceeded.
        """
        with self._lock:
            self.size += size
            return self.size > self.limit

    def hold(self, release: Callable[[], None]) -> bool:
        """Register *release*, a function that is called when the run has handled all
        events that were posted.

        If the run has already handled them, return False, and never call *release*.
        """
        with self._lock:
            if self.size:
                self._held.append(release)
            return bool(self.size)

    def clear(self) -> None:
        """Note that the run has handled all events, and release the tasks that wait for
        that.
        """
        with self._lock:
            self.size, self.limit = 0, BACKLOG
            held, self._held = self._held, []
        for release in held:
            release()


HOST: Final = os.uname().nodename
"""The name of this machine."""


class Mailbox(Protocol):
    """The receiver of the events of a run. Any OS thread may use it."""

    @property
    def backlog(self) -> Backlog | None:
        """The backlog of the run, or None if no task is ever paused for it."""

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver events, in order. Unread events are read when the run takes them."""


def default_executor() -> str:
    """Return the name of the default executor, which is the value of
    ``FLOWPREGEL_EXECUTOR`` or ``"processes"``.
    """
    return os.environ.get("FLOWPREGEL_EXECUTOR") or "processes"


class Executor(ABC):
    """An executor starts jobs and posts their events. It may serve many runs at
    once.
    """

    capabilities: Capabilities = Capabilities()
    room: int | None = None
    """The maximum room (a measure of memory) of the jobs that a run passes to the
    executor at once, or None for no limit.

    A job takes a room of 1, and 1 more for each MiB of input. Jobs for which there is
    no room wait in the run, where they take less memory.
    """
    shared_limits: SharedLimits | None = None
    """The named limits for tasks that run in this process, if there are any."""
    is_closed = False
    """True if the executor was closed, so that it takes no more jobs."""

    @abstractmethod
    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start *jobs*, in order, and post exactly one `Ended` for each in any case.

        This must not block. A job that cannot be started ends as `Raised`. A job that
        was lost with its machine, and that has called tasks, ends as `Raised` with a
        `MachineLostError`: the run starts the task again, and answers these calls from
        its records.

        Args:
            jobs: The jobs to start.
            mailbox: The receiver of the events of the jobs' run.
        """

    @abstractmethod
    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a waiting job. If *kill*, also stop a running job if possible.

        A job that is stopped ends as `Withdrawn`. A job that cannot be stopped
        continues to its own end. An unknown key is ignored, since the job may have
        ended.

        Args:
            key: The key of the job.
            kill: True to stop a running job.
        """

    def warn(self, key: JobKey) -> None:
        """Withdraw a waiting job, or warn a running job that its run will end soon.

        Args:
            key: The key of the job.
        """
        self.cancel(key, kill=False)

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Send the outcome of a call, or of saving a value, to the task that requested
        it.

        Args:
            call: The call, or the request to save a value.
            outcome: The outcome of the call, or of saving the value.
        """
        call.reply.settle(outcome)

    def leave(  # noqa: B027 - an executor without processes has nothing to exit
        self, contexts: Sequence[bytes], error: BaseException | None
    ) -> None:
        """Exit the context managers of the `Context` channels of a run that has ended,
        in all other processes.

        This returns when every process that entered the contexts has exited them or has
        died. It may block for a bounded time.

        Args:
            contexts: The ids (tokens) of the contexts. In this process the run exits
                them itself.
            error: The error of the run, or None if it succeeded.
        """

    def free(self) -> float:
        """Return the number of further jobs that would start at once instead of
        waiting.
        """
        return inf

    def running(self) -> Mapping[JobKey, tuple[int, int]]:
        """Return the running jobs, each with its pid and its start time, if known.

        The start time is in wall-clock nanoseconds, or 0 if it is unknown. This method
        is used to show the state of a run, and is called on any OS thread. If an
        executor does not know its running jobs, all jobs are shown as waiting.
        """
        return {}

    def worker_pids(self) -> list[int]:
        """Return the pids of the worker processes, if there are any."""
        return []

    def checks(self, modules: Sequence[str], timeout: float) -> Iterable[ExecutorCheck]:
        """Yield checks of the things that a run depends on, such as the machines, for
        ``flowpregel doctor``.

        The command itself runs a task, so the executor need not. The default
        implementation yields nothing.

        Args:
            modules: The names of the top-level modules that the tasks need.
            timeout: Seconds to wait for answers.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - some executors hold nothing to release
        """Wait for tasks that cannot be stopped, and release all resources. It is safe
        to call this more than once.
        """
