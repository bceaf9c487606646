"""The books of a made-up engine: as many slots on each machine as it has CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class SlotBooks:
    """A part of an engine: it gives free slots to the oldest requests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.requested: list[int] = []
        self.held: dict[int, str] = {}
        self.allowed: Sequence[str] = ()
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
                    self.slot_begun(slot, address)
