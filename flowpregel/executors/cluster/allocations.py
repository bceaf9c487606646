"""The GPUs and the memory that the engine (Dask, Ray) has reserved for a coordinator.

An allocation is a task of the engine that only waits, so that the engine counts its
resources as taken. A slot, the permission to run one task on a machine, is such a task
too. An allocation takes no CPU, but the GPUs and the memory of one task of the
coordinator::

    a task waits --> request --> the engine's queue --> it begins on some machine
                                                                |
    the task begins <-- a slot there, for the CPU <-------------+

Two programs never wait for each other, since each holds its resources in this order:

* One request is for all GPUs and all memory of a task.
* The slot is requested when the allocation has begun, on the same machine. A slot
  without a task is released, so no program keeps a CPU while it waits for GPUs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Final, NamedTuple, TypeAlias

from flowpregel.executors.cluster.host_slots import Allocation, AllocationSize
from flowpregel.executors.cluster.remote_hosts import (
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.processes.coordinator.io_loop import IOLoop

IDLE_SECONDS: Final = 1.0
"""Seconds after which a slot or an allocation that no task needs is released."""
TURN_SECONDS: Final = 1.0
"""Seconds for which a slot or an allocation gets batches of tasks while further tasks
wait. Then its turn ends, and it is released.

The engine's queue may give all CPUs to one program, and then to the next one. So the
tenth of ten programs waits for nine turns.
"""
RENEWAL_RATE: Final = 50.0
"""The maximum number of requests that are repeated in a second, on average. It is
limited because each request costs the engine's scheduler time.
"""


class AllocationDemand(NamedTuple):
    """The waiting tasks that need allocations of the same size (the same GPUs and
    memory).
    """

    tasks: int
    """The number of waiting tasks that need such an allocation."""
    addresses: Sequence[str] = ()
    """The addresses of the machines that can run the tasks, or an empty sequence if the
    engine may choose any machine.
    """


class SizeTurns:
    """The turns of allocations of different sizes.

    As soon as one GPU is free, an engine gives it to a request for one, so a request
    for two might wait forever. So while tasks wait for different sizes of the same
    resource, only one allocation is requested at a time. Its size is the one of which
    the last task began longest ago.
    """

    def __init__(self) -> None:
        self._sizes: dict[AllocationSize, None] = {}
        """The sizes of the allocations that tasks need. The first size has waited
        longest.
        """

    def note_batch(self, size: AllocationSize) -> None:
        """Put *size* behind the other sizes, because a task with an allocation of this
        size begins.
        """
        self._sizes.pop(size, None)
        self._sizes[size] = None

    def choose(
        self,
        demands: Mapping[AllocationSize, AllocationDemand],
    ) -> dict[AllocationSize, AllocationDemand]:
        """Return the part of *demands* for which allocations should be requested now.

        Args:
            demands: The waiting tasks, by the size of their allocations.
        """
        if len(demands) < 2:
            self._sizes = dict.fromkeys(demands)
            return dict(demands)
        present = [size for size in self._sizes if size in demands]
        self._sizes = dict.fromkeys([*present, *demands])
        chosen: dict[AllocationSize, AllocationDemand] = {}
        for size in self._sizes:
            rivals = [other for other in demands if other.competes_with(size)]
            if not rivals:
                chosen[size] = demands[size]
            elif chosen.keys().isdisjoint(rivals):
                chosen[size] = demands[size]._replace(tasks=1)
        return chosen


Submit: TypeAlias = Callable[[Sequence[int], AllocationSize, Sequence[str]], None]
"""A function that requests allocations: it takes their numbers, their size, and the
addresses of the machines on which they may begin.
"""


class AllocationLedger:
    """The allocations of one coordinator, begun and requested. Slots and allocations
    have numbers from the same series.

    Only the `SlotLedger` calls the methods.

    Args:
        hosts: The machines, each with the allocations that are held there.
        loop: The loop of the I/O thread.
        ids: An iterable of unused numbers for slots and allocations.
        submit: A function that requests allocations.
        release: A function that releases a slot or an allocation of a machine, or
            withdraws its request if there is no machine.
    """

    def __init__(
        self,
        hosts: RemoteHosts,
        loop: IOLoop,
        ids: Iterable[int],
        submit: Submit,
        release: Callable[[RemoteHost | None, int], None],
    ) -> None:
        self._hosts = hosts
        self._loop = loop
        self._ids = ids
        self._submit = submit
        self._release = release
        self._requests: dict[int, AllocationSize] = {}
        """The requested allocations that have not begun, by number, the oldest request
        first.
        """
        self._demands: Mapping[AllocationSize, AllocationDemand] = {}
        self._has_timer = False
        """True while a timer is set that will release idle allocations."""
        self._next_renewal_at = 0.0

    @property
    def is_requesting(self) -> bool:
        """True if an allocation is requested that has not begun."""
        return bool(self._requests)

    def update(
        self,
        demands: Mapping[AllocationSize, AllocationDemand],
        can_request: bool,
    ) -> None:
        """Request allocations for the waiting tasks, and withdraw or release those that
        are not needed.

        Args:
            demands: The waiting tasks, by the size of their allocations.
            can_request: False if nothing may be requested now, because requests have
                failed.
        """
        self._demands = demands
        missing = Counter[AllocationSize]()
        for size, demand in demands.items():
            missing[size] = demand.tasks
        for host in self._hosts.values():
            if host.slots.allocations:
                self._settle(host, missing)
        requested = Counter(self._requests.values())
        for size in {*missing, *requested}:
            surplus = requested[size] - missing[size]
            if surplus < 0 and can_request:
                self._request(size, -surplus)
            elif requested[size] > 2 * missing[size]:
                self._withdraw(size, surplus)
        self._await_idle()

    def begin(
        self,
        slot: int,
        host: RemoteHost,
        gpus: Sequence[str],
    ) -> bool:
        """Record that the engine has begun an allocation on *host*.

        Args:
            slot: The number of the allocation.
            host: The machine on which it has begun.
            gpus: The names of the GPUs, if the engine has chosen them.

        Returns:
            False if no allocation of this number is requested.
        """
        size = self._requests.pop(slot, None)
        if size is None:
            return False
        host.slots.allocations[slot] = Allocation(size, gpus)
        return True

    def discard(self, slot: int) -> bool:
        """Forget the request for an allocation, and return whether there was one."""
        return self._requests.pop(slot, None) is not None

    def withdraw_all(self) -> None:
        """Withdraw all requests for allocations."""
        for slot in list(self._requests):
            self._cancel(slot)

    # ------------------------------------------------ requests

    def _request(
        self,
        size: AllocationSize,
        number: int,
    ) -> None:
        slots = list(islice(self._ids, number))
        self._requests.update(dict.fromkeys(slots, size))
        self._submit(
            slots,
            size,
            self._demands[size].addresses,
        )

    def _withdraw(
        self,
        size: AllocationSize,
        number: int,
    ) -> None:
        """Withdraw the newest requests for allocations of one size."""
        slots = [slot for slot, other in self._requests.items() if other == size]
        for slot in slots[-number:]:
            self._cancel(slot)

    def _cancel(self, slot: int) -> None:
        del self._requests[slot]
        self._release(
            None,
            slot,
        )

    def _renew(self) -> None:
        """Withdraw all requests, if this was not done for a while. They are made again
        at the end of the engine's queue, so that older requests of other programs come
        first.
        """
        now = time.monotonic()
        number = len(self._requests)
        if number and now >= self._next_renewal_at:
            self._next_renewal_at = now + number / RENEWAL_RATE
            self.withdraw_all()

    # ------------------------------------------------ allocations that have begun

    def _settle(
        self,
        host: RemoteHost,
        missing: Counter[AllocationSize],
    ) -> None:
        """Update which allocations of *host* are in use, needed or idle, and release
        those whose turn has ended.

        Args:
            host: The machine with the allocations.
            missing: The number of tasks that wait for allocations, by size. The free
                allocations of the machine are subtracted from it.
        """
        now = time.monotonic()
        host.slots.demand = 0
        for slot, allocation in list(host.slots.allocations.items()):
            if self._demands and allocation.first_used_at + TURN_SECONDS <= now:
                allocation.is_leaving = True
            if allocation.batch_id in host.batches:
                allocation.idle_since = inf
            elif allocation.is_leaving:
                self._renew()
                self._end(host, slot, IDLE_SECONDS)
            else:
                self._note_free(host, allocation, missing)

    def _note_free(
        self,
        host: RemoteHost,
        allocation: Allocation,
        missing: Counter[AllocationSize],
    ) -> None:
        """Count a free allocation of *host* for a waiting task. If no task waits for
        it, record that the allocation is idle.
        """
        if host.is_open and missing[allocation.size]:
            missing[allocation.size] -= 1
            host.slots.demand += 1
            allocation.idle_since = inf
        elif allocation.idle_since == inf:
            allocation.idle_since = time.monotonic()

    def _end(
        self,
        host: RemoteHost,
        slot: int,
        delay: float,
    ) -> None:
        """Release an allocation of *host*. If it has GPUs, the machine then stops the
        idle worker processes that may have allocated memory on them.

        Args:
            host: The machine that holds the allocation.
            slot: The number of the allocation.
            delay: The seconds after which worker processes are stopped, unless the same
                GPUs are allocated to this coordinator again.
        """
        allocation = host.slots.allocations[slot]
        self._release(
            host,
            slot,
        )
        if allocation.size.gpus:
            due = time.monotonic() + delay
            vacate = partial(self._vacate, host, allocation)
            self._loop.call_at(due, vacate)

    def _vacate(
        self,
        host: RemoteHost,
        released: Allocation,
    ) -> None:
        present = [
            allocation
            for allocation in host.slots.allocations.values()
            if allocation.size.gpus
        ]
        gpus = set(released.gpus)
        for allocation in present:
            gpus -= set(allocation.gpus)
        # If the pool on the machine has chosen the GPUs, and not the engine, their
        # names are unknown here. Then workers are stopped only once no allocation with
        # GPUs is left on the machine.
        if gpus or not (present or released.gpus):
            host.commands.append(("vacate", 0, 0, sorted(gpus)))

    def _await_idle(self) -> None:
        """Set the timer for the release of the allocation that has been idle longest,
        if any is idle.
        """
        oldest = inf
        for host in self._hosts.values():
            for allocation in host.slots.allocations.values():
                oldest = min(oldest, allocation.idle_since)
        if oldest < inf and not self._has_timer:
            self._has_timer = True
            self._loop.call_at(
                oldest + IDLE_SECONDS,
                self._release_idle,
            )

    def _release_idle(self) -> None:
        self._has_timer = False
        last = time.monotonic() - IDLE_SECONDS
        for host in self._hosts.values():
            for slot, allocation in list(host.slots.allocations.items()):
                if allocation.idle_since <= last:
                    self._end(host, slot, 0.0)
        self._await_idle()


def assign_allocation(
    batch: RemoteBatch,
    size: AllocationSize,
) -> None:
    """Assign a free allocation of *size* on the batch's machine to *batch*, if there is
    one.
    """
    allocation = batch.remote_host.free_allocation(size)
    if allocation is not None:
        allocation.batch_id = batch.id
        allocation.first_used_at = min(allocation.first_used_at, time.monotonic())
        batch.gpus = allocation.gpus
