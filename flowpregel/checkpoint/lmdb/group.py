"""Group commit: whoever commits takes along everything that waits.

A durable commit costs the same for one batch as for a hundred, and only one
can run at a time. So while one OS thread has the *turn* and its commit is on its
way to the disk, the others put what they have into the queue and wait. Then the
turn passes to the first in the queue, who commits the whole of it and wakes the
rest, which find theirs done. An OS thread that is alone never waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from flowpregel._lmdb.environment import Environment
from flowpregel.checkpoint.lmdb.writer import Writer
from flowpregel.errors import StoreBusyError

_MOST_AT_ONCE = 1000
_FEW = 4
_PATIENCE = 0.0002
COUNTED = 4096
"""Bytes that one batch counts for besides its values: what is around them takes less, and
the store's journal saves little to more batches than there is room for by this."""

Work: TypeAlias = Callable[[Any], None]
"""What to do in the transaction it is given."""


class Request:
    """What one caller wants done in a transaction: all of it, or nothing."""

    __slots__ = ("done", "error", "has_turn", "size", "woken", "work")

    def __init__(self, work: Work, size: int) -> None:
        self.work = work
        self.size = size
        self.done = False
        self.error: Exception | None = None
        self.has_turn = False
        self.woken: threading.Lock | None = None
        """Released when the request is done, or when its caller gets the turn."""


class GroupCommit:
    """Commits for all OS threads of a process.

    Args:
        environment: The store.
        writer: Told when a transaction begins, and when it is committed.
    """

    def __init__(self, environment: Environment, writer: Writer) -> None:
        self._environment = environment
        self._writer = writer
        self._lock = threading.Lock()
        self._queue: list[Request] = []
        self._busy = False
        """Whether someone has the turn."""
        self._company = 1
        """How many requests the last group had."""

    def commit(self, work: Work, timeout: float, size: int = COUNTED) -> None:
        """Do *work* in a transaction, others' work with it; return once it is on disk.

        Args:
            work: May be called again, after a transaction that was given up.
            timeout: Seconds to wait for others.
            size: About how many bytes it puts there.

        Raises:
            StoreBusyError: Someone else held the store all that time.
            Exception: Whatever *work* raises; nothing of it was committed.
        """
        request = Request(work, size)
        try:
            self._await_turn(request, timeout)
            if request.has_turn and (self._queue or self._company > _FEW):
                self._commit_queue(request, timeout)
            elif request.has_turn:
                self._commit((request,), size, timeout)
                request.done = True
        finally:
            # Also after Ctrl-C at any point above: a turn that is lost stops everyone.
            if not request.done:
                self._withdraw(request)
            if request.has_turn:
                self._pass_on()
        if request.error is not None:
            raise request.error

    # ------------------------------------------------------------ whose turn it is

    def _await_turn(self, request: Request, timeout: float) -> None:
        """Wait until *request* has the turn or is done."""
        with self._lock:
            if not self._busy:
                self._busy = request.has_turn = True
                return
            self._queue.append(request)
            request.woken = threading.Lock()
            request.woken.acquire()
        if not request.woken.acquire(timeout=timeout):
            self._give_up(request, timeout)

    def _give_up(self, request: Request, timeout: float) -> None:
        if self._withdraw(request):
            path = self._environment.path
            raise StoreBusyError(path, "another OS thread of this process", timeout)
        assert request.woken is not None
        request.woken.acquire()  # it is being committed: how that ends has to be known

    def _withdraw(self, request: Request) -> bool:
        """Take a request back; return False if someone is committing it, or has."""
        with self._lock:
            if request not in self._queue:
                return False
            self._queue.remove(request)
            return True

    def _pass_on(self) -> None:
        """Give the turn to the first who waits."""
        with self._lock:
            if not self._queue:
                self._busy = False
                return
            first = self._queue[0]
            first.has_turn = True
            del self._queue[0]
            _wake(first)

    # ------------------------------------------------------------ the group

    def _commit_queue(self, request: Request, timeout: float) -> None:
        """Commit *request* and what waits."""
        requests = [request]
        try:
            self._take_queue(requests)
            self._commit_together(requests, timeout)
        except BaseException:
            # Ctrl-C is for this OS thread; what the others want goes back into the queue.
            with self._lock:
                self._queue[:0] = [each for each in requests[1:] if not each.done]
            raise
        finally:
            for other in requests[1:]:
                if other.done:
                    _wake(other)

    def _take_queue(self, requests: list[Request]) -> None:
        """Move those who wait to *requests*."""
        if self._company > _FEW:
            # Those who were in the last group are likely to come again, if they get to run.
            time.sleep(_PATIENCE)
        with self._lock:
            requests += self._queue[: _MOST_AT_ONCE - 1]
            del self._queue[: _MOST_AT_ONCE - 1]
        self._company = len(requests)

    def _commit_together(self, requests: Sequence[Request], timeout: float) -> None:
        try:
            self._commit(requests, sum([each.size for each in requests]), timeout)
        except Exception as error:  # noqa: BLE001 - it is raised in the OS thread that asked
            if len(requests) == 1 or isinstance(error, StoreBusyError):
                for request in requests:
                    request.error, request.done = error, True
                return
            # One of them may be to blame: each on its own, so that the others are kept.
            for request in requests:
                self._commit_together([request], timeout)
        else:
            for request in requests:
                request.done = True

    def _commit(self, requests: Sequence[Request], size: int, timeout: float) -> None:
        def attempt(transaction: Any) -> int:
            number = self._writer.begin(transaction)
            for request in requests:
                request.work(transaction)
            return number

        number = self._environment.write(attempt, timeout=timeout, size=size)
        self._writer.publish(number)


def _wake(request: Request) -> None:
    if request.woken is not None and request.woken.locked():
        request.woken.release()
