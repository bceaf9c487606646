"""Group commit: one transaction, and one sync, for all waiting OS threads.

A durable commit of a hundred requests costs no more than a commit of one. So the OS
thread that gets the writer lock commits all waiting requests::

    write(work) appends a request to the queue
      └── takes `writer` (one OS thread of this process)
            └── enters *locked* (one process)
                  └── takes *all* requests from the queue: one call of *attempt*
      └── finds its own request done when it gets `writer`, and returns

If one request of a group raises an error, each request is committed on its own, so that
the others succeed. If Ctrl-C ends the OS thread that has taken a group from the queue,
each of the other OS threads commits its own request later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

from flowpregel import _fault
from flowpregel._interrupts import defer_interrupts
from flowpregel.errors import StoreBusyError

Work: TypeAlias = Callable[[Any], Any]
"""A function that makes changes in the transaction that it gets. It may be called more
than once.
"""


class CommitRequest(NamedTuple):
    """The changes of one caller, which are committed together or not at all."""

    work: Work
    outcome: Future[Any]


class CommitQueue:
    """The queue of this process's requests to commit to one store.

    Args:
        path: The location of the store, for messages.
        attempt: A function that calls all works (the requests' functions) in one
            transaction, commits the transaction, and returns the results. If it raises
            an error, it must not have committed anything.
        locked: A context manager that holds a lock against writers of other processes.
            Its argument is the number of seconds to wait for the lock.

    Example:
        >>> from contextlib import nullcontext
        >>> names = []
        >>> def attempt(group):
        ...     return [work(names) for work in group]
        >>> queue = CommitQueue("names.db", attempt, lambda timeout: nullcontext())
        >>> queue.write(lambda names: names.append("ada"), timeout=5.0)
        >>> names
        ['ada']
    """

    def __init__(
        self,
        path: str,
        attempt: Callable[[Sequence[Work]], Sequence[Any]],
        locked: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self.writer: threading.Lock = threading.Lock()
        """The lock that the writing OS thread of this process holds."""
        self._path = path
        self._attempt = attempt
        self._locked = locked
        self._queue: deque[CommitRequest] = deque()

    @defer_interrupts()
    def write(
        self,
        work: Work,
        timeout: float,
    ) -> Any:
        """Return ``work(transaction)``, once the transaction is committed.

        Args:
            work: The function that makes the changes (see `Work`). It may be called
                more than once.
            timeout: Seconds to wait for other writers.

        Raises:
            StoreBusyError: Other writers held the store for *timeout* seconds.
            Exception: Any error of *work* or of the commit.
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
        except BaseException:
            self._remove(request)
            raise
        return request.outcome.result()

    def _remove(self, request: CommitRequest) -> bool:
        """Remove a request from the queue, and return whether it was in the queue."""
        # Membership is checked first, because the error of `remove` for a missing
        # request contains the request's repr, and so all values in it.
        if request not in self._queue:
            return False
        try:
            self._queue.remove(request)
        except ValueError:
            # Another OS thread has just taken the request, so it is too late to
            # withdraw it.
            return False
        return True

    @contextmanager
    def exclusively(self, timeout: float) -> Iterator[None]:
        """Exclude all other writers, of this process and of other processes.

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

    def after_fork(self) -> None:
        """Forget the requests and the writer of the parent, in a forked child."""
        self.writer = threading.Lock()
        self._queue.clear()

    def _withdraw(
        self,
        request: CommitRequest,
        timeout: float,
    ) -> None:
        """Withdraw a request that has waited for *timeout* seconds.

        If another OS thread is committing the request at the moment, wait for the end
        of that commit, because the caller needs the outcome. In this case the `writer`
        lock is held on return.

        Raises:
            StoreBusyError: The request was withdrawn.
        """
        if self._remove(request):
            raise self._busy(timeout)
        self.writer.acquire()

    def _take_group(self, request: CommitRequest) -> list[CommitRequest]:
        """Take all requests from the queue, and return them. Add *request*, the one of
        this OS thread, if it is not among them.
        """
        group: list[CommitRequest] = []
        # Other OS threads may withdraw their requests at any time, so only `popleft`
        # itself shows whether the queue is empty.
        with suppress(IndexError):
            while True:
                group.append(self._queue.popleft())
        # The request may be in no group, because Ctrl-C may have ended the OS thread
        # that had taken it from the queue.
        if request not in group:
            group.append(request)
        return group

    def _commit(self, group: Sequence[CommitRequest]) -> None:
        """Commit a group in one transaction, and set the requests' outcomes."""
        if _fault.points:
            _fault.fault("store.commit.begin")
        try:
            results = self._attempt([request.work for request in group])
        except Exception as error:  # noqa: BLE001
            # The error is raised again in the OS thread that made the request.
            if len(group) == 1:
                group[0].outcome.set_exception(error)
                return
            # A single request may be the cause of the error. So each request is
            # committed on its own, and the other requests succeed.
            for request in group:
                self._commit([request])
        else:
            if _fault.points:
                _fault.fault("store.commit.after")
            for request, result in zip(group, results, strict=True):
                request.outcome.set_result(result)

    def _busy(self, timeout: float) -> StoreBusyError:
        return StoreBusyError(self._path, "another OS thread of this process", timeout)
