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
"""Seconds for which a batch of tasks should keep a slot (the permission to run one
task) of a machine busy.
"""
_LEAST_SECONDS: Final = 0.02
"""Seconds of work up to which a batch may take more than its fair share of the waiting
tasks, because it does not pay to divide such short work among machines.
"""
_AHEAD: Final = 1.0
"""The greatest expected duration, in seconds, of tasks that are sent to a machine ahead
of time, before a slot there is free.
"""


class Buffers(Arena):
    """The large buffers of tasks' arguments. The engine gets each of them only once for
    all tasks.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._ids = count(1)
        self._shared: dict[int, tuple[RemoteBuffer, memoryview]] = {}
        self._unused: deque[int] = deque()
        """The keys of buffers that no task will get any more, appended by
        finalizers.
        """

    def share(self, data: memoryview) -> BufferRef:
        """Register *data* until it is released, and return a reference to it."""
        holder: Any = data.obj
        if origin_of(data) is None:
            buffer = self._new_buffer()
        else:
            # The content of shared memory does not change. So all tasks get the same
            # `RemoteBuffer`, and the engine gets the content only once.
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
        """Return the engine's handles of buffers, by the key of the buffer.

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
        """Forget the engine's handles of the buffers of a task that was taken back from
        a machine.

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
        """Drop the references of one task to its buffers."""
        for ref_id in ref_ids:
            self._shared.pop(ref_id, None)


@dataclass(slots=True, eq=False, weakref_slot=True)
class RemoteBuffer:
    """A large buffer that the engine moves to machines."""

    key: int
    handle: Any = None
    """The engine's handle of the buffer, or None until the engine has the buffer."""


@dataclass(slots=True)
class Inbox:
    """The count of the frames that the coordinator has received from one machine, so
    that none is handled twice.
    """

    epoch: int = 0
    """The epoch of the machine's client for this coordinator. A new client has a new
    epoch, and its frames are counted from zero.
    """
    received: int = 0
    """The number of frames that were received since the epoch began."""
    is_paused: bool = False
    """True if no more frames are requested for now, because a run has not processed the
    earlier ones yet.
    """

    def new_frames(
        self,
        epoch: int,
        first: int,
        frames: Sequence[Any],
    ) -> Sequence[Any]:
        """Return those of *frames* that were not received before, and count them.

        Args:
            epoch: The epoch of the frames.
            first: The number of frames that came before the first of *frames*.
            frames: The frames of one answer, some of which may have come before.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self.received = first
        unread = frames[self.received - first :]
        self.received = max(self.received, first + len(frames))
        return unread


@dataclass(slots=True)
class MachineReport:
    """The properties of a machine, from its answers and the engine's list."""

    nodename: str = ""
    """The machine's host name."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """The amounts of memory, in bytes, and of GPUs."""
    cpus: int = 0
    """The number of CPUs, as listed by the engine."""
    is_compared: bool = False
    """True if the coordinator has requested the versions of the machine's packages."""
    booked: Collection[str] = ()
    """The names of the resources whose use the engine itself tracks on the machine:
    memory, GPUs, both or none.
    """


@dataclass(slots=True)
class HostMemory:
    """The large buffers that a machine keeps for the coordinator."""

    sent: set[int] = field(default_factory=set)
    """The keys of buffers of arguments that the machine may have kept."""
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    """The commands that free memory. They are sent with the next poll (request for
    frames), which is not made earlier because of them.
    """

    def forget(self, key: int) -> None:
        """Make the machine free its copy of an argument's buffer that no task will get
        any more.
        """
        if key in self.sent:
            self.sent.remove(key)
            self.commands.append(("forget", 0, 0, key))

    def drop(self, key: int) -> None:
        """Make the machine drop the buffers of a result that the coordinator has
        fetched, or does not need.
        """
        self.commands.append(("drop", 0, 0, key))


@dataclass(slots=True, eq=False)
class RemoteHost:
    """The coordinator's record of one machine."""

    address: str
    slots: HostSlots = field(default_factory=HostSlots)
    batches: dict[int, RemoteBatch] = field(default_factory=dict)
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    """The commands for the machine, which are sent at the end of this turn of the
    loop.
    """
    memory: HostMemory = field(default_factory=lambda: HostMemory())
    is_used: bool = False
    """True if the machine gets a handshake, because a batch was sent to it, or a task
    waits for resources that it may have. A machine that is not used has no pool of
    worker processes.
    """
    last_seen: float = 0.0
    """The time of the machine's last answer, or, if that is later, the time at which it
    got a batch while it had none. The `EngineWatch` has the clock for these times.
    """
    report: MachineReport = field(default_factory=lambda: MachineReport())
    refusal: str | None = None
    """The reason why the machine cannot run tasks, an empty string if it can, or None
    until it has answered the handshake.
    """
    inbox: Inbox = field(default_factory=lambda: Inbox())
    poll: Future[Any] | None = None
    """The poll (request for frames) or handshake that the machine has not answered yet,
    or None.
    """
    is_silent: bool = False
    """True if the machine was abandoned, because it did not answer, and has not
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
        """True if the machine has answered the handshake, and was not abandoned
        since.
        """
        return self.refusal is not None and not self.is_silent

    @property
    def totals(self) -> dict[str, float]:
        """The amounts of the machine's resources."""
        return {**self.report.amounts, "cpus": float(self.report.cpus)}

    @property
    def has_slot(self) -> bool:
        """True if the machine may get tasks, and has a free slot."""
        return self.is_open and self.load < 1

    @property
    def size(self) -> int:
        """The number of slots on the machine that get batches, without those whose turn
        has ended.
        """
        return len(self.slots.active)

    @property
    def needed_slots(self) -> int:
        """The number of slots that the batches occupy.

        A batch whose task waits for calls occupies none, but one slot is kept even if
        all batches wait.
        """
        return max(self.busy_slots, min(1, len(self.batches)))

    @property
    def lacking_slots(self) -> int:
        """The number of slots that must be requested on this machine: for allocations
        without a slot, and for running tasks of several CPUs, which begin with one
        slot.
        """
        lacking = 0
        if self.slots.demand:
            free = max(0, self.size - self.busy_slots)
            lacking = max(0, self.slots.demand - free)
        largest = max(
            (batch.slot_count for batch in self.batches.values()),
            default=1,
        )
        # Batches of one slot each are not counted: some of them were sent ahead of
        # time, and wait for a free slot.
        if largest > 1:
            lacking += max(0, self.busy_slots - self.slots.count)
        return lacking

    def free_allocation(self, size: AllocationSize) -> Allocation | None:
        """Return a free allocation of *size* for the next batch, or None if there is
        none.

        Args:
            size: The GPUs and the memory of the batch's task.
        """
        for allocation in self.slots.allocations.values():
            is_free = allocation.batch_id not in self.batches
            if is_free and allocation.size == size and not allocation.is_leaving:
                return allocation
        return None

    def note_greeting(self, greeting: Greeting) -> None:
        """Record the machine's answer to the handshake."""
        self.refusal = greeting.refusal
        self.report.nodename = greeting.host
        self.report.amounts = greeting.amounts

    def note_begun(self, batch_ids: Iterable[int]) -> None:
        """Record that the machine has received some batches.

        Args:
            batch_ids: The ids of the batches. Some of them may have ended.
        """
        for batch_id in batch_ids:
            batch = self.batches.get(batch_id)
            if batch is not None and not batch.has_begun:
                batch.has_begun = True

    @property
    def busy_slots(self) -> int:
        """The number of slots that the batches occupy, without those whose task waits
        for calls.
        """
        busy = 0
        for batch in self.batches.values():
            if not batch.is_waiting:
                busy += batch.slot_count
        return busy

    @property
    def load(self) -> float:
        """The ratio of the occupied slots to the slots that get batches, or infinity if
        there are no such slots.
        """
        return self.busy_slots / self.size if self.size else inf

    def forgotten_batches(self, batch_ids: Sequence[int]) -> list[RemoteBatch]:
        """Return the batches that the machine has lost: it received them, but its new
        client for this coordinator does not have them.

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

        The machine may have ended its client for this coordinator, which then never
        answers the present poll.
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
        """Cancel the delivery of all batches by the engine, and make the machine end
        its client for this coordinator.
        """
        for batch in self.batches.values():
            batch.cancel()
        if self.is_used:
            self.commands.append(("end", 0, 0))

    def lost_batches(
        self,
        since: float,
    ) -> list[RemoteBatch]:
        """Return the batches to abandon: all if the machine does not answer, or else
        those that the engine could not deliver.

        Args:
            since: A time. If the machine's last answer is older, it is regarded as
                silent.
        """
        batches = list(self.batches.values())
        if batches and self.last_seen < since:
            self.distrust()
            return batches
        return [batch for batch in batches if batch.failure]


class RemoteHosts(dict[str, RemoteHost]):
    """The machines of a cluster by address, and the decisions about which gets the next
    tasks, and how many.

    Args:
        booked: The names of the resources whose use the engine itself tracks on
            machines that it may add: memory, GPUs, both or none.
    """

    def __init__(self, booked: Collection[str] = ()) -> None:
        super().__init__()
        self.booked = booked
        self._listed: set[str] = set()
        """The addresses in the engine's last list. A machine on which a slot has begun
        may not be in the list yet.
        """

    def forget(self, keys: Iterable[int]) -> None:
        """Make all machines free the buffers of arguments that no task will get any
        more.

        Args:
            keys: The keys of the buffers.
        """
        for key in keys:
            for host in self.values():
                host.memory.forget(key)

    def next_for(self, queue: TaskQueue) -> RemoteHost | None:
        """Return the machine with the least load for the next tasks of *queue*, or None
        if all are busy.
        """
        next_task = next(iter(queue))
        limit = 2 if next_task.seconds <= _AHEAD else 1
        candidates = []
        for host in self.values():
            # While a slot is leaving, nothing is sent ahead of time. Such batches would
            # run in this slot, which would then never be free to be released.
            host_limit = 1 if host.slots.leaving else limit
            if host.is_open and host.load < host_limit:
                candidates.append(host)
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
        """Return the number of batches into which *waiting* tasks of *queue* should be
        divided.

        Args:
            queue: The tasks that wait.
            waiting: The number of these tasks to divide.
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
        """Return the reasons why no machine can run tasks, or an empty string if a
        machine can run tasks, or has not answered yet.
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
        """Add the machines that are new in the engine's list. Remove those that are no
        longer in it, and return them.

        Args:
            machines: The number of CPUs of each machine, by address, as the engine
                lists them.
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
    """Tasks that were sent to a machine together. For the pool, a batch has the role of
    the worker that executes these tasks.
    """

    def __init__(
        self,
        id: int,
        host: RemoteHost,
        tasks: Sequence[InFlight],
    ) -> None:
        self.id = id
        self.remote_host = host
        self.tasks: dict[int, InFlight] = dict(enumerate(tasks))
        """The tasks of the batch that have not ended, by the number that identifies
        each of them in frames (messages).
        """
        for number, task in self.tasks.items():
            task.execution = Execution(self, number)
        self.slot_count: int = _slot_count_of(tasks, host)
        """The number of slots that the batch occupies."""
        self.pid = 0
        self.output: WorkerOutput = WorkerOutput(nothing)
        self.last_activity: float = 0.0
        self.callers: set[int] = set()
        """The numbers of the tasks that have made calls, so that the pool must not
        start them again on another machine.
        """
        self.has_begun: bool = False
        """True if the machine has received the batch."""
        self.delivery: Future[Any] | None = None
        """The engine's future, which is done when the batch has arrived, or None until
        the batch is sent.
        """
        self.failure: BaseException | None = None
        """The error with which the engine failed to deliver the batch, or None."""
        self.handles: Mapping[int, Any] = {}
        """The engine's handles of the large buffers of the tasks' arguments, by key."""
        self.gpus: Sequence[str] = ()
        """The names of the GPUs of the task, if the engine has chosen them."""
        self.reader = self
        self.buffers: Sequence[Any] = ()
        """The large buffers of the frame (message from the machine) that the
        coordinator processes at present.
        """

    @property
    def host(self) -> str:
        """The machine's host name."""
        return self.remote_host.report.nodename

    def loss(self, task: InFlight) -> MachineLostError:
        """Return the error of a task that was lost with this batch.

        Args:
            task: The task. The number of times that it was lost is counted in it.
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
        # This property is read in each turn of the loop. So only the tasks that have
        # made calls are checked, not all tasks of the batch.
        for number in self.callers:
            task = self.tasks.get(number)
            if task is not None and task.execution.calls:
                return True
        return False

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
        """Cancel the delivery of the batch by the engine, if the delivery has begun."""
        if self.delivery is not None:
            self.delivery.cancel()

    def open(self, ref: BufferRef) -> memoryview:
        """Return a large buffer of the frame that the coordinator processes at present.
        The buffer is readable and writable.
        """
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
        """Queue a command about *task* for the machine. It is sent at the end of this
        turn of the loop.
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
        """Request frames from the machine again, if the requests were paused."""
        self.remote_host.inbox.is_paused = False
