"""Group commit: whoever commits takes along everything that waits.

A durable commit costs the same for one batch as for a hundred, and only one
can run at a time. So while one OS thread's commit is on its way to the disk, the
others put what they have into the queue and wait for their turn; the first of
them to get it commits the whole queue, and the rest find theirs done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from flowpregel._lmdb.environment import Environment
from flowpregel.checkpoint.lmdb.prepared import Prepared
from flowpregel.checkpoint.lmdb.writer import Writer
from flowpregel.errors import StoreBusyError

_MOST_AT_ONCE = 1000


class Request:
    """One caller's batches: committed all, or none."""

    __slots__ = ("batches", "done", "error")

    def __init__(self, batches: Sequence[Prepared]) -> None:
        self.batches = batches
        self.done = False
        self.error: BaseException | None = None


class GroupCommit:
    """Commits batches for all OS threads of a process.

    Args:
        environment: The store.
        writer: Puts batches into a transaction.
    """

    def __init__(self, environment: Environment, writer: Writer) -> None:
        self._environment = environment
        self._writer = writer
        self._queue: deque[Request] = deque()
        self._turn = threading.Lock()

    def commit(self, batches: Sequence[Prepared], timeout: float) -> None:
        """Commit *batches* in one transaction; return once they are on disk.

        Raises:
            LeaseLostError: Nothing of them was committed.
            StoreBusyError: Another process held the store for *timeout* seconds.
        """
        request = Request(batches)
        self._queue.append(request)
        try:
            taken = self._turn.acquire(timeout=timeout)
        except BaseException:
            self._withdraw(request)
            raise
        if not taken:
            self._withdraw(request)
            if not request.done:
                path = self._environment.path
                raise StoreBusyError(path, "another OS thread of this process", timeout)
        else:
            try:
                if not request.done:
                    self._commit_queue(timeout)
            finally:
                self._turn.release()
        if request.error is not None:
            raise request.error

    def change(self, work: Callable[[Any], None], timeout: float) -> None:
        """Do something else than a commit in a write transaction, in its turn."""

        def attempt(transaction: Any) -> None:
            self._writer.begin()
            work(transaction)

        with self._turn:
            self._environment.write(attempt, timeout=timeout)
            self._writer.publish()

    def _withdraw(self, request: Request) -> None:
        with suppress(ValueError):  # it is being committed, or is
            self._queue.remove(request)

    def _commit_queue(self, timeout: float) -> None:
        requests: list[Request] = []
        while self._queue and len(requests) < _MOST_AT_ONCE:
            requests.append(self._queue.popleft())
        try:
            self._commit(requests, timeout)
        except BaseException as error:
            if len(requests) == 1 or not isinstance(error, Exception):
                for request in requests:
                    request.error, request.done = error, True
                if not isinstance(error, Exception):
                    raise
                return
            # One of them may be to blame: each on its own, so that the others are kept.
            for request in requests:
                self._commit_alone(request, timeout)
        else:
            for request in requests:
                request.done = True

    def _commit_alone(self, request: Request, timeout: float) -> None:
        try:
            self._commit([request], timeout)
        except Exception as error:  # noqa: BLE001 - it is raised in the OS thread that asked
            request.error = error
        request.done = True

    def _commit(self, requests: Sequence[Request], timeout: float) -> None:
        def attempt(transaction: Any) -> None:
            self._writer.begin()
            for request in requests:
                for prepared in request.batches:
                    self._writer.put(transaction, prepared)

        self._environment.write(attempt, timeout=timeout)
        self._writer.publish()
