"""Tasks on the machines of an engine, such as Dask or Ray: what all such executors have
in common.

::

    start(jobs) -> queue -> batches -> an engine's task -> the pool of a machine
                                                                 |
    mailbox <- RemotePool <---------- frames of workers <--------+

The engine moves bytes. Which machine gets which batch is decided here: one that falls
silent is given up, and its tasks go to another one if they may. What comes late from a
batch that was given up is dropped: nobody but the coordinator records anything.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import count
from typing import Any, Final

from flowpregel._core.records import Raised, Withdrawn
from flowpregel.errors import ExecutorUnavailableError, WorkerDiedError
from flowpregel.executors.base import Capabilities, JobKey
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.arrivals import AnyOutcome
from flowpregel.executors.processes.assign import InFlight
from flowpregel.executors.processes.executor import PoolExecutor
from flowpregel.executors.processes.protocol import PoolSettings
from flowpregel.executors.processes.serialization import Frame
from flowpregel.executors.processes.task_pool import TaskPool
from flowpregel.integrations.sites import Buffers, RemoteBatch, Site, Sites

LOST_AFTER: Final = 10.0
"""Seconds of silence after which a machine is given up: it has given us up before
that.
"""
_LOOK_EVERY: Final = 0.5
_ROOM: Final = 2048
_TRIES: Final = 3
"""How many machines a task may lose."""


class EngineExecutor(PoolExecutor):
    """Runs tasks on machines that an engine has: in worker processes of ours.

    Args:
        pool: These machines.
    """

    capabilities = Capabilities(isolates=True, times_out=True, cancels=True)

    def __init__(self, pool: RemotePool) -> None:
        super().__init__(pool, _ROOM * max(1, pool.size))


class RemotePool(TaskPool):
    """Machines, the tasks in flight on them, and those that wait; on the I/O thread.

    Args:
        kind: What spans say of where a task ran.
        timeout: Seconds for which tasks wait if there is no machine at all.
    """

    def __init__(self, kind: str, timeout: float) -> None:
        self._buffers = Buffers()
        super().__init__(PoolSettings(size=0, grace=LOST_AFTER), self._buffers)
        self.kind = kind
        self._timeout = timeout
        self._name = os.urandom(8).hex()
        self.sites = Sites()
        self._batches = count(1)
        self._known = self._machines()
        """The machines; None: the engine is not connected."""
        self._known_at = self._connected = time.monotonic()
        """When the engine was last asked, and last there, with any machine."""
        self.size = sum((self._known or {}).values())

    def start(self) -> None:
        """Start its OS threads."""
        self.loop.call(self._look_again)
        threading.Thread(
            target=self._keep_asking, name="flowpregel-machines", daemon=True
        ).start()
        super().start()

    # ------------------------------------------------ what an engine does

    @abstractmethod
    def _machines(self) -> Mapping[str, int] | None:
        """Return the machines, and how many tasks each can run at once; None: not
        connected.

        It may block, and may raise anything.
        """

    @abstractmethod
    def _put(self, address: str, data: memoryview) -> Any:
        """Give the engine a buffer, which that machine needs first; return its
        handle.
        """

    @abstractmethod
    def _run(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        """Have `Machine.run` called there; return when the batch has ended. *buffers*:
        handles.
        """

    @abstractmethod
    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        """Have another method of the machine called, with the name of this
        coordinator.
        """

    # ------------------------------------------------ tasks in

    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a task that waits; if *kill*, stop it where it runs."""
        if (task := self.withdraw(key)) is not None:
            task.worker.order("cancel", task, kill)

    def warn(self, key: JobKey) -> None:
        """Withdraw a task that waits; let one that runs know that its run is to end
        soon.
        """
        if (task := self.withdraw(key)) is not None:
            task.worker.order("warn", task)

    def _dispatch(self) -> None:
        """Give machines their batches and orders, and post events."""
        while (
            self._queue.count and (site := self.sites.next_for(self._queue)) is not None
        ):
            self._send(site)
        for site in self.sites.values():
            if site.orders or (site.poll is None and site.is_used):
                orders, site.orders = site.orders, []
                asked = orders, site.epoch, site.taken, not site.is_held
                site.poll = self.ask(self.call, site.address, "poll", *asked)
                self._watch(site.poll, partial(self._on_polled, site, orders))
        self._post_events()

    def _send(self, site: Site) -> None:
        """Send as many tasks as keep a place on *site* busy for a while."""
        tasks = self._queue.take(self.sites.batch_size(self._queue))
        batch = RemoteBatch(next(self._batches), site, tasks)
        if not site.batches:
            site.heard = time.monotonic()
        site.batches[batch.id] = batch
        site.is_used = True
        site.is_held = False  # another run may be waiting for these
        orders: list[Any] = []
        blobs: dict[int, Any] = {}
        for number, task in [*batch.tasks.items()]:
            task.worker, task.number = batch, number
            called = task.job.task
            try:
                body = task.body or self.encoder.pack(task)
                blobs |= self._buffers.handles(
                    task.refs, partial(self._put, site.address)
                )
            except Exception as error:  # noqa: BLE001 - the task's failure, told as such
                self.finish(task, Raised(error))
                continue
            about = number, called.name, called.depth, called.timeout
            orders.append((*about, task.contexts, task.code.digest, body))
        if orders:
            codes = {task.code.digest: task.code.data for task in batch.tasks.values()}
            packed = pickle.dumps((batch.id, codes, orders), 5)
            ended = self.ask(self._run, site.address, packed, blobs)
            self._watch(ended, partial(self._on_result, batch))

    def ask(self, what: Callable[..., Future[Any]], *args: Any) -> Future[Any]:
        """Have the engine do something; return its future, or one of what it raises."""
        try:
            return what(*args)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, it is not there
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _watch(self, future: Future[Any], then: Any) -> None:
        """Call *then* with *future* on the I/O thread when it is done."""
        future.add_done_callback(lambda done: self.loop.call(partial(then, done)))

    # ------------------------------------------------ tasks back

    def _on_polled(self, site: Site, orders: list[Any], polled: Future[Any]) -> None:
        def again(untold: Sequence[Any] = ()) -> None:
            site.orders.extend(untold)
            site.poll = None if site.poll is polled else site.poll

        try:
            told, *buffers = polled.result()
            site.host, epoch, first, frames = pickle.loads(told, buffers=buffers)
        except BaseException:  # noqa: BLE001 - `_look` gives it up if that goes on
            # To be told twice does no harm.
            self.loop.call_at(time.monotonic() + _LOOK_EVERY, partial(again, orders))
            return
        site.heard, site.is_silent = time.monotonic(), False
        if epoch != site.epoch:
            site.epoch, site.taken = epoch, first
        for frame in frames[site.taken - first :]:
            self._receive(site, *frame)
        site.taken = max(site.taken, first + len(frames))
        if site.is_held:
            self.loop.call_at(time.monotonic() + _LOOK_EVERY, again)
        else:
            again()

    def _receive(
        self, site: Site, number: int, pid: int, buffers: Any, *fields: Any
    ) -> None:
        """Act on a frame of a worker, unless its batch was given up."""
        batch, frame = site.batches.get(number), Frame(*fields)
        if batch is None:
            return
        batch.pid, batch.buffers = pid, buffers
        if frame.kind != protocol.ENDED or frame.number in batch.tasks:
            try:
                self.handlers[frame.kind](batch, frame)
            except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
                if (task := batch.tasks.get(frame.number)) is not None:
                    cause = f"{type(error).__name__}: {error}"
                    why = f"what it sent cannot be read in the coordinator ({cause})"
                    batch.order("cancel", task, True)
                    self.finish(
                        task, Raised(WorkerDiedError(task.job.task.name, pid, why))
                    )

    def _on_result(self, batch: RemoteBatch, result: Future[Any]) -> None:
        """Note that the engine has given up *batch*, if it has."""
        batch.failure = CancelledError() if result.cancelled() else result.exception()
        if batch.failure is not None:
            # The engine may learn later that the whole machine is gone.
            batch.site.is_silent = True
            self._look()

    def finish(self, task: InFlight, outcome: AnyOutcome, /, *told: Any) -> None:
        """End *task*: tell its run."""
        self.release_own((task,))
        super().finish(task, outcome, *told)

    def _free(self, task: InFlight) -> None:
        batch, task.worker = task.worker, None
        del batch.tasks[task.number]
        task.calls.clear()
        if not batch.tasks:
            batch.site.batches.pop(batch.id, None)

    def recall(self, batch: RemoteBatch) -> None:
        """Note which of its tasks have called others: they cannot begin again
        elsewhere.
        """
        # What waits behind them, the machine itself takes back.
        batch.callers.update(
            number for number, task in batch.tasks.items() if task.calls
        )

    def hold(self, batch: RemoteBatch, task: InFlight) -> bool:
        """Take nothing more from the machine of *batch*; False: another run is to hear
        of it.
        """
        site = batch.site
        theirs = (
            each for other in site.batches.values() for each in other.tasks.values()
        )
        site.is_held = all(each.mailbox is task.mailbox for each in theirs)
        return site.is_held

    def hold_output(self, batch: RemoteBatch) -> None:
        """Do nothing: what is far too much is dropped, since its machine serves other
        runs too.
        """

    def refuse(self, task: InFlight, batch: RemoteBatch) -> None:
        """End *task* if *batch* still has it: something that it sent cannot be read."""
        if task.worker is batch:
            batch.order("cancel", task, True)
            why = task.unreadable or ""
            self.finish(
                task, Raised(WorkerDiedError(task.job.task.name, batch.pid, why))
            )

    def leave(
        self, contexts: Set[bytes], body: bytes, asked: Future[Sequence[Future[Any]]]
    ) -> None:
        """Have the machines leave *contexts*; set *asked* to the futures of when they
        have.
        """
        used = [each.address for each in self.sites.values() if each.is_used]
        asked.set_result(
            [self.ask(self.call, each, "forget", [*contexts], body) for each in used]
        )

    # ------------------------------------------------ machines that come and go

    def _keep_asking(self) -> None:
        """Ask the engine for its machines again and again, on an OS thread of its
        own.
        """
        while not self.loop.is_done:
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
        for batch in self.sites.lost(machines, now - LOST_AFTER):
            self._lose(batch)
        if machines:
            self._connected = now
        # If the engine, or every machine, has been away for too long.
        limit = LOST_AFTER if machines is None else self._timeout
        if now - self._connected > limit:
            what = "has lost its scheduler" if machines is None else "has no machine"
            error = ExecutorUnavailableError(f"{self.kind} {what} (waited {limit:g} s)")
            for task in [*self._tasks.values()]:
                self.finish(task, Raised(error))

    def _lose(self, batch: RemoteBatch) -> None:
        """Give up *batch*; have its tasks begin again elsewhere, if they may."""
        del batch.site.batches[batch.id]
        cause = f"the machine {batch.site.address} was lost"
        if batch.failure is not None:
            cause = f"{cause}: {batch.failure}"
        for number, task in [*batch.tasks.items()]:
            batch.order("cancel", task, True)
            task.lost_starts += 1
            if number in batch.callers or task.lost_starts >= _TRIES:
                died = WorkerDiedError(task.job.task.name, 0, cause)
                died.__cause__ = batch.failure
                self.finish(task, Raised(died))
            else:
                self._free(task)
                self._queue.add(task)

    def close(self) -> None:
        """End all tasks, and this thread."""
        self._is_closing = True
        for task in [*self._tasks.values()]:
            self.finish(task, Withdrawn())
        for site in self.sites.values():
            site.orders += [("end", 0, 0)] * site.is_used
        self._dispatch()
        self.sites.clear()
        self.loop.is_done = True
