"""The present list of the engine's machines, and a clock for the time since machines
have answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

LOST_AFTER: Final = 10.0
"""Seconds without an answer from a machine after which its batches are abandoned.

A machine gives up a coordinator that is silent after a shorter time
(`machine.SILENCE`).
"""
CHECK_EVERY: Final = 0.5
"""Seconds between two checks of the machines."""
_LONGEST_STEP: Final = 2 * CHECK_EVERY

Machines = Mapping[str, int]
"""The number of tasks that each machine runs at once, by the machine's address."""


class AwakeClock:
    """A clock that stands still while this program is stopped.

    When a program continues that was stopped (Ctrl-Z, a paused virtual machine, a
    closed laptop), no machine has answered for a long time. On this clock the pause is
    short, so the program asks the machines once more before it abandons them.

    Args:
        monotonic: A function that returns the time in seconds.

    Example:
        >>> seconds = iter([100.0, 100.5, 120.5])
        >>> clock = AwakeClock(lambda: next(seconds))
        >>> clock.tick(), clock.tick()
        (0.5, 1.5)
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_tick = monotonic()
        self.now: float = 0.0
        """The time at the last tick, in seconds since the clock was made."""

    def tick(self) -> float:
        """Advance the clock, and return its time."""
        present = self._monotonic()
        self.now += min(present - self._last_tick, _LONGEST_STEP)
        self._last_tick = present
        return self.now


class EngineWatch:
    """The engine's latest answer about its machines, which an OS thread requests again
    and again.

    Args:
        kind: The name of the engine, for errors.
        timeout: Seconds for which tasks wait if there is no machine.
        ask: A function that returns the engine's machines, or None if the engine is
            not connected. It may block, and may raise any error.
        clock: The clock on which the time since a machine's last answer is measured.
    """

    def __init__(
        self,
        kind: str,
        timeout: float,
        ask: Callable[[], Machines | None],
        clock: AwakeClock,
    ) -> None:
        self._kind = kind
        self.timeout = timeout
        self._ask = ask
        self.clock = clock
        self._answer = ask()
        self._answered_at = self.clock.now
        self._had_machine_at = self.clock.now
        self.is_done = False
        """True if the OS thread that requests the list of machines should end."""

    @property
    def size(self) -> int:
        """The number of tasks that all machines together can run at once."""
        return sum((self._answer or {}).values())

    def start(self) -> None:
        """Start the OS thread that requests the list of machines again and again."""
        thread = threading.Thread(
            target=self._keep_asking,
            name="flowpregel-machines",
            daemon=True,
        )
        thread.start()

    def _keep_asking(self) -> None:
        while not self.is_done:
            try:
                self._answer = self._ask()
            except Exception:  # noqa: BLE001 - any error: the engine cannot be asked
                self._answer = None
            self._answered_at = self.clock.now
            time.sleep(CHECK_EVERY)

    def machines(self) -> Machines | None:
        """Return the engine's machines, or None if the engine does not answer.

        Each call is a tick of `clock`, on which the time since the engine's last answer
        is measured.
        """
        now = self.clock.tick()
        if now - self._answered_at >= LOST_AFTER:
            return None
        machines = self._answer
        if machines:
            self._had_machine_at = now
        return machines

    def problem(
        self,
        machines: Machines | None,
        has_tasks: bool,
    ) -> str:
        """Return the reason why no task can run, or an empty string if there is none,
        or none yet.

        Args:
            machines: The machines, as `machines` has returned them.
            has_tasks: True if tasks wait or run. Without tasks, an engine that starts
                machines on demand may well have none.
        """
        if not has_tasks:
            self._had_machine_at = self.clock.now
        limit = LOST_AFTER if machines is None else self.timeout
        if self.clock.now - self._had_machine_at <= limit:
            return ""
        loss = "has lost its scheduler" if machines is None else "has no machine"
        return f"{self._kind} {loss} (waited {limit:g} s)"
