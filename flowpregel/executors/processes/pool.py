"""The pool: the tasks it was given, and what becomes of them.

Tasks are packed on the caller's OS thread; everything else happens on the I/O thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from itertools import count
from typing import Final

from flowpregel._core.effects import Ended, Event
from flowpregel._core.records import Outcome, Raised, Span, Withdrawn
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError, FlowPregelError
from flowpregel.executors.base import JobKey, Mailbox
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.assign import (
    LARGEST_BATCH,
    InFlight,
    PoolLimits,
    StopReason,
    TaskQueue,
    WorkerEvent,
    WorkerLoad,
    WorkerState,
    assign,
)
from flowpregel.executors.processes.crash_report import PostMortem
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.messages import JobEncoder
from flowpregel.executors.processes.shared_memory import Arena, segments_for
from flowpregel.executors.processes.timeouts import TaskTimeouts
from flowpregel.executors.processes.worker_process import STUCK_AFTER, PoolSettings, WorkerProcess
from flowpregel.executors.processes.workers import START_TRIES, Workers

_CLOSED: Final = "this pool of worker processes was closed"


class Pool:
    """Workers, the tasks in flight on them, and those that wait.

    Args:
        settings: How it is set up.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.arena = Arena(settings.shared_limit // 2, segments=segments_for(2))
        self.loop = IOLoop(self._dispatch, lambda: self._is_closing and self.workers.are_gone)
        self.workers = Workers(settings, self.loop)
        self.workers.on_exit = self._on_exit
        self.workers.on_hopeless = self._on_hopeless
        self.encoder = JobEncoder(self.arena)
        self.is_closed = False
        """Whether it takes no more jobs."""
        self._is_closing = False
        """Whether it ends; what was taken before is withdrawn."""
        self._timeouts = TaskTimeouts(self.loop.timers, self._stop)
        self._tasks: dict[JobKey, InFlight] = {}
        self._queue = TaskQueue()
        self._events: list[tuple[Mailbox, Event]] = []
        self._looks_for_stuck = False
        self.is_started = False
        """Whether the I/O thread was started."""
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Where a worker is looked at after each task, the next may be another's.
        each = settings.worker_max_tasks is not None or settings.worker_max_rss is not None
        self._batch = 1 if each else LARGEST_BATCH

    # ------------------------------------------------ for any OS thread

    def take(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start *jobs*, each as soon as a worker is free."""
        if (refusal := self._refusal()) is not None:
            mailbox.post_all([Ended(*job.key, Raised(refusal)) for job in jobs])
            return
        tasks: list[InFlight] = []
        failed: list[Event] = []
        try:
            for job in jobs:
                try:
                    tasks.append(self.encoder.encode(job, mailbox))
                except FlowPregelError as error:
                    failed.append(Ended(*job.key, Raised(error)))
        except BaseException:  # Ctrl-C
            for task in tasks:
                self._release_own(task)
            raise
        if failed:
            mailbox.post_all(failed)
        self._start()
        self.loop.call(partial(self._admit, tasks, mailbox))

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process is a fork of the one that has the workers."""
        return self._pid != os.getpid()

    def _refusal(self) -> Exception | None:
        if self.is_elsewhere:
            return ExecutorUnavailableError(
                "this pool of worker processes belongs to the process that this one was forked "
                "from: make a ProcessExecutor of your own here"
            )
        return ExecutorUnavailableError(_CLOSED) if self.is_closed else None

    def _start(self) -> None:
        if self.is_started:
            return
        with self._lock:
            if self.is_started:
                return
            self.is_started = True
        # At exit, multiprocessing waits for all its children. What is registered after it
        # runs before it, and ends ours.
        import multiprocessing.util  # noqa: F401, PLC0415

        atexit.register(self.close)
        self.loop.start()

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; if *kill*, stop it where it runs."""
        self.loop.call(partial(self._cancel, key, kill))

    def close(self) -> None:
        """Stop every task, end every worker."""
        if self.is_elsewhere:
            # In a fork: the workers and the I/O thread are the other process's.
            return
        with self._lock:
            is_first, self.is_closed = not self.is_closed, True
        if is_first:
            self.loop.call(self._close)
        self.loop.join()
        self.workers.close()
        self.arena.close()
        atexit.unregister(self.close)

    # ------------------------------------------------ tasks in

    def _admit(self, tasks: Sequence[InFlight], mailbox: Mailbox) -> None:
        for task in tasks:
            self._tasks[task.job.key] = task
            self._queue.add(task)
        if self._is_closing:
            for task in tasks:
                self._withdraw(
                    task,
                    Raised(ExecutorUnavailableError(_CLOSED)),
                )
        for worker in self.workers.all:
            if worker.held_by is not mailbox:
                # Its reader may be waiting for this run.
                self.unhold(worker)

    def _withdraw(self, task: InFlight, outcome: Outcome) -> None:
        """End *task*, which waits."""
        self._queue.remove(task)
        self.finish(task, outcome)

    def _cancel(self, key: JobKey, kill: bool) -> None:
        task = self._tasks.get(key)
        if task is None:
            return
        if task.worker is None:
            self._withdraw(task, Withdrawn())
        elif kill:
            self._stop(task, "cancel")

    def _dispatch(self) -> None:
        """Give waiting tasks to workers, start workers that are missing, and post events."""
        keep = self.workers.keep
        while not self._is_closing and (
            self._queue or len(self.workers.all) + self.workers.spawning < keep
        ):
            now = time.monotonic()
            workers = sorted(self.workers.all, key=lambda each: each.idle_since, reverse=True)
            limits = PoolLimits(self.settings.size, keep, self._batch)
            loads = [each.load(now) for each in workers]
            loads += self.workers.spawning * [WorkerLoad(WorkerState.STARTING)]
            todo = assign(self._queue.first(), loads, limits)
            for index, size in todo.sends:
                self._send(workers[index], self._queue.take(size))
            for _ in range(todo.starts):
                self.workers.start()
            if not todo.sends:
                break
        events, self._events = self._events, []
        while events:
            mailbox = events[0][0]
            own = [event for each, event in events if each is mailbox]
            events = [each for each in events if each[0] is not mailbox]
            mailbox.post_all(own)

    def _send(self, worker: WorkerProcess, tasks: Sequence[InFlight]) -> None:
        """Send *tasks* to *worker*, which is idle or has little left to do."""
        now = time.monotonic()
        if worker.state is WorkerState.IDLE:
            worker.heard = now
        numbers: list[int] = []
        parts: list[bytes] = []
        for task in tasks:
            body = self._ready_body(worker, task)
            if body is None:
                continue
            task.number = next(self._numbers) & 0xFFFFFFFF
            task.worker, worker.tasks[task.number] = worker, task
            task.sent = task.alive = now
            worker.reads.update(ref.id for ref in task.refs)
            worker.contexts.update(task.contexts)
            size = len(task.code.digest) + len(body)
            parts += (protocol.TASK.pack(task.number, size), task.code.digest, body)
            numbers.append(task.number)
            self._timeouts.start(task)
        if not numbers:
            return
        worker.note(WorkerEvent.SENT)
        if freed := worker.reader.take_released():
            self.workers.send(worker, protocol.FREED, 0, freed)
        worker.give_tokens(numbers)
        self.workers.send(worker, protocol.TASKS, 0, b"".join(parts))
        if len(worker.tasks) > 1 and not self._looks_for_stuck:
            self._looks_for_stuck = True
            self.loop.timers.add(now + STUCK_AFTER, self._look_for_stuck)

    def _ready_body(self, worker: WorkerProcess, task: InFlight) -> bytes | None:
        """Return *task* packed, once *worker* has what it needs for it; None: it has failed."""
        try:
            body = self.encoder.pack(task)
            if not worker.hand_over(task.refs, self.arena):
                self._release_own(task)
                body = self.encoder.pack(task, share=False)
        except FlowPregelError as error:
            self.finish(task, Raised(error))
            return None
        if task.code.digest not in worker.known:
            worker.known.add(task.code.digest)
            self.workers.send(worker, protocol.NODE, 0, task.code.digest + task.code.data)
        return body

    # ------------------------------------------------ tasks back

    def recall(self, worker: WorkerProcess) -> None:
        """Take back the tasks that *worker* has not begun; those that are to stop end."""
        tasks = [worker.tasks[n] for n in worker.take_tokens() if n in worker.tasks]
        for task in tasks:
            self._detach(task)
            if task.stopping is not None:
                self.finish(task, task.stopped())
        self._queue.add_first(task for task in tasks if task.stopping is None)

    def _detach(self, task: InFlight) -> None:
        """Take *task*, whose worker has not opened what it was sent, from its worker."""
        worker = task.worker
        worker.reads.difference_update(ref.id for ref in task.refs)
        self._free_worker(task)

    def _free_worker(self, task: InFlight) -> None:
        worker, task.worker = task.worker, None
        del worker.tasks[task.number]
        worker.open_calls -= len(task.calls)
        task.calls.clear()
        if not worker.tasks and worker.state is not WorkerState.GONE:
            self.workers.rest(worker)

    def _look_for_stuck(self) -> None:
        """Take back what waits behind a slow task while a worker is idle."""
        now, workers = time.monotonic(), self.workers.all
        has_idle = any(each.state is WorkerState.IDLE for each in workers)
        for worker in [*workers]:
            if has_idle and worker.is_stuck(now):
                self.recall(worker)
        self._looks_for_stuck = any(len(each.tasks) > 1 for each in workers)
        if self._looks_for_stuck:
            self.loop.timers.add(now + STUCK_AFTER, self._look_for_stuck)

    # ------------------------------------------------ tasks out

    def post(self, mailbox: Mailbox, event: Event) -> None:
        """Post *event* at the end of this turn of the loop."""
        self._events.append((mailbox, event))

    def finish(
        self,
        task: InFlight,
        outcome: Outcome,
        span: Span | None = None,
        caught: Collection[str] | None = None,
    ) -> None:
        """End *task*: free its worker, tell its run."""
        self._tasks.pop(task.job.key, None)
        if task.worker is None:
            self._release_own(task)
        else:
            task.worker.served += 1
            self._free_worker(task)
        self.post(task.mailbox, Ended(*task.job.key, outcome, span, caught))

    def _release_own(self, task: InFlight) -> None:
        """Release the shared memory of *task*, which no worker reads."""
        for ref in task.refs:
            self.arena.release(ref.id)
        task.refs = ()

    # ------------------------------------------------ how a task is stopped

    def _stop(self, task: InFlight, reason: StopReason) -> None:
        """Stop *task*, which a worker has: first a signal, which raises in it, then the kill."""
        if task.stopping is not None:
            return
        task.stopping, worker = reason, task.worker
        # A kill is to hit no other task; and this one may not have begun.
        self.recall(worker)
        self.unhold(worker)
        if task.worker is worker:
            worker.signal_stop(task.number)
            why = "it was killed, because its task did not stop when it was told to"
            end = time.monotonic() + self.settings.grace
            self._timeouts.at(end, task, lambda _: worker.kill(why))

    # ------------------------------------------------ streams that are read slowly

    def hold(self, worker: WorkerProcess, task: InFlight) -> bool:
        """Leave the link of *worker* unread; False: that would hold up another run."""
        if task.stopping is not None or worker.held_by is not None:
            return False
        mailbox = task.mailbox
        self.recall(worker)
        others = (*worker.tasks.values(), *self._queue)
        if any(each.mailbox is not mailbox for each in others):
            return False
        worker.held_by = mailbox
        self.loop.mute(worker.link.fileno(), True)
        return True

    def unhold(self, worker: WorkerProcess) -> None:
        """Read the link of *worker* again, if it was left unread."""
        if worker.held_by is not None:
            worker.held_by = None
            if worker.state is not WorkerState.GONE:
                self.loop.mute(worker.link.fileno(), False)

    # ------------------------------------------------ workers

    def _on_exit(self, worker: WorkerProcess, report: PostMortem) -> None:
        running = worker.running()
        lost = []
        for task in [*worker.tasks.values()]:
            if task is not running:
                self._detach(task)
                lost.append(task)
            else:
                # It did not live to tell when the task began.
                seconds = time.monotonic() - task.sent
                span = time.time_ns() - int(seconds * 1e9), seconds, "processes", worker.pid
                died = Raised(report.error(task.job.task.name))
                outcome = died if task.stopping is None else task.stopped()
                self.finish(task, outcome, span)
        for ref_id in worker.reads:
            self.arena.release(ref_id)
        self._queue.add_first([each for each in lost if self._goes_on(each, report, running)])
        for left in worker.leaving.values():
            left.set_result(None)

    def _goes_on(self, task: InFlight, report: PostMortem, running: InFlight | None) -> bool:
        """Return whether *task*, whose worker ended before it began, waits again; else end it."""
        task.lost_starts += running is None
        if task.stopping is not None:
            self.finish(task, task.stopped())
        elif task.lost_starts > START_TRIES:
            # Workers may always end before they begin.
            self.finish(task, Raised(report.error(task.job.task.name)))
        else:
            return True
        return False

    def _on_hopeless(self, error: BaseException) -> None:
        """End all tasks that wait: no worker can be started."""
        for task in [*self._queue]:
            failure = ExecutorUnavailableError(f"no worker process can be started: {error}")
            failure.__cause__ = error
            self._withdraw(task, Raised(failure))

    def _close(self) -> None:
        self._is_closing = True
        for task in [*self._queue]:
            self._withdraw(task, Withdrawn())
        for task in self._tasks.values():
            task.stopping = "cancel"
        self.workers.dismiss_all()
