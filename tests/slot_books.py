"""The books of a made-up engine: as many slots on each machine as it has CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


class SlotBooks:
    """A part of an engine: it gives free slots to the oldest requests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.requested: list[int] = []
        self.held: dict[int, str] = {}
        self.allowed: Sequence[str] = ()
        self.most_held: Counter[str] = Counter()
        """The greatest number of slots that were held at once, by machine."""
        super().__init__(*args, **options)

    def request_slots(
        self: Any, slots: Sequence[int], addresses: Sequence[str]
    ) -> None:
        """Queue requests."""
        self.requested += slots
        self.allowed = addresses
        self.give()

    def release_slot(self: Any, slot: int, address: str) -> None:
        """Give the slot to another request."""
        if slot in self.requested:
            self.requested.remove(slot)
        self.held.pop(slot, None)
        self.give()

    def give(self: Any) -> None:
        """Begin the slots for which there is a free CPU."""
        for address, size in self.machines().items():
            if self.allowed and address not in self.allowed:
                continue
            used = list(self.held.values()).count(address)
            for _ in range(size - used):
                if self.requested:
                    slot = self.requested.pop(0)
                    self.held[slot] = address
                    used += 1
                    self.most_held[address] = max(used, self.most_held[address])
                    self.slot_begun(slot, address)


class SharedBooks:
    """The books of a made-up engine for several coordinators, oldest request first.

    Args:
        size: The number of CPUs of its machine.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._requests: list[tuple[Any, int]] = []
        self._held: set[tuple[Any, int]] = set()

    def request(self, coordinator: Any, slots: Sequence[int]) -> None:
        """Queue requests behind all others."""
        for slot in slots:
            self._requests.append((coordinator, slot))

    def release(self, coordinator: Any, slot: int) -> None:
        """Note that a slot has ended, or withdraw its request."""
        entry = (coordinator, slot)
        self._held.discard(entry)
        if entry in self._requests:
            self._requests.remove(entry)

    def begun(self) -> list[tuple[Any, int]]:
        """Return the coordinators and slots that begin now."""
        free = self._size - len(self._held)
        begun = self._requests[:free]
        del self._requests[:free]
        self._held.update(begun)
        return begun


class ResourceBooks(SlotBooks):
    """A part of an engine that counts GPUs and memory, too, and chooses GPUs.

    Attributes:
        has: The resources of each machine. The names of its GPUs end with its address.
    """

    has: dict[str, dict[str, float]]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.wanted: dict[int, Mapping[str, int]] = {}
        self.allocated: dict[int, tuple[str, Mapping[str, int], Sequence[str]]] = {}
        """The machine, the amounts and the GPUs of each allocation."""
        self.allocations = 0
        """The number of all allocations that have begun."""
        super().__init__(*args, **options)

    def booked_resources(self, address: str = "") -> Sequence[str]:
        """Return what the books have."""
        return ("gpus", "memory")

    def request_allocations(
        self: Any,
        slots: Sequence[int],
        amounts: Mapping[str, int],
        addresses: Sequence[str],
    ) -> None:
        """Queue requests."""
        self.wanted |= dict.fromkeys(slots, amounts)
        self.give()

    def release_slot(self: Any, slot: int, address: str) -> None:
        """Give what was allocated to another request."""
        self.wanted.pop(slot, None)
        self.allocated.pop(slot, None)
        super().release_slot(slot, address)

    def give(self: Any) -> None:
        """Begin the allocations for which there are resources, and slots."""
        super().give()
        for slot, amounts in list(self.wanted.items()):
            for address in self.machines():
                gpus = self.gpus_for(address, amounts)
                if slot in self.wanted and gpus is not None:
                    del self.wanted[slot]
                    self.allocated[slot] = (address, amounts, gpus)
                    self.allocations += 1
                    self.slot_begun(slot, address, gpus)

    def gpus_for(self, address: str, amounts: Mapping[str, int]) -> list[str] | None:
        """Return GPUs for an allocation, or None if a machine lacks something."""
        free = Counter(self.has[address])
        gpus = [f"{number}@{address}" for number in range(int(free["gpus"]))]
        for where, used, used_gpus in self.allocated.values():
            if where == address:
                free.subtract(used)
                gpus = [gpu for gpu in gpus if gpu not in used_gpus]
        if any(free[name] < amount for name, amount in amounts.items()):
            return None
        return gpus[: amounts.get("gpus", 0)]
