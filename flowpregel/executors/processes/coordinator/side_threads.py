"""OS threads for user code that may block, such as log handlers and callbacks.

::

    I/O thread                       output thread                 the program
    ----------                       -------------                 -----------
    PRINTED, LOGGED -- add ------->  write, one after another -->  stdout, log handlers
    a task's end -- post_behind -->  post, when it is its turn ->  mailbox
        (a timer) -- if that is stuck --------------------------> mailbox

If too much output of a worker is not written yet, the coordinator stops reading from
that worker. The worker's socket then fills up and blocks the worker, so the
coordinator's memory does not fill up. The end of a task is posted after the task's
output is written, so that the output is on the screen when the run returns. If the
output cannot be written, because a stream or a log handler blocks, the end is posted
anyway.
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
from flowpregel._tracebacks import CodeLine, give_notice
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.io_loop import IOLoop

Action: TypeAlias = Callable[[], object]
_MOST_UNWRITTEN: Final = 1 << 20
"""The size, in bytes, of a worker's unwritten output above which the worker is not
read.
"""
_STUCK_AFTER: Final = 0.25
"""The maximum number of seconds for which the end of a task waits for a single write
that does not return.
"""
_LONGEST_WAIT: Final = 10.0
"""The maximum number of seconds for which the end of a task waits for several writes,
each of which returns in time.
"""
_AT_EXIT: Final = 5.0
"""Seconds that the closing of a pool waits for a write that does not return."""


class SideThread:
    """An OS thread that calls functions (actions) one after another. It is started when
    the first action is queued.

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
        """Queue *action*, to be called after all earlier actions.

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
                # If the operating system refuses another OS thread, the next call tries
                # again.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def is_current(self) -> bool:
        """Return whether the caller runs on this OS thread."""
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
        thread = self._thread
        end = time.monotonic() + _LONGEST_WAIT
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
            # The variable is deleted, because it would keep the action's objects alive
            # while the OS thread waits.
            del action
            self.busy_since = 0.0


class Unwritten:
    """The size of the text that one worker has printed and logged, and that the output
    thread has not written yet.

    Args:
        resume: A function that resumes reading from the worker. It is called on the I/O
            thread if reading was paused and enough of the text is written.
    """

    def __init__(self, resume: Action) -> None:
        self.resume = resume
        self.size: int = 0
        """The size of the unwritten output, in bytes."""
        self.is_full: bool = False
        """True if there is too much unwritten output, so that nothing is read from the
        worker.
        """
        self.drops = False
        """True if output was dropped, because far too much arrived although reading was
        paused.
        """
        self._lock = threading.Lock()

    def add(self, size: int) -> bool:
        """Add *size* bytes that will be written, and return whether the output now
        exceeds the limit, which it did not before.
        """
        with self._lock:
            self.size += size
            if self.is_full or self.size <= _MOST_UNWRITTEN:
                return False
            self.is_full = True
            return True

    def subtract(self, size: int) -> bool:
        """Subtract *size* bytes that were written, and return whether reading from the
        worker must be resumed.
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
        """The size of the output that is not written yet."""
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
        """The ends of tasks that wait until output is written. Each entry has the time
        at which it was added, the mailbox, and a list with the event.

        Either the output thread or the I/O thread posts the event. It removes the event
        from the list first, so that it is posted only once.
        """

    def add(self, unwritten: Unwritten, size: int, write: Action) -> bool:
        """Queue *write*, a function that writes *size* bytes of output. Return whether
        reading from the worker must be paused.

        Output is dropped if far too much arrives although reading was paused.
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
        """Post *event* when all output that was queued before is written, or at once if
        the output thread is stuck.
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
        """Post the events that have waited too long for output. If others still wait,
        set a timer for them.
        """
        now = time.monotonic()
        is_stuck = self._thread.is_stuck()
        while self._late:
            since, mailbox, events = self._late[0]
            has_waited_long = is_stuck or now - since > _LONGEST_WAIT
            if events and not has_waited_long:
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

    def give_notice(self, text: str, started_at: CodeLine | None) -> None:
        """Emit a `RunNotice`. A program may handle warnings by code of its own, so this
        is done on the output thread.

        Args:
            text: The text of the notice.
            started_at: The line of the user's code to which the notice refers, or None
                if it is unknown.
        """
        self._thread.call(partial(give_notice, text, started_at))

    def log_error(self, message: str) -> None:
        """Log a message with the traceback of the error that is being handled, as `log`
        does.
        """
        error = sys.exc_info()[1]
        self._thread.call(partial(worker_log.error, message, exc_info=error))

    def close(self) -> None:
        """Write the remaining output, unless the output thread is stuck.

        This is called after the I/O thread has ended.
        """
        self._thread.close()
        for _, mailbox, events in self._late:
            _post(mailbox, events)


def _post(mailbox: Mailbox, events: list[Any]) -> None:
    try:
        event = events.pop()
    except IndexError:
        return  # Another OS thread has taken the event, and posts it.
    mailbox.post(event)
