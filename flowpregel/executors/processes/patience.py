"""Patience: look a few times before going to sleep, where that has paid of late.

To wake a process that sleeps costs the one that wakes it 20 µs, and the sleeper
30 to 60 more until it runs: several times what a trivial task takes. So who has
waited only shortly a few times in a row looks again and again for a moment. One
long wait ends that: an idle pool, or one with long tasks, sleeps. Where others
want the same CPU, who waits sleeps too: they may be whom it waits for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

SPELL: Final = 100_000
"""Nanoseconds for which is looked before going to sleep."""
SHORT: Final = 2 * SPELL
"""Waits up to that count as short: asleep, they last longer by the waking."""
STREAK: Final = 3
"""Short waits in a row after which the next is expected to be short."""
_LOOKS: Final = 8
"""Looks in a round, after which others are let run that wait for the same CPU."""
CROWDED: Final = 20_000
"""Nanoseconds: a round takes a quarter of them, unless others have run meanwhile."""
_CROWDS: Final = 200
"""Crowded looks, beyond those that were not, after which we sleep for a while. Fewer are
borne: the kernel moves two that want one CPU apart, once it has seen both of them wait for it."""
_PAUSE: Final = 250_000_000
"""Nanoseconds for which nobody looks then."""

Found = TypeVar("Found")


class Patience:
    """How one end of a link waits.

    Args:
        clock: Tells the time in nanoseconds.
    """

    __slots__ = ("_clock", "_crowds", "_not_before", "_streak")

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._streak = 0
        self._crowds = 0
        self._not_before = 0

    def look(self, look: Callable[[], Found | None]) -> Found | None:
        """Return what *look* finds within a moment, if it is expected to; else None."""
        if self._streak < STREAK:
            return None
        now = self._clock()
        if now < self._not_before:
            return None
        end = now + SPELL
        crowd = -1
        found = None
        while now < end and not found:
            for _ in range(_LOOKS):
                if found := look():
                    break
            else:
                os.sched_yield()
            before, now = now, self._clock()
            if now - before > CROWDED:
                crowd = 1
        self._note(crowd, now)
        return found

    def _note(self, crowd: int, now: int) -> None:
        self._crowds = max(0, self._crowds + crowd)
        if self._crowds >= _CROWDS:
            self._crowds = 0
            self._not_before = now + _PAUSE

    def waited(self, nanoseconds: int) -> None:
        """Note how long a wait has lasted."""
        if nanoseconds > SHORT:
            self._streak = 0
        elif self._streak < STREAK:
            self._streak += 1
