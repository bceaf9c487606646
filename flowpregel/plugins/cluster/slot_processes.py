"""Ray's processes for the slots of a program, which are kept while it waits for a CPU.

Ray has processes of its own for each program. While all CPUs of a machine are taken, it
ends those that have had nothing to do for a second. Where several programs take turns,
the next slot of a program begins later than that. Then it would have to wait for a new
process, and the CPU, which is reserved already, would be idle for as long as a turn.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

TOUCH_EVERY: Final = 0.5
"""Seconds between two touches (tasks that do nothing) of a process. Ray ends a process
that has been idle for a second.
"""
MOST_KEPT: Final = 4
"""The maximum number of processes that are kept on a machine. Each of them takes about
60 MB of memory.
"""


@dataclass(slots=True)
class _Machine:
    """The processes of this program's slots on one machine."""

    process_count: int = 0
    """The number of processes to keep: the greatest number of slots that this program
    has had on the machine at once, or `MOST_KEPT` if that is less.
    """
    touches: Sequence[Future[Any]] = ()
    """The futures of the last touches: tasks that do nothing, so that Ray does not end
    the processes.
    """


class SlotProcesses:
    """Keeps the processes in which slots of this program have run on each machine.

    Its methods are called on the I/O thread of the pool.

    Args:
        call_at: A function that calls another one on that thread, at a time in
            monotonic seconds.
        touch: A function that runs some tasks at the same time on the machine with an
            address, without a CPU, and returns their futures. Ray runs each task in an
            idle process of this program, or starts a process.

    Example:
        >>> timers = []
        >>> processes = SlotProcesses(
        ...     call_at=lambda due, action: timers.append(action),
        ...     touch=lambda address, number: [],
        ... )
        >>> processes.request(1)
        >>> len(timers)
        1
    """

    def __init__(
        self,
        call_at: Callable[[float, Callable[[], object]], object],
        touch: Callable[[str, int], Sequence[Future[Any]]],
    ) -> None:
        self._call_at = call_at
        self._touch = touch
        self._slots: dict[int, str] = {}
        """The address of the machine of each slot, or an empty string while the slot
        waits for a CPU, by the number of the slot.
        """
        self._counts: Counter[str] = Counter()
        """The number of slots with each address in `_slots`."""
        self._machines: dict[str, _Machine] = {}
        """The machines on which slots have begun, by address."""
        self._has_timer = False
        """True if a timer is set for the next touches."""

    def request(self, slot: int) -> None:
        """Note that *slot* waits for a CPU."""
        self._set_address(slot, "")
        if not self._has_timer:
            self._set_timer()

    def begin(self, slot: int, address: str) -> None:
        """Note that *slot* has begun on the machine at *address*."""
        if slot not in self._slots:
            return
        self._set_address(slot, address)
        machine = self._machines.setdefault(address, _Machine())
        most = max(machine.process_count, self._counts[address])
        machine.process_count = min(MOST_KEPT, most)

    def end(self, slot: int) -> None:
        """Note that *slot* has ended or was withdrawn."""
        self._set_address(slot, None)

    def _set_address(self, slot: int, address: str | None) -> None:
        """Change the address of *slot*. None removes the slot."""
        last = self._slots.pop(slot, None)
        if last is not None:
            self._counts[last] -= 1
        if address is not None:
            self._slots[slot] = address
            self._counts[address] += 1

    def _set_timer(self) -> None:
        due = time.monotonic() + TOUCH_EVERY
        self._call_at(due, self._touch_all)
        self._has_timer = True

    def _touch_all(self) -> None:
        """Run a short task (a touch) in each idle process on all machines, if a slot
        waits.
        """
        self._has_timer = False
        if not self._counts[""]:
            return
        for address, machine in list(self._machines.items()):
            # The processes in which slots run now are not idle. So Ray does not end
            # them, and they need no task that touches them.
            idle = machine.process_count - self._counts[address]
            if idle > 0 and all(touch.done() for touch in machine.touches):
                self._touch_on(address, idle)
        self._set_timer()

    def _touch_on(self, address: str, idle: int) -> None:
        """Run a touch in each of the *idle* processes on the machine at *address*."""
        machine = self._machines[address]
        try:
            for last in machine.touches:
                last.result()
            machine.touches = self._touch(address, idle)
        except Exception:  # noqa: BLE001 - any error: the machine or Ray is not there
            del self._machines[address]
