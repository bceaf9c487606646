"""The pool of this machine, which has waiting tasks, workers, and the tasks of each
worker.

Theory of operation. The pool works on the I/O thread, in turns. In a turn the loop
handles messages of workers (frames), commands and timers, and their handlers only
record changes. At the end of the turn `_dispatch` makes all decisions at once:
`assign`, a pure function, determines which tasks each worker gets and which workers to
start. Then the events of the turn are posted, all events of a run together.

A task is in the queue, or was sent to a worker (`Execution.worker`), or has ended. A
task that was sent either runs, or waits behind the worker's running task. The waiting
task has a start permission (token) that the pool can take back (`recall`). The pool
takes a task back if it would wait for long: because the task before it calls other
tasks or is being stopped, or because another worker is idle.

A task is stopped in two steps. A signal makes its code raise an error. If the task has
not ended when the grace is over, its worker is killed. Before the signal, the tasks
behind it are taken back, so that the kill affects only this task. If a worker dies for
another reason, only the task that it ran is lost, and the tasks behind it are queued
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain, count
from math import inf
from operator import attrgetter
from typing import Any, ClassVar, Final

from flowpregel._core.ids import Cost, Span
from flowpregel._core.records import Raised, Withdrawn
from flowpregel.errors import OUT_OF_MEMORY, WorkerDiedError
from flowpregel.executors.base import JobKey, Mailbox
from flowpregel.executors.processes.coordinator import crash_report
from flowpregel.executors.processes.coordinator.arrivals import FailedStart
from flowpregel.executors.processes.coordinator.assign import (
    LARGEST_BATCH,
    Assignment,
    Execution,
    InFlight,
    PoolLimits,
    StopReason,
    assign,
)
from flowpregel.executors.processes.coordinator.guard import Guard
from flowpregel.executors.processes.coordinator.process_handle import set_nice
from flowpregel.executors.processes.coordinator.task_pool import CLOSED, TaskPool
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.coordinator.worker_link import CLOSED_LINK
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
"""The number of failed starts of workers, one after another, at which all waiting tasks
are ended with an error. A single task fails if more workers than this number have died
before they began it.
"""
_SPARE: Final = 8
"""The number of idle workers that are kept in addition to twice the pool's size."""
_OOM_SECONDS: Final = 5.0
"""Seconds after a kill by the kernel's OOM killer in which other workers that were
killed are regarded as its victims too.
"""


class Pool(TaskPool):
    """The pool of this machine: its worker processes, their tasks, and the waiting
    tasks.

    A pool is used on the I/O thread only.

    Args:
        settings: The settings of the pool.
    """

    worker_class: ClassVar[type[WorkerProcess]] = WorkerProcess
    """The class of the workers. A subclass may start the processes in another way."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(
            settings, Arena(settings.shared_limit // 2, segments=segments_for(2))
        )
        self.workers: set[WorkerProcess] = set()
        self.handlers.update(
            {
                protocol.READY: self._on_ready,
                protocol.FAILED: self._on_failed,
                protocol.RETURNED: self._on_returned,
                protocol.SPOILED: self._on_spoiled,
                protocol.REFUSED: self._on_refused,
                protocol.LEFT: _on_contexts_left,
            }
        )
        self._numbers = count(1)
        self._batch = LARGEST_BATCH
        if settings.worker_max_tasks is not None or settings.worker_max_rss is not None:
            # Tasks are sent one by one, so that the worker can be replaced after each
            # of them.
            self._batch = 1
        self._keep = 0
        """The number of workers that the pool keeps running even if no task waits."""
        self._failed_starts = 0
        self._is_resized = False
        """True if the user has changed the size of the running pool."""
        self._guard = Guard()
        self._oom_kills = crash_report.count_oom_kills()
        self._oom_until = 0.0
        """The monotonic time until which the end of a killed worker is attributed to
        the OOM killer.
        """
        self._stop_unused()

    # ------------------------------------------------ accepting tasks

    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a waiting task. If *kill*, also stop a running task."""
        if (task := self.withdraw(key)) is not None and kill:
            self._stop(task, "cancel")

    def warn(self, key: JobKey) -> None:
        """Withdraw a task that has not begun, or warn a running task that its run will
        end.
        """
        if (task := self.withdraw(key)) is not None:
            self.recall(task.execution.worker)
        if (task := self.withdraw(key)) is not None:
            task.execution.worker.warn(task.execution.number)

    def _dispatch(self) -> None:
        """Send waiting tasks to workers, start missing workers, and post events."""
        now = time.monotonic()
        # no mutant: With a single task, this has no effect, and only takes time.
        if len(self._tasks) > 1 and not self._queue.count:
            self._rebalance()
        can_send = not self._is_closing
        while can_send and (self._queue.count or len(self.workers) < self._keep):
            can_send = self._assign(now)
        self.loop.is_done = self._is_closing and not self.workers
        self._post_events()

    def _assign(self, now: float) -> bool:
        """Execute the plan that `assign` returns.

        Returns:
            True if any task was sent to a worker.
        """
        workers = sorted(self.workers, key=attrgetter("last_activity"), reverse=True)
        loads = [worker.load(now) for worker in workers]
        limits = PoolLimits(self.settings.size, self._keep, self._batch)
        if self.resources.count:
            plan = self.resources.assign(self._queue, loads, limits, self._tasks)
            self._make_room(workers, plan)
        else:
            plan = assign(self._queue, loads, limits)
        batches = [tasks for _, tasks in plan.sends]
        self._queue.remove(chain.from_iterable(batches))
        for index, tasks in plan.sends:
            self._send(workers[index], tasks, now)
        for kind in plan.starts:
            self._start_worker(kind)
        return bool(plan.sends)

    def _make_room(self, workers: Sequence[WorkerProcess], plan: Assignment) -> None:
        """Stop the other idle workers if *plan* sends a task that must run alone,
        because the task may need their memory.
        """
        for index, tasks in plan.sends:
            needs = tasks[0].needs
            if needs is None or not needs.is_exclusive:
                continue
            self._keep = 0
            for worker in workers:
                is_idle = worker.state is WorkerState.IDLE
                if is_idle and worker is not workers[index]:
                    worker.stop()

    def _send(
        self, worker: WorkerProcess, tasks: Sequence[InFlight], now: float
    ) -> None:
        """Send *tasks* to *worker*, which is idle or expected to be idle soon."""
        if not worker.tasks:
            worker.last_activity = now
        for task in tasks:
            if task.refs:
                self._hand_over(worker, task)
            if task.contexts:
                worker.sent.contexts.update(task.contexts)
            number = next(self._numbers) & 0xFFFFFFFF
            task.execution = Execution(worker, number, now, now)
        worker.give(tasks)
        for task in tasks:
            if task.needs is not None:
                self.resources.start(task)
            if task.job.task.timeout is not None:
                self._check_timeout(worker, task.execution.number)

    def _hand_over(self, worker: WorkerProcess, task: InFlight) -> None:
        """Send *worker* the descriptors of the shared memory that contains large
        buffers of *task*, or copy these buffers into the task's body.
        """
        try:
            for ref in task.refs:
                descriptor = self.arena.descriptor(ref)
                worker.connections.fd_socket.send(ref.segment, descriptor)
        except OSError:
            # A descriptor cannot be sent if too many are open. The buffers are then
            # copied into the message.
            self.encoder.inline_buffers(task)
        worker.sent.buffers.update(ref.id for ref in task.refs)

    # ------------------------------------------------ changing the size

    def request_size(self, workers: int | None, nice: int | None) -> None:
        """Request a change of the number or the nice value of the workers, which the
        I/O thread makes soon. Any OS thread may call this.

        Args:
            workers: The number of workers that run tasks at the same time, or None for
                no change.
            nice: The nice value of the workers, or None for no change.
        """
        self.loop.call(partial(self._resize, workers, nice))

    def _resize(self, workers: int | None, nice: int | None) -> None:
        """Change the number or the nice value of the workers.

        Running tasks continue. Workers beyond the new number, and workers with another
        nice value, are stopped once they are idle.
        """
        before = self.settings
        size = before.size if workers is None else workers
        nice = before.nice if nice is None else nice
        if (size, nice) == (before.size, before.nice):
            return
        amounts = {**before.amounts, "cpus": max(before.amounts["cpus"], size)}
        self.settings = replace(before, size=size, nice=nice, amounts=amounts)
        self.resources.resize(self.settings)
        self._keep = min(self._keep, size)
        self._is_resized = True
        for worker in tuple(self.workers):
            self.recall(worker)
            if nice is not None and nice != before.nice:
                worker.is_outdated = True
                set_nice(worker.pid, nice)
            is_idle = worker.state is WorkerState.IDLE
            if is_idle and (worker.is_outdated or self._is_spare()):
                worker.stop()

    # ------------------------------------------------ taking tasks back

    def recall(self, worker: WorkerProcess) -> None:
        """Take back the tasks that *worker* has not begun, and queue them again."""
        numbers = worker.connections.take_tokens()
        tasks = [worker.tasks[number] for number in numbers if number in worker.tasks]
        self._requeue(tasks)

    def _requeue(self, tasks: Sequence[InFlight]) -> None:
        """Put *tasks*, which no worker has begun, into the queue again. A task that
        must stop is ended instead.
        """
        for task in tasks:
            worker = task.execution.worker
            worker.sent.buffers.difference_update(ref.id for ref in task.refs)
            worker.served -= 1
            self._free(task)
            if task.execution.stopping is None:
                self._queue.add(task)
            else:
                self.finish(task, task.stopped())

    def _free(self, task: InFlight) -> None:
        """Remove *task* from its worker, and stop the worker if it must be replaced or
        is superfluous.
        """
        execution = task.execution
        worker = execution.worker
        execution.release()
        del worker.tasks[execution.number]
        worker.note_tasks()
        if worker.state is not WorkerState.IDLE:
            return
        worker.last_activity = time.monotonic()
        if self._is_worn(worker) or self._is_spare():
            worker.stop()

    def _is_worn(self, worker: WorkerProcess) -> bool:
        """Return whether *worker*, which is idle, must be replaced: it has run enough
        tasks, uses too much memory, or cannot be used any more.
        """
        if worker.is_spoiled or worker.is_outdated or worker.kind.is_fresh:
            return True
        most_tasks = self.settings.worker_max_tasks
        if most_tasks is not None and worker.served >= most_tasks:
            reason = (
                f"tasks it has run: {worker.served} (worker_max_tasks={most_tasks})"
            )
            self._log_replacement(worker, reason)
            return True
        most_rss = self.settings.worker_max_rss
        if most_rss is None:
            return False
        rss = crash_report.memory_of(worker.pid)
        if rss > most_rss:
            reason = f"it uses {rss:,} bytes of memory (worker_max_rss={most_rss:,})"
            self._log_replacement(worker, reason)
        return rss > most_rss

    def _log_replacement(self, worker: WorkerProcess, reason: str) -> None:
        self.output.log(
            logging.INFO, "worker process %d is replaced: %s", worker.pid, reason
        )

    def _is_spare(self) -> bool:
        """Return whether there are too many idle workers.

        Workers whose task waits for calls are not counted, so the pool starts more
        workers than its size. When such a task continues, there are idle workers beyond
        the size. Some of these are kept, unless the pool was resized by the user.
        """
        size = self.settings.size
        if self._is_resized:
            uncounted = (WorkerState.WAITING, WorkerState.STOPPING)
            counted = [
                worker for worker in self.workers if worker.state not in uncounted
            ]
            return len(counted) > size
        most = 2 * size + _SPARE
        # no mutant: This is a shortcut. The count below gives the same answer.
        if len(self.workers) <= most:
            return False
        states = [worker.state for worker in self.workers]
        return states.count(WorkerState.IDLE) > most

    def _rebalance(self) -> None:
        """Take back the tasks that wait behind others on their workers, if another
        worker is idle and can get some of them.

        This is called only when the queue is empty.
        """
        behind = [worker for worker in self.workers if len(worker.tasks) > 1]
        if not behind:
            return
        states = [worker.state for worker in self.workers if worker.kind == PLAIN]
        is_free = states.count(WorkerState.BUSY) < self.settings.size
        if is_free and WorkerState.IDLE in states:
            for worker in behind:
                self.recall(worker)

    def _note_call(self, task: InFlight, request: int) -> None:
        super()._note_call(task, request)
        task.execution.worker.note_tasks()

    def _on_spoiled(self, worker: WorkerProcess, frame: Frame) -> None:
        """Handle the message that the last task of *worker* has changed the state of
        the process irreversibly (the worker is spoiled), and replace the worker.
        """
        worker.is_spoiled = True
        parts = frame.body.decode(errors="replace")
        reason = f"its last task has changed what cannot be restored: {parts}"
        self._log_replacement(worker, reason)
        self.recall(worker)
        if worker.state is WorkerState.IDLE:
            worker.stop()

    def _on_refused(self, worker: WorkerProcess, frame: Frame) -> None:
        """Queue a task again that *worker* has refused, because an earlier task had
        irreversibly changed the worker's process (the worker was spoiled).
        """
        task = worker.tasks.get(frame.number)
        if task is not None:
            self._requeue((task,))

    # ------------------------------------------------ ending tasks

    def _on_returned(self, worker: WorkerProcess, frame: Frame) -> None:
        released = {*released_in(frame.body)}
        self.arena.release(released)
        worker.sent.buffers -= released

    def leave(
        self, contexts: Set[bytes], body: bytes, result: Future[Sequence[Future[Any]]]
    ) -> None:
        """Ask the workers to exit *contexts*. Set the result of *result* to a list of
        futures, one for each request that a worker has not confirmed yet.
        """
        exits: list[Future[Any]] = []
        for worker in self.workers:
            if not worker.sent.contexts & contexts:
                continue
            worker.sent.contexts -= contexts
            number = next(self._numbers) & 0xFFFFFFFF
            worker.sent.pending_context_exits[number] = Future()
            # A worker that is stopping exits all contexts when it ends, so it gets no
            # request to exit them.
            if worker.state is not WorkerState.STOPPING:
                worker.link.send(protocol.LEAVE, number, body)
            exits += worker.sent.pending_context_exits.values()
        result.set_result(exits)

    # ------------------------------------------------ stopping a task

    def _check_timeout(self, worker: WorkerProcess, number: int) -> None:
        """Stop a task of *worker* if its time limit has passed. Otherwise check again
        when it will have passed.
        """
        task = worker.tasks.get(number)
        if task is None or task.execution.stopping is not None:
            return
        now = time.monotonic()
        # While the link is not read, no sign of life can arrive. So this time is not
        # counted as time without a sign of life.
        heard = now if worker.link.is_paused() else worker.link.read_since
        task.execution.alive = max(task.execution.alive, heard)
        limit = task.next_limit()
        if limit.at <= now:
            self._stop(task, limit)
        elif limit.at < inf:
            check = partial(self._check_timeout, worker, number)
            task.execution.timer = self.loop.call_at(limit.at, check)

    def _stop(self, task: InFlight, reason: StopReason) -> None:
        """Stop *task*, which was sent to a worker and has not ended.

        A signal raises an error in the task's code. After the grace period, the worker
        is killed.
        """
        execution = task.execution
        if execution.stopping is not None:
            return
        execution.stopping = reason
        worker = execution.worker
        number = execution.number
        # The tasks that the worker has not begun are taken back first, because a kill
        # must not affect them. If *task* is among them, `recall` ends it as stopped, so
        # the worker needs no signal.
        self.recall(worker)
        worker.read_everything()
        if number not in worker.tasks:
            return
        worker.signal_stop(number)
        if execution.timer is not None:
            execution.timer.cancel()
        end = time.monotonic() + self.settings.grace
        kill = partial(_kill_stuck, worker, number)
        execution.timer = self.loop.call_at(end, kill)

    # ------------------------------------------------ slowly read streams

    def pause_reading(self, worker: WorkerProcess, task: InFlight) -> bool:
        """Stop reading from *worker* for now.

        If the worker or the queue has a task of another run, which the pause might
        delay, continue reading and return False.
        """
        if task.execution.stopping is not None or worker.link.paused_for is not None:
            return False
        self.recall(worker)
        for other_task in (*worker.tasks.values(), *self._queue):
            if other_task.mailbox is not task.mailbox:
                return False
        worker.link.pause_for(task.mailbox)
        return True

    def resume_reading(self, worker: WorkerProcess) -> None:
        """Resume reading from *worker*, if reading was paused because a run had too
        many unread chunks.
        """
        worker.link.resume()

    def resume_for_others(self, mailbox: Mailbox) -> None:
        """Resume reading from all workers that were paused because of the unread chunks
        of another run than the one that receives its events in *mailbox*.
        """
        for worker in self.workers:
            if worker.link.paused_for not in (None, mailbox):
                # The link is paused until the program reads the stream of the other
                # run. But the program may be waiting for the run of *mailbox*, whose
                # tasks may need this worker. Then neither run would continue, so the
                # link is resumed.
                worker.link.resume()

    def pause_for_output(self, worker: WorkerProcess) -> None:
        """Stop reading from *worker* until the text that it has printed is written,
        unless its task must stop.
        """
        task = worker.running()
        if task is None or task.execution.stopping is None:
            self.recall(worker)
            worker.link.pause_for_output()

    def refuse(self, task: InFlight, worker: WorkerProcess) -> None:
        """Kill *worker* if it still has *task*, because a message of the task cannot be
        unpickled.
        """
        if task.execution.worker is worker:
            # no mutant: This reason appears in no message.
            worker.kill(task.execution.unreadable or "")

    # ------------------------------------------------ starting workers

    def _start_worker(self, kind: WorkerKind) -> None:
        settings = self.settings
        if kind != PLAIN:
            settings = self.resources.settings_of(kind)
            self._free_gpus(kind)
        try:
            worker = self.worker_class(
                settings, self.loop, self.handlers, self._guard, self._on_end
            )
        except BaseException as error:  # noqa: BLE001 - the waiting tasks get it
            self.loop.call(partial(self._on_failed_start, error))
        else:
            self.workers.add(worker)

    def _free_gpus(self, kind: WorkerKind) -> None:
        """Stop the idle workers that use one of the GPUs of *kind*, since they may have
        allocated memory on it.
        """
        for worker in self.workers:
            is_in_the_way = not {*kind.gpus}.isdisjoint(worker.kind.gpus)
            if worker.state is WorkerState.IDLE and is_in_the_way:
                worker.stop()

    def _on_ready(self, worker: WorkerProcess, frame: Frame) -> None:
        self._failed_starts = 0
        worker.on_ready()
        self._keep = self.settings.size

    def _on_failed(self, worker: WorkerProcess, frame: Frame) -> None:
        worker.process.failure = messages.PackedOutcome(frame.body)

    def _on_failed_start(self, error: BaseException | messages.PackedOutcome) -> None:
        """Note that a worker did not become ready. After several failures in a row, end
        all waiting tasks with an error.
        """
        self._keep = 0
        self._failed_starts += 1
        if self._failed_starts < _START_TRIES:
            return
        self._failed_starts = 0
        for task in [*self._queue]:
            self.finish(task, FailedStart(error))

    # ------------------------------------------------ stopping workers

    def _stop_unused(self) -> None:
        """Stop the workers that have been idle for `PoolSettings.idle_after` seconds,
        and check again after that time.
        """
        now = time.monotonic()
        idle_after = self.settings.idle_after
        for worker in self.workers:
            is_unused = worker.last_activity + idle_after <= now
            if worker.state is WorkerState.IDLE and is_unused:
                self._keep = 0
                worker.stop()
        self.loop.call_at(now + idle_after, self._stop_unused)

    def _on_end(
        self, worker: WorkerProcess, exit_code: int | None, peak_rss: int | None
    ) -> None:
        """Forget *worker*, whose process has ended, and end or requeue its tasks."""
        self.workers.discard(worker)
        process = worker.process
        cause = self._cause_of(process.kill_reason, exit_code)
        report = crash_report.describe(peak_rss, worker.output.tail)

        def died(task: str) -> WorkerDiedError:
            return WorkerDiedError(task, worker.pid, cause, report)

        running = worker.running()
        self.resources.measure(running, peak_rss)
        if running is not None and cause == OUT_OF_MEMORY:
            self.resources.memory_retries.note(running, peak_rss or 0)
        self._end_tasks(worker, died, peak_rss or 0)
        self.arena.release(worker.sent.buffers)
        for pending_exit in worker.sent.pending_context_exits.values():
            pending_exit.set_result(None)
        if process.start_timer is not None or process.failure is not None:
            self._on_failed_start(process.failure or died("(starting)"))

    def _cause_of(self, reason: str | None, exit_code: int | None) -> str:
        """Describe why a worker has ended.

        Args:
            reason: The reason why the pool killed the worker, or None if it did not.
            exit_code: The exit code of the worker, or None if it is unknown.
        """
        now = time.monotonic()
        oom_kills = crash_report.count_oom_kills()
        if oom_kills > self._oom_kills:
            # The OOM killer may have killed several workers at once, but their ends are
            # noticed one after another. So the ends that follow soon are attributed to
            # it too.
            self._oom_until = now + _OOM_SECONDS
        self._oom_kills = oom_kills
        is_oom = now < self._oom_until
        # When the kernel kills a worker, the pool sees the closed link before the exit.
        # So the recorded reason may be the closed link, although the OOM killer was the
        # cause.
        if reason is None or (reason == CLOSED_LINK and is_oom):
            return crash_report.cause_of(exit_code, oom=is_oom)
        return reason

    def _end_tasks(
        self, worker: WorkerProcess, died: Callable[[str], WorkerDiedError], peak: int
    ) -> None:
        """End the task that was running on *worker*, whose process has ended, and
        requeue its other tasks.
        """
        running = worker.running()
        if running is not None:
            # The worker died before it could report when the task began, so the time at
            # which the task was sent is taken.
            seconds = time.monotonic() - running.execution.sent
            began = time.time_ns() - int(seconds * 1e9)
            cost = Cost(peak=peak)
            span = Span(began, seconds, self.kind, worker.pid, cost, worker.host)
            outcome = running.stopped()
            if running.execution.stopping is None:
                outcome = Raised(died(running.job.task.name))
            self.finish(running, outcome, span)
        unbegun = [*worker.tasks.values()]
        self._requeue(unbegun)
        if running is not None:
            return
        for task in unbegun:
            task.failed_starts += 1
            # The number of failed starts is limited. Otherwise a task whose workers
            # always die before they begin it would wait forever.
            is_stopping = task.execution.stopping is not None
            if task.failed_starts > _START_TRIES and not is_stopping:
                self.finish(task, Raised(died(task.job.task.name)))

    def close(self) -> None:
        """End all tasks and workers. Idle workers are asked to exit, and are killed
        only after the grace period.
        """
        self._is_closing = True
        for task in [*self._queue]:
            self.finish(task, Withdrawn())
        for task in self._tasks.values():
            task.execution.stopping = "cancel"
        end = time.monotonic() + self.settings.grace
        for worker in self.workers:
            if worker.state is WorkerState.IDLE:
                worker.stop()
            elif worker.state is not WorkerState.STOPPING:
                worker.kill(CLOSED)
            self.loop.call_at(end, partial(worker.kill, CLOSED))

    def release(self) -> None:
        """Release the remaining resources of the pool, after the I/O thread has
        ended.
        """
        super().release()
        self._guard.close()


def _kill_stuck(worker: WorkerProcess, number: int) -> None:
    if number in worker.tasks:
        worker.kill("it was killed, because its task did not stop when asked to")


def _on_contexts_left(worker: WorkerProcess, frame: Frame) -> None:
    """Note that *worker* has confirmed a request to exit contexts."""
    worker.sent.pending_context_exits.pop(frame.number).set_result(None)
