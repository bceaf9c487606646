"""Other programs that use the slots of a limit, played by the test, and runs of this
program that wait for them.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from flowpregel.executors.resources import CrossProcessLimit


class OtherProgram(CrossProcessLimit):
    """Another program that names the folder of a limit.

    Args:
        folder: The folder of the slots.
        count: The number of slots.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        self._woken = threading.Semaphore(0)
        super().__init__(folder, count, self._woken.release)

    def take_when_free(self, used: int = 0) -> None:
        """Lock one more slot than the *used* ones, as soon as one is free.

        A single attempt is not enough even if nobody holds the slot: an OS thread that
        waits for it, of whichever program, locks it for a moment.
        """
        while self.available(used, 0.0) <= used:
            assert self._woken.acquire(timeout=60), "nobody gave a slot back"


def wait_for_a_waiting_run() -> None:
    """Return as soon as a run of this process waits for a slot."""
    until = time.monotonic() + 60
    while "flowpregel-limit" not in {each.name for each in threading.enumerate()}:
        assert time.monotonic() < until
        time.sleep(0.01)
