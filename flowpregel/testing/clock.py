"""A clock for tests, which skips the waits of workflows in this process.

The clock shows the real time plus all time that was skipped. An OS thread watches the
waits that are registered (`flowpregel._clock.TimedWait`). The thread checks the waits
at short intervals (turns). If for some turns every run waits and no task computes
anything, the clock moves to the end of the wait that ends first. So waits end in the
order in which they would end without the clock.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Collection
from math import inf
from typing import Final, Self

from flowpregel import _clock
from flowpregel._clock import TimedWait, TimeSource

__all__ = ["SkippingClock"]

_TURN: Final = 0.002
"""Real seconds between two checks (turns) of the OS thread that watches the waits."""
_IDLE_TURNS: Final = 10
"""The number of turns without a change after which the clock moves."""
_ABANDONED: Final = 500
"""The number of turns without a change after which a run that is neither waiting nor
ended is ignored: its code is taken for a stream that is no longer read.
"""
_PAST: Final = 1e-6
"""Seconds by which the clock moves past the end of a wait, because times are
rounded.
"""


class SkippingClock:
    """A clock that ends the waits of workflows at once, in their order.

    Example:
        >>> from datetime import timedelta
        >>> from flowpregel import entrypoint, sleep
        >>> @entrypoint
        ... def remind(seconds: float) -> str:
        ...     sleep(seconds)
        ...     return "now"
        >>> with SkippingClock() as clock:
        ...     begin = clock.now
        ...     _ = remind.run(86_400)
        ...     clock.now - begin >= timedelta(days=1)
        True
    """

    def __init__(self) -> None:
        self._time = _SkippedTime()
        self._before: TimeSource = _clock.present

    @property
    def now(self) -> datetime.datetime:
        """The present time of the clock, in UTC."""
        return datetime.datetime.fromtimestamp(self._time.wall(), datetime.UTC)

    def advance(self, seconds: float | datetime.timedelta) -> None:
        """Move the clock forward, and end the waits that would have ended by then.

        Args:
            seconds: The seconds, or a timedelta.

        Raises:
            ValueError: The clock cannot go back.

        Example:
            >>> clock = SkippingClock()
            >>> begin = clock.now
            >>> clock.advance(3_600)
            >>> (clock.now - begin).total_seconds() >= 3_600
            True
        """
        if isinstance(seconds, datetime.timedelta):
            seconds = seconds.total_seconds()
        if not 0 <= seconds < inf:
            raise ValueError(f"advance({seconds!r}): use seconds of 0 or more")
        self._time.advance(seconds)

    def __enter__(self) -> Self:
        self._before = _clock.present
        _clock.present = self._time
        self._time.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        _clock.present = self._before
        self._time.close()


class _SkippedTime:
    """The time source behind a `SkippingClock`: the real time plus the time that was
    skipped, and the OS thread that watches the waits and skips them.
    """

    skips: bool = True

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._lock = threading.Lock()
        self._waits: set[TimedWait] = set()
        self._working: set[TimedWait] = set()
        """The waits that have ended, and whose owners (the code that waited) are
        regarded as working: until they wait again, the clock skips no time.
        """
        self._changes = 0
        """The number of times that a wait has begun or ended."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="flowpregel-clock", daemon=True
        )

    def start(self) -> None:
        """Begin to skip waits."""
        self._thread.start()

    def close(self) -> None:
        """Skip no further waits."""
        self._is_closed.set()
        self._thread.join()

    def advance(self, seconds: float) -> None:
        """Move the clock, and end the waits that are over then."""
        with self._lock:
            self._move(seconds)

    def wall(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self._ahead_ns / 1e9

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self.monotonic_ns() / 1e9

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return time.monotonic_ns() + self._ahead_ns

    def enter(self, wait: TimedWait) -> None:
        """Register *wait*, which begins."""
        with self._lock:
            self._changes += 1
            self._waits.add(wait)
            self._working.discard(wait)

    def leave(self, wait: TimedWait) -> None:
        """Remove *wait*, which has ended. The owner of a lasting wait, which will soon
        begin another one, is regarded as working from now on.
        """
        with self._lock:
            self._changes += 1
            self._waits.discard(wait)
            self._working.discard(wait)
            if wait.is_lasting:
                self._working.add(wait)

    def forget(self, wait: TimedWait) -> None:
        """Remove a lasting wait, whose owner (the code that waited again and again) has
        ended.
        """
        with self._lock:
            self._changes += 1
            self._waits.discard(wait)
            self._working.discard(wait)

    # ------------------------------------------------ the watching OS thread

    def _watch(self) -> None:
        """Move the clock whenever all runs wait for a time."""
        idle, quiet, changes = 0, 0, -1
        while not self._is_closed.wait(_TURN):
            with self._lock:
                is_quiet = changes == self._changes
                changes = self._changes
            quiet = quiet + 1 if is_quiet else 0
            is_idle = is_quiet and self._is_idle(ignores_working=quiet > _ABANDONED)
            idle = idle + 1 if is_idle else 0
            if idle >= _IDLE_TURNS:
                idle = 0
                self._skip(changes)

    def _is_idle(self, *, ignores_working: bool) -> bool:
        """Return whether no run computes anything, by the registered waits.

        With *ignores_working*, code that works after a wait is ignored.
        """
        with self._lock:
            waits = [*self._waits]
            if self._working and not ignores_working:
                return False
        tasks: Collection[str] = {wait.task_id for wait in waits}
        # The lock is released before `is_busy` is called, because a run may begin or
        # end a wait at any time, which needs the lock.
        return not any(wait.is_busy(tasks) for wait in waits)

    def _skip(self, changes: int) -> None:
        """Move the clock to the end of the wait that ends first, unless a wait has
        begun or ended since *changes* were counted.
        """
        with self._lock:
            first = min((wait.until for wait in self._waits), default=inf)
            if first < inf and changes == self._changes:
                self._move(max(0.0, first - self.monotonic()) + _PAST)

    def _move(self, seconds: float) -> None:
        """Move the clock, and wake the code whose wait is over. The caller holds the
        lock.
        """
        self._ahead_ns += round(seconds * 1e9)
        now = self.monotonic()
        for wait in self._waits:
            if wait.until <= now:
                # The code whose wait is over is woken. The clock regards it as working
                # until it waits again, and skips no time until then.
                wait.until = inf
                self._working.add(wait)
                self._changes += 1
                wait.wake()
