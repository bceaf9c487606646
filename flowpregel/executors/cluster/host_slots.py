"""The records of what the engine has reserved for a coordinator on one machine: slots
(CPUs) and allocations (GPUs, memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from flowpregel.executors.processes.coordinator.io_loop import Timer


class AllocationSize(NamedTuple):
    """The resources other than CPUs that the engine reserves for one task."""

    gpus: int = 0
    memory: int = 0
    """The memory in bytes."""

    def competes_with(self, other: AllocationSize) -> bool:
        """Return whether *other* is a different size that needs one of the same
        resources.
        """
        if self == other:
            return False
        return bool((self.gpus and other.gpus) or (self.memory and other.memory))

    def amounts(self) -> dict[str, int]:
        """Return the amounts that are not zero, by the names of the resources."""
        return {name: amount for name, amount in self._asdict().items() if amount}


@dataclass(slots=True, eq=False)
class Allocation:
    """The GPUs and the memory that the engine has reserved on a machine for one task of
    the coordinator.
    """

    size: AllocationSize
    gpus: Sequence[str] = ()
    """The names of the GPUs, if the engine has chosen them."""
    batch_id: int = 0
    """The id of the last batch that was assigned this allocation, or 0."""
    first_used_at: float = inf
    """The monotonic time at which the first batch got the allocation, and its turn
    began.
    """
    is_leaving: bool = False
    """True if the turn has ended, so that the allocation gets no further batches."""
    idle_since: float = inf
    """The monotonic time since which no task needs the allocation, or infinity if one
    does.
    """


@dataclass(slots=True)
class HostSlots:
    """The slots and the allocations that the coordinator holds on one machine."""

    active: dict[int, float] = field(default_factory=dict)
    """The slots for which the machine gets batches, oldest first, each with the
    monotonic time at which it has begun.
    """
    leaving: list[int] = field(default_factory=list)
    """The slots whose turn has ended. They are released when their batches have ended.
    """
    idle_timer: Timer | None = None
    """The timer for the release of slots that no task needs, or None if there are no
    such slots.
    """
    allocations: dict[int, Allocation] = field(default_factory=dict)
    """The allocations by number. They come in addition to the slots."""
    demand: int = 0
    """The number of allocations whose task still waits for a slot on this machine."""

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self.active) + len(self.leaving)

    def all(self) -> list[int]:
        """Return the numbers of all slots. Those whose turn has ended come first."""
        return [*self.leaving, *self.active]

    def leave(
        self,
        last: float,
    ) -> None:
        """End the turn of the slots that began at or before *last*, a monotonic
        time.
        """
        for slot, begun in list(self.active.items()):
            if begun <= last:
                del self.active[slot]
                self.leaving.append(slot)

    def remove(
        self,
        slot: int,
    ) -> None:
        """Remove the slot or allocation with the number *slot*, if there is one."""
        self.active.pop(slot, None)
        self.allocations.pop(slot, None)
        if slot in self.leaving:
            self.leaving.remove(slot)
