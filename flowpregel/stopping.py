"""What tells a run, and its tasks, that it is to stop soon, or not to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

STOP_LOOK: Final = 0.05
"""Seconds between two looks of a task that waits for the end of its run."""
pauses: ContextVar[bool] = ContextVar("pauses", default=False)
"""Whether runs that wait for a time or a signal stop until it is there, not to be kept waiting."""


SLEEPS_UNTIL: Final = "sleeps_until"
AWAITS_SIGNAL: Final = "waits_for_signal"
"""What such a run stops with, in place of a question: a mapping of one of these."""


class RunControl:
    """Asks a run to stop at the next barrier; safe from any OS thread.

    Example:
        >>> control = RunControl()
        >>> control.request_drain("deploy")
        >>> control.drain_reason
        'deploy'
    """

    __slots__ = ("_reason",)

    def __init__(self) -> None:
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop when the tasks that are running have ended."""
        self._reason = reason

    @property
    def drain_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._reason is not None

    @property
    def drain_reason(self) -> str | None:
        """Why, or None."""
        return self._reason


@dataclass(frozen=True, slots=True)
class StopSignal:
    """Whether the run was told to end soon: like a `threading.Event`, which the run sets.

    Example:
        >>> bool(StopSignal())
        False
    """

    is_set: Callable[[], bool | None] = lambda: False

    def __bool__(self) -> bool:
        return bool(self.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most *timeout* seconds; return whether it is."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = STOP_LOOK if end is None else min(STOP_LOOK, end - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)
        return True
