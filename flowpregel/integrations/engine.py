"""Tasks on the machines of an engine, such as Dask or Ray: what all such executors have in common.

::

    start(jobs) -> queue -> batches -> an engine's task -> the pool of a machine
                                                                 |
    mailbox <- MessageHandler <------ frames of workers <--------+

The engine moves bytes. Which machine gets which batch is decided here: one that falls
silent is given up, and its tasks go to another one if they may. What comes late from a
batch that was given up is dropped: nobody but the coordinator records anything.
"""

from __future__ import annotations

import atexit
import os
import pickle
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from typing import Any, Final, Self, cast

from flowpregel._core.asked import Span
from flowpregel._core.effects import Call, Ended, Event
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError, FlowPregelError, WorkerDiedError
from flowpregel.executors.base import Capabilities, Executor, JobKey, Mailbox
from flowpregel.executors.processes import messages, protocol
from flowpregel.executors.processes.assign import InFlight, TaskQueue
from flowpregel.executors.processes.executor import pack_leave
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.messages import JobEncoder
from flowpregel.executors.processes.protocol import Frame
from flowpregel.integrations import sites
from flowpregel.integrations.machine import Relayed
from flowpregel.integrations.sites import Buffers, EngineHandler, RemoteBatch, Site, Sites

LOST_AFTER: Final = 10.0
"""Seconds of silence after which a machine is given up: it has given us up before that."""
_LOOK_EVERY: Final = 0.5
_ROOM: Final = 2048
_TRIES: Final = 3
"""How many machines a task may lose."""


class EngineExecutor(Executor):
    """Runs tasks on machines that an engine has: in worker processes of ours.

    Args:
        kind: What spans say of where a task ran.
        timeout: Seconds for which tasks wait if there is no machine at all.
    """

    capabilities = Capabilities(isolates=True, times_out=True, cancels=True)

    def __init__(self, kind: str, timeout: float) -> None:
        self._kind = kind
        self._timeout = timeout
        self._name = os.urandom(8).hex()
        self._is_closed = False
        self._sites = Sites()
        self._queue = TaskQueue()
        self._tasks: dict[JobKey, InFlight] = {}
        self._batches = count(1)
        self._buffers = Buffers()
        self._connected = time.monotonic()
        """When the engine was last there, with any machine."""
        # What the handler of messages knows a pool by.
        self.loop = IOLoop(self._dispatch)
        self.encoder = JobEncoder(self._buffers)
        self.handlers: dict[int, Any] = {}
        self.events: defaultdict[Mailbox, list[Event]] = defaultdict(list)
        self._handler = EngineHandler(cast(Any, self))
        self._known = self._machines()
        """The machines; None: the engine is not connected."""
        self._known_at = time.monotonic()
        self._look()
        self.loop.call(self._look_again)
        threading.Thread(target=self._keep_asking, name="flowpregel-machines", daemon=True).start()
        self.room = _ROOM * max(1, sum(site.size for site in self._sites.values()))
        self.loop.start()
        atexit.register(self.close)

    # ------------------------------------------------ what an engine does

    @abstractmethod
    def _machines(self) -> Mapping[str, int] | None:
        """Return the machines, and how many tasks each can run at once; None: not connected.

        It may block, and may raise anything.
        """

    @abstractmethod
    def _put(self, address: str, data: memoryview) -> Any:
        """Give the engine a buffer, which that machine needs first; return its handle."""

    @abstractmethod
    def _run(self, address: str, packed: bytes, buffers: Mapping[int, Any]) -> Future[Any]:
        """Have `Machine.run` called there; return when the batch has ended. *buffers*: handles."""

    @abstractmethod
    def _call(self, address: str, method: str, *args: Any) -> Future[Any]:
        """Have another method of the machine called, with the name of this coordinator."""

    # ------------------------------------------------ for any OS thread

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job as soon as a machine has a place; its `Ended` is posted exactly once."""
        tasks: list[InFlight] = []
        for job in jobs:
            try:
                tasks.append(self.encoder.encode(job, mailbox))
            except FlowPregelError as error:
                mailbox.post(Ended(*job.key, Raised(error)))
        self.loop.call(partial(self._admit, tasks))

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; if *kill*, stop it where it runs."""
        self.loop.call(partial(self._order, key, "cancel", kill))

    def warn(self, key: JobKey) -> None:
        """Withdraw a job that waits; let one that runs know that its run is to end soon."""
        self.loop.call(partial(self._order, key, "warn"))

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Send the outcome of a call to the task that made it."""
        body = messages.pack_outcome(outcome, call.node.name, None)
        task, request = call.reply
        self.loop.call(partial(self._handler.answer, task, request, body))

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have machines leave the contexts of a run that ended; return when they have."""
        left: Future[list[Future[Any]]] = Future()
        self.loop.call(partial(self._leave, contexts, pack_leave(contexts, error), left))
        wait(left.result(), LOST_AFTER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and takes no more jobs."""
        return self._is_closed

    def close(self) -> None:
        """Stop every task, and have the machines end what is ours."""
        if self._is_closed:
            return
        self._is_closed = True
        ended: Future[None] = Future()
        self.loop.call(partial(self._end, ended))
        ended.result()
        self.loop.join()
        self._handler.close()
        atexit.unregister(self.close)

    def _leave(self, contexts: Sequence[bytes], body: bytes, left: Future[Any]) -> None:
        left_by = [each for each in self._sites.values() if not each.contexts.isdisjoint(contexts)]
        for site in left_by:
            site.contexts.difference_update(contexts)
        asked = [
            sites.tried(self._call, each.address, "forget", contexts, body) for each in left_by
        ]
        left.set_result(asked)

    # ------------------------------------------------ tasks in

    def _admit(self, tasks: Sequence[InFlight]) -> None:
        for task in tasks:
            self._tasks[task.job.key] = task
            self._queue.add(task)
            if self._is_closed:
                self.finish(task, Raised(ExecutorUnavailableError("this executor was closed")))

    def _order(self, key: JobKey, order: str, *more: Any) -> None:
        """Withdraw a task that waits; tell the machine that has it."""
        task = self._tasks.get(key)
        if task is None:
            return
        if task.worker is None:
            self.finish(task, Withdrawn())
        else:
            batch = task.worker
            batch.site.orders.append((order, batch.id, task.number, *more))

    def _dispatch(self) -> None:
        """Give machines their batches and orders, and post events."""
        while self._queue and (site := self._sites.next_for(self._queue)) is not None:
            self._send(site)
        for site in self._sites.values():
            if site.orders:
                orders, site.orders = site.orders, []
                told = sites.tried(self._call, site.address, "tell", pickle.dumps(orders, 5))
                self._watch(told, partial(self._on_told, site, orders))
            if not site.is_polled and (site.batches or site.epoch):
                site.is_polled = True
                asked = site.epoch, site.taken, not site.is_held
                polled = sites.tried(self._call, site.address, "poll", *asked)
                self._watch(polled, partial(self._on_polled, site))
        events, self.events = self.events, defaultdict(list)
        for mailbox, own in events.items():
            mailbox.post(*own)

    def _send(self, site: Site) -> None:
        """Send as many tasks as keep a place on *site* busy for a while."""
        tasks = self._queue.take(self._sites.batch_size(self._queue))
        batch = RemoteBatch(next(self._batches), site, tasks)
        if not site.batches:
            site.heard = time.monotonic()
        site.batches[batch.id] = batch
        orders: list[Any] = []
        blobs: dict[int, Any] = {}
        for number, task in [*batch.tasks.items()]:
            task.worker, task.number = batch, number
            site.contexts.update(task.contexts)
            try:
                body = self.encoder.pack(task)
                blobs |= self._buffers.handles(task.refs, partial(self._put, site.address))
            except Exception as error:  # noqa: BLE001 - the task's failure, told as such
                self.finish(task, Raised(error))
            else:
                orders.append(sites.order_of(task, body))
        if orders:
            codes = {task.code.digest: task.code.data for task in batch.tasks.values()}
            packed = pickle.dumps((batch.id, codes, orders), 5)
            ended = sites.tried(self._run, site.address, packed, blobs)
            self._watch(ended, partial(self._on_result, batch))

    def _watch(self, future: Future[Any], then: Any) -> None:
        """Call *then* with *future* on the I/O thread when it is done."""
        future.add_done_callback(lambda done: self.loop.call(partial(then, done)))

    def _on_told(self, site: Site, orders: list[tuple[Any, ...]], told: Future[Any]) -> None:
        """Tell *site* again what it could not be told; to be told twice does no harm."""
        if sites.failure_of(told) is not None:
            again = partial(site.orders.extend, orders)
            self.loop.call_at(time.monotonic() + _LOOK_EVERY, again)

    # ------------------------------------------------ tasks back

    def _on_polled(self, site: Site, polled: Future[bytes]) -> None:
        again = partial(setattr, site, "is_polled", False)
        try:
            site.host, epoch, first, frames = pickle.loads(polled.result())
        except BaseException:  # noqa: BLE001 - `_look` gives it up if that goes on
            self.loop.call_at(time.monotonic() + _LOOK_EVERY, again)
            return
        site.heard, site.is_silent = time.monotonic(), False
        if epoch != site.epoch:
            site.epoch, site.taken = epoch, first
        for relayed in frames[site.taken - first :]:
            self._receive(site, relayed)
        site.taken = max(site.taken, first + len(frames))
        if site.is_held:
            self.loop.call_at(time.monotonic() + _LOOK_EVERY, again)
        else:
            again()

    def _receive(self, site: Site, relayed: Relayed) -> None:
        """Act on a frame of a worker, unless its batch was given up."""
        batch, frame = site.batches.get(relayed.batch), relayed.frame
        if batch is None:
            return
        batch.pid = relayed.pid
        if frame.kind == protocol.CALLED:
            batch.callers.add(frame.number)
        if frame.kind != protocol.ENDED or frame.number in batch.tasks:
            try:
                self.handlers[frame.kind](batch, frame)
            except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
                self._refuse(batch, frame, f"{type(error).__name__}: {error}")

    def _refuse(self, batch: RemoteBatch, frame: Frame, cause: str) -> None:
        """End a task that has sent what cannot be read here."""
        if (task := batch.tasks.get(frame.number)) is not None:
            why = f"what it sent cannot be read in the coordinator ({cause})"
            self._order(task.job.key, "cancel", True)
            self.finish(task, Raised(WorkerDiedError(task.job.task.name, batch.pid, why)))

    def _on_result(self, batch: RemoteBatch, result: Future[Any]) -> None:
        """Note that the engine has given up *batch*, if it has."""
        batch.failure = sites.failure_of(result)
        if batch.failure is not None:
            self._look()

    def finish(
        self,
        task: InFlight,
        outcome: Outcome,
        span: Span | None = None,
        caught: Collection[str] | None = None,
    ) -> None:
        """End *task*: tell its run."""
        self._tasks.pop(task.job.key, None)
        host = ""
        if task.worker is None:
            self._queue.discard(task)
        else:
            host = task.worker.site.host
            self._free(task)
        for ref in task.refs:
            self._buffers.release(ref.id)
        if isinstance(outcome, Raised):
            sites.name_call(outcome.error, task)
        if span is not None:
            span = span._replace(executor=self._kind, host=host)
        self.events[task.mailbox].append(Ended(*task.job.key, outcome, span, caught))

    def _free(self, task: InFlight) -> None:
        batch, task.worker = task.worker, None
        del batch.tasks[task.number]
        batch.open_calls -= len(task.calls)
        task.calls.clear()
        if not batch.tasks:
            batch.site.batches.pop(batch.id, None)

    def recall(self, batch: RemoteBatch) -> None:
        """Do nothing: the machine itself takes back what waits behind a task that calls."""

    def hold(self, batch: RemoteBatch, task: InFlight) -> bool:
        """Take nothing more from the machine of *batch*; False: another run is to hear of it."""
        site = batch.site
        theirs = (each for other in site.batches.values() for each in other.tasks.values())
        site.is_held = all(each.mailbox is task.mailbox for each in theirs)
        return site.is_held

    # ------------------------------------------------ machines that come and go

    def _keep_asking(self) -> None:
        """Ask the engine for its machines again and again, on an OS thread of its own."""
        while not self._is_closed:
            try:
                self._known = self._machines()
            except Exception:  # noqa: BLE001 - whatever it is, the engine cannot be asked
                self._known = None
            self._known_at = time.monotonic()
            time.sleep(_LOOK_EVERY)

    def _look_again(self) -> None:
        self._look()
        self.loop.call_at(time.monotonic() + _LOOK_EVERY, self._look_again)

    def _look(self) -> None:
        """Look for machines that came or went, and give up those that are silent."""
        now = time.monotonic()
        machines = self._known if now - self._known_at < LOST_AFTER else None
        for batch in self._sites.lost(machines, now - LOST_AFTER):
            self._lose(batch)
        if machines:
            self._connected = now
        self._give_up(machines, now)

    def _lose(self, batch: RemoteBatch) -> None:
        """Give up *batch*; have its tasks begin again elsewhere, if they may."""
        del batch.site.batches[batch.id]
        cause = f"the machine {batch.site.address} was lost"
        if batch.failure is not None:
            cause = f"{cause}: {batch.failure}"
        for number, task in [*batch.tasks.items()]:
            batch.site.orders.append(("cancel", batch.id, number, True))
            task.lost_starts += 1
            if number in batch.callers or task.lost_starts >= _TRIES:
                died = WorkerDiedError(task.job.task.name, 0, cause)
                died.__cause__ = batch.failure
                self.finish(task, Raised(died))
            else:
                self._free(task)
                self._queue.add(task)

    def _give_up(self, machines: Mapping[str, int] | None, now: float) -> None:
        """End all tasks if the engine, or every machine, has been away for too long."""
        limit = LOST_AFTER if machines is None else self._timeout
        if now - self._connected <= limit:
            return
        what = "has lost its scheduler" if machines is None else "has no machine"
        error = ExecutorUnavailableError(f"{self._kind} {what} (waited {limit:g} s)")
        for task in [*self._tasks.values()]:
            self.finish(task, Raised(error))

    def _end(self, ended: Future[None]) -> None:
        """End all tasks, and this thread."""
        for task in [*self._tasks.values()]:
            self.finish(task, Withdrawn())
        for site in self._sites.values():
            site.orders.append(("end", 0, 0))
        self._dispatch()
        self._sites.clear()
        self.loop.is_done = True
        ended.set_result(None)
