"""OS threads that answer requests of tasks in workers to the store of their run.

A store may wait for a disk or another process, or never answer. So each run has a few
OS threads at a time, and a request that is never answered holds up only that run::

    I/O thread                         OS threads
    ----------                         ----------
    ASKED -- submit --> line of run A  at most four at a time --> store of run A
                    \\-> line of run B  at most four at a time --> store of run B

Each run has a queue (line) of waiting requests. When an OS thread has emptied one, it
serves that of another run. A few idle OS threads are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, TypeAlias

from flowpregel._loggers import worker_log
from flowpregel.executors.base import Mailbox

Request: TypeAlias = Callable[[], object]
_MOST_OF_A_RUN: Final = 4
"""The maximum number of requests of one run that are answered at the same time."""
_MOST_IDLE: Final = 4
"""The maximum number of idle OS threads that are kept."""
_AT_EXIT: Final = 1.0
"""Seconds that the closing of a pool waits for requests that are being answered."""


@dataclass(slots=True, eq=False)
class RequestLine:
    """The waiting requests of one run."""

    run: Mailbox
    waiting: deque[Request] = field(default_factory=deque)
    threads: int = 0
    """The number of OS threads that serve the line."""


class RequestThreads:
    """OS threads that answer requests. Each run has a few, started when needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[Mailbox, RequestLine] = {}
        """The lines that OS threads serve, by the mailbox of the run."""
        self._unserved: SimpleQueue[RequestLine | None] = SimpleQueue()
        """The queue from which OS threads take the lines that they serve. An OS thread
        that takes None ends.
        """
        self._idle = 0
        """The number of OS threads that wait for a line, minus the number of lines in
        the queue.
        """
        self._is_closed = False

    def submit(self, run: Mailbox, request: Request) -> None:
        """Queue the function *request*. It is called after the earlier requests of
        *run* have been taken from the queue.

        Raises:
            RuntimeError: No more OS threads can be started.
        """
        with self._changed:
            line = self._lines.get(run) or RequestLine(run)
            if line.threads < _MOST_OF_A_RUN:
                self._assign_thread(line)
                line.threads += 1
                self._lines[run] = line
            line.waiting.append(request)

    def _assign_thread(self, line: RequestLine) -> None:
        """Make one more OS thread serve *line*, either an idle one or a new one."""
        if self._idle:
            self._idle -= 1
        else:
            # The OS thread is a daemon, so that the end of the program does not wait
            # for a store that never answers.
            thread = threading.Thread(
                target=self._run, name="flowpregel-store", daemon=True
            )
            thread.start()
        self._unserved.put(line)

    def _run(self) -> None:
        while (line := self._unserved.get()) is not None:
            may_wait = self._serve(line)
            # The variable is deleted, because it would keep the run's mailbox alive
            # while the OS thread waits.
            del line
            if not may_wait:
                return

    def _serve(self, line: RequestLine) -> bool:
        """Answer the requests of *line*.

        Returns:
            True if the OS thread should wait for another line, False if it should end.
        """
        while True:
            with self._changed:
                if not line.waiting:
                    return self._leave(line)
                request = line.waiting.popleft()
            try:
                request()
            except BaseException:  # noqa: BLE001 - whatever it is, the line goes on
                worker_log.exception("an error in a store request of a task")
            # The variable is deleted, because it would keep the request's objects alive
            # while the OS thread waits.
            del request

    def _leave(self, line: RequestLine) -> bool:
        """Stop serving *line*, and return whether the OS thread should wait for another
        one.
        """
        line.threads -= 1
        if not line.threads:
            del self._lines[line.run]
            self._changed.notify_all()
        if self._is_closed or self._idle == _MOST_IDLE:
            return False
        self._idle += 1
        return True

    def close(self) -> None:
        """Drop the waiting requests, wait a moment for the requests that are being
        answered, and end the OS threads.
        """
        with self._changed:
            self._is_closed = True
            for _ in range(self._idle):
                self._unserved.put(None)
            self._idle = 0
            for line in self._lines.values():
                line.waiting.clear()
            self._changed.wait_for(lambda: not self._lines, _AT_EXIT)
