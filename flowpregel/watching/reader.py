"""Reads runs out of a store over and over, each time only what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowpregel.watching.rows import CallChanges, CallDetail, LiveRun, RunRow

if TYPE_CHECKING:
    from flowpregel.checkpoint.lmdb import LMDBSaver


class StoreReader:
    """Reads the runs of one store for somebody who looks at it all the time.

    It keeps what it has read; one that is used by several OS threads needs a lock around it.

    Args:
        saver: The open store; with an `InertCodec` nothing of the user's is imported or run.
    """

    def __init__(self, saver: LMDBSaver) -> None:
        self._saver = saver

    def mark(self) -> int:
        """Return a number that grows with every commit to the store; takes some microseconds."""
        raise NotImplementedError

    def runs(self) -> list[RunRow]:
        """Return all runs, the one that changed last first."""
        raise NotImplementedError

    def run(self, thread_id: str) -> RunRow | None:
        """Return one run, or None if there is no such thread."""
        raise NotImplementedError

    def calls(self, thread_id: str, since: int = 0) -> CallChanges:
        """Return the calls of a thread's last run that changed since a mark.

        Args:
            thread_id: Whose.
            since: The `CallChanges.mark` of the last time; 0: all of them.
        """
        raise NotImplementedError

    def call(self, thread_id: str, call_id: str) -> CallDetail | None:
        """Return all that is kept of one call, or None if the last run has no such."""
        raise NotImplementedError

    def live(self, thread_id: str) -> LiveRun | None:
        """Return what a run is doing now; None: nothing runs, or it has not answered yet.

        To ask is to watch: the running process publishes it about five times a second for
        some seconds from now on.
        """
        raise NotImplementedError
