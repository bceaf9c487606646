"""The executors that run tasks in this process, either on OS threads of the executor or
on the OS thread that drives the run.

A `LocalRunClient` connects a task in this process to its run. Tasks on an event loop
use it too.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import ref

from flowpregel._core import tracing
from flowpregel._core.effects import Call, CancelCall, Emitted, Ended, SaveState
from flowpregel._core.ids import CallKey, Span
from flowpregel._core.previews import NO_PREVIEW
from flowpregel._core.records import (
    Arguments,
    Node,
    Outcome,
    Raised,
    Withdrawn,
)
from flowpregel._interrupts import interruptible, is_from_handler
from flowpregel._pickling.copies import IMMUTABLE, restore_value, snapshot_value
from flowpregel.context import Job, RunClient
from flowpregel.errors import (
    ExecutorUnavailableError,
    NodeCancelledError,
    TaskCancelled,
    TaskExitError,
    TaskSerializationError,
)
from flowpregel.executors.attempt import Stopwatch, perform
from flowpregel.executors.base import (
    Backlog,
    Capabilities,
    Executor,
    JobKey,
    Mailbox,
)
from flowpregel.executors.calls import (
    CallFuture,
    OpenCalls,
    observed_failures,
    on_event_loop,
)
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.shared import captured, runs_elsewhere

_CALL_SIZE: Final = 32 << 10
"""The number of bytes that a call adds to the `Backlog` of the run (the size of the
events that the run has not handled yet), as an estimate.
"""
_LONGEST_HOLD: Final = 0.05
"""The maximum number of seconds for which a task is paused until the run has handled
its events. The pause is limited, because a run that has failed handles no more events.
"""


class LocalRunClient(RunClient):
    """The connection between a task in this process and its run.

    Args:
        job: The attempt of the task.
        mailbox: The mailbox that receives the task's events.
        turn: The argument *turn* for the future of each call (see `CallFuture`).
        before_first: A function that is called before the task makes its first call. It
            is passed only if the task has its own OS thread. Such a task is paused if
            it makes calls faster than the run handles them.
    """

    def __init__(
        self,
        job: Job,
        mailbox: Mailbox,
        turn: Callable[[CallFuture[Any]], None] | None = None,
        before_first: Callable[[], None] | None = None,
    ) -> None:
        self._job = job
        self._mailbox = mailbox
        self._turn = turn
        self._backlog: Backlog | None = None
        """The backlog of the run, if the task is paused when it makes calls faster than
        the run starts them, else None.
        """
        is_measured = job.run.has_saver or tracing.make_tracer is not None
        self._watch = Stopwatch() if is_measured else None
        """The stopwatch of the attempt, or None if its span is neither stored nor
        traced.
        """
        self.last_activity: float = time.monotonic()
        """The monotonic time of the task's last sign of life."""
        self._all_count = (
            job.task.timeout is not None and job.task.timeout.refresh_on == "auto"
        )
        """True if every message from the task to its run is a sign of life, not only a
        `beat`.
        """
        self._last_called: tuple[Node, bool] | None = None
        """The node that was called last, and whether its calls are sent to another
        process.
        """
        self.open_calls: OpenCalls = OpenCalls()
        """The calls of the attempt that have not succeeded. A call that succeeds is
        removed, so that its result is freed when the caller drops it.
        """
        self.open_calls.pid = os.getpid()
        self.open_calls.task = job.task.node.name
        if before_first is not None:
            self._backlog = mailbox.backlog
            self.open_calls.before_first = before_first
        self.open_calls.cancel = partial(_cancel, ref(mailbox), job.key)

    def channels(self, names: Sequence[str]) -> None:
        """Return None, because a task in this process can already read all channels of
        the run.
        """

    def emit(self, payload: Any) -> None:
        """Post a chunk of the stream mode ``custom``, or a `Report`, to the run."""
        if self._all_count:
            self.beat()
        self.open_calls.check_process()
        self._mailbox.post(Emitted(self._job.task.id, payload))

    def call(
        self, node: Node, arguments: Arguments, call_key: CallKey | None, *reply: Any
    ) -> Any:
        """Make a call, and return the call's future: *reply* if it is passed, or else a
        new future.
        """
        job = self._job
        if self._all_count:
            self.beat()
        if os.getpid() != self.open_calls.pid:
            self.open_calls.check_process()
        code = None
        # `_last_called` is read only once, because another OS thread may make a call at
        # the same time, and replace the value.
        last_called = self._last_called
        if last_called is None or last_called[0] is not node:
            last_called = node, runs_elsewhere(node, job.run.executor)
            self._last_called = last_called
        if last_called[1]:
            try:  # noqa: SIM105 - costs nothing, `suppress` as much as the call
                code = codes.code_of(node)
            except TaskSerializationError:
                # The error is ignored here, because the executor of the call will
                # pickle the node again, and then raises the same error.
                pass
            values = (*arguments.args, *arguments.kwargs.values())
            # A copy of the arguments is made unless all of them are immutable.
            if not IMMUTABLE.issuperset(map(type, values)):
                arguments = captured(arguments, may_wait=self._may_wait(reply))
        # `CallFuture[Any](...)` is not used, because the generic alias would add an
        # attribute to each future.
        future: CallFuture[Any] = (
            reply[0] if reply else CallFuture(self._turn, self.open_calls)
        )
        call = Call(*job.key, node, arguments, call_key, future, copy_context(), code)
        self._mailbox.post(call)
        backlog = self._backlog
        if backlog is not None and not reply and backlog.add(_CALL_SIZE):
            _wait_for_run(backlog)
        return future

    def _may_wait(self, reply: Sequence[CallFuture[Any]]) -> bool:
        """Return whether a call may block this OS thread. It must not block the OS
        thread that drives the run, nor that of an event loop. A call with a *reply* is
        made on the OS thread of whatever call ended last, which it must not block
        either.
        """
        return not reply and self._turn is None and not on_event_loop()

    def beat(self) -> None:
        """Record a sign of life of the task."""
        self.last_activity = time.monotonic()

    def end(self, outcome: Outcome, executor: str) -> None:
        """Post the outcome of the attempt, which ran on *executor*."""
        caught: Collection[str] | None = None
        if self.open_calls.count:
            caught = observed_failures(outcome, self.open_calls)
        span: Span | None = None
        if self._watch is not None:
            span = self._watch.stop(executor)
            if self._job.preview is not NO_PREVIEW:
                span = span._replace(preview=self._job.preview)
        self._mailbox.post(Ended(*self._job.key, outcome, span, caught))

    def is_ending(self) -> bool:
        """Return whether the run was asked to end, so that the task should stop in
        time.
        """
        return bool(self._job.run.ending)

    def save(self, state: Any) -> None:
        """Store a copy of *state* for the next attempt of this task.

        Unless the task is on an event loop, wait until the state is stored.
        """
        job = self._job
        reply = CallFuture[Any](self._turn)
        if self._all_count:
            self.beat()
        self.open_calls.check_process()
        # The reply is also listed among the open calls of the task. If the run is
        # stopped, these end with an error, so this OS thread stops waiting.
        self.open_calls.add(reply)
        value = restore_value(snapshot_value(state, "the saved state"), "it")
        self._mailbox.post(SaveState(*job.key, value, reply))
        reply.add_done_callback(self.open_calls.discard)
        if self._turn is not None or not on_event_loop():
            reply.result()


def _wait_for_run(backlog: Backlog) -> None:
    """Wait until the run has handled all events, because this task makes calls faster
    than the run starts them.
    """
    caught_up = threading.Event()
    if backlog.hold(caught_up.set):
        caught_up.wait(_LONGEST_HOLD)


def _cancel(mailbox: ref[Mailbox], key: JobKey, future: CallFuture[Any]) -> None:
    """Ask the run to withdraw a call that its caller no longer needs. Do nothing if the
    mailbox of the run was freed.
    """
    receiver = mailbox()
    if receiver is not None:
        receiver.post(CancelCall(*key, future))


def stop_calls(calls: Collection[CallFuture[Any]], reason: str) -> None:
    """End *calls* with an error. A task that waits for one of them is woken, gets the
    error, and ends.
    """
    for future in list(calls):
        with suppress(concurrent.futures.InvalidStateError):
            if not future.done():
                future.set_exception(TaskCancelled(reason))


# ------------------------------------------------ OS threads

Waiting: TypeAlias = deque[tuple[Job, Mailbox]]
_FRAMES: Final = 200
"""The number of Python stack frames that are kept free for the run when a task on its
OS thread waits for a call, because the run then continues on top of the task's frames.
"""
_SLICE: Final = 0.002
"""Seconds for which inline tasks run one after another, before the run handles their
results.
"""


def _withdrawn(waiting: Waiting, key: JobKey) -> bool:
    """Withdraw the job with *key* if it waits, and return whether it waited."""
    for item in waiting:
        if item[0].key == key:
            waiting.remove(item)
            item[1].post(Ended(*key, Withdrawn()))
            return True
    return False


def _put(waiting: Waiting, jobs: Iterable[Job], mailbox: Mailbox) -> None:
    """Add each job to the queue *waiting*, behind the jobs of the same priority and
    before those of lower priorities.
    """
    for job in jobs:
        position = len(waiting)
        while position and waiting[position - 1][0].priority < job.priority:
            position -= 1
        waiting.insert(position, (job, mailbox))


def no_os_thread(job: Job, error: RuntimeError) -> ExecutorUnavailableError:
    """Return the error of a *job* for which the operating system refuses another OS
    thread with *error*.
    """
    return ExecutorUnavailableError(
        f"no OS thread can be started for task {job.task.name!r} ({error}): let the "
        "program have more (`ulimit -u`, the container's pids limit), or run fewer"
    )


class ThreadExecutor(Executor):
    """An executor that runs tasks on OS threads, which are started when needed and kept
    until `close`.

    Tasks that have called other tasks are not counted, because they may wait for these
    calls. So nested calls cannot deadlock. A task on an OS thread cannot be stopped.

    Args:
        max_workers: The number of tasks that run at the same time. The default is four
            more than the number of processors, but no more than 32.
        name: The prefix of the OS threads' names.
    """

    capabilities: Capabilities = Capabilities(runs_here=True)

    def __init__(
        self, max_workers: int | None = None, *, name: str = "flowpregel"
    ) -> None:
        self._limit = max_workers or min(32, (os.cpu_count() or 1) + 4)
        self._name = name
        self._changed = threading.Condition()
        self._waiting: Waiting = deque()
        self._threads: list[threading.Thread] = []
        self._running: dict[Job, OpenCalls] = {}
        """The open calls of each running job. The key is the job itself, because an
        attempt that timed out may still run while the next attempt of the same task
        runs.
        """
        self._parents: set[Job] = set()
        """The running jobs that have made a call. They may be waiting for the call's
        result, so they are not counted against the limit.
        """
        self._closing = False

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job as soon as the limit on running tasks allows."""
        for job in jobs:
            with self._changed:
                _put(self._waiting, (job,), mailbox)
                try:
                    self._make_room()
                except RuntimeError as error:
                    self._waiting.remove((job, mailbox))
                    failure = Raised(no_os_thread(job, error))
                    mailbox.post(Ended(*job.key, failure))

    def _make_room(self) -> None:
        """Wake an idle OS thread, or start a new one, for each waiting job that may
        run.
        """
        free = self._limit - (len(self._running) - len(self._parents))
        needed = min(free, len(self._waiting))
        # An OS thread is idle if it runs no job. This includes a new one that does not
        # wait for a job yet.
        idle = len(self._threads) - len(self._running)
        for _ in range(needed - idle):
            thread = threading.Thread(
                target=self._work,
                name=f"{self._name}-{len(self._threads)}",
                daemon=True,
            )
            try:
                thread.start()
            # A RuntimeError means that the operating system refuses another OS thread.
            except RuntimeError:
                if len(self._threads) > len(self._parents):
                    # Some OS threads run jobs that do not wait for calls of their own.
                    # So one of them will be free, and the new job waits for it.
                    break
                raise
            self._threads.append(thread)
        self._changed.notify(needed)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw the job with *key* if it waits to run. If it runs already and *kill*
        is true, the calls for which it waits end with an error.
        """
        with self._changed:
            if _withdrawn(self._waiting, key):
                return
            running = {job.key: calls for job, calls in self._running.items() if kill}
        stop_calls(running.get(key, ()), "the run was stopped")

    def free(self) -> float:
        """Return the number of further jobs that would start at once."""
        with self._changed:
            counted = len(self._running) - len(self._parents)
            return self._limit - counted - len(self._waiting)

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the jobs that run now."""
        with self._changed:
            return dict.fromkeys((job.key for job in self._running), (os.getpid(), 0))

    def close(self) -> None:
        """Wait for the running tasks, and end all OS threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """End the OS threads without waiting for them: the idle ones now, the others
        after their present task.
        """
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        # Each job has its own call of `_run_next`, whose variables are gone when the
        # job has ended. So nothing of the job stays alive while this OS thread waits
        # for the next job.
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Wait until a job may run, and run it. Return False if this OS thread must end
        instead.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._is_due())
            if not self._is_due():
                return False
            job, mailbox = self._waiting.popleft()
            note = partial(self._note_parent, job)
            client = LocalRunClient(job, mailbox, before_first=note)
            self._running[job] = client.open_calls
        outcome = job.variables.copy().run(perform, job, client)
        with self._changed:
            del self._running[job]
            self._parents.discard(job)
        client.end(outcome, "threads")
        return True

    def _is_due(self) -> bool:
        """Return whether a job waits and may run now."""
        counted = len(self._running) - len(self._parents)
        return bool(self._waiting) and counted < self._limit

    def _note_parent(self, job: Job) -> None:
        # If no OS thread can be started, the waiting jobs wait for one of the existing
        # OS threads.
        with self._changed, suppress(RuntimeError):
            self._parents.add(job)
            self._make_room()


# ------------------------------------------------ the OS thread of the run


def check_stack(frames: int = _FRAMES) -> None:
    """Raise a `RecursionError` now if the stack has no room for *frames* more frames.

    A task on the run's OS thread that calls itself without end then fails here, and not
    in the middle of an operation of the library, for example while it holds a lock.
    """
    if frames:
        check_stack(frames - 1)


class InlineExecutor(Executor):
    """An executor that runs jobs one by one on the OS thread that drives the run,
    whenever the run has nothing else to do than to wait for them.

    It is meant for debugging, and for tasks that take next to no time.

    Args:
        turn: A function that continues the run while a task waits for its call.
    """

    capabilities: Capabilities = Capabilities(runs_here=True)

    def __init__(self, turn: Callable[[CallFuture[Any]], None]) -> None:
        self._turn = turn
        self.waiting: Waiting = deque()
        """The jobs that wait to run on the OS thread of the run."""
        self._running: list[JobKey] = []
        """The jobs that have begun, in this order. The last one runs. The others wait
        for calls that they have made.
        """

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Queue *jobs*, which begin when the run waits for an event."""
        _put(self.waiting, jobs, mailbox)

    def free(self) -> float:
        """Return 1 if no job waits, since the next job then starts as soon as the run
        waits, and 0 otherwise.
        """
        return 0 if self.waiting else 1

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits."""
        _withdrawn(self.waiting, key)

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the running job, and the jobs that wait for their calls."""
        return dict.fromkeys([*self._running], (os.getpid(), 0))

    def work(self) -> None:
        """Run at least one job, and further jobs for about two milliseconds or until a
        job fails.

        Raises:
            BaseException: A signal handler raised this error, such as
                `KeyboardInterrupt`, while a job ran.
        """
        until = time.monotonic() + _SLICE
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            client = LocalRunClient(job, mailbox, self._turn)
            self._running.append(job.key)
            try:
                outcome = interruptible(job.variables.copy().run, perform, job, client)
            except BaseException:
                mailbox.post(Ended(*job.key, Withdrawn()))
                raise
            finally:
                self._running.remove(job.key)
            if isinstance(outcome, Raised):
                error = _for_the_program(outcome.error)
                if error is not None:
                    mailbox.post(Ended(*job.key, Withdrawn()))
                    raise error
            client.end(outcome, "inline")
            if isinstance(outcome, Raised) or time.monotonic() > until:
                return

    def withdraw(self) -> None:
        """Withdraw every job that waits."""
        while self.waiting:
            job, mailbox = self.waiting.popleft()
            mailbox.post(Ended(*job.key, Withdrawn()))


def _for_the_program(error: BaseException) -> BaseException | None:
    """Return the original error of a task if it must end the whole program, else None.
    It is a `KeyboardInterrupt`, or an error that a signal handler raised.
    """
    if isinstance(error, TaskExitError):
        error = error.__context__ or error
    elif isinstance(error, NodeCancelledError):
        error = error.__cause__ or error
    if isinstance(error, KeyboardInterrupt) or is_from_handler(error):
        return error
    return None
