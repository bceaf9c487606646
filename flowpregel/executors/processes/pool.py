"""The pool: the tasks it was given and what becomes of them, and its workers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from typing import Final

from flowpregel._core.effects import Ended, Event
from flowpregel._core.ids import Span
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.errors import ExecutorUnavailableError, FlowPregelError, WorkerDiedError
from flowpregel.executors.base import HOST, JobKey, Mailbox
from flowpregel.executors.processes import crash_report, protocol
from flowpregel.executors.processes.assign import (
    LARGEST_BATCH,
    InFlight,
    PoolLimits,
    StopReason,
    TaskQueue,
    WorkerState,
    assign,
)
from flowpregel.executors.processes.guard import Guard
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.messages import JobEncoder
from flowpregel.executors.processes.protocol import PLAIN, PoolSettings, WorkerKind
from flowpregel.executors.processes.resources import ResourceBook
from flowpregel.executors.processes.shared_memory import Arena, segments_for
from flowpregel.executors.processes.worker_process import FrameHandler, WorkerProcess

CLOSED: Final = "this pool of worker processes was closed"
_START_TRIES: Final = 3
_SPARE: Final = 8


class Pool:
    """Workers, the tasks in flight on them, and those that wait; on the I/O thread.

    Args:
        settings: How it is set up.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.arena = Arena(settings.shared_limit // 2, segments=segments_for(2))
        self.loop = IOLoop(self._dispatch)
        self.encoder = JobEncoder(self.arena)
        self.handlers: dict[int, FrameHandler] = {protocol.READY: self._on_ready}
        """What is called with a worker and a frame that it has sent, by kind."""
        self.workers: set[WorkerProcess] = set()
        self._is_closing = False
        """Whether it ends; what was taken before is withdrawn."""
        self._tasks: dict[JobKey, InFlight] = {}
        self._queue = TaskQueue()
        self.events: defaultdict[Mailbox, list[Event]] = defaultdict(list)
        """What is posted at the end of this turn of the loop."""
        self.resources = ResourceBook(settings, self.loop, self.finish)
        self._numbers = count(1)
        # Where a worker is looked at after each task, the next may be another's.
        each = settings.worker_max_tasks is not None or settings.worker_max_rss is not None
        self._batch = 1 if each else LARGEST_BATCH
        self._keep = 0
        """How many workers are there even if no task waits."""
        self._failed_starts = 0
        self._guard = Guard()
        self._oom_kills = crash_report.count_oom_kills()

    def start(self) -> None:
        """Start its OS thread."""
        self.loop.call_at(time.monotonic() + self.settings.idle_after, self._dismiss_unused)
        self.loop.start()

    # ------------------------------------------------ tasks in

    def admit(self, tasks: Sequence[InFlight], mailbox: Mailbox) -> None:
        """Take *tasks*, which are packed, each to be sent as soon as a worker is free."""
        for task in tasks:
            self._tasks[task.job.key] = task
            if self.resources.count or task.job.task.node.resources is not None:
                self.resources.note(task, self._tasks)
            self._queue.add(task)
            if self._is_closing:
                self.finish(task, Raised(ExecutorUnavailableError(CLOSED)))
        for worker in self.workers:
            if worker.held_by not in (None, mailbox):
                # Its reader may be waiting for this run.
                worker.unhold()

    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a task that waits; if *kill*, stop it where it runs."""
        task = self._tasks.get(key)
        if task is not None and task.worker is None:
            self.finish(task, Withdrawn())
        elif task is not None and kill:
            self._stop(task, "cancel")

    def warn(self, key: JobKey) -> None:
        """Withdraw a task that has not begun; let one that runs know that its run is to end."""
        task = self._tasks.get(key)
        if task is not None and task.worker is not None:
            self.recall(task.worker)
            if task.worker is not None:
                task.worker.warn(task.number)
        self.cancel(key, kill=False)

    def _dispatch(self) -> None:
        """Give waiting tasks to workers, start workers that are missing, and post events."""
        now, can_send = time.monotonic(), not self._is_closing
        self._spread()
        while can_send and (self._queue or len(self.workers) < self._keep):
            workers = [each for each in self.workers if self.resources.count or each.kind == PLAIN]
            workers.sort(key=attrgetter("heard"), reverse=True)
            loads = [each.load(now) for each in workers]
            limits = PoolLimits(self.settings.size, self._keep, self._batch)
            if self.resources.count:
                kinds, sends = self.resources.assign(self._queue, loads, limits, self._tasks)
            else:
                starts, sends = assign(self._queue, loads, limits)
                kinds = starts * [PLAIN]
                self._queue.remove([task for _, tasks in sends for task in tasks])
            for index, tasks in sends:
                self._send(workers[index], tasks)
            for kind in kinds:
                self._start_worker(kind)
            can_send = bool(sends)
        self.loop.is_done = self._is_closing and not self.workers
        events, self.events = self.events, defaultdict(list)
        for mailbox, own in events.items():
            mailbox.post(*own)

    def _send(self, worker: WorkerProcess, tasks: Sequence[InFlight]) -> None:
        """Send *tasks* to *worker*, which is idle or has little left to do."""
        now = time.monotonic()
        if not worker.tasks:
            worker.heard = now
        packed: list[InFlight] = []
        for task in tasks:
            try:
                self._pack_for(worker, task)
            except FlowPregelError as error:
                self.finish(task, Raised(error))
                continue
            task.worker, task.number = worker, next(self._numbers) & 0xFFFFFFFF
            task.sent = task.alive = now
            packed.append(task)
        if not packed:
            return
        if worker.reader.released:
            worker.send(protocol.FREED, 0, worker.reader.take_released())
        worker.give(packed)
        for task in packed:
            if task.needs is not None:
                self.resources.start(task)
            if task.job.task.timeout is not None:
                self._look_at_clock(worker, task.number)

    def _pack_for(self, worker: WorkerProcess, task: InFlight) -> None:
        """Pack *task* if it is not packed, and give *worker* what it needs for it."""
        if task.body is None:
            self.encoder.pack(task)
        try:
            for ref in task.refs:
                worker.door.send(ref.segment, self.arena.descriptor(ref))
        except OSError:
            self.release_own((task,))
            self.encoder.pack(task, share=False)
        worker.reads.update(ref.id for ref in task.refs)
        worker.contexts.update(task.contexts)

    # ------------------------------------------------ tasks back

    def recall(self, worker: WorkerProcess) -> None:
        """Take back the tasks that *worker* has not begun."""
        self._take_back([worker.tasks[n] for n in worker.take_tokens() if n in worker.tasks])

    def _take_back(self, tasks: Sequence[InFlight]) -> None:
        """Have *tasks*, which no worker has begun, wait again; end those that are to stop."""
        for task in tasks:
            task.worker.reads.difference_update(ref.id for ref in task.refs)
            self._free_worker(task)
            if task.stopping is None:
                self._queue.add(task)
            else:
                self.finish(task, task.stopped())

    def _free_worker(self, task: InFlight) -> None:
        worker, task.worker = task.worker, None
        del worker.tasks[task.number]
        task.calls.clear()
        if worker.state is not WorkerState.IDLE:
            return
        worker.heard = time.monotonic()
        most_tasks, most_rss = self.settings.worker_max_tasks, self.settings.worker_max_rss
        is_worn = (most_tasks is not None and worker.served >= most_tasks) or (
            most_rss is not None and crash_report.memory_of(worker.pid) > most_rss
        )
        idle = [each.state for each in self.workers].count(WorkerState.IDLE)
        # Spare ones: a worker whose task waits for calls is not counted.
        if is_worn or idle > 2 * self.settings.size + _SPARE:
            worker.dismiss()

    def _spread(self) -> None:
        """Take back what waits behind other tasks while a worker has nothing to do."""
        behind = [each for each in self.workers if len(each.tasks) > 1]
        if behind and not self._queue:
            states = [each.state for each in self.workers if each.kind == PLAIN]
            free = self.settings.size - states.count(WorkerState.BUSY)
            for worker in behind if free > 0 and WorkerState.IDLE in states else ():
                self.recall(worker)

    # ------------------------------------------------ tasks out

    def finish(
        self,
        task: InFlight,
        outcome: Outcome,
        span: Span | None = None,
        caught: Collection[str] | None = None,
    ) -> None:
        """End *task*: free its worker, tell its run."""
        self._tasks.pop(task.job.key, None)
        if task.needs is not None:
            self.resources.end(task)
        if task.worker is None:
            self._queue.remove((task,))
            self.release_own((task,))
        else:
            task.worker.served += 1
            self._free_worker(task)
        self.events[task.mailbox].append(Ended(*task.job.key, outcome, span, caught))

    def release_own(self, tasks: Iterable[InFlight]) -> None:
        """Release the shared memory of *tasks*, which no worker reads."""
        for task in tasks:
            self.arena.release(ref.id for ref in task.refs)
            task.refs = ()

    # ------------------------------------------------ how a task is stopped

    def _look_at_clock(self, worker: WorkerProcess, number: int) -> None:
        """Stop a task of *worker* whose time is over, or look again when it will be."""
        task, now = worker.tasks.get(number), time.monotonic()
        if task is None or task.stopping is not None:
            return
        if worker.held_by is not None:
            # Its signs of life are not read.
            task.alive = now
        run, idle = task.ends_at("run"), task.ends_at("idle")
        if (end := min(run, idle)) <= now:
            self._stop(task, "run" if run <= idle else "idle")
        elif end < inf:
            self.loop.call_at(end, partial(self._look_at_clock, worker, number))

    def _stop(self, task: InFlight, reason: StopReason) -> None:
        """Stop *task*, which a worker has: first a signal, which raises in it, then the kill."""
        if task.stopping is not None:
            return
        task.stopping, worker, number = reason, task.worker, task.number
        # A kill is to hit no other task; and this one may not have begun.
        self.recall(worker)
        worker.unhold()
        if number in worker.tasks:
            worker.signal_stop(number)
            end = time.monotonic() + self.settings.grace
            self.loop.call_at(end, partial(_kill_stuck, worker, number))

    # ------------------------------------------------ streams that are read slowly

    def hold(self, worker: WorkerProcess, task: InFlight) -> bool:
        """Leave the link of *worker* unread; False: that would hold up another run."""
        if task.stopping is not None or worker.held_by is not None:
            return False
        self.recall(worker)
        others = (*worker.tasks.values(), *self._queue)
        if any(each.mailbox is not task.mailbox for each in others):
            return False
        worker.held_by = task.mailbox
        worker.watch_link()
        return True

    # ------------------------------------------------ how workers come

    def _start_worker(self, kind: WorkerKind) -> None:
        settings = self.settings if kind == PLAIN else self.resources.settings_of(kind)
        for worker in self.workers:
            if worker.state is WorkerState.IDLE and {*worker.kind.gpus} & {*kind.gpus}:
                worker.dismiss()  # what it has allocated on the GPU is freed
        try:
            self.workers.add(
                WorkerProcess(settings, self.loop, self.handlers, self._guard, self._on_end)
            )
        except BaseException as error:  # noqa: BLE001 - told to the tasks that wait
            self.loop.call(partial(self._on_failed_start, error))

    def _on_ready(self, worker: WorkerProcess, frame: protocol.Frame) -> None:
        self._failed_starts = 0
        worker.is_ready = True
        worker.heard = time.monotonic()
        self._keep = self.settings.size

    def _on_failed_start(self, error: BaseException) -> None:
        """Note that a worker did not get ready; if that goes on, end all tasks that wait."""
        self._failed_starts = (self._failed_starts + 1) % _START_TRIES
        self._keep = 0
        for task in [] if self._failed_starts else [*self._queue]:
            failure = ExecutorUnavailableError(f"no worker process can be started: {error}")
            failure.__cause__ = error
            self.finish(task, Raised(failure))

    # ------------------------------------------------ how workers go

    def _dismiss_unused(self) -> None:
        """Dismiss workers that were idle for long; look again after as long."""
        now, idle_after = time.monotonic(), self.settings.idle_after
        for worker in self.workers:
            if worker.state is WorkerState.IDLE and worker.heard + idle_after <= now:
                self._keep = 0
                worker.dismiss()
        self.loop.call_at(now + idle_after, self._dismiss_unused)

    def _on_end(self, worker: WorkerProcess, exit_code: int | None, peak_rss: int | None) -> None:
        self.workers.discard(worker)
        kills = crash_report.count_oom_kills()
        cause = worker.killed or crash_report.cause_of(exit_code, oom=kills > self._oom_kills)
        self._oom_kills, report = kills, crash_report.describe(peak_rss, worker.tail)

        def died(task: str, call: str = "") -> WorkerDiedError:
            return WorkerDiedError(task, worker.pid, cause, report, call)

        self.resources.measure(worker.running(), peak_rss)
        self._end_tasks(worker, died, peak_rss or 0)
        self.arena.release(worker.reads)
        for left in worker.leaving.values():
            left.set_result(None)
        if not worker.is_ready or worker.failure is not None:
            self._on_failed_start(worker.failure or died("(starting)"))

    def _end_tasks(
        self, worker: WorkerProcess, died: Callable[..., WorkerDiedError], peak: int
    ) -> None:
        """End the task that *worker*, which is gone, has begun; the others wait again."""
        running = worker.running()
        if running is not None:
            seconds = time.monotonic() - running.sent  # it did not live to tell when that began
            began = time.time_ns() - int(seconds * 1e9)
            span = Span(began, seconds, "processes", worker.pid, 0.0, peak, HOST)
            outcome = running.stopped()
            if running.stopping is None:
                outcome = Raised(died(running.job.task.name, running.job.task.call))
            self.finish(running, outcome, span)
        lost = [*worker.tasks.values()]
        self._take_back(lost)
        for task in lost if running is None else ():
            task.lost_starts += 1
            # Workers may always end before they begin.
            if task.lost_starts > _START_TRIES and task.stopping is None:
                self.finish(task, Raised(died(task.job.task.name, task.job.task.call)))

    def close(self) -> None:
        """End all tasks and workers: idle ones are told to exit, and have the grace for it."""
        self._is_closing = True
        for task in [*self._queue]:
            self.finish(task, Withdrawn())
        for task in self._tasks.values():
            task.stopping = "cancel"
        end = time.monotonic() + self.settings.grace
        for worker in self.workers:
            if worker.state is WorkerState.IDLE:
                worker.dismiss()
            elif not worker.is_leaving:
                worker.kill(CLOSED)
            self.loop.call_at(end, partial(worker.kill, CLOSED))

    def release(self) -> None:
        """Give up what is left, after the I/O thread has ended."""
        self._guard.close()
        self.arena.close()
        self.resources.close()


def _kill_stuck(worker: WorkerProcess, number: int) -> None:
    if number in worker.tasks:
        worker.kill("it was killed, because its task did not stop when it was told to")
