"""When a task has run for too long, or shown no sign of life for too long."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import cast

from flowpregel.executors.processes.assign import InFlight, StopReason
from flowpregel.executors.processes.io_loop import Timers


class TaskTimeouts:
    """Watches the timeouts of tasks that workers have; on the I/O thread.

    Args:
        timers: Call back.
        expire: Called with a task whose time is over, and which of its timeouts that was.
    """

    def __init__(self, timers: Timers, expire: Callable[[InFlight, StopReason], None]) -> None:
        self._timers = timers
        self._expire = expire

    def start(self, task: InFlight) -> None:
        """Start the timeouts of *task*, which its worker begins now."""
        policy = task.job.task.timeout
        if policy is None:
            return
        if policy.run_timeout is not None:
            limit = cast("float", policy.run_timeout)
            self.at(task.sent + limit, task, lambda task: self._expire(task, "run"))
        if policy.idle_timeout is not None:
            self._look_for_life(cast("float", policy.idle_timeout), task)

    def at(self, when: float, task: InFlight, action: Callable[[InFlight], object]) -> None:
        """Call *action* with *task* at *when* (monotonic seconds), if its worker still has it."""
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
            self.at(task.alive + limit, task, partial(self._look_for_life, limit))
        else:
            self._expire(task, "idle")
