"""Dispatch: how many tasks a worker is given at once, and how they get there.

Sending costs more than a fine-grained task does, so those travel in batches that
keep a worker busy for about 10 ms, as far as measured run times tell. One that has
less left to do is given the next batch, so that it need not wait for it. When the
times do not tell the truth, the tasks that a worker has not begun are taken back:

::

    coordinator ----- TASKS t1 t2 t3 t4 ----> worker
         |                                      |
         +--> token pipe: o o o o  <-- takes one before it begins a task
         <--- takes what is left to recall as many of the last tasks

Each token is taken once, by the kernel's word: no task is run twice or lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import FlowPregelError, TaskSerializationError
from flowpregel.executors.processes import frames, sent_ahead
from flowpregel.executors.processes.brief import FULL, TASK, Likeness
from flowpregel.executors.processes.deadlines import Deadlines
from flowpregel.executors.processes.hub import Hub
from flowpregel.executors.processes.line import Line
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.shared_memory import Arena
from flowpregel.executors.processes.slot import Flight, Landing, Party, Slot, Trip
from flowpregel.executors.processes.worker import BATCH, SPARE

_log: Final = logging.getLogger("flowpregel.worker")
WORTH: Final = 0.010
"""Seconds that a batch is to keep a worker busy."""
LARGEST: Final = 1024
_ALL_TOKENS: Final = 1 << 16
_MOST_RUNS: Final = 64
"""A worker that was told of more runs is told to forget them, ended ones among them."""
STALE: Final = 2 * WORTH
"""Seconds after which a batch is looked at again."""
_TELLING: Final = 32
"""Tasks that ended together whose run times are taken into account."""
_OUTLIER: Final = 4
_FASTER: Final = 0.6
_SLOWER: Final = 0.2


class Crew(Protocol):
    """The workers, and the tasks that wait for them."""

    def land(self, flight: Flight, outcome: Outcome) -> None:
        """End a flight that cannot even start."""

    def recalled(self, flights: list[Flight]) -> None:
        """Let flights wait again, first in line."""

    def has_idle(self) -> bool:
        """Whether a worker has nothing to do."""

    def has_spare_cpu(self) -> bool:
        """Whether there are more CPUs than workers at work."""


class Dispatch:
    """Sends tasks to workers, in groups.

    Args:
        crew: The workers.
        hub: Who reads and writes.
        deadlines: Who calls back in time.
        arena: For what is too large for a link.
    """

    def __init__(self, crew: Crew, hub: Hub, deadlines: Deadlines, arena: Arena) -> None:
        self._crew = crew
        self._hub = hub
        self._deadlines = deadlines
        self.arena = arena
        self._pace: dict[bytes, float] = {}

    # ------------------------------------------------ how many

    def measured(self, flight: Flight, seconds: float) -> None:
        """Note how long a task has run."""
        if flight.calls is None:
            digest = flight.party.digest
            self._pace[digest] = _blended(self._pace.get(digest), seconds)

    def measured_all(self, landings: Sequence[Landing]) -> None:
        """Note how long tasks have run, of which none has made a call."""
        pace, digest, known = self._pace, b"", None
        # What came before them hardly matters after them.
        for flight, ended in landings[-_TELLING:]:
            if flight.party.digest is not digest:
                digest = flight.party.digest
                known = pace.get(digest)
            if ended.span is not None:
                pace[digest] = known = _blended(known, ended.span[1])

    def called(self, flight: Flight, slot: Slot) -> None:
        """Note that a task waits for another: tasks like it are sent alone."""
        self._pace[flight.party.digest] = 2 * WORTH
        if len(slot.flights) > 1:
            self.recall(slot)

    def group(self, waiting: Line, workers: int) -> list[Flight]:
        """Take from *waiting* what one of *workers* is to be given now."""
        most = min(LARGEST, -(-waiting.count // workers))
        return waiting.take(most, 1, WORTH, self._estimate)

    def further(self, slot: Slot, waiting: Line, workers: int) -> list[Flight]:
        """Take from *waiting* what a busy worker is to do next, if it has little left to do.

        It then need not wait for the next tasks while these are made ready. Nothing is put
        behind a task that is to stop, or may have to wait for others.
        """
        last = next(reversed(slot.flights.values()), None)
        if last is None or last.stopping is not None or slot.open_calls:
            return []
        if slot.is_held or slot.has_ended:
            return []
        if len(slot.flights) * self._estimate(last.party) > WORTH:
            return []
        # Whoever is done first takes the last ones.
        most = min(LARGEST, waiting.count // workers)
        return waiting.take(most, 0, WORTH, self._estimate)

    def _estimate(self, party: Party) -> float:
        """Return the seconds one of *party* takes; what is not known is never grouped."""
        timeout = party.timeout
        if timeout is not None and timeout.idle_timeout is not None:
            return WORTH * 2
        return self._pace.get(party.digest, WORTH * 2)

    # ------------------------------------------------ on their way

    def send(self, trip: Trip, group: list[Flight]) -> None:
        """Send the group of a trip to its worker, which has nothing to do, or little."""
        slot = trip.slot
        if len(slot.runs) > _MOST_RUNS:
            slot.runs.clear()
            slot.link.send(frames.RUN)
        packed, parts = self._pack_all(slot, group)
        if not packed:
            return
        # Its own: as soon as the tokens are there, another OS thread may take them back and
        # send this worker the next batch, before this one is on its way.
        batch = slot.round = slot.round % 255 + 1
        takes_turns = len(slot.flights) > 1
        now = trip.started = time.monotonic()
        if takes_turns:
            trip.batch = batch
        if freed := slot.returns.take():
            slot.link.send(frames.FREED, 0, freed)
        if takes_turns:
            os.write(slot.newborn.tokens_write, bytes((batch,)) * len(packed))
            again = partial(self._look_again, slot, packed[-1].number)
            is_further = len(slot.flights) > len(packed)
            self._deadlines.add(now + STALE + WORTH * is_further, again)
        flags = BATCH * takes_turns | SPARE * self._crew.has_spare_cpu()
        body = bytes((batch, flags)) + b"".join(parts)
        # What an earlier frame has left over, this one is behind.
        if not slot.link.send(frames.TASKS, 0, body):
            self._hub.watch_writable(slot.link.fileno(), partial(self.flush, slot))

    def _pack_all(self, slot: Slot, group: list[Flight]) -> tuple[list[Flight], list[bytes]]:
        """Return those of *group* that can be sent, and what is sent of them."""
        if len(group) == 1:
            (flight,) = group
            body = self._pack(slot, flight, self._send_ahead(slot, flight))
            return ([], []) if body is None else (group, _in_full(flight, body, FULL))
        packed: list[Flight] = []
        parts: list[bytes] = []
        likeness = Likeness()
        digest, run, sent = b"", None, None
        for flight in group:
            if likeness.gather(flight.number, flight.job, flight.party.digest):
                packed.append(flight)
                continue
            parts += likeness.take()
            if flight.party.digest is not digest or flight.job.info.run is not run:
                digest, run = flight.party.digest, flight.job.info.run
                sent = self._send_ahead(slot, flight)
            body = self._pack(slot, flight, sent)
            if body is not None:
                packed.append(flight)
                form = FULL if flight.leases else likeness.begin(flight.job, digest, sent)
                parts += _in_full(flight, body, form)
        parts += likeness.take()
        return packed, parts

    def _send_ahead(self, slot: Slot, flight: Flight) -> sent_ahead.Sent | None:
        """Send what the worker needs for many tasks, if it has not been sent; return the run's."""
        sent = sent_ahead.pack_run(flight.job.info.run)
        party = flight.party
        if party.digest not in slot.known:
            slot.known.add(party.digest)
            slot.link.send(frames.NODE, 0, party.digest + party.code)
        if sent is not None and sent.number not in slot.runs:
            slot.runs.add(sent.number)
            slot.link.send(frames.RUN, sent.number, sent.data)
        return sent

    def flush(self, slot: Slot) -> None:
        """Send what the link has not taken yet."""
        if slot.link.flush():
            self._hub.written(slot.link.fileno())
            if slot.link.has_rest:
                # Another OS thread has sent meanwhile, and asked too early to be told.
                self._hub.watch_writable(slot.link.fileno(), partial(self.flush, slot))

    def _pack(self, slot: Slot, flight: Flight, sent: sent_ahead.Sent | None) -> bytes | None:
        try:
            body, leases = sent_ahead.pack_job(flight.job, self.arena, sent)
            if leases and not self._hand_over(slot, leases):
                body, leases = sent_ahead.pack_job(flight.job, None, sent)
        except Exception as error:  # noqa: BLE001 - the task's failure, told as such
            self._crew.land(flight, Raised(_not_packed(flight, error)))
            return None
        if flight.job.node.contexts:
            slot.has_contexts = True
        if leases:
            flight.leases = [ref.id for ref in leases]
            slot.reads.update(flight.leases)
        if self.arena.is_full:
            self.arena.is_full = False
            _log.warning(
                "no shared memory is left for the input of task %r: it goes through the link, "
                "which is slower", flight.job.info.name,
            )  # fmt: skip
        return body

    def _hand_over(self, slot: Slot, leases: Sequence[BufferRef]) -> bool:
        try:
            for ref in leases:
                slot.door.send(ref.segment, self.arena.descriptor(ref))
        except OSError:
            for ref in leases:
                self.arena.release(ref.id)
            return False
        return True

    # ------------------------------------------------ batches that take too long

    def _look_again(self, slot: Slot, last: int, now: float) -> None:
        """Hear what a slow batch has done so far, and recall its rest if somebody is idle."""
        if last not in slot.flights or not slot.is_born:
            return
        slot.signal_flush()
        if self._crew.has_idle():
            self.recall(slot)
        self._deadlines.add(now + STALE, partial(self._look_again, slot, last))

    def recall(self, slot: Slot) -> None:
        """Take back the tasks that the worker of *slot* has not begun.

        Only for the OS thread that reads the links: the worker's end is noticed there.
        """
        try:
            tokens = Counter(os.read(slot.newborn.tokens_read, _ALL_TOKENS))
        except BlockingIOError:
            return
        if not tokens:
            return
        taken: list[Flight] = []
        for flight in reversed([*slot.flights.values()]):
            # Not simply the last: Ctrl-C may have come before those had their tokens.
            batch = 0 if flight.trip is None else flight.trip.batch
            if tokens[batch]:
                tokens[batch] -= 1
                taken.append(flight)
        taken.reverse()
        for flight in taken:
            self._take_back(slot, flight)
            if flight.stopping is not None:
                self._crew.land(flight, Withdrawn())
        self._crew.recalled([flight for flight in taken if flight.stopping is None])

    def _take_back(self, slot: Slot, flight: Flight) -> None:
        """Release what *flight* was given in shared memory: its worker will not look at it."""
        leases, flight.leases = flight.leases, ()
        for ref_id in leases:
            slot.reads.discard(ref_id)
            self.arena.release(ref_id)


def _in_full(flight: Flight, body: bytes, form: int) -> list[bytes]:
    """Return the parts of a TASKS frame that are the whole of *flight*."""
    digest = flight.party.digest
    return [TASK.pack(flight.number, len(digest) + len(body), form), digest, body]


def _blended(known: float | None, seconds: float) -> float:
    """Return the seconds tasks of a kind take, of which one has taken *seconds*."""
    if known is None:
        return seconds
    # One that was held up says little about the others; one that was faster, much.
    if seconds < known:
        return known + _FASTER * (seconds - known)
    return known + _SLOWER * (min(seconds, _OUTLIER * known) - known)


def _not_packed(flight: Flight, error: Exception) -> Exception:
    if isinstance(error, FlowPregelError):
        return error
    return TaskSerializationError(flight.job.info.name, "the input", "input", repr(error))
