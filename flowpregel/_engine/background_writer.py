"""The OS thread that commits the batches of a run whose durability is "async".

::

    the run                           the background writer
    -------                           ---------------------
    put(batch) -> waiting batches --> one transaction for all that wait
        waits while too many wait, or one commit takes too long
    flush()   waits until everything is committed
    close()   commits what waits, and ends the OS thread

After an error nothing more is committed, so that the stored history has no gaps. The
error is raised in the run, at its next call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from flowpregel._core.records import CONTROL_WRITES, Batch
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver

MOST_BEHIND: Final = 32
"""The greatest number of waiting batches. A crash of a run with ``durability="async"``
can lose that many batches.
"""
LONGEST_BEHIND: Final = 0.05
"""Seconds that a commit may take, for example on a slow disk, before the run waits for
its end.
"""
ENOUGH: Final = MOST_BEHIND // 2
"""The number of waiting batches at which a transaction begins at once. About as many
batches may arrive during its commit.
"""
_PAUSE: Final = 0.005


class BackgroundWriter:
    """An OS thread that commits batches. All waiting batches are committed in one
    transaction.

    A transaction costs as much for one batch as for many. So if only a few batches
    wait, the writer waits a short time for more.

    Args:
        saver: The saver to commit to.
        pause: Seconds for which the writer waits while there are fewer than `ENOUGH`
            batches.
    """

    def __init__(self, saver: BaseCheckpointSaver, pause: float = _PAUSE) -> None:
        self._saver = saver
        self._pause = pause
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._busy = 0
        """The number of batches in the current commit."""
        self._began = 0.0
        """The time at which the current commit began, in monotonic seconds."""
        self._error: BaseException | None = None
        self._is_awaited = False
        """True if the run waits until all batches are committed."""
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._work, name="flowpregel-writer", daemon=True
        )
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """True if `put` would wait."""
        if self._error is not None:
            return False
        is_late = self._busy > 0 and time.monotonic() - self._began > LONGEST_BEHIND
        return is_late or len(self._waiting) + self._busy >= MOST_BEHIND

    def put(self, batch: Batch) -> None:
        """Queue *batch* for a commit. First wait while too many batches are waiting.

        Raises:
            Exception: The error of an earlier commit. Nothing was committed after this
                error.
        """
        with self._changed:
            while self.is_full:
                self._changed.wait()
            self._check()
            self._waiting.append(batch)
            if len(self._waiting) in (1, ENOUGH):
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all queued batches are committed.

        Raises:
            Exception: The error of a commit.
        """
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            try:
                while (self._waiting or self._busy) and self._error is None:
                    self._changed.wait()
            finally:
                self._is_awaited = False
            self._check()

    def close(self) -> None:
        """Commit the batches that wait, end the OS thread, and raise the error of a
        commit.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            batches = self._take()
            if not batches:
                return
            error: BaseException | None = None
            try:
                fault("writer.commit.before")
                self._saver.commit(batches)
                fault("writer.commit.after", batches, finished)
            except BaseException as raised:  # noqa: BLE001 - raised where the run waits
                error = raised
            with self._changed:
                self._busy = 0
                self._error = error
                self._changed.notify_all()
            if error is not None:
                return

    def _take(self) -> list[Batch]:
        """Wait for batches, and take them from the queue. An empty list means that the
        writer closes and no batch is left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._changed.wait_for(self._is_due, self._pause)
            batches = list(self._waiting)
            self._waiting.clear()
            self._busy = len(batches)
            self._began = time.monotonic()
            return batches

    def _is_due(self) -> bool:
        """Return whether a transaction must begin now, without waiting for more
        batches.
        """
        is_enough = len(self._waiting) >= ENOUGH
        return is_enough or self._is_awaited or self._is_closing


def finished(batches: Iterable[Batch]) -> str:
    """Return the ids of the tasks with results in *batches*. Only tests use them, as
    the details of a fault point (a place at which a test can end the process).
    """
    task_ids: list[str] = []
    for batch in batches:
        task_ids += [
            task.task_id
            for task in batch.writes
            if any(channel not in CONTROL_WRITES for channel, _ in task.writes)
        ]
    return " ".join(task_ids)
