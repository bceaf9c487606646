"""The protocol of a worker's link: kinds of frames, tokens, the status, and settings.

::

    coordinator                                               worker
        |--- tokens: the numbers of the tasks it may begin ---->|   (pipe)
        |--- frames: TASKS, ANSWER, ... ----------------------->|   (socket)
        |<-- frames: READY, ENDED, EMITTED, CALLED, ... --------|   (socket)
        |    status: which task runs, which one must stop       |   (shared memory)

A task begins when its worker has taken its token. The coordinator recalls tasks by
reading tokens back. A pipe hands out each byte once, so no task runs twice or is lost.
The first task of an idle worker has none: it begins at once.

`serialization` builds frames and cuts them from the bytes of a link. The kinds of
frames are defined here, with the meaning of each.
"""

from __future__ import annotations

import mmap
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple

# Down: from the coordinator to the worker.
TASKS: Final = 2
"""Tasks to run, in order: a pickled list of (number, digest of the code, code, digests
of code to drop first, packed job). The code is the pickle of a node's name and of the
node's own pickle. It is empty if the worker has it. *number* is that of the task that
begins without a token; 0: none does.
"""
ANSWER: Final = 3
"""The outcome of call or store request *number*."""
FREED: Final = 4
"""Leases of the worker's own shared memory that the coordinator no longer reads."""
STOP: Final = 5
"""No more tasks: release what is held, and exit."""
LEAVE: Final = 6
"""Leave the `Context` channels of a run that ended; *number* names the request."""

# Up: from the worker to the coordinator.
READY: Final = 32
"""Started, and its initializer has run."""
ENDED: Final = 33
"""Task *number* ended: `RAN`, the ids of calls, its outcome."""
EMITTED: Final = 34
"""A chunk for the run's custom stream."""
BEAT: Final = 35
"""A sign of life."""
CALLED: Final = 36
"""Task *number* makes a call."""
ASKED: Final = 37
"""A store request."""
LOGGED: Final = 38
"""A log record."""
PRINTED: Final = 39
"""Text for stdout or stderr."""
RETURNED: Final = 40
"""Leases of the coordinator's shared memory that the worker no longer reads."""
FAILED: Final = 41
"""The worker could not start: why."""
LEFT: Final = 42
"""The contexts of request *number* have been left."""
SAVED: Final = 43
"""The state that task *number* saves for its next attempt; it is answered like a call.
"""
CANCELLED: Final = 44
"""Task *number* no longer wants a call; no answer."""

SPOILED: Final = 45
"""The worker begins no more tasks. The body names what its last one did that stays."""
REFUSED: Final = 46
"""Task *number*, which came when the worker was spoiled, has not begun."""

DOWN: Final = frozenset(range(TASKS, LEAVE + 1))
UP: Final = frozenset(range(READY, REFUSED + 1))

# Flags.
STOPPED: Final = 2
"""ENDED: the stop signal reached the task."""
CAUGHT: Final = 16
"""ENDED: the task made calls."""
STDERR: Final = 4
"""PRINTED: the text is for stderr."""
STRUCTURED: Final = 8
"""LOGGED: the record is structlog's."""

DIGEST_SIZE: Final = 16
"""Bytes of the digest of a node's code."""
RAN: Final = Struct("<fqfQI")
"""The head of ENDED: the seconds that a task ran, the wall-clock nanoseconds at which
it began, the seconds of CPU, the peak memory of the process so far (bytes), and the
number of bytes that follow of ids of calls whose failures the task has seen.
"""
TOKEN: Final = Struct("<I")
"""The number of a task."""
REQUEST: Final = Struct("<I")
"""Before the body of CALLED, ASKED, SAVED and CANCELLED: what the answer is to be sent
under.
"""


STATUS_SIZE: Final = 24
"""Bytes of shared memory that the status of a worker needs."""
RUNNING: Final = 0
"""The index of the number of the task that began last."""
UNWANTED: Final = 1
"""The index of the number of the task that must stop: set before the signal that makes
the worker read it.
"""

ENDING: Final = 2
"""The index of the number of the task whose run will end soon."""


def map_status(fd: int) -> memoryview:
    """Return the status of a worker: three numbers in memory that both processes map.

    They can be read when the worker is dead.
    """
    return memoryview(mmap.mmap(fd, STATUS_SIZE)).cast("Q")


# ------------------------------------------------ what a worker is started with


class WorkerKind(NamedTuple):
    """The properties that distinguish a worker from others, from its start to its
    end."""

    threads: int | None = None
    """The number of OS threads that numeric libraries may start; None: the pool's
    share.
    """
    gpus: tuple[str, ...] = ()
    """The GPUs that its tasks see; none: whatever the program sees."""
    is_fresh: bool = False
    """Whether it runs one task, and ends."""


PLAIN: Final = WorkerKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool."""

    size: int
    """The number of workers that run tasks at the same time."""
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
    """The settings of these workers alone."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """The amount of each resource."""
    gpus: tuple[str, ...] = ()
    limits_folder: str = ""
    """The folder of programs that share the limits; empty: the program has its own."""
    share: int = 0
    """The number of OS threads that numeric libraries may start in a worker."""
    capped: tuple[str, ...] = ()
    """The environment variables that say so, and that the user has not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The descriptors of a worker and its settings; travels with loky's start-up
    data.
    """

    settings: PoolSettings
    link: Any
    """Stream socket: frames both ways."""
    fd_socket: Any
    """Stream socket: descriptors of shared memory, both ways."""
    status: Any
    """Shared memory of the status."""
    tokens: Any
    """Pipe of the numbers of the tasks that it may begin."""
    stdout: Any
    stderr: Any
    magic: int
    """Begins every frame."""
    coordinator: int
    """The pid of the process that started it."""
    log_levels: Mapping[str, int]
    """The levels of the coordinator's loggers, by name: records below are not sent."""


RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
"""Bytes in the kernel's unit of peak memory."""


STOP_SIGNAL: Final = (
    # no mutant: either signal does
    signal.SIGRTMIN + 3 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
)
"""The signal for a worker whose task must stop; hardly any other program uses it."""


TASK_FIELDS: Final = ("task", "attempt", "step", "thread_id", "run_id")

HEADER: Final = Struct("<IBBHIQ")
"""magic, kind, flags, spare, number, length of the body."""
READ_SIZE: Final = 1 << 16
"""Bytes that an end of a link reads at once."""
LONGEST: Final = 1 << 36
"""No body is longer: a length above it is garbage."""


class Frame(NamedTuple):
    """One message on a link."""

    kind: int
    flags: int
    number: int
    body: bytes


class GarbageError(Exception):
    """Bytes on a link that are no frames."""


class Parser:
    """Cuts the bytes that arrive into frames.

    Args:
        magic: What every frame begins with.
        kinds: The kinds that may arrive at this end.
    """

    def __init__(self, magic: int, kinds: frozenset[int]) -> None:
        self._magic = magic
        self._kinds = kinds
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes.

        Memory grows with the bytes that arrived, never with what a header claims.

        Raises:
            GarbageError: The bytes are not frames; the link cannot be used again.
        """
        held, head = self._held, HEADER.size
        held += data
        frames: list[Frame] = []
        start = head
        while start <= len(held):
            magic, kind, flags, spare, number, length = HEADER.unpack_from(
                held, start - head
            )
            if (
                magic != self._magic
                or kind not in self._kinds
                or spare
                or length > LONGEST
            ):
                raise GarbageError(
                    f"not a frame: {bytes(held[start - head : start]).hex()}"
                )
            end = start + length
            if end > len(held):
                break
            frames.append(Frame(kind, flags, number, bytes(held[start:end])))
            start = end + head
        del held[: start - head]
        return frames
