"""Group commit: one transaction, and one sync, for all OS threads that wait.

A durable commit costs the same for a hundred requests as for one. So an OS thread whose
turn it is commits all requests that wait::

    write(work) appends a request to the queue
      └── takes `writer` (one OS thread of this process)
            └── enters *locked* (one process)
                  └── takes *all* requests from the queue: one call of *attempt*
      └── finds its own request done when it gets `writer`, and returns

If one request of a group raises, each is committed on its own, so that the others are
kept. If Ctrl-C ends the OS thread that took a group along, each owner commits its own
request later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

from flowpregel._fault import fault
from flowpregel._interrupts import held
from flowpregel.errors import StoreBusyError

Work: TypeAlias = Callable[[Any], Any]
"""A function of a transaction, which it fills; it may be called more than once."""


class CommitRequest(NamedTuple):
    """The changes of one caller: all of them are committed, or none."""

    work: Work
    outcome: Future[Any]


class CommitQueue:
    """The requests of this process to commit to one store.

    Args:
        path: The location of the store, for messages.
        attempt: Calls each work in one transaction, commits it, and returns the
            results. If it raises, nothing may have been committed.
        locked: Holds a lock that keeps other processes from writing; its argument is
            the number of seconds to wait for that lock.
    """

    def __init__(
        self,
        path: str,
        attempt: Callable[[Sequence[Work]], Sequence[Any]],
        locked: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self.writer = threading.Lock()
        """Held by the OS thread of this process that writes."""
        self._path = path
        self._attempt = attempt
        self._locked = locked
        self._queue: deque[CommitRequest] = deque()

    @held()
    def write(
        self,
        work: Work,
        timeout: float,
    ) -> Any:
        """Return ``work(transaction)`` of one transaction, once it is committed.

        Args:
            work: Fills the transaction; may be called more than once.
            timeout: Seconds to wait for other writers.

        Raises:
            StoreBusyError: Another writer held the store all that time.
            Exception: *work* raised it, or the attempt to commit.
        """
        request = CommitRequest(work, Future())
        self._queue.append(request)
        try:
            if not self.writer.acquire(timeout=timeout):
                self._withdraw(request, timeout)
            try:
                if not request.outcome.done():
                    with self._locked(timeout):
                        self._commit(self._take_group(request))
            finally:
                self.writer.release()
        finally:
            self._remove(request)
        return request.outcome.result()

    def _remove(self, request: CommitRequest) -> bool:
        """Remove a request from the queue; return whether it was there."""
        # For an error that it is not there, ``remove`` would make a text of the
        # request, with all the values that are to be committed.
        if request not in self._queue:
            return False
        try:
            self._queue.remove(request)
        except ValueError:  # another OS thread has just taken it
            return False
        return True

    @contextmanager
    def exclusively(self, timeout: float) -> Iterator[None]:
        """Keep out all other writers, of this process and of others.

        Raises:
            StoreBusyError: Another writer held the store for *timeout* seconds.
        """
        if not self.writer.acquire(timeout=timeout):
            raise self._busy(timeout)
        try:
            with self._locked(timeout):
                yield
        finally:
            self.writer.release()

    def _withdraw(
        self,
        request: CommitRequest,
        timeout: float,
    ) -> None:
        """Withdraw a request after *timeout* seconds.

        If another OS thread commits it at this moment, wait for that: the caller needs
        its outcome.

        Raises:
            StoreBusyError: It was withdrawn.
        """
        if self._remove(request):
            raise self._busy(timeout)
        self.writer.acquire()

    def _take_group(self, request: CommitRequest) -> list[CommitRequest]:
        """Take all requests from the queue, and *request* in any case."""
        group: list[CommitRequest] = []
        # Other OS threads may withdraw theirs at any time.
        with suppress(IndexError):
            while True:
                group.append(self._queue.popleft())
        if request not in group:  # Ctrl-C ended the OS thread that took it along
            group.append(request)
        return group

    def _commit(self, group: Sequence[CommitRequest]) -> None:
        """Commit a group in one transaction, and set the outcomes."""
        fault("store.commit.begin")
        try:
            results = self._attempt([request.work for request in group])
        except Exception as error:  # noqa: BLE001 - raised in the OS thread of the request
            if len(group) == 1:
                group[0].outcome.set_exception(error)
                return
            # One request may be to blame: each on its own, so that the others succeed.
            for request in group:
                self._commit([request])
        else:
            fault("store.commit.after")
            for request, result in zip(group, results, strict=True):
                request.outcome.set_result(result)

    def _busy(self, timeout: float) -> StoreBusyError:
        return StoreBusyError(self._path, "another OS thread of this process", timeout)
