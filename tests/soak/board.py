"""What several processes know of each other's commits: in a file that they all have
mapped.

Each number has one OS thread that writes it; it is eight bytes at an address that eight
divides, so who reads it gets a value that was written. It outlives whoever is killed.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

PROCESSES: Final = 3
THREADS: Final = 4
"""OS threads of a process that count, its main thread first."""
SLOTS: Final = 4
"""Threads of the store, each written by one OS thread."""
COUNTED: Final = (
    "commits",
    "reads",
    "histories",
    "interrupts",
    "compactions",
    "refusals",
    "backups",
)
_COUNTS: Final = 8
_READY: Final = _COUNTS + PROCESSES * THREADS * len(COUNTED)
_ENTRIES: Final = 512


class Board:
    """The board of one soak.

    Args:
        folder: Where its file is; it is made there if it is not.
    """

    def __init__(self, folder: Path) -> None:
        self._complaints = folder / "complaints"
        with open(folder / "board", "a+b") as file:
            file.truncate(8 * _ENTRIES)
            self._map = mmap.mmap(file.fileno(), 8 * _ENTRIES)
        self._numbers = memoryview(self._map).cast("q")

    def acknowledged(self, slot: int) -> int:
        """Return the last superstep of a slot that was acknowledged; -1: none was."""
        return self._numbers[slot] - 1

    def acknowledge(self, slot: int, step: int) -> None:
        """Note that *step* was acknowledged."""
        self._numbers[slot] = step + 1

    def add(self, process: int, thread: int, what: str) -> None:
        """Count one of `COUNTED`, by an OS thread of a process."""
        self._numbers[self._place(process, thread, what)] += 1

    def count(self, process: int, what: str) -> int:
        """Return how many a process has counted."""
        return sum(
            self._numbers[self._place(process, each, what)] for each in range(THREADS)
        )

    @staticmethod
    def _place(process: int, thread: int, what: str) -> int:
        return (
            _COUNTS + (process * THREADS + thread) * len(COUNTED) + COUNTED.index(what)
        )

    def set_ready(self, process: int, yes: bool) -> None:
        """Note whether a process has the store open."""
        self._numbers[_READY + process] = int(yes)

    def is_ready(self, process: int) -> bool:
        """Return whether a process has the store open."""
        return bool(self._numbers[_READY + process])

    def complain(self, what: str) -> None:
        """Note a promise that did not hold."""
        line = what.replace("\n", " ")[:500] + "\n"
        descriptor = os.open(
            self._complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def complaints(self) -> list[str]:
        """Return the promises that did not hold."""
        if not self._complaints.exists():
            return []
        return self._complaints.read_text("utf-8").splitlines()
