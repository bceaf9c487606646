"""Ray's processes for the slots of a program, which are kept while it waits for a CPU.

Ray has processes of its own for each program. While all CPUs of a machine are taken, it
ends those that have had nothing to do for a second. Where several programs take turns,
the next slot of a program begins later than that. Then it would have to wait for a new
process, and the CPU, which is reserved already, would be idle for as long as a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

TOUCH_EVERY: Final = 0.5
"""Seconds between two touches (tasks that do nothing) of a process. Ray ends a process
that has been idle for a second.
"""
MOST_KEPT: Final = 4
"""The maximum number of processes that are kept on a machine. Each of them takes about
60 MB of memory.
"""
MOST_TOUCHED: Final = 100
"""The maximum number of processes that are kept on all machines together. Each touch is
a task for Ray's schedulers, and counts until it has ended.
"""


@dataclass(slots=True)
class _Machine:
    """The processes of this program's slots on one machine."""

    running: dict[int, int] = field(default_factory=dict)
    """The ids of the processes in which slots run now, by the number of the slot."""
    used: set[int] = field(default_factory=set)
    """The ids of the processes in which slots have run since the last touches."""
    touches: Sequence[Future[int]] = ()
    """The futures of the last touches: tasks that do nothing, so that Ray does not end
    the processes. Each returns the id of the process in which it ran.
    """

    def idle_count(self) -> int:
        """Return the number of idle processes to keep.

        Raises:
            Exception: A touch has failed.
        """
        # A process that has neither had a slot nor a touch was ended by Ray. If it was
        # counted, the next touches would start a process in its place each time.
        processes = self.used.union(touch.result() for touch in self.touches)
        # The processes in which slots run now are not idle. So Ray does not end them,
        # and they need no task that touches them.
        idle = len(processes.difference(self.running.values()))
        return max(0, min(idle, MOST_KEPT - len(self.running)))

    def pending_count(self) -> int:
        """Return the number of touches that have not ended."""
        return sum(not touch.done() for touch in self.touches)

    def forget_idle(self) -> None:
        """Forget all processes except those in which slots run now."""
        self.touches = ()
        self.used = set(self.running.values())


class SlotProcesses:
    """Keeps idle processes for the next slots of this program on each machine on which
    it has had a slot.

    At most `MOST_KEPT` processes are kept on each machine. If there are more than
    `MOST_TOUCHED` on all machines, only those on the machines are kept where slots have
    begun last.

    The methods are called on the I/O thread of the pool.

    Args:
        call_at: A function that calls another one on that thread, at a time in
            monotonic seconds.
        touch: A function that runs some tasks at the same time on the machine with an
            address, without a CPU, and returns the futures of the ids of their
            processes. Ray runs each task in an idle process of this program, or starts
            a process.
        is_listed: A function that returns True if the cluster still has the machine
            with an address.

    Example:
        >>> timers = []
        >>> processes = SlotProcesses(
        ...     call_at=lambda due, action: timers.append(action),
        ...     touch=lambda address, number: [],
        ...     is_listed=lambda address: True,
        ... )
        >>> processes.request(1)
        >>> len(timers)
        1
    """

    def __init__(
        self,
        call_at: Callable[[float, Callable[[], object]], object],
        touch: Callable[[str, int], Sequence[Future[int]]],
        is_listed: Callable[[str], bool],
    ) -> None:
        self._call_at = call_at
        self._touch = touch
        self._is_listed = is_listed
        self._waiting: set[int] = set()
        """The numbers of the slots that wait for a CPU."""
        self._machines: dict[str, _Machine] = {}
        """The machines on which slots have begun, by address. The machine on which a
        slot began last is at the end.
        """
        self._addresses: dict[int, str] = {}
        """The address of the machine of each slot that has begun, by the number of the
        slot.
        """
        self._has_timer = False
        """True if a timer is set for the next touches."""

    def request(self, slot: int) -> None:
        """Note that *slot* waits for a CPU."""
        self._waiting.add(slot)
        if not self._has_timer:
            # Without a timer there were no touches. So by now, Ray may have ended all
            # processes that were idle.
            for machine in self._machines.values():
                machine.forget_idle()
            self._set_timer()

    def begin(self, slot: int, address: str, process: int) -> None:
        """Note that *slot* has begun on the machine at *address*, in the process with
        the id *process*.
        """
        if slot not in self._waiting:
            return
        self._waiting.remove(slot)
        self._addresses[slot] = address
        machine = self._machines.pop(address, None) or _Machine()
        self._machines[address] = machine
        machine.running[slot] = process
        machine.used.add(process)

    def end(self, slot: int) -> None:
        """Note that *slot* has ended or was withdrawn."""
        self._waiting.discard(slot)
        address = self._addresses.pop(slot, "")
        machine = self._machines.get(address)
        if machine is not None:
            machine.running.pop(slot, None)

    def _set_timer(self) -> None:
        due = time.monotonic() + TOUCH_EVERY
        self._call_at(due, self._touch_all)
        self._has_timer = True

    def _touch_all(self) -> None:
        """Run a short task (a touch) in each idle process on all machines, if a slot
        waits.
        """
        self._has_timer = False
        if not self._waiting:
            return
        for address in list(self._machines):
            if not self._is_listed(address):
                del self._machines[address]
        pending = sum(machine.pending_count() for machine in self._machines.values())
        remaining = max(0, MOST_TOUCHED - pending)
        for address, machine in reversed(list(self._machines.items())):
            if not machine.pending_count():
                # If none remain, this only forgets the idle processes of the machine.
                remaining -= self._touch_on(address, remaining)
        self._set_timer()

    def _touch_on(self, address: str, most: int) -> int:
        """Run a touch in each idle process on the machine at *address*.

        Args:
            address: The machine's address.
            most: The maximum number of touches.

        Returns:
            The number of touches.
        """
        machine = self._machines[address]
        try:
            number = min(most, machine.idle_count())
            machine.forget_idle()
            if number:
                machine.touches = self._touch(address, number)
        except Exception:  # noqa: BLE001 - any error: the machine or Ray is not there
            del self._machines[address]
            return 0
        return number
