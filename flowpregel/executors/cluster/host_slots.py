"""The records of what a coordinator holds on one machine, in the engine's books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from flowpregel.executors.processes.coordinator.io_loop import Timer


class AllocationSize(NamedTuple):
    """The resources of one task in the engine's books, other than CPUs."""

    gpus: int = 0
    memory: int = 0
    """The memory in bytes."""

    def competes_with(self, other: AllocationSize) -> bool:
        """Return whether *other* is another size of the same resource."""
        if self == other:
            return False
        return bool((self.gpus and other.gpus) or (self.memory and other.memory))

    def amounts(self) -> dict[str, int]:
        """Return the amounts that are not zero, by the names of the resources."""
        return {name: amount for name, amount in self._asdict().items() if amount}


@dataclass(slots=True, eq=False)
class Allocation:
    """The GPUs and the memory that the coordinator holds on a machine for one task."""

    size: AllocationSize
    gpus: Sequence[str] = ()
    """The names of the GPUs, if the engine has chosen them."""
    batch_id: int = 0
    """The id of the last batch that has got the allocation, or 0."""
    first_used_at: float = inf
    """The monotonic time of the first batch, at which its turn begins."""
    is_leaving: bool = False
    """True if the turn has ended, so that there are no further batches."""
    idle_since: float = inf
    """The monotonic time since which no task needs the allocation, or infinity."""


@dataclass(slots=True)
class HostSlots:
    """The slots of the engine that the coordinator holds on one machine, and the
    allocations.
    """

    active: dict[int, float] = field(default_factory=dict)
    """The slots for which the machine gets batches, oldest first, each with the
    monotonic time at which it has begun.
    """
    leaving: list[int] = field(default_factory=list)
    """The slots whose turn has ended. They are released when their batches have ended.
    """
    idle_timer: Timer | None = None
    """The timer that releases the slots without a task, or None if there are none."""
    allocations: dict[int, Allocation] = field(default_factory=dict)
    """The allocations, by number. None of them is a slot."""
    demand: int = 0
    """The number of slots that allocations need, because their tasks wait."""

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self.active) + len(self.leaving)

    def all(self) -> list[int]:
        """Return the slots. Those whose turn has ended come first."""
        return [*self.leaving, *self.active]

    def leave(
        self,
        last: float,
    ) -> None:
        """End the turn of the slots that have begun by *last*, a monotonic time."""
        for slot, begun in list(self.active.items()):
            if begun <= last:
                del self.active[slot]
                self.leaving.append(slot)

    def remove(
        self,
        slot: int,
    ) -> None:
        """Remove *slot*, if it is among the slots or the allocations."""
        self.active.pop(slot, None)
        self.allocations.pop(slot, None)
        if slot in self.leaving:
            self.leaving.remove(slot)
