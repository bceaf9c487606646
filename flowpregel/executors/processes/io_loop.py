"""The pool's I/O thread: it alone touches links, workers and the queue of tasks.

::

    any OS thread                    I/O thread                              worker process
    -------------                    ----------                              --------------
    take, cancel, ---- commands --->  wait     <--- readable: link, stdout, ---- frames
    resolve, leave     (a deque,      read          stderr, pidfd
                        a wake-up)    execute  the commands
                                      expire   the timers
    mailboxes    <---- events ------  dispatch ---- tasks -----------------> link

The loop is these five verbs. Other OS threads hand it commands, so nothing in the pool
needs a lock. What user code runs here (unpickling a result, a log handler) may raise:
that is logged, or costs the worker it came from, and the loop goes on.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, TypeAlias

_log: Final = logging.getLogger("flowpregel.worker")
Action: TypeAlias = Callable[[], object]


class IOLoop:
    """Waits for descriptors, commands and timers, on one OS thread.

    Args:
        dispatch: Called at the end of each turn.
    """

    def __init__(self, dispatch: Action) -> None:
        self._timers: list[tuple[float, int, Action]] = []
        self._order = count()
        self._dispatch = dispatch
        self.is_done = False
        """Whether this turn is the last."""
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, dict[int, Action]] = {}
        self._commands: deque[Action] = deque()
        self.is_started = self._is_finished = self._is_woken = False
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self.watch(self._wake_read.fileno(), partial(self._wake_read.recv, 4096))
        self._thread = threading.Thread(target=self._run, name="flowpregel-io", daemon=True)

    # ------------------------------------------------ for any OS thread

    def call(self, command: Action) -> None:
        """Execute *command* on the I/O thread; after its end, at once."""
        self._commands.append(command)
        if self._is_finished:
            self._execute_late()
        elif not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                self._wake_write.send(b"\0")

    def start(self) -> None:
        """Start the I/O thread."""
        self._thread.start()
        self.is_started = True

    def join(self) -> None:
        """Wait for the I/O thread's end, and close what it held."""
        if not self.is_started:
            self._is_finished = True
        elif self._thread is not threading.current_thread():
            self._thread.join()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    # ------------------------------------------------ for the I/O thread

    def call_at(self, when: float, action: Action) -> None:
        """Call *action* at *when* (monotonic seconds).

        It is not removed when it no longer matters: it finds nothing to do then.
        """
        heapq.heappush(self._timers, (when, next(self._order), action))

    def watch(self, fd: int, read: Action | None = None, write: Action | None = None) -> None:
        """Call *read* whenever *fd* is readable, *write* whenever it can be written.

        Without both it is watched no longer; that must come before it is closed.
        """
        wanted = ((selectors.EVENT_WRITE, write), (selectors.EVENT_READ, read))
        if self._watched.pop(fd, None):
            self._selector.unregister(fd)
        if actions := {event: action for event, action in wanted if action is not None}:
            self._selector.register(fd, sum(actions))
            self._watched[fd] = actions

    # ------------------------------------------------ the loop

    def _run(self) -> None:
        while not self.is_done:
            seconds = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, mask in self._selector.select(seconds):
                # An earlier one may have ended its watch.
                for event, action in self._watched.get(key.fd, {}).items():
                    if event & mask:
                        _guarded(action)
            self._is_woken = False
            while self._commands:
                _guarded(self._commands.popleft())
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _guarded(heapq.heappop(self._timers)[2])
            _guarded(self._dispatch)
        self._is_finished = True
        self._execute_late()

    def _execute_late(self) -> None:
        # After the loop's end, several OS threads may be here.
        with contextlib.suppress(IndexError):
            while True:
                _guarded(self._commands.popleft())
        _guarded(self._dispatch)


def _guarded(action: Action) -> None:
    """Call *action*; what it raises must not end the I/O thread, which serves all runs."""
    try:
        action()
    except BaseException:  # noqa: BLE001 - user code may raise SystemExit; nobody here may end
        _log.exception("an error in the pool of worker processes")
