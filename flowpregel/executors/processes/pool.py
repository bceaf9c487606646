"""The pool: which task goes to which worker, and how many workers there are."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from flowpregel._core.effects import Call, Ended, Event
from flowpregel._core.ran import Span
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import Job, JobKey, Mailbox
from flowpregel.executors.processes import frames, messages
from flowpregel.executors.processes.books import Books
from flowpregel.executors.processes.brake import Brake
from flowpregel.executors.processes.crew import Crew, Plan
from flowpregel.executors.processes.deadlines import Deadlines
from flowpregel.executors.processes.dispatch import Dispatch
from flowpregel.executors.processes.hub import Hub, Seat
from flowpregel.executors.processes.intake import Intake
from flowpregel.executors.processes.line import CalledNodes, Line
from flowpregel.executors.processes.shared_memory import Arena, segments_for
from flowpregel.executors.processes.slot import Flight, Landing, Slot, State, Trip, span_of

_START_TRIES: Final = 3


class Pool:
    """Workers, the tasks in flight on them, and those that wait.

    Args:
        plan: How it is to be.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hub = Hub(self)
        self.deadlines = Deadlines()
        self.arena = Arena(plan.shared_limit // 2, segments=segments_for(2))
        self.dispatch = Dispatch(self, self.hub, self.deadlines, self.arena)
        self.crew = Crew(plan, self.deadlines, self._on_born)
        self._books = Books()
        self.lock = threading.Lock()
        self._waiting = Line()
        self.brake = Brake(self.hub, self._waiting, self.dispatch.recall)
        self.called_nodes = CalledNodes()
        self._intake = Intake(self.called_nodes)
        self._started = False
        self._pid = os.getpid()
        self.watch: Callable[[Slot], None]
        """Watches a slot's ends; set by the reception."""
        self.sent: Callable[[Flight, float], None]
        """Told of each task that was sent, and when; set by who stops them in time."""

    # ------------------------------------------------ for the hub

    def is_busy(self) -> bool:
        """Whether links must be read."""
        return bool(self._books) or any(
            slot.state in (State.STARTING, State.LEAVING) for slot in tuple(self.crew.slots)
        )

    def has_unattended(self) -> bool:
        """Whether a run that cannot read waits for something."""
        return self._books.unattended > 0

    def tick(self, now: float) -> float | None:
        """Do what is due; return when something is due again."""
        return self.deadlines.run(now)

    def idle_wait(self) -> float | None:
        """Let workers go that were idle for long; return the seconds until the next is."""
        with self.lock:
            return self.crew.reap_idle()

    # ------------------------------------------------ tasks in

    def take(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start *jobs*, each as soon as a worker is free."""
        if self._pid != os.getpid():
            error = ExecutorUnavailableError(
                "this pool of worker processes belongs to the process that this one was forked "
                "from: make a ProcessExecutor of your own here"
            )
            for job in jobs:
                mailbox.post(Ended(job.info.task_id, job.info.attempt, Raised(error)))
            return
        attended = self.hub.seat(mailbox)
        flights = self._intake.flights_of(jobs, mailbox, attended)
        with self.lock:
            closed = self.crew.is_closed
            if not closed:
                self._books.add(flights, attended)
                self._waiting.add_all(flights.values())
        if closed:
            refused = [each.ended(Raised(_closed_error()), None) for each in flights.values()]
            mailbox.post_all(refused)
            return
        if not self._started:
            self._start()
        if self.brake.is_on:
            self.brake.free_for(mailbox)
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

    def pump(self) -> None:
        """Give waiting tasks to idle workers; start workers that are missing."""
        while self._waiting.count:
            with self.lock:
                if not self._waiting.count or self.crew.is_full():
                    return
                if not self.crew.idle:
                    self.crew.grow(self._waiting.count)
                    return
                slot = self.crew.idle.pop()
                group = self.dispatch.group(self._waiting, self.plan.size)
                slot.state = State.BUSY
                trip = _assign(group, slot)
            self._send(trip, group)

    def _refill(self, slot: Slot) -> None:
        """Give a worker that has little left to do what it is to do next."""
        with self.lock:
            if not self._waiting.count or slot.state is not State.BUSY or self.crew.looks_at_each:
                return
            group = self.dispatch.further(slot, self._waiting, self.plan.size)
            trip = _assign(group, slot)
        self._send(trip, group)

    def _send(self, trip: Trip, group: list[Flight]) -> None:
        self.dispatch.send(trip, group)
        for flight in group:
            if flight.party.timeout is not None:
                self.sent(flight, trip.started)

    def has_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return bool(self.crew.idle)

    def has_spare_cpu(self) -> bool:
        """Whether there are more CPUs than workers at work."""
        return self.crew.has_spare_cpu()

    def recalled(self, flights: list[Flight]) -> None:
        """Let flights wait again, first in line."""
        with self.lock:
            for flight in reversed(flights):
                trip, flight.trip = flight.trip, None
                if trip is not None:
                    trip.slot.flights.pop(flight.number, None)
                    if not trip.slot.flights:
                        self.crew.rest(trip.slot)
                self._waiting.add_first(flight)
        self.pump()

    # ------------------------------------------------ tasks out

    def land(self, flight: Flight, outcome: Outcome, span: Span | None = None) -> None:
        """End *flight*: free its worker, then tell its run."""
        ended = [(flight, flight.ended(outcome, span or span_of(flight)))]
        try:
            with self.lock:
                self._take_out(ended, flight.slot)
            self.pump()
        finally:
            self._books.tell()

    def land_all(self, ended: list[Landing], slot: Slot) -> None:
        """End several flights: free their worker, then tell their runs.

        Args:
            ended: The flights, and what their runs are told.
            slot: Whose worker has told so.
        """
        try:
            with self.lock:
                self._take_out(ended, slot)
                # It has not rested, so that no other OS thread has tasks for it on their way.
                is_at_work = bool(ended and slot.flights)
            self.pump()
            if is_at_work:
                self._refill(slot)
        finally:
            # Ctrl-C may come in between, and what has ended may be another run's.
            self._books.tell()

    def _take_out(self, ended: list[Landing], slot: Slot | None) -> None:
        """Take flights, which that slot has, out of all books. Wants the lock held."""
        self._books.strike(ended)
        for flight, _ in ended:
            flight.trip = None
            if slot is not None:
                slot.flights.pop(flight.number, None)
            if flight.calls and slot is not None:
                self.crew.count_calls(slot, -len(flight.calls))
                flight.calls = None
        if slot is not None:
            slot.served += len(ended)
            if not slot.flights:
                self.crew.rest(slot)

    def requeue(self, flight: Flight, error: BaseException | None) -> None:
        """Let *flight* wait again: its worker ended, and it was not the one that ran.

        Args:
            flight: Which.
            error: What to give up with after some tries, if no task ran at all:
                workers may always end before they begin. None: another task ran.
        """
        tried = flight.requeued >= _START_TRIES and error is not None
        if tried or flight.stopping is not None or self.crew.is_closed:
            failed = error is not None and flight.stopping is None
            self.land(flight, Raised(error) if error is not None and failed else Withdrawn())
            return
        with self.lock:
            flight.requeued += error is not None
            if flight.slot is not None:
                flight.slot.flights.pop(flight.number, None)
            flight.trip = None
            self._waiting.add_first(flight)

    def post(self, flight: Flight, event: Event) -> None:
        """Tell the run of *flight*."""
        flight.mailbox.post(event)

    def answer(self, call: Call, outcome: Outcome) -> None:
        """Send the *outcome* of a call to the worker whose task made it."""
        flight, request = call.reply
        with self.lock:
            slot = flight.slot
            if slot is not None and flight.calls and request in flight.calls:
                flight.calls = flight.calls - {request}
                self.crew.count_calls(slot, -1)
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
            if slot is not None:
                flight.calls = {request, *(flight.calls or ())}
                self.crew.count_calls(slot, 1)
        if slot is not None:
            self.dispatch.called(flight, slot)
        self.pump()

    def withdraw(self, key: JobKey) -> Flight | None:
        """End the job if it waits; else return its flight."""
        with self.lock:
            flight = self._books.find(key)
            if flight is None or flight.slot is not None:
                return flight
            self._waiting.remove(flight)
        self.land(flight, Withdrawn())
        return None

    # ------------------------------------------------ workers

    def _on_born(self, slot: Slot, error: BaseException | None) -> None:
        if error is not None:
            self.lose_start(slot, error)
            return
        self.watch(slot)
        self.hub.wake()

    def ready(self, slot: Slot) -> None:
        """Note that a worker has started."""
        with self.lock:
            self.crew.ready(slot)
        self.pump()

    def lose_start(self, slot: Slot, error: BaseException) -> None:
        """Note that a worker could not start; after some tries, what waits fails."""
        with self.lock:
            self.crew.slots.discard(slot)
            self.crew.failed_starts += 1
            hopeless = self.crew.failed_starts >= _START_TRIES
            lost = self._waiting.take_all() if hopeless else []
            if hopeless:
                self.crew.failed_starts = 0
        for flight in lost:
            failure = ExecutorUnavailableError(f"no worker process can be started: {error}")
            failure.__cause__ = error
            self.land(flight, Raised(failure))
        self.pump()

    def remove(self, slot: Slot) -> list[Flight]:
        """Forget the slot of a worker that has ended; return its tasks."""
        with self.lock:
            self.crew.remove(slot)
            for ref_id in slot.reads:
                self.arena.release(ref_id)
            return [*slot.flights.values()]

    # ------------------------------------------------ the end

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more tasks."""
        return self.crew.is_closed

    def close(self) -> None:
        """Stop every task, end every worker."""
        if self._pid != os.getpid():
            # In a fork: the workers are the other process's, and the lock may be held for ever.
            return
        with self.lock:
            if self.crew.is_closed:
                return
            waiting = self._waiting.take_all()
            self.crew.close()
        for flight in waiting:
            self.land(flight, Withdrawn())
        atexit.unregister(self.close)
        self._wait_for_ends()
        self.hub.close()
        self.arena.close()

    def _wait_for_ends(self) -> None:
        seat = Seat(self.hub)
        deadline = time.monotonic() + self.plan.grace
        while self.crew.slots:
            self.hub.attend(seat, 0.05)
            if time.monotonic() > deadline:
                self.crew.end_all()


def _assign(group: list[Flight], slot: Slot) -> Trip:
    """Note that *slot* has the tasks of *group*, after those it has; return their trip."""
    trip, flights = Trip(slot), slot.flights
    for flight in group:
        flights[flight.number] = flight
        flight.trip = trip
    return trip


def _closed_error() -> ExecutorUnavailableError:
    return ExecutorUnavailableError("this pool of worker processes was closed")
