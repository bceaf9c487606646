"""Timers, and how a task is stopped: first a signal that raises in it, after the grace the kill.

Everything here runs on the pool's I/O thread.
"""

from __future__ import annotations

import heapq
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol, cast

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.processes.assign import InFlight, StopReason
from flowpregel.executors.processes.crash_report import PostMortem
from flowpregel.executors.processes.worker_process import WorkerProcess


class Timers:
    """Calls back when it is time. Times are monotonic seconds.

    A timer that no longer matters is not removed: its callback finds nothing to do.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def add(self, when: float, action: Callable[[], object]) -> None:
        """Call *action* at *when*."""
        heapq.heappush(self._heap, (when, next(self._order), action))

    def due(self, now: float) -> list[Callable[[], object]]:
        """Take out the actions whose time has come."""
        actions = []
        while self._heap and self._heap[0][0] <= now:
            actions.append(heapq.heappop(self._heap)[2])
        return actions

    def next(self) -> float | None:
        """Return when the next timer is due."""
        return self._heap[0][0] if self._heap else None


class Recalling(Protocol):
    """The pool, as `TaskStopper` needs it."""

    def recall(self, worker: WorkerProcess) -> None:
        """Take back the tasks that *worker* has not begun."""

    def unhold(self, worker: WorkerProcess) -> None:
        """Read the link of *worker* again, if it was held back."""


class TaskStopper:
    """Enforces the timeouts of tasks, and cancels running ones.

    Args:
        pool: Takes back the tasks behind one that is to stop.
        timers: Call back.
        grace: Seconds between the signal and the kill.
    """

    def __init__(self, pool: Recalling, timers: Timers, grace: float) -> None:
        self._pool = pool
        self._timers = timers
        self._grace = grace

    def sent(self, task: InFlight) -> None:
        """Start the timeouts of *task*, which its worker begins now."""
        policy = task.job.timeout
        if policy is None:
            return
        if policy.run_timeout is not None:
            limit = cast("float", policy.run_timeout)
            self._at(task.sent + limit, task, lambda task: self.stop(task, "run"))
        if policy.idle_timeout is not None:
            self._look_for_life(cast("float", policy.idle_timeout), task)

    def _at(self, when: float, task: InFlight, action: Callable[[InFlight], object]) -> None:
        """Call *action* with *task* at *when*, if its worker still has it."""
        # Weakly: a task that has ended is not kept until its timeout.
        ref, number = weakref.ref(task), task.number

        def act() -> None:
            task = ref()
            if task is not None and task.worker is not None and task.number == number:
                action(task)

        self._timers.add(when, act)

    def _look_for_life(self, limit: float, task: InFlight) -> None:
        now = time.monotonic()
        if task.worker.held_by is not None:
            # Its signs of life are not read.
            task.alive = now
        if task.alive + limit > now:
            self._at(task.alive + limit, task, partial(self._look_for_life, limit))
        else:
            self.stop(task, "idle")

    def stop(self, task: InFlight, reason: StopReason) -> None:
        """Stop *task*, which was sent to a worker."""
        if task.stopping is not None:
            return
        task.stopping = reason
        worker = task.worker
        if worker is None:
            return
        # A kill is to hit no other task; and this one may not have begun.
        self._pool.recall(worker)
        self._pool.unhold(worker)
        if task.worker is worker:
            worker.signal_stop(task.number)
            self._at(time.monotonic() + self._grace, task, _kill)


def _kill(task: InFlight) -> None:
    task.worker.kill("it was killed, because its task did not stop when it was told to")


def stopped_outcome(task: InFlight) -> Outcome:
    """Return how *task* ended, which was told to stop."""
    policy, now = task.job.timeout, time.monotonic()
    if policy is None or task.stopping in (None, "cancel"):
        return Withdrawn()
    name = task.job.info.name
    if task.stopping == "run":
        limit = cast("float", policy.run_timeout)
        return Raised(NodeTimeoutError(name, now - task.sent, "run", limit))
    limit = cast("float", policy.idle_timeout)
    return Raised(NodeTimeoutError(name, now - task.alive, "idle", limit))


def lost_outcome(task: InFlight, report: PostMortem) -> Outcome:
    """Return how *task* ended, which ran in a worker that died."""
    if task.stopping is not None:
        return stopped_outcome(task)
    return Raised(report.error(task.job.info.name))
