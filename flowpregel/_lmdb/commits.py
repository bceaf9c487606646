"""Group commit: an OS thread that commits takes along everything that waits.

A durable commit costs the same for one batch as for a hundred, and only one can run
at a time. While one OS thread leads and its commit is on its way to the disk, the
others queue their work and wait. Then the lead passes to the first in the queue,
which commits the whole of it and wakes the rest. A lone OS thread never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from flowpregel.errors import StoreBusyError

_MOST_AT_ONCE = 1000

Work: TypeAlias = Callable[[Any], Any]
"""A function of the transaction. It may be called again, after a transaction that failed."""


class CommitRequest:
    """What one caller wants done in a transaction: all of it, or nothing."""

    __slots__ = ("done", "error", "leads", "result", "wake", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.leads = False
        self.wake = threading.Event()
        """Set when the request is done, or when its caller is to lead."""

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        """Note how it ended."""
        self.result, self.error, self.done = result, error, True


class GroupCommit:
    """Commits for all OS threads of a process.

    Args:
        path: The store, for messages.
        commit: Runs a function in a transaction and returns once that is on disk.
    """

    def __init__(self, path: str, commit: Callable[[Work, float], Any]) -> None:
        self._path = path
        self._commit = commit
        self._lock = threading.Lock()
        self._queue: list[CommitRequest] = []
        self._is_led = False

    def write(self, work: Work, timeout: float) -> Any:
        """Return ``work(transaction)``, once it is on disk with whatever else waited.

        Raises:
            StoreBusyError: Another OS thread held the store all that time.
            Exception: Whatever *work* raises; nothing of it was committed.
        """
        request = CommitRequest(work)
        try:
            self._await_turn(request, timeout)
            if request.leads:
                self._commit_queue(request, timeout)
        finally:
            # Also after Ctrl-C at any point above: without a leader everybody would wait.
            if not request.done:
                self._withdraw(request)
            if request.leads:
                self._pass_on()
        if request.error is not None:
            raise request.error
        return request.result

    # ------------------------------------------------------------ who leads

    def _await_turn(self, request: CommitRequest, timeout: float) -> None:
        """Wait until *request* is done or leads."""
        with self._lock:
            if not self._is_led:
                self._is_led = request.leads = True
                return
            self._queue.append(request)
        if not request.wake.wait(timeout):
            if self._withdraw(request):
                raise StoreBusyError(self._path, "another OS thread of this process", timeout)
            request.wake.wait()  # it is being committed: how that ends has to be known

    def _withdraw(self, request: CommitRequest) -> bool:
        """Take a request back; return False if it is being committed, or was."""
        with self._lock:
            if request not in self._queue:
                return False
            self._queue.remove(request)
            return True

    def _pass_on(self) -> None:
        """Let the first in the queue lead."""
        with self._lock:
            self._is_led = bool(self._queue)
            if self._queue:
                first = self._queue.pop(0)
                first.leads = True
                first.wake.set()

    # ------------------------------------------------------------ the group

    def _commit_queue(self, request: CommitRequest, timeout: float) -> None:
        """Commit *request* and whatever waits."""
        group = [request]
        try:
            with self._lock:
                group += self._queue[: _MOST_AT_ONCE - 1]
                del self._queue[: _MOST_AT_ONCE - 1]
            self._commit_group(group, timeout)
        except BaseException:
            # Ctrl-C is for this OS thread; the others' requests go back into the queue.
            with self._lock:
                self._queue[:0] = [each for each in group[1:] if not each.done]
            raise
        finally:
            for other in group[1:]:
                if other.done:
                    other.wake.set()

    def _commit_group(self, group: Sequence[CommitRequest], timeout: float) -> None:
        try:
            results = self._commit(lambda t: [request.work(t) for request in group], timeout)
        except Exception as error:  # noqa: BLE001 - it is raised in the OS thread that asked
            if len(group) == 1 or isinstance(error, StoreBusyError):
                for request in group:
                    request.finish(error=error)
                return
            # One of them may be to blame: each on its own, so that the others are kept.
            for request in group:
                self._commit_group([request], timeout)
        else:
            for request, result in zip(group, results, strict=True):
                request.finish(result)
