"""OS threads for user code that may block, such as log handlers and callbacks.

::

    I/O thread                       output thread                 the program
    ----------                       -------------                 -----------
    PRINTED, LOGGED -- add ------->  write, one after another -->  stdout, log handlers
    a task's end -- post_behind -->  post, when it is its turn ->  mailbox
        (a timer) -- if that is stuck --------------------------> mailbox

The unwritten output of a worker is bounded. Beyond the bound, the coordinator stops
reading from the worker. Then the worker's socket is full and blocks the worker, and the
coordinator's memory does not fill up. The end of a task is posted after the task's
output is written, so that the output is on the screen when the run returns. If the
output cannot be written, the end is posted without waiting for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from flowpregel._loggers import worker_log
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.io_loop import IOLoop

Action: TypeAlias = Callable[[], object]
_MOST_UNWRITTEN: Final = 1 << 20
"""The size, in bytes, of a worker's output that may wait to be written."""
_STUCK_AFTER: Final = 0.25
"""Seconds for which the end of a task waits behind one write that does not return."""
_LONGEST_WAIT: Final = 10.0
"""Seconds for which the end of a task waits behind several writes, each of which
returns in time.
"""
_AT_EXIT: Final = 5.0
"""Seconds for which closing a pool waits for a write that does not return."""


class SideThread:
    """An OS thread that calls actions one after another, and is started by the first.

    Args:
        name: The name of the OS thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actions: SimpleQueue[Action | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.busy_since: float = 0.0
        """The monotonic time at which the current action began, or 0 if there is none.
        """

    def call(self, action: Action) -> None:
        """Have *action* called after all earlier actions.

        Any OS thread may call this method.
        """
        self._actions.put(action)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                # If the system gives no more OS threads, the next call tries again.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def is_current(self) -> bool:
        """Return whether the calling OS thread is this OS thread."""
        return self._thread is threading.current_thread()

    def is_stuck(self) -> bool:
        """Return whether the current action has taken so long that the OS thread is
        regarded as stuck.
        """
        began = self.busy_since
        return bool(began) and time.monotonic() - began > _STUCK_AFTER

    def close(self) -> None:
        """End the OS thread when it has called all actions. If an action does not
        return, wait only a few seconds.
        """
        thread, end = self._thread, time.monotonic() + _LONGEST_WAIT
        self._actions.put(None)
        if thread is None or self.is_current():
            return
        thread.join(_STUCK_AFTER)
        while thread.is_alive() and time.monotonic() < end:
            began = self.busy_since
            if began and time.monotonic() - began > _AT_EXIT:
                return
            thread.join(_STUCK_AFTER)

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            self.busy_since = time.monotonic()
            try:
                action()
            except BaseException:  # noqa: BLE001 - the user's code may raise anything
                worker_log.exception(
                    "an error in a callback of a pool of worker processes"
                )
            # The reference is dropped, so that the OS thread keeps no object alive
            # while it waits.
            del action
            self.busy_since = 0.0


class Unwritten:
    """The unwritten output of one worker.

    Args:
        resume: A function that is called on the I/O thread when there is room again.
    """

    def __init__(self, resume: Action) -> None:
        self.resume = resume
        self.size: int = 0
        """The size of the output, in bytes."""
        self.is_full: bool = False
        """True if the output has exceeded its bound, so that nothing is read from the
        worker.
        """
        self.drops = False
        """True if output was dropped, because it arrived although the worker should not
        be read.
        """
        self._lock = threading.Lock()

    def add(self, size: int) -> bool:
        """Add *size* bytes that will be written, and return whether they have just
        exceeded the bound.
        """
        with self._lock:
            self.size += size
            was_full, self.is_full = (
                self.is_full,
                self.size > _MOST_UNWRITTEN or self.is_full,
            )
            return self.is_full and not was_full

    def subtract(self, size: int) -> bool:
        """Subtract *size* bytes that were written, and return whether the worker may be
        read again.
        """
        with self._lock:
            self.size -= size
            if not self.is_full or self.size > _MOST_UNWRITTEN // 2:
                return False
            self.is_full = False
            return True


class WorkerOutput:
    """The text that one worker has printed and logged.

    Args:
        resume: A function that is called on the I/O thread when the worker may be read
            again.
    """

    def __init__(self, resume: Action) -> None:
        self.unwritten: Unwritten = Unwritten(resume)
        """The unwritten output."""
        self.tail = ""
        """The last lines that the worker has written to its stderr."""


class OutputThread:
    """The OS thread (output thread) that writes the text that workers print and log.
    All methods but `close` are called on the I/O thread.

    Args:
        loop: The pool's I/O loop.
    """

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self._thread = SideThread("flowpregel-output")
        self._late: deque[tuple[float, Mailbox, list[Any]]] = deque()
        """The ends of tasks that wait behind output. Each consists of the time at which
        it must be posted, the mailbox, and a list with the event.

        The OS thread that posts the event removes it from the list, so that it is
        posted once.
        """

    def add(self, unwritten: Unwritten, size: int, write: Action) -> bool:
        """Have *write* called for output of *size* bytes, and return whether to stop
        reading the worker.

        Output is dropped if far too much arrives although the worker should not be
        read.
        """
        if unwritten.size > 2 * _MOST_UNWRITTEN:
            if not unwritten.drops:
                unwritten.drops = True
                self._thread.call(
                    partial(worker_log.warning, "some output of a task was not written")
                )
            return False
        is_too_much = unwritten.add(size)
        self._thread.call(partial(self._write, unwritten, size, write))
        return is_too_much

    def _write(self, unwritten: Unwritten, size: int, write: Action) -> None:
        try:
            write()
        finally:
            if unwritten.subtract(size):
                self._loop.call(unwritten.resume)

    def post_behind(self, mailbox: Mailbox, event: Any) -> None:
        """Post *event* when the earlier output is written, or at once if writing is
        stuck.
        """
        if self._thread.is_stuck():
            mailbox.post(event)
            return
        events = [event]
        self._thread.call(partial(_post, mailbox, events))
        if not self._late:
            self._loop.call_at(time.monotonic() + _STUCK_AFTER, self._post_late)
        self._late.append((time.monotonic(), mailbox, events))

    def _post_late(self) -> None:
        """Post the events that have waited too long, and set a timer if other events
        wait.
        """
        too_long, is_stuck = time.monotonic() - _LONGEST_WAIT, self._thread.is_stuck()
        while self._late:
            since, mailbox, events = self._late[0]
            if events and not (is_stuck or since < too_long):
                self._loop.call_at(time.monotonic() + _STUCK_AFTER, self._post_late)
                return
            self._late.popleft()
            _post(mailbox, events)

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a message. Log handlers may block, so they are called on the output
        thread.

        Args:
            level: The level of the message, as in `logging`.
            message: The format of the message.
            args: The values in the message.
        """
        self._thread.call(partial(worker_log.log, level, message, *args))

    def log_error(self, message: str) -> None:
        """Log the error that is being handled, as `log` does."""
        error = sys.exc_info()[1]
        self._thread.call(partial(worker_log.error, message, exc_info=error))

    def close(self) -> None:
        """Write the remaining output, unless the thread is stuck.

        This is called after the I/O thread has ended.
        """
        self._thread.close()
        for _, mailbox, events in self._late:
            _post(mailbox, events)


def _post(mailbox: Mailbox, events: list[Any]) -> None:
    try:
        event = events.pop()
    except IndexError:
        return  # Another OS thread has taken the event first.
    mailbox.post(event)
