"""The common part of executors on the machines of an engine, such as Dask or Ray.

::

    start(jobs) -> queue -> batches -> an engine's message -> the pool of a machine
                                                                    |
    mailbox <- RemotePool <------------ frames of workers <---------+

The engine moves bytes, and grants the coordinator slots on its machines (`slots`), each
of which is the permission to run a task. The coordinator decides which of these
machines gets which batch of tasks. If a machine no longer answers, the coordinator
abandons its batches, and sends their tasks to another machine if they may start again.
Late frames of an abandoned batch are dropped. This is safe, because only the
coordinator records results.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from flowpregel._core.calls import MACHINE_LOSSES
from flowpregel._core.records import Raised, Withdrawn
from flowpregel.context import Job, nothing
from flowpregel.errors import ExecutorUnavailableError, WorkerDiedError
from flowpregel.executors.base import JobKey
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.engine_watch import (
    CHECK_EVERY,
    LOST_AFTER,
    AwakeClock,
    EngineWatch,
)
from flowpregel.executors.cluster.handshake import read_report
from flowpregel.executors.cluster.machine_calls import MachineCalls
from flowpregel.executors.cluster.placement import HostPlacement, order_of
from flowpregel.executors.cluster.remote_hosts import (
    Buffers,
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.cluster.reused_memory import ReusedMemory
from flowpregel.executors.cluster.shipping import (
    Parcel,
    ShippingEncoder,
    missing_module,
)
from flowpregel.executors.cluster.slots import SlotLedger
from flowpregel.executors.cluster.version_warnings import VersionWarnings
from flowpregel.executors.processes.coordinator.arrivals import AnyOutcome
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.crash_report import unreadable_message
from flowpregel.executors.processes.coordinator.resources import OF_THE_MACHINE
from flowpregel.executors.processes.coordinator.task_pool import TaskPool
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.protocol import Frame, PoolSettings
from flowpregel.executors.resources import SharedLimits

FAREWELL: Final = 2.0
"""Seconds that the closing of the pool waits for machines to end its tasks."""


class RemotePool(ClusterEngine, TaskPool):
    """The base class of pools on the machines of an engine: the machines, the tasks on
    them, and the waiting tasks.

    A pool is used on the I/O thread only.

    Args:
        kind: The name of the engine, for spans and errors.
        timeout: Seconds for which tasks wait if there is no machine.
        clock: The clock on which the time since a machine's last answer is measured. By
            default, the pool makes one.
        limits: The named limits, as `limits_of_cluster` returns them. The default is
            none.
    """

    def __init__(
        self,
        kind: str,
        timeout: float,
        clock: AwakeClock | None = None,
        limits: SharedLimits | None = None,
    ) -> None:
        self._buffers = Buffers()
        self._memory = ReusedMemory()
        self.limits: SharedLimits = limits or SharedLimits()
        # The ledger sets no limits on CPUs, memory and GPUs: these are compared for
        # each machine when a task is placed, because machines come and go.
        settings = PoolSettings(
            size=0,
            grace=LOST_AFTER,
            amounts={**dict.fromkeys(OF_THE_MACHINE, inf), **self.limits.limits},
            limits_scope=self.limits.scope,
        )
        super().__init__(settings, self._buffers)
        self.encoder: ShippingEncoder = ShippingEncoder(self._buffers)
        self.kind = kind
        self.name: str = os.urandom(8).hex()
        """The unique name of this coordinator, by which the machines distinguish the
        programs that use them.
        """
        self.hosts: RemoteHosts = RemoteHosts(self.booked_resources())
        self._batch_ids = count(1)
        clock = clock or AwakeClock()
        self._watch = EngineWatch(kind, timeout, self.machines, clock)
        self.size: int = self._watch.size
        self._placement = HostPlacement(
            self._queue,
            self.hosts,
            self.resources,
            timeout,
        )
        self._calls = MachineCalls(self, self.loop, self._watch.clock)
        self._warnings = VersionWarnings(self, self._calls, self.output)
        self._slots = SlotLedger(
            self,
            self.hosts,
            self.loop,
            self._placement.slot_addresses,
        )
        self._farewells: list[Future[Any]] = []
        """The futures of the last messages to machines before the pool closes."""

    def start(self) -> None:
        """Start the I/O thread, and the OS thread that finds the engine's machines."""
        self.loop.call(self._check_again)
        self._watch.start()
        super().start()

    def release(self) -> None:
        wait(self._farewells, FAREWELL)
        self.release_machines()
        super().release()

    # ------------------------------------------------ methods for any OS thread

    def slot_begun(self, slot: int, address: str, gpus: Sequence[str] = ()) -> None:
        """Record that a slot or an allocation has begun. The plug-in for the engine
        calls this.

        Args:
            slot: The slot, one of those that `request_slots` or `request_allocations`
                was called with.
            address: The machine's address.
            gpus: The names of the GPUs of an allocation, as in
                ``CUDA_VISIBLE_DEVICES``, or an empty sequence if the pool of the
                machine chooses them.
        """
        self.loop.call(partial(self._slots.begin, slot, address, gpus))

    def slot_ended(self, slot: int, error: BaseException) -> None:
        """Record that a slot has ended, or could not begin. The plug-in for the engine
        calls this.

        Args:
            slot: The number of the slot. If it was released, this call does nothing.
            error: The error with which the slot has ended.
        """
        self.loop.call(partial(self._slots.end, slot, error))

    # ------------------------------------------------ accepting tasks

    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a waiting task. If *kill*, also stop a running task."""
        task = self.withdraw(key)
        if task is not None:
            task.execution.worker.command("cancel", task, kill)

    def warn(self, key: JobKey) -> None:
        """Withdraw a waiting task, or warn a running task that its run will end."""
        task = self.withdraw(key)
        if task is not None:
            task.execution.worker.command("warn", task)

    def _dispatch(self) -> None:
        """Send batches and commands to the machines, and post events."""
        while (batch := self._placement.next_batch(self._tasks)) is not None:
            self._send(*batch)
        if not self._is_closing:
            self._slots.update(*self._placement.demand())
        self.hosts.forget(self._buffers.take_unused())
        for host in self.hosts.values():
            self._contact(host)
        self._post_events()

    def _contact(self, host: RemoteHost) -> None:
        """Send the pending commands to *host*, and request its handshake or its next
        frames, unless an earlier request still waits for its answer.
        """
        if not host.is_used:
            return
        if host.refusal is None:
            if host.poll is None:
                self._greet(host)
        elif host.refusal:
            self._calls.send_commands(host)
        elif host.commands or host.poll is None:
            self._poll(host)

    def _greet(self, host: RemoteHost) -> None:
        """Request the handshake of *host*."""
        callback = partial(self._on_greeted, host)
        host.poll = self._calls.ask(callback, self.connect, host.address)

    def _poll(self, host: RemoteHost) -> None:
        """Send the pending commands to *host*, and request frames."""
        commands = host.take_commands()
        host.poll = self._calls.ask(
            partial(self._on_polled, host, commands),
            self.call,
            host.address,
            "poll",
            commands,
            host.inbox.epoch,
            host.inbox.received,
            not host.inbox.is_paused,
            host.slots.count,
        )

    def _send(self, host: RemoteHost, tasks: Sequence[InFlight]) -> None:
        """Send *tasks* to *host* as a batch."""
        for task in tasks:
            self.resources.count_start(task)
        batch = RemoteBatch(next(self._batch_ids), host, tasks)
        self._placement.allocate(batch)
        if not host.batches:
            host.last_seen = self._watch.clock.now
        host.batches[batch.id] = batch
        host.is_used = True
        # Frames are requested from the machine again even if they were paused, because
        # another run may be waiting for these tasks.
        host.inbox.is_paused = False
        if host.refusal is not None:
            self._ship(batch)

    def _ship(self, batch: RemoteBatch) -> None:
        """Pass *batch* to the engine, which delivers it to its machine."""
        host = batch.remote_host
        orders: list[Any] = []
        handles: dict[int, Any] = {}
        put = partial(self.put_buffer, host.address)
        for task in list(batch.tasks.values()):
            try:
                handles |= self._buffers.handles(task.refs, put)
            except Exception as error:  # noqa: BLE001 - it is the task's failure
                self.finish(task, Raised(error))
                continue
            orders.append(order_of(host, task))
        if orders:
            codes = {task.code.digest: task.code.data for task in batch.tasks.values()}
            packed = pickle.dumps((batch.id, host.slots.count, codes, orders), 5)
            batch.handles = handles
            host.memory.sent.update(handles)
            batch.delivery = self._calls.ask(
                partial(self._on_delivered, batch),
                self.run_batch,
                host.address,
                packed,
                handles,
            )

    # ------------------------------------------------ answers from machines

    def _on_greeted(self, host: RemoteHost, handshake: Future[Any]) -> None:
        """Process the answer of *host* to the handshake: send the batches that have
        waited for the answer, or take them back if the machine cannot run tasks.
        """
        try:
            host.note_greeting(read_report(handshake.result()[0]))
            host.report.booked = self.booked_resources(host.address)
        except (ImportError, AttributeError) as error:
            # The machine has no flowpregel, or a version without this handshake.
            host.refusal = f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - `_check` gives it up if that persists
            self._calls.allow_poll_later(host, handshake, ())
            return
        self._calls.note_answer(host)
        self._calls.allow_poll(host, handshake, ())
        self._placement.note_machines()
        for batch in list(host.batches.values()):
            if host.refusal:
                self._requeue(batch)
            elif batch.delivery is None:
                self._ship(batch)
        if host.refusal:
            self._slots.refuse(host)
        self._warnings.compare(host)
        if host.refusal or self.resources.count:
            self._check()

    def _on_polled(
        self,
        host: RemoteHost,
        commands: list[Any],
        poll: Future[Any],
    ) -> None:
        """Process the frames (messages of workers) in an answer of *host*, and allow
        the next poll.
        """
        try:
            pickled, *buffers = poll.result()
            answer = pickle.loads(pickled, buffers=buffers)
            nodename, epoch, first, frames, batch_ids = answer
        except BaseException:  # noqa: BLE001 - `_check` gives it up if that persists
            # The machine may no longer have a client for this coordinator, so the next
            # request is a handshake. The commands are sent again. The machine may have
            # executed them already, but executing them twice does no harm.
            host.refusal = None
            self._calls.allow_poll_later(host, poll, commands)
            return
        host.report.nodename = nodename
        self._calls.note_answer(host)
        is_new_client = host.inbox.epoch not in (0, epoch)
        host.note_begun(batch_ids)
        for frame in host.inbox.new_frames(epoch, first, frames):
            self._receive(host, *frame)
        if is_new_client:
            for batch in host.forgotten_batches(batch_ids):
                self._lose(batch)
        allow_poll = self._calls.allow_poll
        if host.inbox.is_paused:
            allow_poll = self._calls.allow_poll_later
        allow_poll(host, poll, ())

    def _receive(
        self,
        host: RemoteHost,
        batch_id: int,
        pid: int,
        buffers: Any,
        *fields: Any,
    ) -> None:
        """Process a frame of a worker, unless the batch of the frame's task was
        abandoned.

        If the frame has a key in place of large buffers, fetch these first.
        """
        frame = Frame(*fields)
        is_large = isinstance(buffers, int)
        batch = host.batches.get(batch_id)
        is_end = frame.kind == protocol.ENDED
        if batch is None or (is_end and frame.number not in batch.tasks):
            if is_large:
                host.memory.drop(buffers)
            return
        batch.pid = pid
        host.note_begun((batch_id,))
        if is_large:
            self._fetch(batch, buffers, frame)
        else:
            self._act_on_frame(batch, buffers, frame)

    def _fetch(self, batch: RemoteBatch, key: int, frame: Frame) -> None:
        """Request the large buffers of *frame*, which reports the end of a task."""
        self._calls.ask(
            partial(self._on_fetched, batch, key, frame),
            self.call,
            batch.remote_host.address,
            "fetch",
            key,
        )

    def _on_fetched(
        self,
        batch: RemoteBatch,
        key: int,
        frame: Frame,
        fetched: Future[Any],
    ) -> None:
        """Process *frame* with its buffers. If the buffers could not be fetched, fetch
        them again later.
        """
        is_wanted = frame.number in batch.tasks
        if is_wanted and fetched.exception() is not None:
            retry = partial(self._fetch, batch, key, frame)
            self.loop.call_at(time.monotonic() + CHECK_EVERY, retry)
            return
        batch.remote_host.memory.drop(key)
        if is_wanted:
            _, *buffers = fetched.result()
            self._act_on_frame(batch, buffers, frame)

    def _act_on_frame(
        self,
        batch: RemoteBatch,
        buffers: Sequence[Any],
        frame: Frame,
    ) -> None:
        try:
            batch.buffers = [self._memory.writable(buffer) for buffer in buffers]
            self.handlers[frame.kind](batch, frame)
        except BaseException as error:  # noqa: BLE001 - a user's class may raise any
            task = batch.tasks.get(frame.number)
            if task is not None:
                self._end_as_died(
                    task,
                    batch,
                    unreadable_message(error),
                )
        finally:
            batch.buffers = ()

    def _on_ended(self, batch: RemoteBatch, frame: Frame) -> None:
        if not frame.flags & protocol.NO_MODULE:
            super()._on_ended(batch, frame)
            return
        task = batch.tasks[frame.number]
        self._free(task)
        repack = partial(self._repack, task, missing_module(frame))
        # Unpickling may run the user's code, so it is done on another OS thread.
        self._store_threads.submit(task.mailbox, repack)

    def _answer_request(
        self,
        task: InFlight,
        frame: Frame,
        result_of: Callable[[Job, Any], Any],
    ) -> None:
        with self.encoder.by_value():
            super()._answer_request(task, frame, result_of)

    def _repack(self, task: InFlight, module: str) -> None:
        """Pack *task* again, because a machine lacks *module*."""
        parcel = self.encoder.repack(task, module)
        self.loop.call(partial(self._send_again, task, parcel))

    def _send_again(self, task: InFlight, parcel: Parcel | Raised) -> None:
        """Queue *task* again in its newly packed form, unless it has ended. If it could
        not be packed, end it with the error.
        """
        if isinstance(parcel, Raised):
            self.finish(task, parcel)
            return
        superfluous = parcel.refs
        if task.job.key in self._tasks:
            superfluous = task.refs
            task.code, task.body, task.refs = parcel
            self._queue.add(task)
        self.arena.release(ref.id for ref in superfluous)

    def _end_as_died(
        self,
        task: InFlight,
        batch: RemoteBatch,
        problem: str,
    ) -> None:
        """End *task* with an error, as if its worker had died, and cancel it on its
        machine.
        """
        batch.command("cancel", task, True)
        error = WorkerDiedError(task.job.task.name, batch.pid, problem)
        self.finish(task, Raised(error))

    def _on_delivered(self, batch: RemoteBatch, delivery: Future[Any]) -> None:
        """Record the failure of *batch*, if Dask or Ray could not deliver it."""
        if batch.id not in batch.remote_host.batches:
            return
        if delivery.cancelled():
            batch.failure = CancelledError()
        else:
            batch.failure = delivery.exception()
        if batch.failure is not None:
            # The machine itself may be lost, which the engine may notice only later.
            batch.remote_host.distrust()
            self._check()

    def finish(
        self,
        task: InFlight,
        outcome: AnyOutcome,
        /,
        *details: Any,
    ) -> None:
        """End *task*: post its end to its run.

        Args:
            task: The task to end.
            outcome: The outcome of the task.
            details: The span of the attempt and further details, as `TaskPool.finish`
                takes them.
        """
        self.release_own((task,))
        super().finish(
            task,
            outcome,
            *details,
        )

    def _free(self, task: InFlight) -> None:
        batch = task.execution.worker
        task.execution.release()
        del batch.tasks[task.execution.number]
        if not batch.tasks:
            # The batch and its delivery's future refer to each other. So the references
            # to large buffers are dropped now, not when the garbage collector runs.
            batch.handles = {}
            batch.remote_host.batches.pop(batch.id, None)

    def recall(self, batch: RemoteBatch) -> None:
        """Record which tasks of *batch* have made calls and wait for them, because the
        pool must not start these tasks again on another machine.

        Args:
            batch: The batch of the tasks.
        """
        # No task is taken back from the machine. If tasks wait behind one that waits
        # for calls, the machine's own pool gives them to another worker.
        for number, task in batch.tasks.items():
            if task.execution.calls:
                batch.callers.add(number)

    def pause_reading(self, batch: RemoteBatch, task: InFlight) -> bool:
        """Stop requesting frames from the machine of *batch*, unless another run uses
        the machine.

        Returns:
            True if the machine is paused.
        """
        host = batch.remote_host
        host.inbox.is_paused = all(
            other_task.mailbox is task.mailbox
            for other_batch in host.batches.values()
            for other_task in other_batch.tasks.values()
        )
        return host.inbox.is_paused

    def resume_reading(self, batch: RemoteBatch) -> None:
        """Request frames from the machine of *batch* again."""
        batch.resume_reading()

    def pause_for_output(self, batch: RemoteBatch) -> None:
        """Do nothing: other runs may use the machine, so it is not paused, and excess
        output is dropped.

        Args:
            batch: The batch whose tasks have printed the output.
        """

    def refuse(self, task: InFlight, batch: RemoteBatch) -> None:
        """End *task*, which has sent a message that cannot be unpickled, if *batch*
        still has it.
        """
        if task.execution.worker is batch:
            self._end_as_died(
                task,
                batch,
                task.execution.unreadable or "",
            )

    def leave(
        self,
        contexts: Set[bytes],
        body: bytes,
        result: Future[Sequence[Future[Any]]],
    ) -> None:
        """Ask all machines to exit *contexts*. The future *result* gets a list of the
        futures of their answers.
        """
        answers = []
        for host in self.hosts.values():
            if host.is_used:
                message = (host.address, "forget", list(contexts), body)
                answers.append(self._calls.ask(nothing, self.call, *message))
        result.set_result(answers)

    # ------------------------------------------------ arriving and leaving machines

    def _check_again(self) -> None:
        self._check()
        for host in self.hosts.values():
            self._calls.beat(host)
        self.loop.call_at(time.monotonic() + CHECK_EVERY, self._check_again)

    def _check(self) -> None:
        """Compare the list of machines with the engine's, and abandon the batches of
        machines that do not answer.
        """
        machines = self._watch.machines()
        if machines is not None:
            for host in self.hosts.note_machines(machines):
                self._abandon(host, list(host.batches.values()))
            since = self._watch.clock.now - LOST_AFTER
            for host in self.hosts.values():
                self._abandon(host, host.lost_batches(since))
        problem = self._watch.problem(machines, bool(self._tasks))
        problem = problem or self.hosts.problem() or self._slots.problem()
        if problem:
            for task in list(self._tasks.values()):
                self.finish(task, Raised(ExecutorUnavailableError(problem)))
        self._placement.refuse_unfit(self._watch.clock.now, self.can_grow())

    def _abandon(self, host: RemoteHost, batches: Sequence[RemoteBatch]) -> None:
        """Abandon *batches* of *host*. If the machine itself is lost, abandon its slots
        too.
        """
        for batch in batches:
            self._lose(batch)
        if not host.batches and (batches or self.hosts.get(host.address) is not host):
            self._slots.release_all(host)

    def _lose(self, batch: RemoteBatch) -> None:
        """Abandon *batch*, and queue its tasks again if they may start again.

        A task that has made calls ends with an error instead. Its run starts it again,
        because only the run can answer the repeated calls from its records.
        """
        for number, task in list(batch.tasks.items()):
            task.failed_starts += batch.delivery is not None
            if number in batch.callers or task.failed_starts >= MACHINE_LOSSES:
                batch.command("cancel", task, True)
                error = batch.loss(task)
                self.finish(task, Raised(error))
        self._requeue(batch)

    def _requeue(self, batch: RemoteBatch) -> None:
        """Take *batch* back from its machine, and queue its tasks again."""
        batch.remote_host.batches.pop(batch.id, None)
        batch.cancel()
        for task in list(batch.tasks.values()):
            batch.command("cancel", task, True)
            self._buffers.forget(task.refs, batch.handles)
            self._free(task)
            self._queue.add(task)

    def close(self) -> None:
        """End all tasks, and the I/O thread."""
        self._is_closing = True
        self._slots.close()
        for host in self.hosts.values():
            host.abandon()
        for task in list(self._tasks.values()):
            self.finish(task, Withdrawn())
        self._dispatch()
        for host in self.hosts.values():
            if host.poll is not None and not host.is_silent:
                self._farewells.append(host.poll)
        self.hosts.clear()
        self._watch.is_done = True
        self.loop.is_done = True
