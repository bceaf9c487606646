"""`PoolExecutor`: the public face of a pool, for any OS thread."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, ParamSpec, TypeVar

from flowpregel._core.commands import Callee, name_of
from flowpregel._core.effects import Call, Ended, Event, StepContext
from flowpregel._core.records import RETURN, Arguments, Kind, Node, Outcome, Raised, Returned, Task
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError, FlowPregelError
from flowpregel.executors.base import Executor, JobKey, Mailbox
from flowpregel.executors.processes import messages, serialization
from flowpregel.executors.processes.assign import InFlight
from flowpregel.executors.processes.message_handler import MessageHandler
from flowpregel.executors.processes.pool import CLOSED, Pool
from flowpregel.executors.shared import captured

Params = ParamSpec("Params")
Result = TypeVar("Result")
_ELSEWHERE: Final = (
    "this pool of worker processes belongs to the process that this one was forked from: "
    "make a ProcessExecutor of your own here"
)
_MOST_NODES: Final = 256


class PoolExecutor(Executor, concurrent.futures.Executor):
    """Runs jobs, and plain functions, in the workers of a pool.

    Args:
        pool: It is started with the first job.
        handler: Acts on what its workers send.
        room: How many jobs may be with it at once.
    """

    def __init__(self, pool: Pool, handler: MessageHandler, room: int) -> None:
        self._pool = pool
        self._handler = handler
        self.room = room
        self._numbers = count(1)
        self._open: set[PoolFuture] = set()
        """Futures of calls of plain functions that have not ended."""
        self.is_closed = self._is_shut_down = False
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job as soon as a worker is free; its `Ended` is posted exactly once."""
        tasks: list[InFlight] = []
        try:
            if self.is_closed or self._pid != os.getpid() or not self._pool.loop.is_started:
                self._start_pool()
            for job in jobs:
                try:
                    tasks.append(self._pool.encoder.encode(job, mailbox))
                except FlowPregelError as error:
                    mailbox.post(Ended(*job.key, Raised(error)))
        except ExecutorUnavailableError as error:
            mailbox.post(*(Ended(*job.key, Raised(error)) for job in jobs))
        except BaseException:  # Ctrl-C
            self._pool.release_own(tasks)
            raise
        else:
            self._pool.loop.call(partial(self._pool.admit, tasks, mailbox))

    def _start_pool(self) -> None:
        """Start the pool, if it may be started.

        Raises:
            ExecutorUnavailableError: It may not, or cannot.
        """
        if self._pid != os.getpid():
            raise ExecutorUnavailableError(_ELSEWHERE)
        with self._lock:
            if self.is_closed:
                raise ExecutorUnavailableError(CLOSED)
            if not self._pool.loop.is_started:
                # At exit it waits for all its children: what is registered after it ends ours.
                import multiprocessing.util  # noqa: F401, PLC0415

                try:
                    self._pool.start()
                except RuntimeError as error:  # the system gives no more OS threads
                    raise ExecutorUnavailableError(f"the pool cannot start: {error}") from error
                atexit.register(self.close)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; if *kill*, stop it where it runs."""
        self._pool.loop.call(partial(self._pool.cancel, key, kill))

    def warn(self, key: JobKey) -> None:
        """Withdraw a job that waits; let one that runs know that its run is to end soon."""
        self._pool.loop.call(partial(self._pool.warn, key))

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Send the outcome of a call down the link to the task that made it."""
        body = messages.pack_outcome(outcome, call.node.name)
        task, request = call.reply
        self._pool.loop.call(partial(self._handler.answer, task, request, body))

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have workers leave the contexts of a run that ended; return when they have.

        A worker that is busy with another run's task may take longer than the pool's
        grace: it is not waited for.
        """
        if self._pool.loop.is_started and self._pid == os.getpid():
            ended = None if error is None else messages.pack_outcome(Raised(error), "(the run)")
            self.leave_packed(contexts, serialization.pack((tuple(contexts), ended)).data)

    def leave_packed(self, contexts: Sequence[bytes], body: bytes) -> None:
        """Do what `leave` does.

        Args:
            contexts: Their tokens.
            body: What workers are sent: these, and how the run ended.
        """
        asked: Future[list[Future[None]]] = Future()
        self._pool.loop.call(partial(self._handler.leave, {*contexts}, body, asked))
        concurrent.futures.wait(asked.result(), self._pool.settings.grace)

    def close(self) -> None:
        """Stop every task and end every worker. May be called again."""
        if self._pid != os.getpid():
            # In a fork: the workers and the I/O thread are the other process's.
            return
        with self._lock:
            is_first, self.is_closed = not self.is_closed, True
        if is_first:
            self._pool.loop.call(self._pool.close)
        self._pool.loop.join()
        self._pool.release()
        self._handler.close()
        atexit.unregister(self.close)

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the jobs that workers run now; what waits behind them was sent ahead of time."""
        now, monotonic, found = time.time_ns(), time.monotonic(), {}
        for worker in tuple(self._pool.workers):
            if (task := worker.running()) is not None:
                began = now - int((monotonic - task.sent) * 1e9)
                found[task.job.key] = worker.pid, began
        return found

    def worker_pids(self) -> list[int]:
        """Return the pids of its worker processes."""
        return [each.pid for each in tuple(self._pool.workers)]

    # ------------------------------------------------ plain functions

    def submit(
        self, fn: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Future[Result]:
        """Call ``fn(*args, **kwargs)`` in a worker; return the future of its result.

        Raises:
            RuntimeError: The executor was shut down.
        """
        if self.is_closed or self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        try:
            node = _node_of(fn)
        except TypeError:  # it cannot be hashed
            node = _node_of.__wrapped__(fn)
        arguments = captured(Arguments(args, kwargs))
        called = Task(f"call-{next(self._numbers)}", node, Kind.CALL, arguments, "")
        job = Job(called, StepContext("", "", 0, 0), key=(called.id, 1), variables=copy_context())
        future = PoolFuture(partial(self.cancel, job.key, kill=True))
        self.start((job,), future)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; end the workers when those that were submitted have ended.

        Args:
            wait: Whether to return only then.
            cancel_futures: Whether to stop the calls instead of waiting for them.
        """
        self._is_shut_down = True
        if cancel_futures:
            for future in tuple(self._open):
                future.cancel()
        if wait:
            self._drain()
        else:
            threading.Thread(None, self._drain, "flowpregel-shutdown").start()

    def _drain(self) -> None:
        concurrent.futures.wait(tuple(self._open))
        self.close()


class PoolFuture(Future[Any]):
    """The result of a plain function in a worker, and its mailbox.

    `cancel` stops the function even while it runs.
    """

    backlog = None

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Withdraw the call, or stop it where it runs; return whether it made no result."""
        if not super().cancel():
            return False
        self._stop()
        return True

    def post(self, *events: Event) -> None:
        """Settle it when the call has ended."""
        for event in events:
            if isinstance(event, Ended) and self.set_running_or_notify_cancel():
                match event.outcome:
                    case Returned(writes):
                        self.set_result(dict(writes).get(RETURN))
                    case Raised(error):
                        self.set_exception(error)
                    case _:
                        self.set_exception(RuntimeError("the pool was closed"))


@lru_cache(_MOST_NODES)
def _node_of(function: Callable[..., Any]) -> Node:
    """Return the node that calls *function*: the same each time, so that it is packed once."""
    callee = Callee(function, None, (), name_of(function))
    return Node(name=callee.name, steps=(callee,))
