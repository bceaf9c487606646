"""OS threads for the store requests of tasks.

A store may wait for a disk or another process, or never answer. So each run has a few
OS threads at a time, and a request that is never answered holds up only that run::

    I/O thread                         OS threads
    ----------                         ----------
    ASKED -- submit --> line of run A  at most four at a time --> store of run A
                    \\-> line of run B  at most four at a time --> store of run B

A thread that has emptied its line serves another line. A few idle threads are kept.
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
"""The number of a run's requests that are answered at the same time."""
_MOST_IDLE: Final = 4
"""The number of idle threads that are kept."""
_AT_EXIT: Final = 1.0
"""Seconds for which the end of a pool waits for requests that are being answered."""


@dataclass(slots=True, eq=False)
class RequestLine:
    """The requests of one run."""

    run: Mailbox
    waiting: deque[Request] = field(default_factory=deque)
    threads: int = 0
    """The number of threads that serve the line."""


class RequestThreads:
    """OS threads that answer requests. Each run has a few, started when needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[Mailbox, RequestLine] = {}
        """The lines that threads serve, by run."""
        self._unserved: SimpleQueue[RequestLine] = SimpleQueue()
        """The lines that idle threads must serve next."""
        self._idle = 0
        """The number of threads that wait for a line, without those for which a line is
        already in the queue.
        """

    def submit(self, run: Mailbox, request: Request) -> None:
        """Queue *request*, to be called after the earlier requests of *run*.

        Raises:
            RuntimeError: No more threads can be started.
        """
        with self._changed:
            line = self._lines.get(run) or RequestLine(run)
            if line.threads < _MOST_OF_A_RUN:
                self._assign_thread(line)
                line.threads += 1
                self._lines[run] = line
            line.waiting.append(request)

    def _assign_thread(self, line: RequestLine) -> None:
        """Have one more thread serve *line*, either an idle thread or a new thread."""
        if self._idle:
            self._idle -= 1
            self._unserved.put(line)
            return
        # The thread is a daemon thread, so that the end of the program does not wait
        # for a store that never answers.
        thread = threading.Thread(
            target=self._run,
            args=(line,),
            name="flowpregel-store",
            daemon=True,
        )
        thread.start()

    def _run(self, line: RequestLine) -> None:
        while self._serve(line):
            line = self._unserved.get()

    def _serve(self, line: RequestLine) -> bool:
        """Answer the requests of *line*.

        Returns:
            True if the thread must wait for another line.
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
            # The reference is dropped, so that the thread keeps no object alive while
            # it waits.
            del request

    def _leave(self, line: RequestLine) -> bool:
        """Stop serving *line*, and return whether the thread is kept."""
        line.threads -= 1
        if not line.threads:
            del self._lines[line.run]
            self._changed.notify_all()
        if self._idle == _MOST_IDLE:
            return False
        self._idle += 1
        return True

    def close(self) -> None:
        """Drop the waiting requests, and wait a moment for the requests that are being
        answered.
        """
        with self._changed:
            for line in self._lines.values():
                line.waiting.clear()
            self._changed.wait_for(lambda: not self._lines, _AT_EXIT)
