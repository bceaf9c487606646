"""The code of slots in Ray's own processes: functions that occupy CPUs, and the actor
that lets them end.

Ray sends this code by value. So the processes import Ray, but not flowpregel.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import ray

_FORGET_AFTER: Final = 600.0
"""Seconds after which `RaySlots` forgets a released slot that has not begun."""


class RaySlots:
    """The actor that tracks which slots of a coordinator have begun, and lets them end.

    It needs no CPU, so it may be on any machine.
    """

    def __init__(self) -> None:
        self._begun: list[tuple[int, str, Sequence[str], int]] = []
        self._has_begun = asyncio.Event()
        self._ends: dict[int, asyncio.Event] = {}

    async def hold(
        self,
        slot: int,
        address: str,
        gpus: Sequence[str],
        process: int,
    ) -> None:
        """Record that *slot* has begun, and return when the coordinator releases it.

        Args:
            slot: The number of the slot.
            address: The address of the machine on which it has begun.
            gpus: The names of the GPUs that Ray has given the slot.
            process: The id of the process in which the slot runs.
        """
        end = self._ends.setdefault(slot, asyncio.Event())
        self._begun.append((slot, address, gpus, process))
        self._has_begun.set()
        await end.wait()
        self._ends.pop(slot, None)

    async def release(
        self,
        slot: int,
    ) -> None:
        """End a slot: the Ray task that holds a CPU for this program. If the task has
        not begun, it ends when it begins.
        """
        self._ends.setdefault(slot, asyncio.Event()).set()
        # Most slots that are released before they begin were cancelled, and never
        # begin. So the slot is forgotten after some time.
        loop = asyncio.get_running_loop()
        loop.call_later(_FORGET_AFTER, self._ends.pop, slot, None)

    async def begun(self) -> list[tuple[int, str, Sequence[str], int]]:
        """Return the slots that have begun since the last call, with the addresses of
        their machines, the names of their GPUs and the ids of their processes, as soon
        as there are some.
        """
        await self._has_begun.wait()
        self._has_begun.clear()
        begun = self._begun
        self._begun = []
        return begun


def occupy_resources(
    keeper: Any,
    slot: int,
) -> None:
    """Occupy the CPU, or the GPUs and memory, that Ray has given this Ray task, until
    the coordinator releases the slot or allocation.
    """
    context = ray.get_runtime_context()
    address = context.get_node_id()
    gpus = context.get_accelerator_ids()["GPU"]
    # `ray.get` is not used, because it would lend the CPU to other Ray tasks while it
    # waits.
    keeper.hold.remote(slot, address, gpus, os.getpid()).future().result()


def occupy_process(seconds: float) -> int:
    """Occupy the process of this Ray task, but no CPU of Ray's, for some seconds, and
    return the id of the process.
    """
    time.sleep(seconds)
    return os.getpid()
