"""`ProcessExecutor`: jobs in worker processes."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar

from flowpregel._core.effects import Call
from flowpregel._core.records import Arguments, Outcome
from flowpregel.errors import ConfigurationError
from flowpregel.executors.base import Capabilities, Executor, Job, JobKey, Mailbox
from flowpregel.executors.processes import frames, serialization
from flowpregel.executors.processes.caps import thread_caps
from flowpregel.executors.processes.contexts import pack_leave
from flowpregel.executors.processes.crew import Plan
from flowpregel.executors.processes.plain import PlainCalls, PoolFuture
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.reception import Reception
from flowpregel.executors.processes.shared_memory import default_limit
from flowpregel.executors.processes.slot import State
from flowpregel.executors.processes.stopping import Stopping
from flowpregel.executors.processes.usage import POOLS

Params = ParamSpec("Params")
Result = TypeVar("Result")
_ROOM: Final = 512
"""Jobs for each worker that may wait with the pool: some tens of milliseconds of the smallest."""


class ProcessExecutor(Executor, concurrent.futures.Executor):
    """Runs tasks in worker processes, one loky process a slot.

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
        plan = Plan(
            size=size,
            cpus=cpus,
            env={**thread_caps(cpus, size), **(env or {})},
            initializer=serialization.dumps((initializer, initargs)) if initializer else b"",
            worker_max_tasks=worker_max_tasks,
            worker_max_rss=worker_max_rss,
            grace=grace,
            warm=warm,
            shared_limit=default_limit() if shared_memory is None else shared_memory,
        )
        self.room = _ROOM * size
        self._pool = Pool(plan)
        POOLS.add(self._pool)
        self._reception = Reception(self._pool)
        self._stopping = Stopping(self._pool)
        self._calls = PlainCalls(self._pool, partial(self.cancel, kill=True))
        self._leaving = False

    def start(self, job: Job, mailbox: Mailbox) -> None:
        """Start *job* as soon as a worker is free; its `Ended` is posted exactly once."""
        self._pool.take((job,), mailbox)

    def start_all(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start several jobs; those that wait for a worker go to it together."""
        self._pool.take(jobs, mailbox)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that waits; if *kill*, stop it where it runs."""
        self._stopping.cancel(key, kill=kill)

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Send the outcome of a call down the link to the task that made it."""
        self._pool.answer(call, outcome)

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Have workers leave the contexts of a run that ended, once they are between tasks."""
        with self._pool.lock:
            slots = [
                slot
                for slot in self._pool.crew.slots
                if slot.has_contexts and slot.state is not State.LEAVING
            ]
        for slot in slots:
            self._pool.send(slot, frames.LEAVE, 0, pack_leave(contexts, error))

    def close(self) -> None:
        """Stop every task and end every worker. May be called again."""
        self._pool.close()
        self._reception.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and takes no more jobs."""
        return self._pool.is_closed

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
        if self.is_closed or self._leaving:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return self._calls.submit(function, calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; end the workers when those that were submitted have ended.

        Args:
            wait: Whether to return only then.
            cancel_futures: Whether to stop the calls instead of waiting for them.
        """
        self._leaving = True
        if cancel_futures:
            for future in tuple(self._calls.open):
                future.cancel()
        if wait:
            self._drain()
        else:
            threading.Thread(target=self._drain, name="flowpregel-shutdown").start()

    def _drain(self) -> None:
        concurrent.futures.wait(tuple(self._calls.open))
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


def count_cpus() -> int:
    """Return how many CPUs this process may use: affinity and cgroup quota included."""
    from loky import cpu_count  # noqa: PLC0415 - 56 ms, only when a pool is made

    return int(cpu_count())
