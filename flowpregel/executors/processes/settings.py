"""How a pool is set up, and what a worker of it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowpregel.executors.processes.assign import PLAIN, WorkerKind


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
    idle_after: float = 60.0
    """Seconds after which an idle worker is stopped."""
    kind: WorkerKind = PLAIN
    """What is said of these workers alone."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """What there is of each resource."""
    gpus: tuple[str, ...] = ()
    limits_folder: str = ""
    """Where the programs are that share its limits; empty: they are its own."""
    share: int = 0
    """How many OS threads numeric libraries may start in a worker."""
    capped: tuple[str, ...] = ()
    """The environment variables that say so, and that the user has not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The descriptors of a worker and its settings; travels with loky's start-up data."""

    settings: PoolSettings
    link: Any
    """Stream socket: frames both ways."""
    door: Any
    """Stream socket: descriptors of shared memory, both ways."""
    status: Any
    """Shared memory of its status."""
    tokens: Any
    """Pipe of the numbers of the tasks that it may begin."""
    stdout: Any
    stderr: Any
    mark: int
    """Begins every frame."""
    coordinator: int
    """The pid of the process that started it."""
    log_levels: Mapping[str, int]
    """The levels of the coordinator's loggers, by name: records below are not sent."""
