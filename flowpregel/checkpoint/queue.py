"""The positions of enqueued runs in the queue of a store.

An enqueued run is a run that has not begun: its thread has one checkpoint, with the
input. The position is part of the metadata of this checkpoint. So a queue needs no
records of its own, and a run leaves the queue with its first result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowpregel.checkpoint.base import QUEUE


class QueuePosition(NamedTuple):
    """The position of an enqueued run.

    Example:
        >>> QueuePosition.of({"queue": (5, 0.0)})
        QueuePosition(priority=5, not_before=0.0)
        >>> QueuePosition.of({}) is None
        True
    """

    priority: int = 0
    """A run with a greater number begins first."""
    not_before: float = 0.0
    """The earliest time at which the run may begin, in seconds since the epoch."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> QueuePosition | None:
        """Return the position in the metadata of a checkpoint, or None.

        Args:
            metadata: The metadata, which another program may have written.
        """
        match metadata.get(QUEUE):
            case [int(priority), int() | float() as not_before]:
                return cls(priority, not_before)
            case _:
                return None

    def rank(self, created: int, now: float) -> tuple[float, int, int]:
        """Return a sort key, by which enqueued runs are in the order in which they
        begin.

        Args:
            created: The time at which the run was enqueued, in nanoseconds.
            now: The present time, in seconds since the epoch.
        """
        delay = max(0.0, self.not_before - now)
        return delay, -self.priority, created
