"""The clock of the library: the present time, and the waits that a test can skip.

A timed wait of a workflow (a sleep, a backoff, a rate, a time to live, a schedule) uses
`present`, and never the module `time`. Tests replace `present` by a clock that skips
such waits (`flowpregel.testing.clock`). Waits that belong to the machine, such as those
for a lock, a process or a connection, and limits on the time that code may run, use the
module `time`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Protocol

_LONGEST: Final = 5.0
"""The greatest number of seconds to sleep before the system clock is read again,
because that clock may be set to another time during the wait.
"""


@dataclass(slots=True, eq=False)
class TimedWait:
    """A wait that ends at a time, or when its event occurs."""

    wake: Callable[[], object]
    """A function that ends the wait. Any OS thread may call it."""
    until: float = inf
    """The end in monotonic seconds of the clock, or infinity if the wait ends only with
    its event.
    """
    task_id: str = ""
    """The id of the task that waits, or an empty string if a run waits."""
    is_busy: Callable[[Collection[str]], bool] = lambda waiting: False
    """A function that returns whether a task of the waiting run computes something. Its
    argument is the ids of those tasks that are themselves waiting for a time of the
    clock.
    """
    is_lasting: bool = False
    """True if the owner of the wait (a run, for example) will soon begin another wait.
    Between two waits, a test's clock regards the owner as working, and skips no time.
    """


class TimeSource(Protocol):
    """A source of the present time."""

    skips: bool
    """True if waits are registered with the clock, which ends them early."""

    def wall(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return monotonic seconds."""

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds."""

    def enter(self, wait: TimedWait) -> None:
        """Register *wait*, which begins."""

    def leave(self, wait: TimedWait) -> None:
        """Remove *wait*, which has ended. From now on, the owner of a lasting wait is
        regarded as working.
        """

    def forget(self, wait: TimedWait) -> None:
        """Remove a lasting wait, whose owner has ended."""


class SystemClock:
    """The system's clock. Unlike a test's clock, it never skips a wait."""

    skips: bool = False
    # The built-in functions themselves are used, because they are called faster than
    # functions in Python.
    wall: Callable[[], float] = staticmethod(time.time)
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    monotonic_ns: Callable[[], int] = staticmethod(time.monotonic_ns)

    def enter(self, wait: TimedWait) -> None:
        """Do nothing, as no wait is skipped."""

    leave = forget = enter


present: TimeSource = SystemClock()
"""The clock of this process, which a test may replace."""


def wall() -> float:
    """Return the seconds since the epoch by the present clock."""
    return present.wall()


def monotonic() -> float:
    """Return monotonic seconds by the present clock."""
    return present.monotonic()


@contextmanager
def waiting(wait: TimedWait) -> Iterator[None]:
    """Register *wait* with the clock during the ``with`` block, if the clock is a
    test's clock that skips waits.
    """
    clock = present
    if not clock.skips:
        yield
        return
    clock.enter(wait)
    try:
        yield
    finally:
        clock.leave(wait)
        clock.forget(wait)


async def wait_until(due: float, task_id: str) -> None:
    """Wait on the running event loop until *due*, in seconds since the epoch.

    Args:
        due: The end of the wait.
        task_id: The id of the task that waits.
    """
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    loop = asyncio.get_running_loop()
    while (remaining := due - present.wall()) > 0:
        is_over = asyncio.Event()
        wait = TimedWait(
            partial(loop.call_soon_threadsafe, is_over.set),
            present.monotonic() + remaining,
            task_id,
        )
        timer = loop.call_later(min(remaining, _LONGEST), is_over.set)
        with waiting(wait):
            try:
                await is_over.wait()
            finally:
                timer.cancel()
