"""The reception: what arrives from the workers, and what it means."""

from __future__ import annotations

import os
import time
from functools import partial

from flowpregel._core.effects import Call, Emitted
from flowpregel._core.records import Arguments, Outcome, Raised, Withdrawn
from flowpregel.errors import NodeTimeoutError, TaskSerializationError
from flowpregel.executors.processes import frames, messages, serialization, shared_memory
from flowpregel.executors.processes.brief import unpack_results
from flowpregel.executors.processes.death import PostMortem, Tail, count_oom_kills, reap
from flowpregel.executors.processes.desk import Desk
from flowpregel.executors.processes.frames import Frame, GarbageError
from flowpregel.executors.processes.listen import Lines, pass_on_record
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.slot import Flight, Landing, Slot, State
from flowpregel.executors.processes.structured import pass_on_event
from flowpregel.executors.processes.worker import RAN

_CHUNK = 1 << 16
_OUTCOME_AT = RAN.size
_ENDS = frozenset((frames.ENDED, frames.RESULTS))
_PARTING = 0.5
"""Seconds a worker may live on without its link."""


class Reception:
    """Reads what workers send, and notices when they end.

    Args:
        pool: Whose workers.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        pool.watch = self.watch
        self._desk = Desk(pool)
        self._tails: dict[Slot, Tail] = {}
        self._streams: dict[Slot, tuple[Lines, Lines]] = {}
        self._oom_kills = count_oom_kills()

    def close(self) -> None:
        """Let go of what is held beside the links."""
        self._desk.close()

    def watch(self, slot: Slot) -> None:
        """Watch all ends of a worker that was started."""
        hub, born = self._pool.hub, slot.newborn
        tail = self._tails[slot] = Tail()
        streams = Lines(to_stderr=False), Lines(to_stderr=True, tail=tail)
        self._streams[slot] = streams
        for fd, lines in zip((born.stdout, born.stderr), streams, strict=True):
            hub.watch(fd, partial(self._read_stream, slot, fd, lines))
        hub.watch(slot.link.fileno(), partial(self._read_link, slot))
        hub.watch(self._end_of(slot), partial(self._on_end, slot))

    def _end_of(self, slot: Slot) -> int:
        born = slot.newborn
        return int(born.process.sentinel) if born.pidfd is None else born.pidfd

    # ------------------------------------------------ frames

    def _read_link(self, slot: Slot) -> None:
        try:
            arrived, is_open = slot.link.receive()
        except GarbageError as error:
            slot.kill(f"it sent garbage on its link ({error})")
            is_open, arrived = False, []
        self._receive_all(slot, arrived)
        if not is_open:
            self._pool.hub.forget(slot.link.fileno())
            # How it ended, the kernel tells in a moment. One that only closed its link is no use.
            self._pool.deadlines.add(
                time.monotonic() + _PARTING, lambda now: slot.kill("it closed its link")
            )

    def _receive_all(self, slot: Slot, arrived: list[Frame]) -> None:
        # Kept until acted on: Ctrl-C may interrupt the run that reads, and what
        # arrived may be another run's.
        slot.arrived.extend(arrived)
        while slot.arrived and not slot.is_garbled:
            if slot.arrived[0].kind in _ENDS:
                self._take_ended(slot)
            else:
                self._receive(slot, slot.arrived.popleft())
        self._release(slot)

    def _take_ended(self, slot: Slot) -> None:
        """Take in the tasks that have ended, up to the next frame that says something else."""
        count = 0
        ended: list[Landing] = []
        for kind, flags, number, body in slot.arrived:
            if kind not in _ENDS or slot.is_garbled:
                break
            count += 1
            if kind == frames.RESULTS:
                ended += self._landings(slot, body)
            elif (flight := slot.flights.get(number)) is not None:
                ended.append(self._landing(slot, flight, body, flags))
        self._pool.land_all(ended, slot)
        if count == len(slot.arrived):
            slot.arrived.clear()
            return
        for _ in range(count):
            slot.arrived.popleft()

    def _receive(self, slot: Slot, frame: Frame) -> None:
        match frame.kind:
            case frames.READY:
                self._pool.ready(slot)
            case frames.RETURNED:
                slot.returned.append(frame.body)
            case frames.FAILED:
                outcome = messages.unpack_outcome(frame.body, "in the pool's initializer", None)
                slot.failure = outcome.error if isinstance(outcome, Raised) else None
            case frames.PRINTED:
                stream = self._streams[slot][frame.flags & frames.STDERR != 0]
                text = frame.body.decode(errors="replace")
                stream.write(text, slot.flights.get(frame.number), slot.pid)
            case _:
                try:
                    self._on_message(slot, frame)
                except Exception as error:  # noqa: BLE001 - a user's class may raise anything
                    # Nobody else's run, nor the rest of this one, shall pay for it.
                    _distrust(slot, error)

    def _on_message(self, slot: Slot, frame: Frame) -> None:
        """Act on what has a pickle in it that user code may have had a hand in."""
        flight = slot.flights.get(frame.number)
        if frame.kind == frames.LOGGED and frame.flags & frames.STRUCTURED:
            pass_on_event(frame.body)
        elif frame.kind == frames.LOGGED:
            pass_on_record(frame.body, flight, slot.pid)
        elif flight is not None:
            self._on_news(slot, flight, frame)

    def _on_news(self, slot: Slot, flight: Flight, frame: Frame) -> None:
        """Act on what a running task says."""
        policy = flight.job.timeout
        if policy is not None and (frame.kind == frames.BEAT or policy.refresh_on == "auto"):
            flight.alive = time.monotonic()
        if frame.kind == frames.EMITTED:
            chunk = serialization.unpack(frame.body)
            backlog = self._pool.brake.before_post(flight, len(frame.body))
            self._pool.post(flight, Emitted(flight.job.info.task_id, chunk))
            if backlog is not None:
                self._pool.brake.hold(slot, flight, backlog)
        elif frame.kind == frames.CALLED:
            self._on_called(flight, frame.body)
        elif frame.kind == frames.ASKED:
            self._desk.serve(slot, flight, frame.body)

    def _release(self, slot: Slot) -> None:
        """Release what the worker reads no more, after its next task may have been given it."""
        while slot.returned:
            for ref_id in shared_memory.released_in(slot.returned.pop()):
                self._pool.arena.release(ref_id)
                slot.reads.discard(ref_id)

    def _landings(self, slot: Slot, body: bytes) -> list[Landing]:
        """Return how those tasks have ended that made but one small write."""
        try:
            landings = slot.landings(unpack_results(body))
        except Exception as error:  # noqa: BLE001 - whatever stands there, it is not from us
            _distrust(slot, error)
            return []
        self._pool.dispatch.measured_all(landings)
        return landings

    def _landing(self, slot: Slot, flight: Flight, body: bytes, flags: int) -> Landing:
        """Return how a task has ended."""
        seconds, began = RAN.unpack_from(body)
        self._pool.dispatch.measured(flight, seconds)
        at, caught = _OUTCOME_AT, None
        try:
            if flags & frames.CAUGHT:
                caught, at = messages.unpack_caught(body, at)
            info = flight.job.info
            origin = f"in task {info.name!r} (attempt {info.attempt}), worker pid {slot.pid}"
            outcome = messages.unpack_outcome(body, origin, slot.open, at)
            messages.give_name(outcome, info.name)
        except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
            cause = f"{type(error).__name__}: {error} (in the coordinator)"
            name = flight.job.info.name
            outcome = Raised(TaskSerializationError(name, "the result", "result", cause))
        if flags & frames.STOPPED and flight.stopping is not None:
            outcome = stopped_outcome(flight)
        return flight, flight.ended(outcome, (began, seconds, "processes", slot.pid), caught)

    def _on_called(self, flight: Flight, body: bytes) -> None:
        request = int.from_bytes(body[:4], "little")
        at = 4 + serialization.DIGEST_SIZE
        size = int.from_bytes(body[at : at + 8], "little")
        digest, depth = body[4:at], flight.party.depth + 1
        node = self._pool.called_nodes.find(digest, depth)
        if node is None:
            node = serialization.loads(body[at + 8 : at + 8 + size])
            self._pool.called_nodes.keep(digest, depth, node)
        arguments, fingerprint, describe, carried = serialization.unpack(body[at + 8 + size :])
        assert isinstance(arguments, Arguments)
        info = flight.job.info
        call = Call(info.task_id, info.attempt, node, arguments, fingerprint, describe)
        call.reply = (flight, request)
        if carried is not None:
            call.variables = messages.variables_of(carried)
        self._pool.called(flight, request)
        self._pool.post(flight, call)

    # ------------------------------------------------ streams

    def _read_stream(self, slot: Slot, fd: int, lines: Lines) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._pool.hub.forget(fd)
            return
        lines.write(data.decode(errors="replace"), slot.running(), slot.pid)

    # ------------------------------------------------ ends

    def _on_end(self, slot: Slot) -> None:
        hub, born = self._pool.hub, slot.newborn
        ended = reap(born.process)
        if ended is None:
            return
        slot.has_ended = True
        hub.forget(self._end_of(slot))
        while slot.link.fileno() in hub:
            self._read_link_to_end(slot)
        for fd, lines in zip((born.stdout, born.stderr), self._streams.pop(slot), strict=True):
            if fd in hub:
                self._read_stream(slot, fd, lines)
                hub.forget(fd)
        slot.end_family()
        starting = slot.state is State.STARTING or slot.failure is not None
        lost = self._pool.remove(slot)
        kills = count_oom_kills()
        report = PostMortem(
            slot.pid, ended, slot.killed, kills > self._oom_kills, self._tails.pop(slot).text()
        )
        self._oom_kills = kills
        running = slot.running()
        slot.close()
        for flight in lost:
            if flight is running:
                self._pool.land(flight, fatal_outcome(flight, report))
            else:
                self._pool.requeue(flight, None if running else report.error(flight.job.info.name))
        if starting:
            cause = slot.failure or report.error("(starting)")
            self._pool.lose_start(slot, cause)
        self._pool.pump()

    def _read_link_to_end(self, slot: Slot) -> None:
        try:
            arrived, _ = slot.link.receive()
        except GarbageError:
            arrived = []
        self._receive_all(slot, arrived)
        if not arrived:
            self._pool.hub.forget(slot.link.fileno())


def _distrust(slot: Slot, error: Exception) -> None:
    """End a worker that has sent what cannot be read."""
    slot.kill(f"what it sent cannot be read in the coordinator ({type(error).__name__}: {error})")
    # Nor is anything believed that it says after that, such as that all went well.
    slot.is_garbled = True


def stopped_outcome(flight: Flight) -> Outcome:
    """Return how a task ended that we stopped."""
    policy = flight.job.timeout
    if flight.stopping == "cancel" or flight.stopping is None or policy is None:
        return Withdrawn()
    now = time.monotonic()
    name = flight.job.info.name
    if flight.stopping == "run":
        elapsed, limit = now - flight.started, _seconds(policy.run_timeout)
    else:
        elapsed, limit = now - flight.alive, _seconds(policy.idle_timeout)
    return Raised(NodeTimeoutError(name, elapsed, flight.stopping, limit))


def _seconds(value: object) -> float:
    assert isinstance(value, float)  # TimeoutPolicy has made it so
    return value


def fatal_outcome(flight: Flight, report: PostMortem) -> Outcome:
    """Return how a task ended that lost its worker."""
    if flight.stopping is not None:
        return stopped_outcome(flight)
    return Raised(report.error(flight.job.info.name))
