"""What a worker is started with; it travels with loky's own start-up data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Inherited:
    """A descriptor that the new process is to have.

    Pickled while loky starts the process, it becomes the number it has there.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415 - only while loky starts one

        return _detach, (DupFd(self.fd),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where a worker's ends are, and what it does first."""

    link: Any
    """Stream socket: frames both ways."""
    door: Any
    """Stream socket: descriptors of shared memory, both ways."""
    board: Any
    tokens: Any
    """Pipe that holds one byte for each task of a batch that may still be begun."""
    stdout: Any
    stderr: Any
    mark: int
    coordinator: int
    """The pid of the process that started it."""
    initializer: bytes
    """Pickled (function, arguments), or nothing."""
    shared_limit: int
    """The most bytes of shared memory it may hold for results."""
    segments: int
    """The most segments that may be in."""
    log_levels: Mapping[str, int]
    """The levels of the coordinator's loggers, by name: what is below is not sent."""
