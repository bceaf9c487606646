"""The pool: which task goes to which worker, and how many workers there are."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

from flowpregel._core.effects import Call, Ended, Event
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import ExecutorUnavailableError, TaskSerializationError
from flowpregel.executors.base import Job, JobKey, Mailbox
from flowpregel.executors.processes import frames, messages
from flowpregel.executors.processes.arena import Arena
from flowpregel.executors.processes.codebook import Codebook
from flowpregel.executors.processes.deadlines import Deadlines
from flowpregel.executors.processes.death import memory_of
from flowpregel.executors.processes.dispatch import Dispatch
from flowpregel.executors.processes.hub import Hub, Seat
from flowpregel.executors.processes.line import CalledNodes, Line
from flowpregel.executors.processes.slot import Flight, Slot, State
from flowpregel.executors.processes.spawner import Newborn, Order, spawner

_START_TRIES: Final = 3
_START_TIMEOUT: Final = 120.0
"""Seconds a worker may take to start; its initializer may load a model."""
_SPARE: Final = 8
"""How many more workers than the pool's size may be kept for tasks that call others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a pool is to be."""

    size: int
    """How many workers run tasks at the same time."""
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


class Pool:
    """Workers, the tasks in flight on them, and those that wait.

    Args:
        plan: How it is to be.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hub = Hub(self)
        self.deadlines = Deadlines()
        self.arena = Arena(plan.shared_limit // 2, remember=True)
        self.dispatch = Dispatch(self, self.hub, self.deadlines, self.arena)
        self.slots: set[Slot] = set()
        self.flights: dict[int, Flight] = {}
        self._by_key: dict[JobKey, Flight] = {}
        self.lock = threading.Lock()
        self._codebook = Codebook()
        self._waiting = Line()
        self.called_nodes = CalledNodes()
        self._idle: list[Slot] = []
        self._unattended = 0
        self._parents = 0
        """How many workers hold a task that waits for its calls."""
        self._most_parents = 0
        self._numbers = count(1)
        self._failed_starts = 0
        self._started = False
        self._closed = False
        self._pid = os.getpid()
        self.watch: Callable[[Slot], None]
        """Watches a slot's ends; set by the reception."""
        self.sent: Callable[[Flight], None]
        """Told of each task that was sent; set by who stops them in time."""

    # ------------------------------------------------ for the hub

    def is_busy(self) -> bool:
        """Whether links must be read."""
        return bool(self.flights) or any(
            slot.state in (State.STARTING, State.LEAVING) for slot in tuple(self.slots)
        )

    def has_unattended(self) -> bool:
        """Whether a run that cannot read waits for something."""
        return self._unattended > 0

    def tick(self, now: float) -> float | None:
        """Do what is due; return when something is due again."""
        return self.deadlines.run(now)

    def idle_wait(self) -> float | None:
        """Let workers go that were idle for long; return the seconds until the next is."""
        with self.lock:
            latest = time.monotonic() - self.plan.idle_after
            while self._idle and self._idle[0].idle_since <= latest:
                self._idle.pop(0).dismiss()
            return self._idle[0].idle_since - latest if self._idle else None

    # ------------------------------------------------ tasks in

    def take(self, job: Job, mailbox: Mailbox) -> None:
        """Start *job* as soon as a worker is free."""
        if self._pid != os.getpid():
            error = ExecutorUnavailableError(
                "this pool of worker processes belongs to the process that this one was forked "
                "from: make a ProcessExecutor of your own here"
            )
            mailbox.post(Ended(job.info.task_id, job.info.attempt, Raised(error)))
            return
        flight = Flight(job, mailbox, next(self._numbers) & 0xFFFFFFFF, self._seat(mailbox))
        flight.depth = self.called_nodes.depth_of(job.node)
        try:
            flight.digest, flight.code = self._codebook.look_up(job.node, job.info.run_id)
        except TaskSerializationError as error:
            self.post(flight, self._ended(flight, Raised(error)))
            return
        with self.lock:
            closed = self._closed
            if not closed:
                self.flights[flight.number] = flight
                self._by_key[job.key] = flight
                self._waiting.add(flight)
                self._unattended += not flight.attended
        if closed:
            self.post(flight, self._ended(flight, Raised(_closed_error())))
            return
        if not self._started:
            self._start()
        self.pump()
        self.hub.alert()

    def _start(self) -> None:
        with self.lock:
            if self._started:
                return
            self._started = True
        # At exit, multiprocessing waits for all its children. What is registered after it
        # runs before it, and ends ours.
        import multiprocessing.util  # noqa: F401, PLC0415

        atexit.register(self.close)
        self.hub.start()

    def _seat(self, mailbox: Mailbox) -> bool:
        """Give the run of *mailbox* a seat; return whether it comes to read."""
        if not getattr(mailbox, "attentive", True):
            return False
        attend = mailbox.attend
        if attend is None:
            seat = Seat(self.hub)
            mailbox.interrupt_attend = seat.interrupt
            mailbox.attend = seat.attend
            return True
        taken = getattr(attend, "__self__", None)
        return isinstance(taken, Seat) and taken.hub is self.hub

    def pump(self) -> None:
        """Give waiting tasks to idle workers; start workers that are missing."""
        while self._waiting:
            with self.lock:
                if not self._waiting or self._is_full():
                    return
                if not self._idle:
                    self._grow()
                    return
                slot = self._idle.pop()
                group = self.dispatch.group(self._waiting, self.plan.size)
                slot.state = State.BUSY
                for flight in group:
                    slot.flights[flight.number] = flight
                    flight.slot = slot
            self.dispatch.send(slot, group)
            for flight in group:
                if flight.job.timeout is not None:
                    self.sent(flight)

    def has_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return bool(self._idle)

    def recalled(self, flights: list[Flight]) -> None:
        """Let flights wait again, first in line."""
        with self.lock:
            for flight in reversed(flights):
                if flight.slot is not None:
                    flight.slot.flights.pop(flight.number, None)
                    flight.slot = None
                self._waiting.add_first(flight)
        self.pump()

    # ------------------------------------------------ tasks out

    def land(self, flight: Flight, outcome: Outcome) -> None:
        """End *flight*: free its worker, then tell its run."""
        with self.lock:
            known = self.flights.pop(flight.number, None) is not None
            if known:
                if self._by_key.get(flight.job.key) is flight:
                    del self._by_key[flight.job.key]
                self._unattended -= not flight.attended
            slot, flight.slot = flight.slot, None
            if slot is not None:
                slot.flights.pop(flight.number, None)
                self._count_calls(slot, -len(flight.calls))
                slot.served += 1
                self._rest(slot)
        self.pump()
        # Not before others that wait with the same object were sent.
        for lease in flight.leases:
            self.arena.ended(lease)
        if known:
            self.post(flight, self._ended(flight, outcome))

    def _rest(self, slot: Slot) -> None:
        """Make a slot without tasks idle, or let its worker go. The lock is held."""
        if slot.flights or slot.state is not State.BUSY:
            return
        if self._is_worn(slot) or self._closed or len(self._idle) >= self._most_idle():
            slot.dismiss()
            return
        slot.state = State.IDLE
        slot.idle_since = time.monotonic()
        self._idle.append(slot)

    def requeue(self, flight: Flight, error: BaseException) -> None:
        """Let *flight* wait again: its worker ended before it had begun.

        Workers that always end before they begin a task give up with *error*.
        """
        if flight.requeued >= _START_TRIES or flight.stopping is not None or self._closed:
            self.land(flight, Raised(error) if flight.stopping is None else Withdrawn())
            return
        with self.lock:
            flight.requeued += 1
            if flight.slot is not None:
                flight.slot.flights.pop(flight.number, None)
            flight.slot = None
            self._waiting.add_first(flight)

    def _most_idle(self) -> int:
        """How many workers may idle: those of the pool, and some for parents that wait."""
        return self.plan.size + min(self._most_parents, self.plan.size + _SPARE)

    def _is_worn(self, slot: Slot) -> bool:
        plan = self.plan
        if plan.worker_max_tasks is not None and slot.served >= plan.worker_max_tasks:
            return True
        return plan.worker_max_rss is not None and memory_of(slot.pid) > plan.worker_max_rss

    def post(self, flight: Flight, event: Event) -> None:
        """Tell the run of *flight*."""
        flight.mailbox.post(event)
        if flight.attended:
            interrupt = flight.mailbox.interrupt_attend
            if interrupt is not None:
                interrupt()

    def _ended(self, flight: Flight, outcome: Outcome) -> Ended:
        return Ended(flight.job.info.task_id, flight.job.info.attempt, outcome)

    def answer(self, call: Call, outcome: Outcome) -> None:
        """Send the *outcome* of a call to the worker whose task made it."""
        flight, request = call.reply
        with self.lock:
            slot = flight.slot
            if slot is not None and request in flight.calls:
                flight.calls.discard(request)
                self._count_calls(slot, -1)
        if slot is None:
            return
        body = messages.pack_outcome(outcome, call.node.name, None)
        self.send(slot, frames.ANSWER, request, body)

    def send(self, slot: Slot, kind: int, number: int, body: bytes) -> None:
        """Send a worker a frame, now or as soon as its link takes it."""
        if not slot.link.send(kind, number, body):
            self.hub.watch_writable(slot.link.fileno(), partial(self.dispatch.flush, slot))

    def called(self, flight: Flight, request: int) -> None:
        """Note that a task waits, or soon will: its worker does not count meanwhile."""
        with self.lock:
            slot = flight.slot
            flight.has_called = True
            if slot is not None:
                flight.calls.add(request)
                self._count_calls(slot, 1)
        if slot is not None:
            self.dispatch.called(flight, slot)
        self.pump()

    def _count_calls(self, slot: Slot, change: int) -> None:
        was = slot.is_waiting
        slot.open_calls += change
        self._parents += slot.is_waiting - was
        self._most_parents = max(self._most_parents, self._parents)

    def withdraw(self, key: JobKey) -> Flight | None:
        """End the job if it waits; else return its flight."""
        with self.lock:
            flight = self._by_key.get(key)
            if flight is None or flight.slot is not None:
                return flight
            self._waiting.remove(flight)
        self.land(flight, Withdrawn())
        return None

    # ------------------------------------------------ workers

    def _active(self) -> int:
        """How many workers run tasks, or could. One that only waits for its calls does not."""
        return sum(slot.state is not State.LEAVING and not slot.is_waiting for slot in self.slots)

    def _is_full(self) -> bool:
        """Whether as many tasks run as may. More workers than that are spare: parents wait."""
        if len(self.slots) <= self.plan.size:
            return False
        running = sum(slot.state is State.BUSY and not slot.is_waiting for slot in self.slots)
        return running >= self.plan.size

    def _grow(self) -> None:
        """Start as many workers as the tasks that wait need. The lock is held."""
        if len(self.slots) >= self.plan.size and not self._parents:
            return
        starting = sum(slot.state is State.STARTING for slot in self.slots)
        wanted = min(len(self._waiting) - starting, self.plan.size - self._active())
        for _ in range(max(0, wanted)):
            self._hire()

    def _fill(self) -> None:
        """Start what is missing of a warm pool. The lock is held."""
        if self.plan.warm and not self._closed and not self._failed_starts:
            for _ in range(self.plan.size - self._active()):
                self._hire()

    def _hire(self) -> None:
        slot = Slot(f"flowpregel-{len(self.slots)}")
        self.slots.add(slot)
        order = Order(
            name=slot.name,
            env=self.plan.env,
            initializer=self.plan.initializer,
            shared_limit=self.plan.shared_limit // (2 * self.plan.size),
            started=partial(self._on_born, slot),
        )
        spawner.order(order)

    def _on_born(self, slot: Slot, result: Newborn | BaseException) -> None:
        if isinstance(result, BaseException):
            self.lose_start(slot, result)
            return
        slot.born(result)
        self.watch(slot)
        if self._closed:
            slot.kill("the pool was closed")

        def give_up(now: float) -> None:
            if slot.state is State.STARTING:
                slot.kill(f"it was not ready after {_START_TIMEOUT:.0f} seconds")

        self.deadlines.add(time.monotonic() + _START_TIMEOUT, give_up)
        self.hub.wake()

    def ready(self, slot: Slot) -> None:
        """Note that a worker has started."""
        with self.lock:
            self._failed_starts = 0
            if slot.state is State.STARTING:
                slot.state = State.BUSY
                self._rest(slot)
            self._fill()
        self.pump()

    def lose_start(self, slot: Slot, error: BaseException) -> None:
        """Note that a worker could not start; after some tries, what waits fails."""
        with self.lock:
            self.slots.discard(slot)
            self._failed_starts += 1
            hopeless = self._failed_starts >= _START_TRIES
            lost = self._waiting.take_all() if hopeless else []
            if hopeless:
                self._failed_starts = 0
        for flight in lost:
            failure = ExecutorUnavailableError(f"no worker process can be started: {error}")
            failure.__cause__ = error
            self.land(flight, Raised(failure))
        self.pump()

    def remove(self, slot: Slot) -> list[Flight]:
        """Forget the slot of a worker that has ended; return its tasks."""
        with self.lock:
            self.slots.discard(slot)
            slot.state = State.LEAVING
            if slot in self._idle:
                self._idle.remove(slot)
            for lease, readers in slot.reads.items():
                self.arena.release(lease, readers)
            if slot.killed is not None or slot.served:
                self._fill()
            return [*slot.flights.values()]

    # ------------------------------------------------ the end

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more tasks."""
        return self._closed

    def close(self) -> None:
        """Stop every task, end every worker."""
        with self.lock:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            waiting = self._waiting.take_all()
            for slot in self.slots:
                if slot.state is State.IDLE:
                    slot.dismiss()
                elif slot.state is not State.LEAVING:
                    for flight in slot.flights.values():
                        flight.stopping = "cancel"
                    slot.kill("the pool was closed")
            self._idle.clear()
        for flight in waiting:
            self.land(flight, Withdrawn())
        atexit.unregister(self.close)
        self._wait_for_ends()
        self.hub.close()
        self.arena.close()

    def _wait_for_ends(self) -> None:
        seat = Seat(self.hub)
        deadline = time.monotonic() + self.plan.grace
        while self.slots:
            self.hub.attend(seat, 0.05)
            if time.monotonic() > deadline:
                for slot in tuple(self.slots):
                    slot.kill("the pool was closed")


def _closed_error() -> ExecutorUnavailableError:
    return ExecutorUnavailableError("this pool of worker processes was closed")
