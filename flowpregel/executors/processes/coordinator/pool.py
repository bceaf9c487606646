"""The pool of this machine: which of its workers gets which task, and how workers come
and go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any, ClassVar, Final

from flowpregel._core.ids import Span
from flowpregel._core.records import Raised, Withdrawn
from flowpregel.errors import WorkerDiedError
from flowpregel.executors.base import JobKey
from flowpregel.executors.processes.coordinator import crash_report
from flowpregel.executors.processes.coordinator.arrivals import FailedStart
from flowpregel.executors.processes.coordinator.assign import (
    LARGEST_BATCH,
    InFlight,
    PoolLimits,
    StopReason,
    WorkerState,
)
from flowpregel.executors.processes.coordinator.guard import Guard
from flowpregel.executors.processes.coordinator.io_loop import Timer
from flowpregel.executors.processes.coordinator.task_pool import CLOSED, TaskPool
from flowpregel.executors.processes.coordinator.worker_process import WorkerProcess
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.protocol import (
    PLAIN,
    Frame,
    PoolSettings,
    WorkerKind,
)
from flowpregel.executors.processes.wire.shared_memory import (
    Arena,
    released_in,
    segments_for,
)

_START_TRIES: Final = 3
_SPARE: Final = 8


class Pool(TaskPool):
    """Worker processes, the tasks in flight on them, and those that wait; on the I/O
    thread.

    Args:
        settings: How it is set up.
    """

    worker_class: ClassVar[type[WorkerProcess]] = WorkerProcess
    """The class of its workers: another one starts their processes in another way."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(
            settings, Arena(settings.shared_limit // 2, segments=segments_for(2))
        )
        self.workers: set[WorkerProcess] = set()
        self.handlers |= {
            protocol.READY: self._on_ready,
            protocol.FAILED: self._on_failed,
            protocol.RETURNED: self._on_returned,
            protocol.SPOILED: self._on_spoiled,
            protocol.REFUSED: self._on_refused,
            protocol.LEFT: lambda worker, frame: worker.leaving.pop(
                frame.number
            ).set_result(None),
        }
        self._numbers = count(1)
        self._timers: dict[InFlight, Timer] = {}
        """Of tasks that workers have: what looks at the timeout, or kills the worker in
        the end.
        """
        # Where a worker is looked at after each task, the next may be another's.
        each = (
            settings.worker_max_tasks is not None or settings.worker_max_rss is not None
        )
        self._batch = 1 if each else LARGEST_BATCH
        self._keep = 0
        """How many workers are there even if no task waits."""
        self._failed_starts = 0
        self._guard = Guard()
        self._oom_kills = crash_report.count_oom_kills()
        self._dismiss_unused()

    # ------------------------------------------------ tasks in

    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a task that waits; if *kill*, stop it where it runs."""
        if (task := self.withdraw(key)) is not None and kill:
            self._stop(task, "cancel")

    def warn(self, key: JobKey) -> None:
        """Withdraw a task that has not begun; let one that runs know that its run is to
        end.
        """
        if (task := self.withdraw(key)) is not None:
            self.recall(task.worker)
        if (task := self.withdraw(key)) is not None:
            task.worker.warn(task.number)

    def _dispatch(self) -> None:
        """Give waiting tasks to workers, start workers that are missing, and post
        events.
        """
        now = time.monotonic()
        can_send = not self._is_closing
        if len(self._tasks) > 1 and not self._queue.count:
            self._spread()
        while can_send and (self._queue.count or len(self.workers) < self._keep):
            workers = sorted(self.workers, key=attrgetter("heard"), reverse=True)
            loads = [each.load(now) for each in workers]
            limits = PoolLimits(self.settings.size, self._keep, self._batch)
            kinds, sends = self.resources.assign(
                self._queue,
                loads,
                limits,
                self._tasks,
            )
            for index, tasks in sends:
                self._send(workers[index], tasks)
            for kind in kinds:
                self._start_worker(kind)
            can_send = bool(sends)
        self.loop.is_done = self._is_closing and not self.workers
        self._post_events()

    def _send(self, worker: WorkerProcess, tasks: Sequence[InFlight]) -> None:
        """Send *tasks* to *worker*, which is idle or has little left to do."""
        now = time.monotonic()
        if not worker.tasks:
            worker.heard = now
        for task in tasks:
            if task.refs:
                self._hand_over(worker, task)
            worker.contexts.update(task.contexts)
            task.worker, task.number = worker, next(self._numbers) & 0xFFFFFFFF
            task.sent = task.alive = now
        worker.give(tasks)
        for task in tasks:
            if task.needs is not None:
                self.resources.start(task)
            if task.job.task.timeout is not None:
                self._look_at_clock(worker, task.number)

    def _hand_over(self, worker: WorkerProcess, task: InFlight) -> None:
        """Give *worker* the shared memory of *task*, or send its content with it."""
        try:
            for ref in task.refs:
                worker.door.send(ref.segment, self.arena.descriptor(ref))
        except OSError:
            # The descriptor cannot be sent: too many are open.
            self.encoder.inline_buffers(task)
        worker.reads.update(ref.id for ref in task.refs)

    # ------------------------------------------------ tasks back

    def recall(self, worker: WorkerProcess) -> None:
        """Take back the tasks that *worker* has not begun."""
        self._take_back(
            [worker.tasks[n] for n in worker.take_tokens() if n in worker.tasks]
        )

    def _take_back(self, tasks: Sequence[InFlight]) -> None:
        """Have *tasks*, which no worker has begun, wait again; end those that are to
        stop.
        """
        for task in tasks:
            task.worker.reads.difference_update(ref.id for ref in task.refs)
            task.worker.served -= 1
            self._free(task)
            if task.stopping is None:
                self._queue.add(task)
            else:
                self.finish(task, task.stopped())

    def _free(self, task: InFlight) -> None:
        worker, task.worker = task.worker, None
        del worker.tasks[task.number]
        task.calls.clear()
        if (timer := self._timers.pop(task, None)) is not None:
            timer.cancel()
        if worker.state is not WorkerState.IDLE:
            return
        worker.heard = time.monotonic()
        most_tasks, most_rss = (
            self.settings.worker_max_tasks,
            self.settings.worker_max_rss,
        )
        is_worn = (
            worker.is_spoiled
            or worker.kind.is_fresh
            or (most_tasks is not None and worker.served >= most_tasks)
            or (most_rss is not None and crash_report.memory_of(worker.pid) > most_rss)
        )
        most = 2 * self.settings.size + _SPARE
        # Spare ones: a worker whose task waits for calls is not counted.
        # no mutant: it saves the count, which decides
        is_spare = len(self.workers) > most and (
            [each.state for each in self.workers].count(WorkerState.IDLE) > most
        )
        if is_worn or is_spare:
            worker.dismiss()

    def _spread(self) -> None:
        """No task waits here: take back what waits behind others, if a worker has
        nothing to do.
        """
        behind = [each for each in self.workers if len(each.tasks) > 1]
        if behind:
            states = [each.state for each in self.workers if each.kind == PLAIN]
            free = self.settings.size - states.count(WorkerState.BUSY)
            for worker in behind if free > 0 and WorkerState.IDLE in states else ():
                self.recall(worker)

    def _on_spoiled(self, worker: WorkerProcess, frame: Frame) -> None:
        """Replace *worker*: what its last task did to its process stays."""
        worker.is_spoiled = True
        self.recall(worker)
        if worker.state is WorkerState.IDLE:
            worker.dismiss()

    def _on_refused(self, worker: WorkerProcess, frame: Frame) -> None:
        """Have a task wait again that was sent before it was known that *worker* is
        spoiled.
        """
        if (task := worker.tasks.get(frame.number)) is not None:
            self._take_back((task,))

    # ------------------------------------------------ tasks out

    def _on_returned(self, worker: WorkerProcess, frame: Frame) -> None:
        released = {*released_in(frame.body)}
        self.arena.release(released)
        worker.reads -= released

    def leave(
        self, contexts: Set[bytes], body: bytes, asked: Future[Sequence[Future[Any]]]
    ) -> None:
        """Have the workers leave *contexts*; set *asked* to the futures of when they
        have.
        """
        workers = [each for each in self.workers if each.contexts & contexts]
        for worker in workers:
            worker.contexts -= contexts
            number = next(self._numbers) & 0xFFFFFFFF
            worker.leaving[number] = Future()
            # One that was dismissed leaves all that it has entered.
            if worker.state is not WorkerState.LEAVING:
                worker.send(protocol.LEAVE, number, body)
        asked.set_result([left for each in workers for left in each.leaving.values()])

    # ------------------------------------------------ how a task is stopped

    def _look_at_clock(self, worker: WorkerProcess, number: int) -> None:
        """Stop a task of *worker* whose time is over, or look again when it will be."""
        task, now = worker.tasks.get(number), time.monotonic()
        if task is None or task.stopping is not None:
            return
        if worker.is_held:
            # Its signs of life are not read.
            task.alive = now
        run, idle = task.ends_at("run"), task.ends_at("idle")
        if (end := min(run, idle)) <= now:
            self._stop(task, "run" if run <= idle else "idle")
        elif end < inf:
            again = partial(self._look_at_clock, worker, number)
            self._timers[task] = self.loop.call_at(end, again)

    def _stop(self, task: InFlight, reason: StopReason) -> None:
        """Stop *task*, which a worker has: first a signal, which raises in it, then the
        kill.
        """
        if task.stopping is not None:
            return
        task.stopping, worker, number = reason, task.worker, task.number
        # A kill is to hit no other task; and this one may not have begun.
        self.recall(worker)
        worker.listen()
        if number in worker.tasks:
            worker.signal_stop(number)
            if (timer := self._timers.pop(task, None)) is not None:
                timer.cancel()
            end = time.monotonic() + self.settings.grace
            self._timers[task] = self.loop.call_at(
                end, partial(_kill_stuck, worker, number)
            )

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

    def hold_output(self, worker: WorkerProcess) -> None:
        """Leave what *worker* sends unread until its output is written, unless it is to
        stop.
        """
        task = worker.running()
        if task is None or task.stopping is None:
            self.recall(worker)
            worker.hold_output()

    def refuse(self, task: InFlight, worker: WorkerProcess) -> None:
        """Kill *worker* if it still has *task*: something that it sent cannot be
        read.
        """
        if task.worker is worker:
            worker.kill(task.unreadable or "")

    # ------------------------------------------------ how workers come

    def _start_worker(self, kind: WorkerKind) -> None:
        settings = self.settings if kind == PLAIN else self.resources.settings_of(kind)
        for worker in self.workers:
            if worker.state is WorkerState.IDLE and {*worker.kind.gpus} & {*kind.gpus}:
                worker.dismiss()  # what it has allocated on the GPU is freed
        try:
            self.workers.add(
                self.worker_class(
                    settings, self.loop, self.handlers, self._guard, self._on_end
                )
            )
        except BaseException as error:  # noqa: BLE001 - told to the tasks that wait
            self.loop.call(partial(self._on_failed_start, error))

    def _on_ready(self, worker: WorkerProcess, frame: Frame) -> None:
        self._failed_starts = 0
        worker.is_ready = True
        worker.start_timer.cancel()
        worker.heard = time.monotonic()
        self._keep = self.settings.size

    def _on_failed(self, worker: WorkerProcess, frame: Frame) -> None:
        worker.failure = messages.PackedOutcome(frame.body)

    def _on_failed_start(self, error: BaseException | messages.PackedOutcome) -> None:
        """Note that a worker did not get ready; if that goes on, end all tasks that
        wait.
        """
        self._failed_starts = (self._failed_starts + 1) % _START_TRIES
        self._keep = 0
        for task in [] if self._failed_starts else [*self._queue]:
            self.finish(task, FailedStart(error))

    # ------------------------------------------------ how workers go

    def _dismiss_unused(self) -> None:
        """Dismiss workers that were idle for long; look again after as long."""
        now, idle_after = time.monotonic(), self.settings.idle_after
        for worker in self.workers:
            if worker.state is WorkerState.IDLE and worker.heard + idle_after <= now:
                self._keep = 0
                worker.dismiss()
        self.loop.call_at(now + idle_after, self._dismiss_unused)

    def _on_end(
        self, worker: WorkerProcess, exit_code: int | None, peak_rss: int | None
    ) -> None:
        self.workers.discard(worker)
        kills = crash_report.count_oom_kills()
        cause = worker.killed or crash_report.cause_of(
            exit_code, oom=kills > self._oom_kills
        )
        self._oom_kills, report = kills, crash_report.describe(peak_rss, worker.tail)

        def died(task: str) -> WorkerDiedError:
            return WorkerDiedError(task, worker.pid, cause, report)

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
        """End the task that *worker*, which is gone, has begun; the others wait
        again.
        """
        running = worker.running()
        if running is not None:
            # it did not live to tell when that began
            seconds = time.monotonic() - running.sent
            began = time.time_ns() - int(seconds * 1e9)
            span = Span(began, seconds, self.kind, worker.pid, 0.0, peak, worker.host)
            outcome = running.stopped()
            if running.stopping is None:
                outcome = Raised(died(running.job.task.name))
            self.finish(running, outcome, span)
        lost = [*worker.tasks.values()]
        self._take_back(lost)
        for task in lost if running is None else ():
            task.lost_starts += 1
            # Workers may always end before they begin.
            if task.lost_starts > _START_TRIES and task.stopping is None:
                self.finish(task, Raised(died(task.job.task.name)))

    def close(self) -> None:
        """End all tasks and workers: idle ones are told to exit, and have the grace for
        it.
        """
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
        super().release()
        self._guard.close()


def _kill_stuck(worker: WorkerProcess, number: int) -> None:
    if number in worker.tasks:
        worker.kill("it was killed, because its task did not stop when it was told to")
