"""The crew: which workers there are, which are idle, when one is hired and when one goes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from flowpregel.executors.processes.deadlines import Deadlines
from flowpregel.executors.processes.death import memory_of
from flowpregel.executors.processes.shared_memory import segments_for
from flowpregel.executors.processes.slot import Slot, State
from flowpregel.executors.processes.spawner import Newborn, Order, spawner

_START_TIMEOUT: Final = 120.0
"""Seconds a worker may take to start; its initializer may load a model."""
_SPARE: Final = 8
"""How many more workers than the pool's size may be kept for tasks that call others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a pool is to be."""

    size: int
    """How many workers run tasks at the same time."""
    cpus: int = 1
    """How many CPUs this program may use."""
    env: Mapping[str, str] = field(default_factory=dict)
    initializer: bytes = b""
    worker_max_tasks: int | None = None
    worker_max_rss: int | None = None
    grace: float = 2.0
    """Seconds between the signal that asks a task to stop and the kill."""
    shared_limit: int = 0
    """The most bytes of shared memory: half for inputs, half for results."""
    warm: bool = True
    """Whether all workers are started with the first."""
    idle_after: float = 60.0
    """Seconds after which an idle worker leaves."""


class Crew:
    """The workers of a pool. Unless said otherwise, its methods want the pool's lock held.

    Args:
        plan: How the pool is to be.
        deadlines: Who calls back in time.
        born: Told of each worker whose process was started, or why it was not.
    """

    def __init__(
        self,
        plan: Plan,
        deadlines: Deadlines,
        born: Callable[[Slot, BaseException | None], None],
    ) -> None:
        self._plan = plan
        self._deadlines = deadlines
        self._born = born
        self.slots: set[Slot] = set()
        self.idle: list[Slot] = []
        self.is_closed = False
        self.failed_starts = 0
        """How many workers in a row could not start."""
        self._parents = 0
        """How many workers hold a task that waits for its calls."""
        self._most_parents = 0

    # ------------------------------------------------ at work

    def rest(self, slot: Slot) -> None:
        """Make a slot without tasks idle, or let its worker go."""
        if slot.flights or slot.state is not State.BUSY:
            return
        if self._is_worn(slot) or self.is_closed or len(self.idle) >= self._most_idle():
            slot.dismiss()
            return
        slot.state = State.IDLE
        slot.idle_since = time.monotonic()
        self.idle.append(slot)

    def _most_idle(self) -> int:
        """How many workers may idle: those of the pool, and some for parents that wait."""
        return self._plan.size + min(self._most_parents, self._plan.size + _SPARE)

    @property
    def looks_at_each(self) -> bool:
        """Whether it is looked at a worker that rests, if it is to go on."""
        plan = self._plan
        return plan.worker_max_tasks is not None or plan.worker_max_rss is not None

    def _is_worn(self, slot: Slot) -> bool:
        plan = self._plan
        if plan.worker_max_tasks is not None and slot.served >= plan.worker_max_tasks:
            return True
        return plan.worker_max_rss is not None and memory_of(slot.pid) > plan.worker_max_rss

    def count_calls(self, slot: Slot, change: int) -> None:
        """Note that a worker's tasks wait for so many more calls, or fewer."""
        was = slot.is_waiting
        slot.open_calls += change
        self._parents += slot.is_waiting - was
        self._most_parents = max(self._most_parents, self._parents)

    # ------------------------------------------------ coming and going

    def _active(self) -> int:
        """How many workers run tasks, or could. One that only waits for its calls does not."""
        return sum(slot.state is not State.LEAVING and not slot.is_waiting for slot in self.slots)

    def is_full(self) -> bool:
        """Whether as many tasks run as may. More workers than that are spare: parents wait."""
        if len(self.slots) <= self._plan.size:
            return False
        running = sum(slot.state is State.BUSY and not slot.is_waiting for slot in self.slots)
        return running >= self._plan.size

    def has_spare_cpu(self) -> bool:
        """Whether the workers that are busy leave one for the coordinator. Needs no lock."""
        return len(self.slots) - len(self.idle) < self._plan.cpus

    def grow(self, waiting: int) -> None:
        """Start as many workers as *waiting* tasks need."""
        if len(self.slots) >= self._plan.size and not self._parents:
            return
        starting = sum(slot.state is State.STARTING for slot in self.slots)
        wanted = min(waiting - starting, self._plan.size - self._active())
        for _ in range(max(0, wanted)):
            self._hire()

    def fill(self) -> None:
        """Start what is missing of a warm pool."""
        if self._plan.warm and not self.is_closed and not self.failed_starts:
            for _ in range(self._plan.size - self._active()):
                self._hire()

    def _hire(self) -> None:
        slot = Slot(f"flowpregel-{len(self.slots)}")
        self.slots.add(slot)
        order = Order(
            name=slot.name,
            env=self._plan.env,
            initializer=self._plan.initializer,
            shared_limit=self._plan.shared_limit // (2 * self._plan.size),
            segments=segments_for(2 * self._plan.size),
            started=partial(self._on_born, slot),
        )
        spawner.order(order)

    def _on_born(self, slot: Slot, result: Newborn | BaseException) -> None:
        """Called without the lock, by who starts processes."""
        if isinstance(result, BaseException):
            self._born(slot, result)
            return
        slot.born(result)
        self._born(slot, None)
        if self.is_closed:
            slot.kill("the pool was closed")

        # Weakly: a worker that dies soon is not to be remembered until then.
        held = weakref.ref(slot)

        def give_up(now: float) -> None:
            slot = held()
            if slot is not None and slot.state is State.STARTING:
                slot.kill(f"it was not ready after {_START_TIMEOUT:.0f} seconds")

        self._deadlines.add(time.monotonic() + _START_TIMEOUT, give_up)

    def ready(self, slot: Slot) -> None:
        """Note that a worker has started."""
        self.failed_starts = 0
        if slot.state is State.STARTING:
            slot.state = State.BUSY
            self.rest(slot)
        self.fill()

    def remove(self, slot: Slot) -> None:
        """Forget the slot of a worker that has ended, and see to a new one."""
        self.slots.discard(slot)
        slot.state = State.LEAVING
        if slot in self.idle:
            self.idle.remove(slot)
        if slot.killed is not None or slot.served:
            self.fill()

    def reap_idle(self) -> float | None:
        """Let workers go that were idle for long; return the seconds until the next is."""
        latest = time.monotonic() - self._plan.idle_after
        while self.idle and self.idle[0].idle_since <= latest:
            self.idle.pop(0).dismiss()
        return self.idle[0].idle_since - latest if self.idle else None

    def close(self) -> None:
        """Let idle workers go, and end the others."""
        self.is_closed = True
        for slot in self.slots:
            if slot.state is State.IDLE:
                slot.dismiss()
            elif slot.state is not State.LEAVING:
                for flight in slot.flights.values():
                    flight.stopping = "cancel"
                slot.kill("the pool was closed")
        self.idle.clear()

    def end_all(self) -> None:
        """Kill everyone who is still there."""
        for slot in tuple(self.slots):
            slot.kill("the pool was closed")
