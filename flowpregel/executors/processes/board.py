"""The board: a few shared bytes that say what a worker does, readable even when it is dead.

::

    worker      writes   number of the task it runs, and since when
    coordinator writes   number of the task that is to stop
"""

from __future__ import annotations

import mmap
from typing import Final

from flowpregel.executors.processes.shared_memory import new_shared_file

_SIZE: Final = 64
_SINCE, _NUMBER, _STOP = range(3)
"""Which of its 8-byte cells is what."""


class Board:
    """One worker's board, mapped.

    Args:
        fd: What `new_board_file` returned, here or in the coordinator.
    """

    __slots__ = ("_cells", "_map")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _SIZE)
        self._cells = memoryview(self._map).cast("Q")

    def begin(self, number: int, now: int) -> bool:
        """Say that task *number* runs since *now* (monotonic nanoseconds).

        Returns:
            Whether it is to stop already.
        """
        cells = self._cells
        # In this order: who sees the number sees no earlier task's time.
        cells[_SINCE] = now
        cells[_NUMBER] = number
        return cells[_STOP] == number

    @property
    def running(self) -> int:
        """The number of the task that began last."""
        return self._cells[_NUMBER]

    @property
    def since(self) -> int:
        """When it began: monotonic nanoseconds."""
        return self._cells[_SINCE]

    def ask_to_stop(self, number: int) -> None:
        """Want task *number* to stop; the signal that follows makes the worker look."""
        self._cells[_STOP] = number

    @property
    def unwanted(self) -> int:
        """The number of the task that is to stop."""
        return self._cells[_STOP]

    def close(self) -> None:
        """Unmap it."""
        self._cells.release()
        self._map.close()


def new_board_file() -> int:
    """Return a descriptor for a new board."""
    return new_shared_file(_SIZE)
