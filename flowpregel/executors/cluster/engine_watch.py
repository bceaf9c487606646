"""The machines that an engine has, and the time for which it has not answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

LOST_AFTER: Final = 10.0
"""Seconds without an answer after which the batches of a machine are abandoned.

A machine abandons a coordinator that does not poll before this time is over.
"""
CHECK_EVERY: Final = 0.5
"""Seconds between two checks of the machines."""
_LONGEST_STEP: Final = 2 * CHECK_EVERY

Machines = Mapping[str, int]
"""The number of tasks that each machine runs at once, by the machine's address."""


class AwakeClock:
    """A clock that stands still while this program is stopped.

    A program that was stopped (Ctrl-Z, a paused virtual machine, a closed laptop) finds
    on its return that everyone has been silent. On this clock the pause is short, so
    the program asks once more before it abandons a machine.

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
    """The engine's last answer about its machines. A dedicated OS thread requests it.

    Args:
        kind: The name of the engine, for errors.
        timeout: Seconds for which tasks wait if there is no machine.
        ask: A function that returns the engine's machines, or None if the engine is
            not connected. It may block, and may raise any error.
        clock: The clock that measures silences.
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
        """True if the OS thread should end."""

    @property
    def size(self) -> int:
        """The number of tasks that all machines run at once."""
        return sum((self._answer or {}).values())

    def start(self) -> None:
        """Start the OS thread."""
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
        """Return the machines, or None if the engine does not answer.

        This advances the clock.
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
        """Return the reason why no task can run, or an empty text while tasks wait.

        Args:
            machines: The machines, as `machines` has returned them.
            has_tasks: True if there are tasks. An engine that starts machines on demand
                may have none until then.
        """
        if not has_tasks:
            self._had_machine_at = self.clock.now
        limit = LOST_AFTER if machines is None else self.timeout
        if self.clock.now - self._had_machine_at <= limit:
            return ""
        loss = "has lost its scheduler" if machines is None else "has no machine"
        return f"{self._kind} {loss} (waited {limit:g} s)"
