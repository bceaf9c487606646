"""The background writer: commits overlap the next work, in order, and never far behind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from flowpregel._core.records import CONTROL_WRITES, Batch
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver

MOST_BEHIND = 32
"""How many batches may wait: what a crash can cost with ``durability="async"``."""
ENOUGH = MOST_BEHIND // 2
"""Batches that are worth a transaction; as many may come while it is on its way."""
_MOMENT = 0.005


def finished(batches: Iterable[Batch]) -> str:
    """Return the ids of the tasks whose results *batches* keep, for the trace of a test."""
    return " ".join(
        writes.task_id
        for batch in batches
        for writes in batch.writes
        if any(channel not in CONTROL_WRITES for channel, _ in writes.writes)
    )


class BackgroundWriter:
    """Commits batches on an OS thread of its own; all that wait go in one transaction.

    A transaction costs as much for one batch as for many, and this OS thread has the
    interpreter while it makes one. So a few batches wait a moment for others, unless
    somebody waits for them.

    Args:
        saver: What to commit to.
        moment: Seconds for which fewer than `ENOUGH` wait.
    """

    def __init__(self, saver: BaseCheckpointSaver, moment: float = _MOMENT) -> None:
        self._saver = saver
        self._moment = moment
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._busy = 0
        self._error: BaseException | None = None
        self._flushing = 0
        """How many OS threads wait for everything to be committed."""
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait."""
        return len(self._waiting) + self._busy >= MOST_BEHIND and self._error is None

    def put(self, batch: Batch) -> None:
        """Hand over *batch*; waits while too many do.

        Raises:
            Exception: What an earlier commit raised; nothing was committed after it.
        """
        with self._changed:
            while self.is_full:
                self._changed.wait()
            self._check()
            self._waiting.append(batch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="flowpregel-writer", daemon=True
                )
                self._thread.start()
            if len(self._waiting) in (1, ENOUGH):
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything that was handed over is committed.

        Raises:
            Exception: What a commit raised.
        """
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                while (self._waiting or self._busy) and self._error is None:
                    self._changed.wait()
            finally:
                self._flushing -= 1
            self._check()

    def close(self) -> None:
        """Commit what waits, end the OS thread, and raise what a commit raised."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while batches := self._take():
            try:
                fault("writer.commit.before")
                self._saver.commit(batches)
                fault("writer.commit.after", batches, finished)
            except BaseException as error:  # noqa: BLE001 - raised where the run waits
                with self._changed:
                    self._error = error
                    self._busy = 0
                    self._changed.notify_all()
                return
            with self._changed:
                self._busy = 0
                self._changed.notify_all()

    def _take(self) -> list[Batch]:
        """Wait for batches, and take them; none: there will be no more."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            self._changed.wait_for(self._is_time, self._moment)
            batches = list(self._waiting)
            self._waiting.clear()
            self._busy = len(batches)
            return batches

    def _is_time(self) -> bool:
        return len(self._waiting) >= ENOUGH or bool(self._flushing) or self._closing
