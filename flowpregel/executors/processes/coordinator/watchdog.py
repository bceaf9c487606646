"""A watchdog for the I/O thread: it logs which function blocks the thread for over a
second.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Final

from flowpregel._loggers import worker_log

_TOO_LONG: Final = 1.0
"""Seconds after which an unfinished turn of the I/O thread is logged as blocked."""
_CHECK_EVERY: Final = 0.25


class Watchdog:
    """A watchdog that logs a warning if one turn of an I/O thread takes too long.

    The watchdog has its own OS thread, since it calls the program's log handlers, which
    may block. It wakes up four times a second while the I/O thread is busy, and sleeps
    while the I/O thread waits.
    """

    def __init__(self) -> None:
        self.is_awake: bool = False
        """True while the watchdog measures the turns of the I/O thread. If it is False,
        the I/O thread must wake it when a turn begins.
        """
        self.turn_began: float = 0.0
        """The monotonic time at which the I/O thread's current turn began, or 0 while
        it waits. The I/O thread sets this.
        """
        self._awake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, watched: threading.Thread) -> None:
        """Begin to watch the OS thread *watched*."""
        self._thread = threading.Thread(
            target=self._watch, args=(watched,), name="flowpregel-watchdog", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Make the watchdog measure turns again. This is called on the I/O thread."""
        self.is_awake = True
        self._awake.set()

    def close(self) -> None:
        """End the watchdog without waiting for its OS thread, which may be blocked in a
        log handler.
        """
        self._ended.set()
        self._awake.set()

    def _watch(self, watched: threading.Thread) -> None:
        last = reported = 0.0
        while not self._ended.is_set():
            self._awake.wait()
            if self._ended.wait(_CHECK_EVERY):
                return
            began = self.turn_began
            if began and began != reported and time.monotonic() - began > _TOO_LONG:
                reported = began
                _log_stack_of(watched)
            if not (began or last):
                # The I/O thread has been idle since the last check, so the watchdog
                # goes to sleep. A turn may begin at this moment, and the I/O thread may
                # have read `is_awake` while it was still True, so that it does not wake
                # the watchdog. So it checks once more whether a turn has begun.
                self.is_awake = False
                self._awake.clear()
                if self.turn_began:
                    self.wake()
            last = began


def _log_stack_of(watched: threading.Thread) -> None:
    """Log the stack of the OS thread *watched*."""
    # This private function is the only way to get the stack of another OS thread.
    frame = sys._current_frames().get(watched.ident or 0)  # noqa: SLF001
    if frame is None:
        return
    code = frame.f_code
    worker_log.warning(
        "the I/O thread of a pool of worker processes has been blocked for over %g "
        "second by %s (%s:%d): until that returns, the results, timeouts and worker "
        "deaths of all runs are delayed\n%s",
        _TOO_LONG,
        code.co_qualname,
        code.co_filename,
        frame.f_lineno,
        "".join(traceback.format_stack(frame)),
    )
