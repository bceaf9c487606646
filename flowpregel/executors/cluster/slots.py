"""The slots (CPUs) that the engine has reserved for a coordinator, and the requests for
more.

A slot is a task of the engine that only waits on a machine, so that the engine counts
one of the machine's CPUs as taken. In return, the coordinator may run one task of its
own there.

::

    tasks wait -----> request ---> the engine's queue ---> it begins on some machine
                                                                   |
    no task needs it, or its turn ends ---> release ---> it ends <-+

The engine places slots as it places any task. So it knows how busy its machines are,
and can start more if there are many requests. By these rules, several programs share
the machines:

* One slot is requested for each batch of tasks that waits.
* A task of several CPUs begins with one slot. The others are then requested on its
  machine, and released with the first. No task holds slots while it waits to begin, so
  two programs never wait for each other's slots.
* A task whose GPUs or memory the engine tracks gets an `Allocation` first, and then a
  slot on the same machine.
* A slot that no task has needed for `IDLE_SECONDS` is released.
* While tasks of this program wait, those of other programs may wait too, which only the
  engine can see. So the turn of a slot ends after `TURN_SECONDS`: it gets no more
  batches, and is released when its last batch has ended. Just before that, this program
  repeats its requests, so that they go behind the older requests of other programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice
from math import inf
from types import MappingProxyType
from typing import Final

from flowpregel.executors.cluster.allocations import (
    IDLE_SECONDS,
    RENEWAL_RATE,
    TURN_SECONDS,
    AllocationDemand,
    AllocationLedger,
)
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.engine_watch import CHECK_EVERY
from flowpregel.executors.cluster.host_slots import AllocationSize
from flowpregel.executors.cluster.remote_hosts import RemoteHost, RemoteHosts
from flowpregel.executors.processes.coordinator.io_loop import IOLoop, Timer

MOST_REQUESTS: Final = 100
"""The maximum number of requests for slots, or for allocations of one size, that the
engine has at once.
"""
_NOTHING: Final[Mapping[AllocationSize, AllocationDemand]] = MappingProxyType({})
_MOST_FAILURES: Final = 5
"""The number of consecutive failures to begin a slot after which the waiting tasks
fail. Failures within `CHECK_EVERY` seconds of each other, such as those of all slots of
a lost machine, are counted as one.
"""


class SlotLedger:
    """The slots of one coordinator, begun and requested. Only its I/O thread calls the
    methods.

    Args:
        engine: The engine that grants the slots.
        hosts: The machines, each with the slots that are held there.
        loop: The loop of the I/O thread.
        addresses: A function that returns the addresses of the machines on which slots
            may begin, or an empty sequence if any machine will do.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        hosts: RemoteHosts,
        loop: IOLoop,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._loop = loop
        self._addresses = addresses
        self._ids = count(1)
        self._requests: dict[int, None] = {}
        """The requested slots that have not begun, by number, the oldest request
        first.
        """
        self._extra: dict[int, str] = {}
        """The requested slots for further CPUs of running tasks, by number, each with
        the address of the machine.
        """
        self._allocations = AllocationLedger(
            hosts,
            loop,
            self._ids,
            self._submit_allocations,
            self._release_allocation,
        )
        self._turn: Timer | None = None
        """The timer for the end of the turn of the oldest slot, or None while no task
        waits.
        """
        self._next_request_at = 0.0
        """The monotonic time before which nothing is requested, because a request has
        failed.
        """
        self._next_renewal_at = 0.0
        self._failures: list[BaseException] = []
        """The errors with which slots failed to begin, since the last time that one
        began or that no task waited.
        """

    def update(
        self,
        batches: int,
        demands: Mapping[AllocationSize, AllocationDemand] = _NOTHING,
    ) -> None:
        """Request slots for the waiting batches, and release slots that are no longer
        needed.

        Args:
            batches: The number of batches that wait for a slot.
            demands: The tasks that wait for allocations, by the size of the allocation.
        """
        demand = min(batches, MOST_REQUESTS)
        is_waiting = bool(demand or demands)
        if not is_waiting:
            self._failures.clear()
        can_request = time.monotonic() >= self._next_request_at
        self._allocations.update(demands, can_request)
        for host in self._hosts.values():
            self._settle(host)
        self._request_extra()
        missing = demand - len(self._requests)
        if missing > 0:
            self._request(missing)
        elif len(self._requests) > 2 * demand:
            # A few requests too many cost less than withdrawing one in each turn. So
            # requests are withdrawn only if there are more than twice as many as
            # needed.
            self._withdraw(-missing)
        if is_waiting and self._turn is None:
            self._await_end_of_turn()
        elif not is_waiting and self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def begin(
        self,
        slot: int,
        address: str,
        gpus: Sequence[str] = (),
    ) -> None:
        """Record that the engine has begun *slot*, a slot or an allocation, on a
        machine.

        Args:
            slot: The number of the slot or allocation.
            address: The machine's address.
            gpus: The names of the GPUs of an allocation, if the engine has chosen them.
        """
        host = self._hosts.setdefault(address, RemoteHost(address))
        # `is_used` makes the machine get a handshake, so that its versions are checked
        # even if the slot is given back at once.
        host.is_used = True
        is_wanted = slot in self._requests or slot in self._extra
        if self._allocations.begin(slot, host, gpus):
            is_wanted = True
        else:
            host.slots.active[slot] = time.monotonic()
        self._requests.pop(slot, None)
        self._extra.pop(slot, None)
        if not is_wanted or host.refusal:
            self._release(host, (slot,))
            return
        self._failures.clear()

    def end(
        self,
        slot: int,
        error: BaseException,
    ) -> None:
        """Record that *slot* has ended or could not begin, although it was not
        released.

        Args:
            slot: The number of the slot.
            error: The error with which the engine has ended the slot.
        """
        for host in self._hosts.values():
            host.slots.remove(slot)
        now = time.monotonic()
        if self._extra.pop(slot, None) is not None:
            self._next_request_at = now + CHECK_EVERY
        is_requested = self._allocations.discard(slot)
        if slot in self._requests:
            del self._requests[slot]
            is_requested = True
        if is_requested and now >= self._next_request_at:
            self._failures.append(error)
            self._next_request_at = now + CHECK_EVERY
        if isinstance(error, (ImportError, AttributeError)):
            # An ImportError or AttributeError means that a machine lacks flowpregel, or
            # has another version. All machines get a handshake, which shows which
            # machine it is.
            for host in self._hosts.values():
                host.is_used = True

    def problem(self) -> str:
        """Return the reason why no slot can begin, or an empty string if there is
        none.
        """
        if len(self._failures) < _MOST_FAILURES:
            return ""
        error = self._failures[-1]
        return f"no slot could begin: {type(error).__name__}: {error}"

    def refuse(
        self,
        host: RemoteHost,
    ) -> None:
        """Release the slots of a machine that cannot run tasks. Withdraw all requests
        too, because the engine may have placed some of them on this machine.
        """
        self.release_all(host)
        self._withdraw(len(self._requests))
        self._allocations.withdraw_all()

    def release_all(
        self,
        host: RemoteHost,
    ) -> None:
        """Release the slots of a machine that is lost."""
        self._release(host, [*host.slots.all(), *host.slots.allocations])

    def close(self) -> None:
        """Release all slots, and withdraw all requests."""
        self._withdraw(len(self._requests))
        self._allocations.withdraw_all()
        for slot in self._extra:
            self._give_back(slot, "")
        self._extra.clear()
        for host in self._hosts.values():
            self.release_all(host)

    # ------------------------------------------------ requests

    def _request(
        self,
        missing: int,
    ) -> None:
        if time.monotonic() < self._next_request_at:
            return
        slots = list(islice(self._ids, missing))
        self._requests.update(dict.fromkeys(slots))
        self._submit(slots, self._addresses())

    def _request_extra(self) -> None:
        """Request the slots that running tasks and allocations lack on their machines,
        and withdraw such requests if they are no longer needed.
        """
        lacking: dict[str, int] = {}
        for host in self._hosts.values():
            lacking[host.address] = host.lacking_slots
        for slot, address in list(self._extra.items()):
            number = lacking.get(address, 0)
            lacking[address] = number - 1
            if number <= 0:
                del self._extra[slot]
                self._give_back(slot, "")
        if time.monotonic() < self._next_request_at:
            return
        for address, number in lacking.items():
            slots = list(islice(self._ids, max(0, number)))
            if slots:
                self._extra.update(dict.fromkeys(slots, address))
                self._submit(slots, [address])

    def _submit(
        self,
        slots: Sequence[int],
        addresses: Sequence[str],
        size: AllocationSize | None = None,
    ) -> None:
        try:
            if size is None:
                self._engine.request_slots(slots, addresses)
            else:
                amounts = size.amounts()
                self._engine.request_allocations(slots, amounts, addresses)
        except Exception as error:  # noqa: BLE001 - any error: the engine is not there
            for slot in slots:
                self.end(
                    slot,
                    error,
                )

    def _submit_allocations(
        self,
        slots: Sequence[int],
        size: AllocationSize,
        addresses: Sequence[str],
    ) -> None:
        self._submit(
            slots,
            addresses,
            size,
        )

    def _withdraw(
        self,
        surplus: int,
    ) -> None:
        """Withdraw the newest requests for slots. *surplus* is their number."""
        for _ in range(surplus):
            slot, _ = self._requests.popitem()
            self._give_back(
                slot,
                "",
            )

    def _renew(self) -> None:
        """Withdraw and repeat all requests, if this was not done for a while. They go
        to the end of the engine's queue, so that older requests of other programs come
        first.
        """
        now = time.monotonic()
        number = len(self._requests)
        if number and now >= self._next_renewal_at:
            self._next_renewal_at = now + number / RENEWAL_RATE
            self._withdraw(number)
            self._request(number)

    # ------------------------------------------------ slots that have begun

    def _settle(
        self,
        host: RemoteHost,
    ) -> None:
        """Release the slots of *host* whose turn has ended, and set a timer for the
        release of slots that no task needs.
        """
        slots = host.slots
        # Tasks that wait for their calls are not counted as busy. They must not keep
        # slots whose turn has ended, because their calls may need these slots.
        free = slots.count - host.busy_slots
        if free > 0 and slots.leaving:
            self._renew()
            self._release(
                host,
                slots.leaving[:free],
            )
        surplus = slots.count - self._needed_slots(host)
        if surplus > 0 and slots.idle_timer is None:
            due = time.monotonic() + IDLE_SECONDS
            release = partial(
                self._release_idle,
                host,
            )
            slots.idle_timer = self._loop.call_at(
                due,
                release,
            )
        elif surplus <= 0 and slots.idle_timer is not None:
            slots.idle_timer.cancel()
            slots.idle_timer = None

    def _release_idle(
        self,
        host: RemoteHost,
    ) -> None:
        host.slots.idle_timer = None
        surplus = host.slots.count - self._needed_slots(host)
        self._release(host, host.slots.all()[: max(0, surplus)])

    def _needed_slots(
        self,
        host: RemoteHost,
    ) -> int:
        if self._allocations.is_requesting:
            # No slot is kept for a task that waits for calls: the calls may wait for
            # GPUs of another program, which may itself wait for this slot.
            return host.busy_slots
        return host.needed_slots

    def _await_end_of_turn(self) -> None:
        """Set the timer for the end of the turn of the oldest slot, if there is a
        slot.
        """
        oldest = inf
        for host in self._hosts.values():
            oldest = min(oldest, *host.slots.active.values(), inf)
        if oldest < inf:
            self._turn = self._loop.call_at(
                oldest + TURN_SECONDS,
                self._end_turns,
            )

    def _end_turns(self) -> None:
        self._turn = None
        last = time.monotonic() - TURN_SECONDS
        for host in self._hosts.values():
            host.slots.leave(last)

    def _release(
        self,
        host: RemoteHost,
        slots: Iterable[int],
    ) -> None:
        for slot in slots:
            host.slots.remove(slot)
            host.commands.append(("release", 0, 0, slot))
            self._give_back(
                slot,
                host.address,
            )

    def _release_allocation(
        self,
        host: RemoteHost | None,
        slot: int,
    ) -> None:
        if host is None:
            self._give_back(slot, "")
        else:
            self._release(host, (slot,))

    def _give_back(
        self,
        slot: int,
        address: str,
    ) -> None:
        # An error means that the engine has ended, and its slots with it.
        with suppress(Exception):
            self._engine.release_slot(
                slot,
                address,
            )
