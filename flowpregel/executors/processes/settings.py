"""How a pool is set up, and what each of its workers is started with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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


def thread_caps(cpus: int, workers: int) -> Mapping[str, str]:
    """Return environment variables that give each worker its share of the CPUs.

    Numeric libraries read them on import, so they are set before a worker starts.
    What the user has set stays.
    """
    share = str(max(1, cpus // workers))
    return {name: share for name in _THREAD_VARIABLES if name not in os.environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How a pool is set up."""

    size: int
    """How many workers run tasks at the same time."""
    env: Mapping[str, str] = field(default_factory=dict)
    initializer: bytes = b""
    """Pickled (function, arguments), or nothing."""
    worker_max_tasks: int | None = None
    worker_max_rss: int | None = None
    grace: float = 2.0
    """Seconds between the signal that asks a task to stop and the kill."""
    shared_limit: int = 0
    """The most bytes of shared memory: half for inputs, half for results."""
    warm: bool = True
    """Whether all workers are started with the first."""
    idle_after: float = 60.0
    """Seconds after which an idle worker is stopped."""

    @property
    def looks_at_each(self) -> bool:
        """Whether each task may be its worker's last."""
        return self.worker_max_tasks is not None or self.worker_max_rss is not None


class Inherited:
    """A descriptor that a new process is to have.

    Pickled while loky starts the process, it becomes its number there.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415 - only while loky starts one

        return _detach, (DupFd(self.fd),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The descriptors of a worker and its settings; travels with loky's start-up data."""

    link: Any
    """Stream socket: frames both ways."""
    door: Any
    """Stream socket: descriptors of shared memory, both ways."""
    status: Any
    """Shared memory of its `WorkerStatus`."""
    tokens: Any
    """Pipe of the numbers of the tasks that it may begin."""
    stdout: Any
    stderr: Any
    mark: int
    """Begins every frame."""
    coordinator: int
    """The pid of the process that started it."""
    initializer: bytes
    """Pickled (function, arguments), or nothing."""
    shared_limit: int
    """The most bytes of shared memory for its results."""
    segments: int
    """The most segments of them."""
    log_levels: Mapping[str, int]
    """The levels of the coordinator's loggers, by name: records below are not sent."""
