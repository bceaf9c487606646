"""Stopping a task: first a signal that raises in it, after the grace period the kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from flowpregel.executors.base import JobKey
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.slot import Flight, Reason


class Stopping:
    """Keeps the timeouts of a pool's tasks, and cancels them.

    Args:
        pool: Whose tasks.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        pool.sent = self._sent

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a task that waits; stop a running one if *kill*."""
        flight = self._pool.withdraw(key)
        if flight is not None and kill:
            # By whoever reads the links: it may take back what is behind it.
            self._at(time.monotonic(), partial(self._cancel, flight))

    def _cancel(self, flight: Flight, now: float) -> None:
        # It may have been taken back from its worker meanwhile, and wait again.
        if self._pool.withdraw(flight.job.key) is flight:
            self._stop(flight, "cancel")

    def _sent(self, flight: Flight, now: float) -> None:
        policy = flight.party.timeout
        if policy is None:
            return
        flight.started = now
        # Whoever reads the links may have heard from it already.
        flight.alive = max(flight.alive, now)
        if policy.run_timeout is not None:
            assert isinstance(policy.run_timeout, float)
            limit = policy.run_timeout
            self._at(flight.started + limit, partial(self._on_run, flight, limit))
        if policy.idle_timeout is not None:
            assert isinstance(policy.idle_timeout, float)
            limit = policy.idle_timeout
            self._at(flight.alive + limit, partial(self._on_idle, flight, limit))

    def _at(self, when: float, action: Callable[[float], None]) -> None:
        is_next = self._pool.deadlines.add(when, action)
        if is_next and not self._pool.hub.is_reading:
            self._pool.hub.wake()

    def _on_run(self, flight: Flight, limit: float, now: float) -> None:
        trip = flight.trip
        if trip is None:
            return
        slot = trip.slot
        if len(slot.flights) > 1 or trip.batch:
            # In a batch its time begins when its turn comes; the board tells.
            if slot.running() is not flight:
                self._at(now + limit, partial(self._on_run, flight, limit))
                return
            flight.started = slot.newborn.board.since / 1e9
            if now < flight.started + limit:
                self._at(flight.started + limit, partial(self._on_run, flight, limit))
                return
        self._stop(flight, "run")

    def _on_idle(self, flight: Flight, limit: float, now: float) -> None:
        if flight.slot is None:
            return
        if flight.slot.is_held:
            # It may well show signs of life; nobody looks.
            flight.alive = now
        if flight.alive + limit > now:
            self._at(flight.alive + limit, partial(self._on_idle, flight, limit))
            return
        self._stop(flight, "idle")

    def _stop(self, flight: Flight, reason: Reason) -> None:
        slot = flight.slot
        if slot is None or flight.stopping is not None:
            return
        flight.stopping = reason
        if len(slot.flights) > 1:
            # What has not begun goes elsewhere, or ends: a kill is to hit nobody else.
            self._pool.dispatch.recall(slot)
        # While its link is not read, it waits in the middle of a frame.
        self._pool.brake.free(slot)
        with self._pool.lock:
            if not slot.is_last(flight):
                return
            slot.signal_stop(flight)
        self._at(time.monotonic() + self._pool.plan.grace, partial(self._on_grace, flight))

    def _on_grace(self, flight: Flight, now: float) -> None:
        with self._pool.lock:
            slot = flight.slot
            if slot is not None and slot.is_last(flight):
                slot.kill("it was killed, because its task did not stop when it was told to")
