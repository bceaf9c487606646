"""The coordinator's records of remote machines: their batches and large buffers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from typing import Any, Final
from weakref import WeakKeyDictionary

from flowpregel.context import nothing
from flowpregel.errors import MachineLostError
from flowpregel.executors.cluster.engine_watch import LOST_AFTER
from flowpregel.executors.cluster.handshake import Greeting
from flowpregel.executors.cluster.host_slots import (
    Allocation,
    AllocationSize,
    HostSlots,
)
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    Execution,
    InFlight,
    TaskQueue,
    WorkerLoad,
)
from flowpregel.executors.processes.coordinator.side_threads import WorkerOutput
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.wire.serialization import BufferRef
from flowpregel.executors.processes.wire.shared_memory import Arena, origin_of

_BATCH_SECONDS: Final = 0.2
"""Seconds for which a batch should keep a slot of a machine busy."""
_LEAST_SECONDS: Final = 0.02
"""Seconds of work that are too short to be distributed among machines."""
_AHEAD: Final = 1.0
"""The greatest duration, in seconds, of a task that is sent before a slot is free."""


class Buffers(Arena):
    """The large buffers of tasks, each of which the engine moves once for all tasks."""

    def __init__(self) -> None:
        super().__init__(0)
        self._ids = count(1)
        self._shared: dict[int, tuple[RemoteBuffer, memoryview]] = {}
        self._unused: deque[int] = deque()
        """The keys of buffers that no task will get any more. Finalizers append them.
        """

    def share(self, data: memoryview) -> BufferRef:
        """Keep *data* until it is released."""
        holder: Any = data.obj
        if origin_of(data) is None:
            buffer = self._new_buffer()
        else:
            # The content of shared memory does not change, so one buffer is reused and
            # the engine gets the content only once.
            if not hasattr(holder, "remote_buffers"):
                holder.remote_buffers = WeakKeyDictionary()
            if self not in holder.remote_buffers:
                holder.remote_buffers[self] = self._new_buffer()
            buffer = holder.remote_buffers[self]
        ref = BufferRef(
            next(self._ids),
            buffer.key,
            data.nbytes,
        )
        self._shared[ref.id] = (buffer, data)
        return ref

    def _new_buffer(self) -> RemoteBuffer:
        key = next(self._ids)
        buffer = RemoteBuffer(key)
        weakref.finalize(buffer, self._unused.append, key).atexit = False
        return buffer

    def take_unused(self) -> Iterator[int]:
        """Yield the keys of the buffers that no task will get any more, each once."""
        while self._unused:
            yield self._unused.popleft()

    def view(self, ref: BufferRef) -> memoryview:
        """Return the bytes of a buffer."""
        _, data = self._shared[ref.id]
        return data.cast("B")

    def handles(
        self,
        refs: Sequence[BufferRef],
        put: Callable[[memoryview], Any],
    ) -> dict[int, Any]:
        """Return the engine's handles of buffers, by their keys.

        Args:
            refs: References to the buffers.
            put: A function that passes a buffer without a handle to the engine, and
                returns the handle.
        """
        handles = {}
        for ref in refs:
            buffer, data = self._shared[ref.id]
            buffer.handle = buffer.handle or put(data)
            handles[buffer.key] = buffer.handle
        return handles

    def forget(
        self,
        refs: Sequence[BufferRef],
        handles: Mapping[int, Any],
    ) -> None:
        """Forget the engine's handles of the buffers of a task that was taken back.

        The machine that held a buffer may be lost. The engine gets the buffer again
        with the next batch.

        Args:
            refs: References to the buffers.
            handles: The handles of the lost batch, by the keys of the buffers.
        """
        for ref in refs:
            buffer, _ = self._shared[ref.id]
            if buffer.handle is handles.get(buffer.key):
                buffer.handle = None

    def release(self, ref_ids: Iterable[int]) -> None:
        """Drop the references of one task."""
        for ref_id in ref_ids:
            self._shared.pop(ref_id, None)


@dataclass(slots=True, eq=False, weakref_slot=True)
class RemoteBuffer:
    """A large buffer that the engine moves to machines."""

    key: int
    handle: Any = None
    """The engine's handle, or None until the engine has the buffer."""


@dataclass(slots=True)
class Inbox:
    """The position of the coordinator in the frames of one machine."""

    epoch: int = 0
    """The epoch of the machine's mailbox. In each epoch, frames are counted from zero.
    """
    received: int = 0
    """The number of frames that were received in this epoch."""
    is_paused: bool = False
    """True if the machine should send no frames, because a run has not read the earlier
    frames yet.
    """

    def new_frames(
        self,
        epoch: int,
        first: int,
        frames: Sequence[Any],
    ) -> Sequence[Any]:
        """Return the frames that were not received before, and count them.

        Args:
            epoch: The epoch of the frames.
            first: The number of frames that came before the first of *frames*.
            frames: The frames.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self.received = first
        unread = frames[self.received - first :]
        self.received = max(self.received, first + len(frames))
        return unread


@dataclass(slots=True)
class MachineReport:
    """The answers of a machine about itself."""

    nodename: str = ""
    """The machine's host name."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """The amounts of memory, in bytes, and of GPUs."""
    cpus: int = 0
    """The number of CPUs, as the engine has listed it."""
    is_compared: bool = False
    """True if the coordinator has requested the versions of the machine's packages."""
    booked: Collection[str] = ()
    """The names of the resources that the engine counts on the machine: memory and
    GPUs.
    """


@dataclass(slots=True)
class HostMemory:
    """The large buffers that a machine keeps for the coordinator."""

    sent: set[int] = field(default_factory=set)
    """The keys of the arguments of tasks that the machine may keep."""
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    """The commands that free memory. They are sent with the next poll, and none is sent
    for them.
    """

    def forget(self, key: int) -> None:
        """Have the machine free the buffer of an argument that no task will get any
        more.
        """
        if key in self.sent:
            self.sent.remove(key)
            self.commands.append(("forget", 0, 0, key))

    def drop(self, key: int) -> None:
        """Have the machine drop buffers of a result that the coordinator has fetched,
        or does not need.
        """
        self.commands.append(("drop", 0, 0, key))


@dataclass(slots=True, eq=False)
class RemoteHost:
    """The coordinator's record of one machine."""

    address: str
    slots: HostSlots = field(default_factory=HostSlots)
    batches: dict[int, RemoteBatch] = field(default_factory=dict)
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    """The commands that are sent to the machine at the end of the loop's turn."""
    memory: HostMemory = field(default_factory=lambda: HostMemory())
    is_used: bool = False
    """True if the machine gets a handshake, because a batch was sent to it or a task
    waits for resources that it may have. Before, it has no pool of worker processes.
    """
    last_seen: float = 0.0
    """The time of the machine's last answer, or of the first present batch, on the
    clock of the `EngineWatch`.
    """
    report: MachineReport = field(default_factory=lambda: MachineReport())
    refusal: str | None = None
    """The reason why the machine cannot run tasks, an empty text if it can, or None
    until it has answered the handshake.
    """
    inbox: Inbox = field(default_factory=lambda: Inbox())
    poll: Future[Any] | None = None
    """The poll (request for messages) or handshake that the host has not answered yet,
    or None.
    """
    is_silent: bool = False
    """True if the machine, or a batch on it, was abandoned, and the machine has not
    answered since.
    """

    @property
    def label(self) -> str:
        """The machine's host name, if it is known, and its address."""
        return f"{self.report.nodename} {self.address}".strip()

    @property
    def is_open(self) -> bool:
        """True if the machine may get tasks."""
        return not (self.is_silent or self.refusal)

    @property
    def is_known(self) -> bool:
        """True if the machine has answered the handshake, and was not silent since."""
        return self.refusal is not None and not self.is_silent

    @property
    def totals(self) -> dict[str, float]:
        """The amounts of the machine's resources."""
        return {**self.report.amounts, "cpus": float(self.report.cpus)}

    @property
    def has_slot(self) -> bool:
        """True if a slot of the machine is free."""
        return self.is_open and self.load < 1

    @property
    def size(self) -> int:
        """The number of slots for which the machine gets batches."""
        return len(self.slots.active)

    @property
    def needed_slots(self) -> int:
        """The number of slots that the batches occupy.

        A batch whose task waits for calls occupies none, but the last slot is kept for
        it.
        """
        return max(self.busy_slots, min(1, len(self.batches)))

    @property
    def lacking_slots(self) -> int:
        """The number of slots that allocations lack, and tasks of several CPUs, which
        have begun with one.
        """
        lacking = 0
        if self.slots.demand:
            free = max(0, self.size - self.busy_slots)
            lacking = max(0, self.slots.demand - free)
        largest = max(
            (batch.slot_count for batch in self.batches.values()),
            default=1,
        )
        # Short tasks are sent before a slot is free, so they lack none.
        if largest > 1:
            lacking += max(0, self.busy_slots - self.slots.count)
        return lacking

    def free_allocation(self, size: AllocationSize) -> Allocation | None:
        """Return an allocation of *size* for the next batch, or None if there is none.

        Args:
            size: The resources of the batch's task.
        """
        for allocation in self.slots.allocations.values():
            is_free = allocation.batch_id not in self.batches
            if is_free and allocation.size == size and not allocation.is_leaving:
                return allocation
        return None

    def note_greeting(self, greeting: Greeting) -> None:
        """Note the answer of the machine to the handshake."""
        self.refusal = greeting.refusal
        self.report.nodename = greeting.host
        self.report.amounts = greeting.amounts

    def note_begun(self, batch_ids: Iterable[int]) -> None:
        """Note that the machine has begun these batches.

        Args:
            batch_ids: The ids of batches, some of which may have ended.
        """
        for batch_id in batch_ids:
            batch = self.batches.get(batch_id)
            if batch is not None and not batch.has_begun:
                batch.has_begun = True

    @property
    def busy_slots(self) -> int:
        """The number of slots of the batches, except those that wait for calls."""
        busy = 0
        for batch in self.batches.values():
            if not batch.is_waiting:
                busy += batch.slot_count
        return busy

    @property
    def load(self) -> float:
        """The number of slots of the working batches, for each slot that there is."""
        return self.busy_slots / self.size if self.size else inf

    def forgotten_batches(self, batch_ids: Sequence[int]) -> list[RemoteBatch]:
        """Return the batches whose frames were lost, because the machine has made a new
        client for this coordinator.

        Args:
            batch_ids: The ids of the batches that the new client has.
        """
        return [
            batch
            for batch in self.batches.values()
            if batch.id not in batch_ids and batch.has_arrived
        ]

    def distrust(self) -> None:
        """Send no more tasks to the machine until it has answered a new handshake.

        It may have ended its client of this coordinator, and then leaves a poll
        without an answer.
        """
        self.is_silent = True
        self.refusal = None
        self.poll = None

    def take_commands(self) -> list[tuple[Any, ...]]:
        """Return the commands for the next poll, and clear them."""
        commands = self.commands + self.memory.commands
        self.commands = []
        self.memory.commands = []
        return commands

    def abandon(self) -> None:
        """Cancel the engine's tasks of all batches, and have the machine end its client
        of this coordinator.
        """
        for batch in self.batches.values():
            batch.cancel()
        if self.is_used:
            self.commands.append(("end", 0, 0))

    def lost_batches(
        self,
        since: float,
    ) -> list[RemoteBatch]:
        """Return the batches to abandon: all if the machine is silent, or else those
        that the engine could not deliver.

        Args:
            since: The time since which the machine must have answered.
        """
        batches = list(self.batches.values())
        if batches and self.last_seen < since:
            self.distrust()
            return batches
        return [batch for batch in batches if batch.failure]


class RemoteHosts(dict[str, RemoteHost]):
    """The machines by address, and the decisions about them.

    Args:
        booked: The names of the resources that the engine counts on each machine that
            may come: memory and GPUs.
    """

    def __init__(self, booked: Collection[str] = ()) -> None:
        super().__init__()
        self.booked = booked
        self._listed: set[str] = set()
        """The addresses that the engine has listed. A slot may begin on a machine
        before the engine lists it.
        """

    def forget(self, keys: Iterable[int]) -> None:
        """Have machines free the buffers of arguments that no task will get any more.

        Args:
            keys: The keys of the buffers.
        """
        for key in keys:
            for host in self.values():
                host.memory.forget(key)

    def next_for(self, queue: TaskQueue) -> RemoteHost | None:
        """Return the machine for the next tasks of *queue*, or None if all are busy."""
        next_task = next(iter(queue))
        limit = 2 if next_task.seconds <= _AHEAD else 1
        candidates = [
            host for host in self.values() if host.is_open and host.load < limit
        ]
        if not candidates:
            return None
        return min(
            candidates,
            key=lambda host: host.load,
        )

    def batch_count(
        self,
        queue: TaskQueue,
        waiting: int,
    ) -> int:
        """Return the number of batches into which tasks of *queue* should be divided.

        Args:
            queue: The tasks that wait.
            waiting: The number of those that are counted.
        """
        next_task = next(iter(queue), None)
        if next_task is None:
            return 0
        seconds = min(
            next_task.seconds,
            _BATCH_SECONDS,
        )
        return ceil(waiting * seconds / _BATCH_SECONDS)

    def batch_size(
        self,
        tasks: Iterable[InFlight],
        waiting: int,
    ) -> int:
        """Return the number of tasks in the next batch: the first ones among *tasks*
        that together keep one slot busy for a while.

        A batch takes no more than a fair share of the waiting tasks, so that the other
        slots get some too, unless the tasks are very short.

        Args:
            tasks: The waiting tasks, in order.
            waiting: The number of *tasks*.
        """
        slots = max(1, sum(host.size for host in self.values()))
        fair_share = waiting // (2 * slots)
        size = 0
        seconds = 0.0
        for task in tasks:
            seconds += task.seconds
            limit = _BATCH_SECONDS if size < fair_share else _LEAST_SECONDS
            if size and seconds > limit:
                break
            size += 1
        return size

    def problem(self) -> str:
        """Return the reasons why no machine can run tasks, or an empty text if a
        machine can, or may be able to.
        """
        reasons = [
            f"{host.label}: {host.refusal}" for host in self.values() if host.refusal
        ]
        if not reasons or len(reasons) < len(self):
            return ""
        return f"no machine of the cluster can run the tasks: {'; '.join(reasons)}"

    def note_machines(
        self,
        machines: Mapping[str, int],
    ) -> list[RemoteHost]:
        """Add the machines that have come. Remove those that have gone, and return
        them.

        Args:
            machines: The engine's machines and their sizes.
        """
        for address, cpus in machines.items():
            host = self.setdefault(address, RemoteHost(address))
            host.report.cpus = cpus
        gone: list[RemoteHost] = []
        for host in list(self.values()):
            slots = host.slots
            is_empty = not (slots.count or slots.allocations or host.batches)
            if host.address in machines:
                continue
            if is_empty or host.address in self._listed:
                gone.append(self.pop(host.address))
        self._listed = set(machines)
        return gone


def _slot_count_of(tasks: Sequence[InFlight], host: RemoteHost) -> int:
    """Return the number of slots that a batch takes: the CPUs of a single task, but at
    least one, and no more than the machine has.
    """
    needs = tasks[0].needs if tasks else None
    cpus = (needs or ONE_CPU).amounts.get("cpus", 0.0)
    most = max(1, host.report.cpus)
    return max(1, ceil(min(cpus, most)))


class RemoteBatch:
    """Tasks on a machine. The batch has the role of the worker that has the tasks."""

    def __init__(
        self,
        id: int,
        host: RemoteHost,
        tasks: Sequence[InFlight],
    ) -> None:
        self.id = id
        self.remote_host = host
        self.tasks: dict[int, InFlight] = dict(enumerate(tasks))
        """The tasks that have not ended, by number."""
        for number, task in self.tasks.items():
            task.execution = Execution(self, number)
        self.slot_count: int = _slot_count_of(tasks, host)
        """The number of slots that the batch takes."""
        self.pid = 0
        self.output: WorkerOutput = WorkerOutput(nothing)
        self.last_activity: float = 0.0
        self.callers: set[int] = set()
        """The numbers of the tasks that have made calls, so that they cannot start
        again on another machine.
        """
        self.has_begun: bool = False
        """True if the machine has the tasks."""
        self.delivery: Future[Any] | None = None
        """The engine's future for the arrival of the batch, or None until the batch is
        sent.
        """
        self.failure: BaseException | None = None
        """The error with which the engine has failed the batch, or None."""
        self.handles: Mapping[int, Any] = {}
        """The engine's handles of the large buffers that the tasks get, by key."""
        self.gpus: Sequence[str] = ()
        """The names of the GPUs of the task, if the engine has chosen them."""
        self.reader = self
        self.buffers: Sequence[Any] = ()
        """The large buffers of the frame that is being read."""

    @property
    def host(self) -> str:
        """The machine's host name."""
        return self.remote_host.report.nodename

    def loss(self, task: InFlight) -> MachineLostError:
        """Return the error of a task that was lost with this batch.

        Args:
            task: The task, which counts its losses.
        """
        host = self.remote_host
        cause = "the engine no longer has the machine"
        if self.failure is not None:
            cause = f"{type(self.failure).__name__}: {self.failure}"
        elif host.is_silent:
            cause = f"it did not answer for {LOST_AFTER:g} s"
        error = MachineLostError(
            task.job.task.name,
            host.label,
            cause,
            task.failed_starts,
        )
        error.__cause__ = self.failure
        return error

    @property
    def is_waiting(self) -> bool:
        """True if a task of the batch waits for its calls."""
        return any(task.execution.calls for task in self.tasks.values())

    @property
    def load(self) -> WorkerLoad:
        """The resources that the batch takes, which are those of a single task."""
        state = WorkerState.BUSY
        if self.is_waiting:
            state = WorkerState.WAITING
        task = next(iter(self.tasks.values()))
        needs = task.needs or ONE_CPU
        return WorkerLoad(
            state,
            held=needs.amounts,
            needs=needs,
        )

    @property
    def has_arrived(self) -> bool:
        """True if the machine has received the batch."""
        return self.has_begun or (self.delivery is not None and self.delivery.done())

    def cancel(self) -> None:
        """Cancel the delivery, if there is one."""
        if self.delivery is not None:
            self.delivery.cancel()

    def open(self, ref: BufferRef) -> memoryview:
        """Return a large buffer, which is readable and writable."""
        return memoryview(self.buffers[ref.segment]).cast("B")

    def sender_of(self, number: int) -> InFlight | None:
        """Return the task that sent a frame with *number*, or None if it has ended."""
        return self.tasks.get(number)

    def command(
        self,
        verb: str,
        task: InFlight,
        *arguments: Any,
    ) -> None:
        """Have a command about *task* sent to the machine at the end of the loop's
        turn.
        """
        message = (
            verb,
            self.id,
            task.execution.number,
            *arguments,
        )
        self.remote_host.commands.append(message)

    def answer(
        self,
        task: InFlight,
        request: int,
        body: bytes,
    ) -> None:
        """Send the answer to a request of *task*."""
        self.command(
            "answer",
            task,
            request,
            body,
        )

    def resume_reading(self) -> None:
        """Request frames from the machine again, if it was paused."""
        self.remote_host.inbox.is_paused = False
