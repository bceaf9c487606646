"""`ProcessExecutor`, with which any OS thread runs jobs (attempts of tasks) and
ordinary functions in worker processes.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, get_args
from weakref import WeakSet

from flowpregel._core.commands import name_of
from flowpregel._core.effects import Call, Ended, Event, SaveState, StepContext
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    TaskOrigin,
)
from flowpregel._pickling import crossing
from flowpregel.context import Job
from flowpregel.errors import (
    ConfigurationError,
    ExecutorUnavailableError,
    FlowPregelError,
)
from flowpregel.executors.base import Capabilities, Executor, JobKey, Mailbox
from flowpregel.executors.processes.coordinator.arrivals import (
    UnreadEnd,
    unreadable_result,
)
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.processes.coordinator.crash_report import memory_of
from flowpregel.executors.processes.coordinator.pool import Pool
from flowpregel.executors.processes.coordinator.resources import (
    OF_THE_MACHINE,
    amounts_of,
)
from flowpregel.executors.processes.coordinator.task_pool import CLOSED, TaskPool
from flowpregel.executors.processes.wire import messages, serialization
from flowpregel.executors.processes.wire.messages import PackedOutcome
from flowpregel.executors.processes.wire.protocol import PoolSettings
from flowpregel.executors.processes.wire.shared_memory import default_limit
from flowpregel.executors.resources import LimitsScope, SharedLimits
from flowpregel.executors.shared import captured
from flowpregel.executors.unread import LazyFuture, UnreadEvent

Params = ParamSpec("Params")
Result = TypeVar("Result")
Value = TypeVar("Value")
_ROOM: Final = 512
"""The number of jobs that a run may pass to the pool at once, for each worker. With
very short jobs, this is work for some tens of milliseconds.
"""
_ELSEWHERE: Final = (
    "this pool of worker processes belongs to the process that this one was forked "
    "from: make a ProcessExecutor of your own here"
)
_NUMERIC: Final = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA", "TBB")
_THREAD_VARIABLES: Final = (
    "VECLIB_MAXIMUM_THREADS",
    *(f"{name}_NUM_THREADS" for name in _NUMERIC),
)


class PoolExecutor(Executor, concurrent.futures.Executor):
    """An executor that runs jobs (attempts of tasks), and functions that are not tasks,
    in the workers of a pool.

    Args:
        pool: The pool, which the first job starts.
        room: The number of jobs that a run may pass to the pool at once.
    """

    def __init__(self, pool: TaskPool, room: int) -> None:
        self._pool = pool
        self.room: int | None = room
        self._numbers = count(1)
        self._open: set[PoolFuture] = set()
        """The futures that `submit` has returned and that are not done."""
        self.is_closed: bool = False
        self._is_shut_down = False
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job as soon as a worker is free, and post exactly one `Ended` for
        each job.
        """
        tasks: list[InFlight] = []
        try:
            is_forked = self._pid != os.getpid()
            if self.is_closed or is_forked or not self._pool.loop.is_started:
                self._start_pool()
            for job in jobs:
                try:
                    tasks.append(self._pool.encoder.encode(job, mailbox))
                except FlowPregelError as error:
                    mailbox.post(Ended(*job.key, Raised(error)))
        except ExecutorUnavailableError as error:
            mailbox.post(*(Ended(*job.key, Raised(error)) for job in jobs))
        except BaseException:
            # Ctrl-C has interrupted this method, and the tasks will not start. So their
            # shared memory is released.
            self._pool.release_own(tasks)
            raise
        else:
            self._pool.loop.call(partial(self._pool.admit, tasks, mailbox))

    def _start_pool(self) -> None:
        """Start the I/O thread of the pool, unless it has been started.

        Raises:
            ExecutorUnavailableError: The executor is closed, this process was forked,
                or the system cannot start another OS thread.
        """
        if self._pid != os.getpid():
            raise ExecutorUnavailableError(_ELSEWHERE)
        with self._lock:
            if self.is_closed:
                raise ExecutorUnavailableError(CLOSED)
            if not self._pool.loop.is_started:
                # multiprocessing is imported before `close` is registered, because
                # atexit functions run in reverse order: `close` then runs first and
                # ends the pool's workers, before multiprocessing waits for all its
                # child processes.
                import multiprocessing.util  # noqa: F401, PLC0415

                try:
                    self._pool.start()
                # A RuntimeError means that the system cannot start another OS thread.
                except RuntimeError as error:
                    raise ExecutorUnavailableError(
                        f"the pool cannot start: {error}"
                    ) from error
                atexit.register(self._close_at_exit)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a waiting job. If *kill*, also stop a running job."""
        self._pool.loop.call(partial(self._pool.cancel, key, kill))

    def warn(self, key: JobKey) -> None:
        """Withdraw a waiting job, or warn a running job that its run will end soon."""
        self._pool.loop.call(partial(self._pool.warn, key))

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Send the outcome of a call to the task that made the call."""
        name = call.node.name if isinstance(call, Call) else "the saved state"
        body = messages.pack_outcome(outcome, name)
        task, request = call.reply
        self._pool.loop.call(partial(self._pool.answer, task, request, body))

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Make the workers exit the context managers of a run's `Context` channels,
        after the run has ended, and wait until they have done so. Wait no longer than
        the pool's grace period, because a worker may be busy with a task of another
        run.
        """
        if not self._pool.loop.is_started or self._pid != os.getpid():
            return
        outcome: bytes | None = None
        if error is not None:
            outcome = messages.pack_outcome(Raised(error), "(the run)")
        message = serialization.pack((tuple(contexts), outcome))
        self.leave_packed(contexts, message.data)

    def leave_packed(self, contexts: Sequence[bytes], body: bytes) -> None:
        """Make the workers exit *contexts*, and wait until they have done so, but no
        longer than the pool's grace period.

        Args:
            contexts: The ids (tokens) of the contexts.
            body: The message for the workers: the tokens, and the error of the run.

        Example:
            >>> from flowpregel.executors import ProcessExecutor
            >>> with ProcessExecutor(1) as pool:
            ...     pool.submit(pow, 2, 10).result()
            ...     pool.leave_packed([], b"")  # no worker has entered a context
            1024
        """
        exits: Future[Sequence[Future[Any]]] = Future()
        self._pool.loop.call(partial(self._pool.leave, {*contexts}, body, exits))
        concurrent.futures.wait(exits.result(), self._pool.settings.grace)

    def close(self) -> None:
        """Stop every task and end every worker. It is safe to call this repeatedly."""
        if self._pid != os.getpid():
            # A forked process must not close the pool: its workers and its I/O thread
            # belong to the parent process.
            return
        with self._lock:
            is_first = not self.is_closed
            self.is_closed = True
        if is_first:
            self._pool.loop.call(self._pool.close)
        self._conclude(self._release)

    def _close_at_exit(self) -> None:
        """Close the pool when the program ends. A further Ctrl-C ends the wait for the
        workers, which end by themselves once the program is gone.
        """
        with suppress(KeyboardInterrupt):
            self.close()

    def _conclude(self, work: Callable[[], None], *, wait: bool = True) -> None:
        """Call *work*, a function that waits for the end of the I/O thread.

        If this is the I/O thread itself, or *wait* is false, *work* is called on
        another OS thread.
        """
        if wait and not self._pool.loop.is_current():
            work()
        else:
            threading.Thread(None, work, "flowpregel-closing").start()

    def _release(self) -> None:
        self._pool.loop.join()
        self._pool.release()
        atexit.unregister(self._close_at_exit)

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the jobs that workers run now, without those that were already sent to
        a worker and wait behind the job that it runs.
        """
        # Tasks have monotonic times, which are converted to the time of day.
        offset = time.time_ns() - time.monotonic_ns()
        jobs: dict[JobKey, tuple[int, int]] = {}
        for worker in tuple(self._pool.workers):
            task = worker.running()
            if task is not None:
                began = offset + int(task.execution.sent * 1e9)
                jobs[task.job.key] = (worker.pid, began)
        return jobs

    def worker_pids(self) -> list[int]:
        """Return the pids of the worker processes."""
        return [worker.pid for worker in tuple(self._pool.workers)]

    # ------------------------------------------------ plain functions

    def submit(
        self,
        fn: Callable[Params, Result],
        /,
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Future[Result]:
        """Call ``fn(*args, **kwargs)`` in a worker, and return a future for the result.

        Args:
            fn: The function.
            args: The positional arguments.
            kwargs: The keyword arguments.

        Raises:
            RuntimeError: The executor was shut down.

        Example:
            >>> from flowpregel.executors import ProcessExecutor
            >>> with ProcessExecutor(1) as pool:
            ...     pool.submit(pow, 2, 10).result()
            1024
        """
        if self.is_closed or self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        node, code = codes.of_function(fn)
        arguments = captured(Arguments(args, kwargs))
        called = Task(
            f"call-{next(self._numbers)}",
            node,
            Kind.CALL,
            arguments,
            "",
            origin=TaskOrigin(code=code),
        )
        job = Job(
            called,
            # no mutant: A plain function runs in no superstep, so these have no effect.
            StepContext("", "", 0, 0),
            key=(called.id, 1),
            variables=copy_context(),
        )
        future = PoolFuture(partial(self.cancel, job.key, kill=True), self._pool)
        self.start((job,), future)
        self._open.add(future)
        # The method of the base class is called, because the override calls the
        # callback on another OS thread, which is needed only for callbacks of the user.
        Future.add_done_callback(future, self._open.discard)
        return future

    def map(
        self,
        fn: Callable[..., Result],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Result]:
        """Call *fn* with the items of *iterables*, and return the results in the same
        order.

        As in the standard library, all calls are submitted now, and a call's error is
        raised in place of the call's result. With chunks, the error is raised in place
        of all results of the chunk.

        Args:
            fn: The function to call.
            iterables: The arguments. The number of calls is the length of the shortest
                iterable.
            timeout: Seconds from now within which every result must arrive.
            chunksize: The number of items that are sent as one call.

        Raises:
            ValueError: *chunksize* is less than 1.
            TimeoutError: A result did not arrive in time. The iterator raises this.

        Example:
            >>> from flowpregel.executors import ProcessExecutor
            >>> with ProcessExecutor(1) as pool:
            ...     list(pool.map(abs, range(-3, 3), chunksize=2))
            [3, 2, 1, 0, 1, 2]
        """
        if chunksize < 1:
            raise ValueError(f"chunksize is {chunksize}; use 1 or more")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        call: Any = partial(_call_each, fn)
        call.__name__ = name_of(fn)
        chunks = _chunks_of(zip(*iterables, strict=False), chunksize)
        return _items_of(super().map(call, chunks, timeout=timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the workers when the submitted calls have ended.

        Args:
            wait: True to return only after the workers have ended.
            cancel_futures: True to stop the calls instead of waiting for them.

        Example:
            >>> from flowpregel.executors import ProcessExecutor
            >>> pool = ProcessExecutor(1)
            >>> future = pool.submit(abs, -3)
            >>> pool.shutdown()
            >>> future.result()
            3
        """
        self._is_shut_down = True
        if cancel_futures:
            for future in tuple(self._open):
                future.cancel()
        self._conclude(self._drain, wait=wait)

    def _drain(self) -> None:
        if self._pid != os.getpid():
            # A forked process must not wait for the calls: they belong to the parent
            # process.
            return
        concurrent.futures.wait(tuple(self._open))
        self.close()


def _chunks_of(
    calls: Iterator[tuple[Any, ...]], size: int
) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """Yield the arguments of *calls*, *size* calls at a time."""
    while chunk := tuple(islice(calls, size)):
        yield chunk


def _call_each(
    fn: Callable[..., Result], chunk: Iterable[tuple[Any, ...]]
) -> list[Result]:
    """Call *fn* with each of the arguments in *chunk*, and return the results. This
    runs in a worker.
    """
    return [fn(*args) for args in chunk]


def _items_of(chunks: Iterator[list[Result]]) -> Iterator[Result]:
    """Yield the items of the lists in *chunks*. When this generator is closed, close
    *chunks*.
    """
    try:
        for chunk in chunks:
            # Each item is removed from its list, so that this generator does not keep
            # it alive. The list is reversed first, because `pop` takes the last item.
            chunk.reverse()
            while chunk:
                yield chunk.pop()
    finally:
        chunks.close()  # type: ignore[attr-defined]


class PoolFuture(LazyFuture[Any]):
    """The future of a function that `submit` has sent to a worker. It is also the
    mailbox for the events of the call.

    `cancel` stops the function even while it runs. The first OS thread that requests
    the result unpickles it.

    Args:
        stop: A function that stops the call.
        pool: The pool that executes the call.
    """

    backlog = None

    def __init__(self, stop: Callable[[], None], pool: TaskPool) -> None:
        super().__init__()
        self._stop = stop
        self._pool = pool

    def cancel(self) -> bool:
        """Withdraw the call, or stop it if it runs. Return False if it has already
        ended.
        """
        if not super().cancel():
            return False
        self._stop()
        return True

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Arrange that *fn* is called with this future when it is done, but not on the
        I/O thread.

        The I/O thread serves every run, and *fn* may block.
        """
        super().add_done_callback(partial(self._call_back, fn))

    def _call_back(self, fn: Callable[[Future[Any]], object], _: object) -> None:
        if self._pool.loop.is_current():
            self._pool.callbacks.call(partial(fn, self))
        else:
            fn(self)

    def post(self, *events: Event | UnreadEvent) -> None:
        """Receive the events of the call. When one of them is the end of the call,
        complete the future.
        """
        for event in events:
            if not isinstance(event, Ended | UnreadEnd):
                continue
            if self.set_running_or_notify_cancel():
                # The pool posts an `Ended` only for a job that could not be started.
                failed = event.is_failure if isinstance(event, UnreadEnd) else True
                read = partial(_returned_by, _reader_of(event))
                self.arrive(read, failed=failed)


def _reader_of(event: Ended | UnreadEnd) -> Callable[[], Outcome]:
    """Return a function that unpickles (reads) the outcome of a call, and returns it.

    The function refers to the call's arguments, and so keeps them alive, only if it
    needs them.
    """
    if isinstance(event, UnreadEnd) and isinstance(event.outcome, PackedOutcome):
        return partial(_read_alone, event.outcome, event.task.job.task.name)
    return partial(_read_whole, event)


def _read_alone(packed: PackedOutcome, task: str) -> Outcome:
    """Unpickle the outcome of *task*, and return it.

    If unpickling raises a `BaseException` that is no `Exception`, such as a
    `KeyboardInterrupt`, it is raised for the caller that requested the result.
    """
    try:
        return packed.read()
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        return unreadable_result(task, error)


def _read_whole(event: Ended | UnreadEnd) -> Outcome:
    return event.outcome if isinstance(event, Ended) else event.read().outcome


def _returned_by(read: Callable[[], Outcome]) -> tuple[Any, BaseException | None]:
    """Return the result and the error of a function that was passed to `submit`. *read*
    returns the outcome of the call.
    """
    match read():
        case Returned(writes):
            return dict(writes).get(RETURN), None
        case Raised(error):
            return None, error
    return None, RuntimeError("the pool was closed")


class ProcessExecutor(PoolExecutor):
    """An executor that runs tasks in worker processes, each of which is a loky process.

    A crash, a timeout or a cancellation affects only one task, and a new worker
    replaces the lost worker. A `ProcessExecutor` is also a
    `concurrent.futures.Executor` for plain functions.

    Args:
        max_workers: The number of tasks that run at the same time. The default is the
            number of CPUs that this process may use, according to its affinity and its
            cgroup quota.
        initializer: A function that is called in each worker before its first task.
        initargs: The arguments of the initializer.
        env: Environment variables for the workers, in addition to the program's own.
        worker_max_tasks: The number of tasks after which a worker is replaced.
        worker_max_rss: The memory, in bytes, above which a worker is replaced after a
            task.
        grace: Seconds between the signal that asks a task to stop and the kill.
        shared_memory: The limit, in bytes, on the shared memory for large buffers. The
            default is a quarter of the machine's memory. Buffers that do not fit go
            through the links.
        limits: The number of calls of tasks with ``limit="name"`` that may run at once,
            by name. ``"cpus"``, ``"memory"`` and ``"gpus"`` set the amounts for tasks
            with such options, if these differ from the machine's amounts.
        limits_folder: A folder. All programs that name the same folder share the named
            limits.
        limits_scope: The calls that share the named limits: ``"pool"`` for the calls of
            this pool, or ``"store"`` for the calls of all programs whose runs are in
            the same store, LMDB or SQLite.

    Raises:
        ConfigurationError: An argument makes no sense.

    Example:
        >>> from flowpregel import entrypoint, task
        >>> @task
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with ProcessExecutor(2) as pool:
        ...     @entrypoint(executor=pool)
        ...     def total(numbers: list[int]) -> int:
        ...         return sum(future.result() for future in double.map(numbers))
        ...     total.run([1, 2])
        6
    """

    capabilities: Capabilities = Capabilities(
        isolates=True, times_out=True, cancels=True, admits=True
    )
    pool_class: ClassVar[type[Pool]] = Pool
    _pool: Pool

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
        shared_memory: int | None = None,
        limits: Mapping[str, float | str] | None = None,
        limits_folder: str | os.PathLike[str] | None = None,
        limits_scope: LimitsScope = "pool",
    ) -> None:
        _check_pool_arguments(max_workers, worker_max_tasks, worker_max_rss, grace)
        check_limits_scope(limits_scope, limits_folder)
        cpus = _usable_cpus()
        size = max_workers or cpus
        own_variables = env or {}
        caps = _items_outside(own_variables, thread_caps(cpus, size))
        amounts, gpus = amounts_of(limits, max(size, cpus))
        settings = PoolSettings(
            size=size,
            env={**caps, **own_variables},
            initializer=crossing.dumps((initializer, initargs)) if initializer else b"",
            worker_max_tasks=worker_max_tasks,
            worker_max_rss=worker_max_rss,
            grace=grace,
            shared_limit=default_limit() if shared_memory is None else shared_memory,
            amounts=amounts,
            gpus=gpus,
            limits_folder="" if limits_folder is None else os.fspath(limits_folder),
            limits_scope=limits_scope,
            share=max(1, cpus // size),
            capped=tuple(caps),
        )
        super().__init__(self.pool_class(settings), _ROOM * size)
        self.shared_limits: SharedLimits | None = _limits_in_process(settings)
        _pools.add(self._pool)


def _check_pool_arguments(
    max_workers: object, worker_max_tasks: object, worker_max_rss: object, grace: float
) -> None:
    """Check the arguments of a `ProcessExecutor`.

    Raises:
        ConfigurationError: An argument makes no sense.
    """
    counts = {
        "max_workers": max_workers,
        "worker_max_tasks": worker_max_tasks,
        "worker_max_rss": worker_max_rss,
    }
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigurationError(
                f"{name} is {value!r}; use a whole number, or None"
            )
    if grace < 0:
        raise ConfigurationError(f"grace is {grace!r}; use seconds, 0 or more")


def check_limits_scope(scope: object, folder: object) -> None:
    """Check the option ``limits_scope`` of an executor.

    Args:
        scope: The value of the option.
        folder: The folder of the limits, or None.

    Raises:
        ConfigurationError: There is no such scope, or *folder* is passed together with
            the scope ``"store"``.
    """
    if scope not in get_args(LimitsScope):
        raise ConfigurationError(
            f"limits_scope is {scope!r}; use 'pool', or 'store' for limits that all "
            "programs of a store share"
        )
    if scope == "store" and folder is not None:
        raise ConfigurationError(
            "limits_scope='store' and limits_folder= are both given; use one of them: "
            "programs share limits through the store, or through a folder"
        )


def _limits_in_process(settings: PoolSettings) -> SharedLimits:
    """Return the named limits of the pool's settings, for tasks that run in this
    process.
    """
    limits = _items_outside(OF_THE_MACHINE, settings.amounts)
    return SharedLimits(limits, settings.limits_folder, scope=settings.limits_scope)


def _usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    from loky import cpu_count  # noqa: PLC0415 - 56 ms, only when a pool is made

    return int(cpu_count())


def _items_outside(
    names: Container[str], values: Mapping[str, Value]
) -> dict[str, Value]:
    """Return *values* without the keys in *names*."""
    return {name: value for name, value in values.items() if name not in names}


def thread_caps(cpus: int, workers: int) -> Mapping[str, str]:
    """Return the environment variables that limit the OS threads of numeric libraries
    in each worker to its share of the CPUs.

    Numeric libraries read these variables on import, so they are set before a worker
    starts. Variables that the user has set stay unchanged.
    """
    share = str(max(1, cpus // workers))
    return {name: share for name in _THREAD_VARIABLES if name not in os.environ}


def worker_memory() -> tuple[int, int]:
    """Return the number of workers in all pools, and the memory that they use, in
    bytes.

    Pages that workers share are counted once for each worker.
    """
    pids = [worker.pid for pool in tuple(_pools) for worker in tuple(pool.workers)]
    return len(pids), sum(memory_of(pid) for pid in pids)


def pools_of(thread_id: str) -> list[Pool]:
    """Return the pools of this program that have tasks of a run. Any OS thread may call
    this.

    Args:
        thread_id: The thread of the run.
    """
    return [pool for pool in tuple(_pools) if pool.has_tasks_of(thread_id)]


_pools: WeakSet[Pool] = WeakSet()
"""Every pool of this program that is in use."""


_default_lock = threading.Lock()
_default: ProcessExecutor | None = None


def default_pool() -> ProcessExecutor:
    """Return the program's shared pool, which is created at the first request and
    closed when the program ends.

    Example:
        >>> default_pool() is default_pool()
        True
    """
    global _default
    with _default_lock:
        if _default is None or _default.is_closed:
            _default = ProcessExecutor()
        return _default


def _forget_pools_after_fork() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pools_after_fork)
