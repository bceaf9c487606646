"""The pool's record of one worker, with the worker's state, link and tasks.

The constructor starts the process. It runs on the I/O thread, because that OS thread
outlives the worker. The kernel kills the worker when the OS *thread* that started it
ends (the "parent death signal").

A worker runs its tasks in the order in which it got them. The first task begins at
once. For each other task there is a start permission (token) in a pipe, and the worker
takes the token when it begins the task. So the pool can take back tasks that have not
begun, by reading their tokens itself.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any, ClassVar, Final
from weakref import ref

from flowpregel.executors.base import HOST
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    InFlight,
    WorkerLoad,
)
from flowpregel.executors.processes.coordinator.guard import Guard
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.process_handle import (
    ProcessHandle,
    WorkerConnections,
    start_process,
)
from flowpregel.executors.processes.coordinator.side_threads import WorkerOutput
from flowpregel.executors.processes.coordinator.worker_life import (
    NEXT_STATE,
    WorkerEvent,
    WorkerState,
)
from flowpregel.executors.processes.coordinator.worker_link import (
    CLOSED_LINK,
    CoordinatorLink,
)
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.launch import run_worker
from flowpregel.executors.processes.wire.node_code import RecentlyUsed
from flowpregel.executors.processes.wire.protocol import (
    STOP_SIGNAL,
    Frame,
    PoolSettings,
    WorkerKind,
    WorkerSetup,
)
from flowpregel.executors.processes.wire.shared_memory import BufferReader

_SLOW_AFTER: Final = 0.020
"""Seconds without the end of a task after which a worker is regarded as slow, and gets
no more tasks ahead of time.
"""
_PARTING: Final = 0.5
"""Seconds for which a worker whose link has closed may still exist before it is
killed.
"""
_START_TIMEOUT: Final = 120.0
"""Seconds that a worker may take to start, since its initializer may load a model."""


class SentToWorker:
    """The code, contexts and shared buffers that a worker has got and not dropped."""

    def __init__(self) -> None:
        self.codes: RecentlyUsed[bytes, bool] = RecentlyUsed()
        """The digests of the packed nodes that are in the worker's cache."""
        self.contexts: set[bytes] = set()
        """The tokens (unique ids) of the `Context` channels that its tasks have
        entered.
        """
        self.pending_context_exits: dict[int, Future[None]] = {}
        """The requests to exit contexts that the worker has not answered, by the number
        of the request.
        """
        self.buffers: set[int] = set()
        """The ids of the pool's shared buffers that the worker reads."""


class WorkerProcess:
    """One worker process, with its link and its tasks.

    Args:
        settings: The settings of the pool.
        loop: The I/O loop.
        handlers: The handlers of frames, by the kind of the frame. A handler gets the
            worker and the frame.
        guard: The connection to the guard process, which kills the processes that the
            worker's tasks started if the coordinator dies.
        on_end: A function that is called when the worker has ended, with the worker,
            the exit code and the peak memory.

    Raises:
        BaseException: The process cannot be started.
    """

    host: ClassVar[str] = HOST
    is_spoiled: bool = False
    """True if the worker begins no more tasks, because a task changed its process
    irreversibly.
    """
    is_outdated: bool = False
    """True if the worker's nice value differs from that of new workers of the pool."""
    served: int = 0
    """The number of all tasks that were sent to the worker and not taken back."""

    def __init__(
        self,
        settings: PoolSettings,
        loop: IOLoop,
        handlers: Mapping[int, Callable[[Any, Frame], object]],
        guard: Guard,
        on_end: Callable[[WorkerProcess, int | None, int | None], None],
    ) -> None:
        self.kind: WorkerKind = settings.kind
        self.state: WorkerState = WorkerState.STARTING
        self.tasks: dict[int, InFlight] = {}
        """The worker's tasks by the number that identifies them on the link, in the
        order in which they run.
        """
        self.last_activity: float = time.monotonic()
        """The monotonic time at which the worker last started, became ready, got tasks
        while it was idle, or ended a task.
        """
        self.sent: SentToWorker = SentToWorker()
        process, connections = start_process(settings, guard, self.launch)
        self.process: ProcessHandle = process
        self.connections: WorkerConnections = connections
        self.pid: int = process.pid
        self.reader: BufferReader = BufferReader(self.connections.fd_socket)
        self.link: CoordinatorLink = CoordinatorLink(
            self, loop, self.connections, handlers
        )
        self.output: WorkerOutput = WorkerOutput(self.link.resume_output)
        self.link.watch()
        self.link.watch_pipes()
        loop.watch(self.process.exit_fd, partial(self._on_exit, loop, on_end))
        deadline = time.monotonic() + _START_TIMEOUT
        give_up = partial(_give_up_start, ref(self))
        self.process.start_timer = loop.call_at(deadline, give_up)

    def launch(self, setup: WorkerSetup, env: Mapping[str, str]) -> Any:
        """Start a process that runs a worker with *setup*, and return the process.

        Args:
            setup: The worker's setup, in which descriptors are `InheritedFd` objects.
            env: Environment variables, in addition to the program's own.
        """
        # loky is imported only here, because the import takes 56 ms. The class is not
        # taken from the context "loky" of multiprocessing, which an import of joblib
        # replaces: workers would start with joblib's copy of loky, and import joblib.
        from loky.backend.process import LokyProcess  # noqa: PLC0415

        process: Any = LokyProcess(target=run_worker, args=(setup,), env=env)
        process.start()
        return process

    # ------------------------------------------------ life cycle

    def note(self, event: WorkerEvent) -> None:
        """Record an event in the worker's life.

        Raises:
            WorkerLifeError: The event cannot happen in the current state.
        """
        self.state = NEXT_STATE[self.state, event]

    def note_tasks(self) -> None:
        """Update the worker's state after its tasks have changed, or the calls for
        which its running task waits.
        """
        first = next(iter(self.tasks.values()), None)
        if first is None:
            event = WorkerEvent.EMPTIED
        elif first.execution.calls:
            event = WorkerEvent.CALLED
        else:
            event = WorkerEvent.BEGAN
        self.state = NEXT_STATE[self.state, event]

    def on_ready(self) -> None:
        """Note that the worker's initializer has run."""
        self.note(WorkerEvent.READY)
        self.last_activity = time.monotonic()
        if self.process.start_timer is not None:
            self.process.start_timer.cancel()
            self.process.start_timer = None

    def stop(self) -> None:
        """Send the worker, which has no task, the command to exit."""
        self.note(WorkerEvent.STOP_SENT)
        self.link.send(protocol.STOP)

    def kill(self, reason: str) -> None:
        """Kill the process now, if it still exists. The pool notices its end in the
        same way as that of any other worker.
        """
        self.note(WorkerEvent.KILLED)
        self.process.kill(reason)

    def on_link_failed(self, problem: str) -> None:
        """Kill the worker, because nothing more can be read from its link; if the link
        was closed, a little later.
        """
        if problem != CLOSED_LINK:
            self.kill(problem)
            return
        # A closed link usually means that the process has ended, and the kernel will
        # report the true cause in a moment. So the kill is delayed. If the process
        # still exists by then, it is useless without its link.
        deadline = time.monotonic() + _PARTING
        self.link.call_at(deadline, partial(self.kill, problem))

    def _on_exit(
        self,
        loop: IOLoop,
        on_end: Callable[[WorkerProcess, int | None, int | None], None],
    ) -> None:
        """Read the last frames and release all resources, if the process has ended."""
        code_and_peak = self.process.take_exit()
        if code_and_peak is None:
            return
        self.link.read_rest()
        loop.watch(self.process.exit_fd)
        if self.process.start_timer is not None:
            self.process.start_timer.cancel()
        self.process.end_descendants()
        self.note(WorkerEvent.EXITED)
        on_end(self, *code_and_peak)
        self.reader.close()
        self.connections.close()
        self.process.close()

    # ------------------------------------------------ tasks of the worker

    def load(self, now: float) -> WorkerLoad:
        """Return the load of the worker (its state and tasks), as `assign` needs it."""
        if not self.tasks:
            return WorkerLoad(self.state, inf, self.kind)
        last = next(reversed(self.tasks.values()))
        seconds = inf
        is_slow = now - self.last_activity > _SLOW_AFTER
        is_replaced = self.is_spoiled or self.is_outdated
        has_no_room = self.connections.has_small_token_pipe and self._has_tokens()
        is_held_up = is_slow or is_replaced or has_no_room or self.link.is_paused()
        if last.execution.stopping is None and not is_held_up:
            # At least 10 µs are assumed for each task. This limits the number of tasks
            # that are sent ahead, because the pipe has room for a limited number of
            # tokens.
            seconds = len(self.tasks) * max(last.seconds, 1e-5)
        amounts = (last.needs or ONE_CPU).amounts
        return WorkerLoad(self.state, seconds, self.kind, amounts, last.needs)

    def _has_tokens(self) -> bool:
        """Return whether the pipe may contain tokens: those of tasks that the worker
        has not begun.
        """
        return len(self.tasks) > 1 or self.running() is None

    def running(self) -> InFlight | None:
        """Return the task that the worker has begun and not ended, or None. Any OS
        thread may call this.
        """
        return self.tasks.get(self.connections.running_number())

    def sender_of(self, number: int) -> InFlight | None:
        """Return the task with the *number* that a frame contains. If there is none,
        return the running task, or None.
        """
        return self.tasks.get(number) or self.running()

    def give(self, tasks: Sequence[InFlight]) -> None:
        """Send packed *tasks* to the worker, and let it begin them."""
        if self.reader.released:
            self.link.send(protocol.FREED, body=self.reader.take_released())
        # An idle worker begins the first task at once. The other tasks may be taken
        # back, so they need tokens.
        first_number = 0 if self.tasks else tasks[0].execution.number
        self.served += len(tasks)
        orders: list[tuple[int, bytes, bytes, list[bytes], bytes]] = []
        tokens = b""
        for task in tasks:
            number = task.execution.number
            self.tasks[number] = task
            digest = task.code.digest
            code = b""
            dropped: list[bytes] = []
            if self.sent.codes.get(digest) is None:
                code = task.code.data
                dropped = self.sent.codes.put(digest, True, len(code))
            orders.append((number, digest, code, dropped, task.body))
            if number != first_number:
                tokens += protocol.TOKEN.pack(number)
        if tokens:
            self.connections.put_tokens(tokens)
        self.note_tasks()
        self.link.send(protocol.TASKS, first_number, pickle.dumps(orders, 5))

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Send the answer to a request of *task*, which the worker runs."""
        self.note_tasks()
        self.link.send(protocol.ANSWER, request, body)

    def signal_stop(self, number: int) -> None:
        """Send the stop signal, which raises an error in the code of the task *number*
        if it still runs.
        """
        self.connections.status[protocol.UNWANTED] = number
        self.process.send_signal(STOP_SIGNAL)

    def warn(self, number: int) -> None:
        """Tell the task *number*, by the shared status, that its run will end soon."""
        self.connections.status[protocol.ENDING] = number

    def read_everything(self) -> None:
        """Resume reading from the worker even if it was paused, because its task must
        stop, and the end of the task must arrive.
        """
        self.link.resume()
        self.link.resume_output()


def _give_up_start(reference: ref[WorkerProcess]) -> None:
    worker = reference()
    if worker is not None and worker.state is WorkerState.STARTING:
        worker.kill(f"it was not ready after {_START_TIMEOUT:.0f} seconds")
