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
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias

_log: Final = logging.getLogger("flowpregel.worker")
Action: TypeAlias = Callable[[], object]


class Timers:
    """Calls back when it is time. Times are monotonic seconds.

    A timer that no longer matters is not removed: its callback finds nothing to do.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def add(self, when: float, action: Action) -> None:
        """Call *action* at *when*."""
        heapq.heappush(self._heap, (when, next(self._order), action))

    def due(self, now: float) -> list[Action]:
        """Take out the actions whose time has come."""
        actions = []
        while self._heap and self._heap[0][0] <= now:
            actions.append(heapq.heappop(self._heap)[2])
        return actions

    def next(self) -> float | None:
        """Return when the next timer is due."""
        return self._heap[0][0] if self._heap else None


@dataclass(slots=True)
class _Watched:
    """A descriptor, and what to do when it is ready."""

    read: Action
    write: Action | None = None
    is_muted: bool = False
    events: int = 0
    """What the selector looks for."""


class IOLoop:
    """Waits for descriptors, commands and timers, on one OS thread.

    Args:
        dispatch: Called at the end of each turn.
        is_done: Tells whether the loop is to end.
    """

    def __init__(self, dispatch: Action, is_done: Callable[[], bool]) -> None:
        self.timers = Timers()
        self._dispatch = dispatch
        self._is_done = is_done
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, _Watched] = {}
        self._commands: deque[Action] = deque()
        self._is_woken = False
        self._is_finished = False
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self.watch(self._wake_read.fileno(), self._on_wake)
        self._thread = threading.Thread(target=self._run, name="flowpregel-io", daemon=True)

    # ------------------------------------------------ for any OS thread

    def call(self, command: Action) -> None:
        """Execute *command* on the I/O thread; after its end, at once."""
        self._commands.append(command)
        if self._is_finished:
            self._execute()
            _guarded(self._dispatch)
        elif not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                self._wake_write.send(b"\0")

    def start(self) -> None:
        """Start the I/O thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the I/O thread's end, and close what it held."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    # ------------------------------------------------ for the I/O thread

    def watch(self, fd: int, read: Action) -> None:
        """Call *read* whenever *fd* is readable."""
        self._watched[fd] = _Watched(read)
        self._update(fd)

    def watch_writable(self, fd: int, write: Action | None) -> None:
        """Call *write* whenever *fd*, which is watched, can be written; None: no longer."""
        if fd in self._watched:
            self._watched[fd].write = write
            self._update(fd)

    def mute(self, fd: int, is_muted: bool) -> None:
        """Leave *fd* unread for now, or read it again."""
        if fd in self._watched:
            self._watched[fd].is_muted = is_muted
            self._update(fd)

    def forget(self, fd: int) -> None:
        """Watch *fd* no longer; must come before it is closed."""
        watched = self._watched.pop(fd, None)
        if watched is not None and watched.events:
            self._selector.unregister(fd)

    def __contains__(self, fd: int) -> bool:
        return fd in self._watched

    def _update(self, fd: int) -> None:
        """Have the selector look for what matters now at *fd*."""
        watched = self._watched[fd]
        events = 0 if watched.is_muted else selectors.EVENT_READ
        events |= 0 if watched.write is None else selectors.EVENT_WRITE
        before, watched.events = watched.events, events
        if before and events:
            self._selector.modify(fd, events)
        elif events:
            self._selector.register(fd, events)
        elif before:
            self._selector.unregister(fd)

    # ------------------------------------------------ the loop

    def _run(self) -> None:
        while not self._is_done():
            due = self.timers.next()
            seconds = None if due is None else max(0.0, due - time.monotonic())
            for key, mask in self._selector.select(seconds):
                self._read(key.fd, mask)
            self._execute()
            for action in self.timers.due(time.monotonic()):
                _guarded(action)
            _guarded(self._dispatch)
        self._is_finished = True
        self._execute()
        _guarded(self._dispatch)

    def _read(self, fd: int, mask: int) -> None:
        # An earlier one may have ended its watch.
        watched = self._watched.get(fd)
        if watched is not None and mask & selectors.EVENT_WRITE and watched.write is not None:
            _guarded(watched.write)
        if fd in self._watched and mask & selectors.EVENT_READ:
            _guarded(self._watched[fd].read)

    def _execute(self) -> None:
        self._is_woken = False
        while self._commands:
            try:
                command = self._commands.popleft()
            except IndexError:
                return
            _guarded(command)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)


def _guarded(action: Action) -> None:
    """Call *action*; what it raises must not end the I/O thread, which serves all runs."""
    try:
        action()
    except BaseException:  # noqa: BLE001 - user code may raise SystemExit; nobody here may end
        _log.exception("an error in the pool of worker processes")
