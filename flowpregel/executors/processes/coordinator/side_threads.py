"""OS threads for code of the user's that may block: log handlers, stdout, callbacks of
futures.

::

    I/O thread                       output thread                 the program
    ----------                       -------------                 -----------
    PRINTED, LOGGED -- add ------->  write, one after another -->  stdout, log handlers
    a task's end -- post_behind -->  post, when it is its turn ->  mailbox
        (a timer) -- if that is stuck --------------------------> mailbox

The output of a worker that is not written yet is bounded: a worker with more is
left unread, so that its own socket holds it back, not memory. The end of a task is
posted behind what it has printed, so that this is on the screen when its run returns;
where the screen does not take it, the end does not wait for that.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.io_loop import IOLoop

_log: Final = logging.getLogger("flowpregel.worker")
Action: TypeAlias = Callable[[], object]
_MOST_UNWRITTEN: Final = 1 << 20
"""Bytes of one worker's output that may wait to be written."""
_STUCK_AFTER: Final = 0.25
"""Seconds for which the end of a task waits behind one write that does not return."""
_LONGEST_WAIT: Final = 10.0
"""Seconds for which it waits behind writes that all return."""
_AT_EXIT: Final = 5.0
"""Seconds for which the end of a pool waits for a write that does not return."""


class SideThread:
    """An OS thread that calls one thing after the other; started with the first.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actions: SimpleQueue[Action | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.busy_since = 0.0
        """The monotonic time at which its present action began; 0: it waits."""

    def call(self, action: Action) -> None:
        """Have *action* called when its turn comes; from any OS thread."""
        self._actions.put(action)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                # Where the system gives no more of them, the next call tries again.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def is_current(self) -> bool:
        """Return whether this is it."""
        return self._thread is threading.current_thread()

    def is_stuck(self) -> bool:
        """Return whether what it calls has not returned for a while."""
        began = self.busy_since
        return bool(began) and time.monotonic() - began > _STUCK_AFTER

    def close(self) -> None:
        """End it when it has called everything; do not wait longer for one thing than a
        moment.
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
                _log.exception(
                    "an error in what a pool of worker processes was to call"
                )
            # Nothing that it refers to waits with this thread.
            del action
            self.busy_since = 0.0


class Unwritten:
    """The output of one worker that is not written yet.

    Args:
        resume: Called, on the I/O thread, when there is room again.
    """

    def __init__(self, resume: Action) -> None:
        self.resume = resume
        self.size = 0
        """The size of the output, in bytes."""
        self.is_full = False
        """Whether its worker is left unread."""
        self.drops = False
        """Whether some of it was dropped: it came though its worker should be held
        back.
        """
        self._lock = threading.Lock()

    def add(self, size: int) -> bool:
        """Count what is about to be written; return whether that is too much as of
        now.
        """
        with self._lock:
            self.size += size
            was_full, self.is_full = (
                self.is_full,
                self.size > _MOST_UNWRITTEN or self.is_full,
            )
            return self.is_full and not was_full

    def subtract(self, size: int) -> bool:
        """Count what was written; return whether the worker may go on."""
        with self._lock:
            self.size -= size
            if not self.is_full or self.size > _MOST_UNWRITTEN // 2:
                return False
            self.is_full = False
            return True


class WorkerOutput:
    """The output of one worker: what it has printed and logged.

    Args:
        resume: Called, on the I/O thread, when more of it may be read.
    """

    def __init__(self, resume: Action) -> None:
        self.unwritten = Unwritten(resume)
        """The output that is not written yet."""
        self.tail = ""
        """The last lines that it has written to its stderr."""


class OutputThread:
    """Writes the text that workers print and log; but for `SideThread.call`, on the I/O
    thread.

    Args:
        loop: The pool's.
    """

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self._thread = SideThread("flowpregel-output")
        self._late: deque[tuple[float, Mailbox, list[Any]]] = deque()
        """The ends of tasks behind output: the time, the run, and a list of the event.

        The OS thread that posts the event takes it out of the list.
        """

    def add(self, unwritten: Unwritten, size: int, write: Action) -> bool:
        """Have *write* called, for output of *size* bytes; return whether to hold back.

        Output of a worker that cannot be held back is dropped when it is far too much.
        """
        if unwritten.size > 2 * _MOST_UNWRITTEN:
            if not unwritten.drops:
                unwritten.drops = True
                self._thread.call(
                    partial(_log.warning, "some output of a task was not written")
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
        """Post *event* after the output before it is written, or cannot be for now."""
        if self._thread.is_stuck():
            mailbox.post(event)
            return
        events = [event]
        self._thread.call(partial(_post, mailbox, events))
        if not self._late:
            self._loop.call_at(time.monotonic() + _STUCK_AFTER, self._post_late)
        self._late.append((time.monotonic(), mailbox, events))

    def _post_late(self) -> None:
        """Post the events that have waited too long; set a timer if any others wait."""
        too_long, is_stuck = time.monotonic() - _LONGEST_WAIT, self._thread.is_stuck()
        while self._late:
            since, mailbox, events = self._late[0]
            if events and not (is_stuck or since < too_long):
                self._loop.call_at(time.monotonic() + _STUCK_AFTER, self._post_late)
                return
            self._late.popleft()
            _post(mailbox, events)

    def log_error(self, message: str) -> None:
        """Log the error that is being handled: the program's log handlers may block."""
        error = sys.exc_info()[1]
        self._thread.call(partial(_log.error, message, exc_info=error))

    def close(self) -> None:
        """Write the remaining output, unless the thread is stuck.

        Called after the end of the I/O thread.
        """
        self._thread.close()
        for _, mailbox, events in self._late:
            _post(mailbox, events)


def _post(mailbox: Mailbox, events: list[Any]) -> None:
    try:
        event = events.pop()
    except IndexError:
        return  # another OS thread was first
    mailbox.post(event)
