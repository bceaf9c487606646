"""The I/O thread of a pool: one loop that waits for all events, and handles them.

Of the coordinator's OS threads, the I/O thread alone uses links, workers and the queue.

::

    any OS thread               I/O thread                            worker process
    -------------               ----------                            --------------
    take, cancel, - commands ->  wait     <- readable: link, stdout, ---- frames
    resolve, leave  (a deque,    read        stderr, pidfd
                    a wake-up)   execute  the commands
                                 expire   the timers
    mailboxes    <- events ----  dispatch -- tasks -------------------->  link

The loop consists of these five verbs. Other OS threads pass commands to the I/O thread,
so nothing in the pool needs a lock. **No user code runs on the I/O thread**: if it
blocked, the timeouts, deaths and results of every run would have to wait. Results,
chunks and calls are not unpickled here (`arrivals`). Other OS threads write the text
that tasks print and log, call the callbacks of futures, and drop the inputs of tasks
(`side_threads`). Stores answer on a few OS threads for each run (`request_threads`). An
error on the I/O thread is logged, and the loop continues.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from traceback import print_exc
from typing import TypeAlias

from flowpregel.executors.processes.coordinator.watchdog import Watchdog

Action: TypeAlias = Callable[[], object]


class Timer:
    """An action that an `IOLoop` calls once, at a set time, unless the timer is
    cancelled.

    Args:
        loop: The loop that calls the action.
        action: The action to call.
    """

    __slots__ = ("_loop", "action")

    def __init__(self, loop: IOLoop, action: Action) -> None:
        self._loop = loop
        self.action: Action | None = action
        """The action, or None if it was called or the timer was cancelled."""

    def cancel(self) -> None:
        """Cancel the timer, on the I/O thread. If the action has already been called,
        do nothing.
        """
        if self.action is not None:
            self.action = None
            self._loop.forget_timer()


class IOLoop:
    """A loop that waits for readable descriptors, commands of other OS threads, and
    timers, on one OS thread.

    Args:
        dispatch: A function that is called at the end of each turn of the loop.
        report: A function that is called in the ``except`` block if an action raises an
            error.
    """

    def __init__(self, dispatch: Action, report: Action = print_exc) -> None:
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap of timers. Cancelled timers are removed once they are half of the
        heap.
        """
        self._cancelled_timers = 0
        self._order = count()
        self._dispatch = dispatch
        self._report = report
        self.is_done = False
        """True if the loop ends after this turn."""
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, dict[int, Action]] = {}
        self._commands: deque[Action] = deque()
        self.is_started: bool = False
        self._is_finished = self._is_woken = False
        # A pipe wakes the loop, because it takes half the time of a socket pair. The
        # ends of the pipe are file objects and not descriptors: an OS thread may write
        # to an end after it was closed, and by then the number of the descriptor may
        # belong to another file.
        wake_read, wake_write = os.pipe()
        self._wake_read = open(wake_read, "rb", buffering=0)  # noqa: SIM115
        self._wake_write = open(wake_write, "wb", buffering=0)  # noqa: SIM115
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        self.watch(wake_read, partial(self._wake_read.read, 4096))
        self._thread = threading.Thread(
            target=self._run, name="flowpregel-io", daemon=True
        )
        self._watchdog = Watchdog()

    # methods for any OS thread

    def call(self, command: Action) -> None:
        """Call *command* on the I/O thread, or on this OS thread if the I/O thread has
        ended.
        """
        self._commands.append(command)
        if self._is_finished:
            self._execute_late()
        elif not self._is_woken:
            self._is_woken = True
            try:  # noqa: SIM105 - costs nothing, `suppress` more than the flag
                self._wake_write.write(b"\0")
            except (OSError, ValueError):
                pass  # The loop has just ended, and closed the pipe.

    def start(self) -> None:
        """Start the I/O thread, and the watchdog that reports when the thread is
        blocked.
        """
        self._thread.start()
        self._watchdog.start(self._thread)
        self.is_started = True

    def is_current(self) -> bool:
        """Return whether this is the I/O thread."""
        return self._thread is threading.current_thread()

    def join(self) -> None:
        """Wait for the I/O thread's end, and close its descriptors."""
        if self.is_started:
            self._thread.join()
        self._is_finished = True
        self._watchdog.close()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    # methods for the I/O thread

    def call_at(self, when: float, action: Action) -> Timer:
        """Call *action* at *when*, in monotonic seconds. Return a timer, which can be
        cancelled.
        """
        timer = Timer(self, action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def forget_timer(self) -> None:
        """Note that a timer was cancelled. Once half of the heap's timers are
        cancelled, drop them.
        """
        self._cancelled_timers += 1
        if 2 * self._cancelled_timers > len(self._timers):
            self._timers = [
                entry for entry in self._timers if entry[2].action is not None
            ]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    @property
    def timer_count(self) -> int:
        """The number of timers that will still call their action."""
        return len(self._timers) - self._cancelled_timers

    def watch(
        self, fd: int, read: Action | None = None, write: Action | None = None
    ) -> None:
        """Watch *fd*: call *read* whenever it is readable, and *write* whenever it is
        writable.

        If both are None, *fd* is no longer watched. This must be done before *fd* is
        closed.
        """
        if self._watched.pop(fd, None):
            self._selector.unregister(fd)
        actions: dict[int, Action] = {}
        if write is not None:
            actions[selectors.EVENT_WRITE] = write
        if read is not None:
            actions[selectors.EVENT_READ] = read
        if actions:
            self._selector.register(fd, sum(actions))
            self._watched[fd] = actions

    # the loop

    def _run(self) -> None:
        watchdog = self._watchdog
        while not self.is_done:
            seconds: float | None = None
            if self._timers:
                seconds = max(0.0, self._timers[0][0] - time.monotonic())
            ready = self._selector.select(seconds)
            watchdog.turn_began = time.monotonic()
            if not watchdog.is_awake:
                watchdog.wake()
            for key, events in ready:
                self._read(key.fd, events)
            self._is_woken = False
            while self._commands:
                self._guarded(self._commands.popleft())
            if self._timers and self._timers[0][0] <= watchdog.turn_began:
                self._expire()
            self._guarded(self._dispatch)
            watchdog.turn_began = 0.0
        self._is_finished = True
        self._execute_late()

    def _read(self, fd: int, events: int) -> None:
        """Call the actions for the *events* of *fd*, unless an earlier action in this
        turn has stopped the watching of *fd*.
        """
        for event, action in self._watched.get(fd, {}).items():
            if event & events:
                self._guarded(action)

    def _expire(self) -> None:
        """Call the actions of the timers that are due."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled_timers -= 1
            else:
                self._guarded(action)

    def _execute_late(self) -> None:
        # After the end of the loop, several OS threads may run this method at the same
        # time. So another one may take the last command between the check and
        # `popleft`.
        with contextlib.suppress(IndexError):
            while True:
                self._guarded(self._commands.popleft())
        self._guarded(self._dispatch)

    def _guarded(self, action: Action) -> None:
        """Call *action*, and report any error, which must not end the I/O thread."""
        try:
            action()
        except BaseException:  # noqa: BLE001 - the loop serves all runs
            self._report()
