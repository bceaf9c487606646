"""`ProcessExecutor`: jobs in worker processes."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, ParamSpec, Self, TypeVar, cast
from weakref import WeakSet

from flowpregel._core.callee import Callee, name_of
from flowpregel._core.effects import Call, Ended, Event, StepId
from flowpregel._core.records import Arguments, Kind, Node, Outcome, Raised, Returned, Task
from flowpregel.context import Job
from flowpregel.errors import ConfigurationError
from flowpregel.executors.base import Capabilities, Executor, JobKey, Mailbox
from flowpregel.executors.calls import returned_by
from flowpregel.executors.processes import messages, serialization
from flowpregel.executors.processes.crash_report import memory_of
from flowpregel.executors.processes.message_handler import MessageHandler
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.shared_memory import default_limit
from flowpregel.executors.processes.worker_process import PoolSettings
from flowpregel.executors.shared import captured

Params = ParamSpec("Params")
Result = TypeVar("Result")
_ROOM: Final = 512
"""Jobs for each worker that may be with the pool: some tens of milliseconds of the smallest."""
_FIRST, _MOST = 64, 1024
"""How many calls of a `map` are started together, at first and at most."""
_MOST_NODES: Final = 256
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TBB_NUM_THREADS",
)


class ProcessExecutor(Executor, concurrent.futures.Executor):
    """Runs tasks in worker processes, one loky process each.

    A crash, a timeout or a cancellation costs the one task; a new worker takes
    the place of the lost one. It is also a `concurrent.futures.Executor` for
    plain functions.

    Args:
        max_workers: How many tasks run at the same time; None: as many as this
            process may use CPUs (affinity and cgroup quota included).
        initializer: Called in each worker before its first task.
        initargs: Its arguments.
        env: Environment variables for the workers, beside the program's own.
        worker_max_tasks: A worker is replaced after that many tasks.
        worker_max_rss: A worker that uses more memory (bytes) after a task is replaced.
        grace: Seconds between the signal that asks a task to stop, and the kill.
        warm: Whether all workers are started with the first one.
        shared_memory: The most bytes of shared memory for large buffers; None: a quarter
            of the machine's memory. What does not fit goes through the links.

    Raises:
        ConfigurationError: An argument makes no sense.

    Example:
        >>> with ProcessExecutor(2) as pool:  # doctest: +SKIP
        ...     graph.compile(executor=pool).invoke(state)
    """

    capabilities = Capabilities(isolates=True, times_out=True, cancels=True)

    def __init__(  # noqa: PLR0913 - a public face; it becomes one record at once
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        env: Mapping[str, str] | None = None,
        worker_max_tasks: int | None = None,
        worker_max_rss: int | None = None,
        grace: float = 2.0,
        warm: bool = True,
        shared_memory: int | None = None,
    ) -> None:
        _check_counts(
            max_workers=max_workers,
            worker_max_tasks=worker_max_tasks,
            worker_max_rss=worker_max_rss,
        )
        if grace < 0:
            raise ConfigurationError(f"grace is {grace!r}; it is seconds and cannot be negative")
        cpus = count_cpus()
        size = max_workers or cpus
        settings = PoolSettings(
            size=size,
            env={**thread_caps(cpus, size), **(env or {})},
            initializer=serialization.dumps((initializer, initargs)) if initializer else b"",
            worker_max_tasks=worker_max_tasks,
            worker_max_rss=worker_max_rss,
            grace=grace,
            warm=warm,
            shared_limit=default_limit() if shared_memory is None else shared_memory,
        )
        self.room = _ROOM * size
        self._pool = Pool(settings)
        self._handler = MessageHandler(self._pool)
        self._numbers = count(1)
        self._open: set[PoolFuture] = set()
        """Futures of calls of plain functions that have not ended."""
        self._is_shut_down = False
        _executors.add(self)

    def start(self, job: Job, mailbox: Mailbox) -> None:
        """Start *job* as soon as a worker is free; its `Ended` is posted exactly once."""
        self._pool.take((job,), mailbox)

    def start_all(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start several jobs; those that wait for a worker go to it together."""
        self._pool.take(jobs, mailbox)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; if *kill*, stop it where it runs."""
        self._pool.cancel(key, kill=kill)

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Send the outcome of a call down the link to the task that made it."""
        self._handler.answer(call, outcome)

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have workers leave the contexts of a run that ended; return when they have.

        A worker that is busy with another run's task may take longer than the pool's
        grace: it is not waited for.
        """
        ended = None if error is None else messages.pack_outcome(Raised(error), "(the run)", None)
        self._handler.leave(contexts, serialization.pack((tuple(contexts), ended)).data)

    def close(self) -> None:
        """Stop every task and end every worker. May be called again."""
        self._pool.close()
        self._handler.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and takes no more jobs."""
        return self._pool.is_closed

    def worker_pids(self) -> list[int]:
        """Return the pids of its worker processes."""
        return [each.pid for each in tuple(self._pool.workers.all)]

    # ------------------------------------------------ plain functions

    def submit(
        self, fn: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> concurrent.futures.Future[Result]:
        """Call ``fn(*args, **kwargs)`` in a worker; return the future of its result.

        Raises:
            RuntimeError: The executor was shut down.
        """
        return self._submit(fn, [Arguments(args, kwargs)])[0]

    def map(
        self,
        fn: Callable[..., Result],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Result]:
        """Call *fn* with the n-th items of *iterables* for each n; yield the results in order.

        All calls are submitted at once. What the results' iterator leaves behind when
        it is closed, or raises, is cancelled.

        Args:
            fn: What is called, in a worker.
            iterables: Where its arguments come from; the shortest says how many calls there are.
            timeout: Seconds from now within which each result must be there.
            chunksize: Has no effect: short calls are sent in groups by measured run times.

        Raises:
            RuntimeError: The executor was shut down.
            TimeoutError: A result was not there in time; raised by the iterator.
        """
        end = None if timeout is None else time.monotonic() + timeout
        calls = [Arguments(args, {}) for args in zip(*iterables, strict=False)]
        return _results(self._submit(fn, calls), end)

    def _submit(self, function: Callable[..., Any], calls: Sequence[Arguments]) -> list[PoolFuture]:
        """Start a call of *function* for each of *calls*, and return their futures."""
        if self.is_closed or self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        try:
            node = _node_of(function)
        except TypeError:  # it cannot be hashed
            node = _node_of.__wrapped__(function)
        futures: list[PoolFuture] = []
        size = _FIRST
        try:
            while len(futures) < len(calls):
                self._start_calls(node, calls[len(futures) : len(futures) + size], futures)
                # The first few at once, so that no worker waits until all are packed.
                size = min(2 * size, _MOST)
        except BaseException:
            # Ctrl-C: the caller will not get the futures, and some may not have been started.
            for future in futures:
                self._open.discard(future)
                future.cancel()
            raise
        return futures

    def _start_calls(
        self, node: Node, calls: Sequence[Arguments], futures: list[PoolFuture]
    ) -> None:
        """Start a call for each of *calls*, and add their futures to *futures*."""
        jobs: list[Job] = []
        own: dict[str, PoolFuture] = {}
        variables = copy_context()
        for arguments in calls:
            name = f"call-{next(self._numbers)}"
            task = Task(name, node, Kind.CALL, captured(arguments), "")
            jobs.append(Job(task, StepId("", "", 0, 0), variables=variables))
            own[name] = PoolFuture(partial(self.cancel, jobs[-1].key, kill=True))
        futures += own.values()
        self._open.update(own.values())
        self._pool.take(jobs, cast("Mailbox", _CallMailbox(own, self._open.discard)))

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
            threading.Thread(target=self._drain, name="flowpregel-shutdown").start()

    def _drain(self) -> None:
        concurrent.futures.wait(tuple(self._open))
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()


def _results(futures: list[PoolFuture], end: float | None) -> Iterator[Any]:
    """Yield the results of *futures*, which are there by *end* (monotonic seconds)."""
    futures.reverse()
    try:
        while futures:
            # Popped first: who has a result need not keep the others' alive.
            future = futures.pop()
            left = None if end is None else end - time.monotonic()
            try:
                value = future.result(left)
            except BaseException:
                future.cancel()
                raise
            yield value
            del value
    finally:
        for future in futures:
            future.cancel()


def _check_counts(**counts: object) -> None:
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigurationError(f"{name} is {value!r}; use a whole number, or None")


def thread_caps(cpus: int, workers: int) -> Mapping[str, str]:
    """Return environment variables that give each worker its share of the CPUs.

    Numeric libraries read them on import, so they are set before a worker starts.
    What the user has set stays.
    """
    share = str(max(1, cpus // workers))
    return {name: share for name in _THREAD_VARIABLES if name not in os.environ}


def count_cpus() -> int:
    """Return how many CPUs this process may use: affinity and cgroup quota included."""
    from loky import cpu_count  # noqa: PLC0415 - 56 ms, only when a pool is made

    return int(cpu_count())


def worker_memory() -> tuple[int, int]:
    """Return how many workers there are in all pools, and the bytes of memory they take.

    Pages that workers share are counted once for each of them.
    """
    pids = [pid for executor in tuple(_executors) for pid in executor.worker_pids()]
    return len(pids), sum(memory_of(pid) for pid in pids)


_executors: WeakSet[ProcessExecutor] = WeakSet()
"""Every pool of this program that is in use."""


# ------------------------------------------------ plain functions


class PoolFuture(concurrent.futures.Future[Any]):
    """The result of a plain function in a worker; `cancel` stops it even while it runs."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Withdraw the call, or stop it where it runs; return whether it made no result."""
        if not super().cancel():
            return False
        self._stop()
        return True


class _CallMailbox:
    """The mailbox of calls that were submitted together."""

    def __init__(self, futures: dict[str, PoolFuture], done: Callable[[PoolFuture], None]) -> None:
        self._futures = futures
        self._done = done

    def post(self, event: Event) -> None:
        """Settle the future of a call."""
        if not isinstance(event, Ended):
            return
        future = self._futures.pop(event.task_id)
        self._done(future)
        if not future.set_running_or_notify_cancel():
            return
        match event.outcome:
            case Returned(writes):
                future.set_result(returned_by(writes))
            case Raised(error):
                future.set_exception(error)
            case _:
                future.set_exception(RuntimeError("the pool was closed"))

    def post_all(self, events: Sequence[Event]) -> None:
        """Settle the futures of calls."""
        for event in events:
            self.post(event)


@lru_cache(_MOST_NODES)
def _node_of(function: Callable[..., Any]) -> Node:
    """Return the node that calls *function*: the same each time, so that it is packed once."""
    callee = Callee(function, None, (), name_of(function))
    return Node(name=callee.name, steps=(callee,))


# ------------------------------------------------ the pool that runs share


_default_lock = threading.Lock()
_default: ProcessExecutor | None = None


def default_pool() -> ProcessExecutor:
    """Return the program's shared pool: made when first asked for, closed when the program ends.

    Example:
        >>> default_pool() is default_pool()
        True
    """
    global _default
    with _default_lock:
        if _default is None or _default.is_closed:
            _default = ProcessExecutor()
        return _default


def _after_fork() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
