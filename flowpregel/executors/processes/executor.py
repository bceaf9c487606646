"""`ProcessExecutor`: jobs in worker processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakSet

from flowpregel.errors import ConfigurationError
from flowpregel.executors.base import Capabilities
from flowpregel.executors.processes import serialization
from flowpregel.executors.processes.crash_report import memory_of
from flowpregel.executors.processes.message_handler import MessageHandler
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.pool_executor import PoolExecutor
from flowpregel.executors.processes.protocol import PoolSettings
from flowpregel.executors.processes.resources import amounts_of
from flowpregel.executors.processes.shared_memory import default_limit

_ROOM: Final = 512
"""Jobs for each worker that may be with the pool: some tens of milliseconds of the smallest."""
_NUMERIC: Final = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA", "TBB")
_THREAD_VARIABLES: Final = (
    "VECLIB_MAXIMUM_THREADS",
    *(f"{name}_NUM_THREADS" for name in _NUMERIC),
)


class ProcessExecutor(PoolExecutor):
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
        shared_memory: The most bytes of shared memory for large buffers; None: a quarter
            of the machine's memory. What does not fit goes through the links.
        limits: How many calls of tasks with ``limit="name"`` may run at once, by name. Under
            ``"cpus"``, ``"memory"`` and ``"gpus"``: how much of that there is for tasks that
            say what they take, if it is not what the machine has.
        limits_folder: A folder, such as the store's: the named limits are those of all
            programs that name the same one.

    Raises:
        ConfigurationError: An argument makes no sense.

    Example:
        >>> with ProcessExecutor(2) as pool:  # doctest: +SKIP
        ...     graph.compile(executor=pool).invoke(state)
    """

    capabilities = Capabilities(isolates=True, times_out=True, cancels=True, admits=True)

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
    ) -> None:
        _check_count("max_workers", max_workers)
        _check_count("worker_max_tasks", worker_max_tasks)
        _check_count("worker_max_rss", worker_max_rss)
        if grace < 0:
            raise ConfigurationError(f"grace is {grace!r}; it is seconds and cannot be negative")
        from loky import cpu_count  # noqa: PLC0415 - 56 ms, only when a pool is made

        cpus = int(cpu_count())
        size = max_workers or cpus
        caps = {
            name: cap for name, cap in thread_caps(cpus, size).items() if name not in (env or {})
        }
        amounts, gpus = amounts_of(limits, max(size, cpus))
        settings = PoolSettings(
            size=size,
            env={**caps, **(env or {})},
            initializer=serialization.dumps((initializer, initargs)) if initializer else b"",
            worker_max_tasks=worker_max_tasks,
            worker_max_rss=worker_max_rss,
            grace=grace,
            shared_limit=default_limit() if shared_memory is None else shared_memory,
            amounts=amounts,
            gpus=gpus,
            limits_folder="" if limits_folder is None else os.fspath(limits_folder),
            share=max(1, cpus // size),
            capped=tuple(caps),
        )
        pool = Pool(settings)
        super().__init__(pool, MessageHandler(pool), _ROOM * size)
        _executors.add(self)

    def forget_places(self) -> None:
        """In a fork: leave the places of shared limits to the other process."""
        self._pool.resources.close()


def _check_count(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigurationError(f"{name} is {value!r}; use a whole number, or None")


def thread_caps(cpus: int, workers: int) -> Mapping[str, str]:
    """Return environment variables that give each worker its share of the CPUs.

    Numeric libraries read them on import, so they are set before a worker starts.
    What the user has set stays.
    """
    share = str(max(1, cpus // workers))
    return {name: share for name in _THREAD_VARIABLES if name not in os.environ}


def worker_memory() -> tuple[int, int]:
    """Return how many workers there are in all pools, and the bytes of memory they take.

    Pages that workers share are counted once for each of them.
    """
    pids = [pid for executor in tuple(_executors) for pid in executor.worker_pids()]
    return len(pids), sum(memory_of(pid) for pid in pids)


_executors: WeakSet[ProcessExecutor] = WeakSet()
"""Every pool of this program that is in use."""


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
    for executor in _executors:
        executor.forget_places()
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
