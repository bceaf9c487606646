"""The protocol of a worker's link: frames, tokens, the status, and settings.

::

    coordinator                                               worker
        |--- tokens: the numbers of the tasks it may begin ---->|   (pipe)
        |--- frames: TASKS, ANSWER, ... ----------------------->|   (socket)
        |<-- frames: READY, ENDED, EMITTED, CALLED, ... --------|   (socket)
        |    status: which task runs, which one must stop       |   (shared memory)

A task begins when its worker has taken the task's token (start permission) from the
pipe. The coordinator takes a task back by reading its token from the same pipe. A pipe
delivers each byte once, so no task runs twice or is lost. The first task of an idle
worker has no token, because it begins at once.

This module defines the kinds of frames, and cuts frames from the bytes of a link.
`serialization` packs the bodies.
"""

from __future__ import annotations

import mmap
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

# The coordinator sends these kinds of frames to the worker.
TASKS: Final = 2
"""Tasks to run, in order. The body is a pickled list of (number, digest of the code,
code, digests of code to drop first, packed job). The code is the pickle of a pair: a
node's name, and the pickle of the node. It is empty if the worker has the code in its
cache. The frame's *number* is the number of the task that begins without a token, or 0
if all tasks have tokens.
"""
ANSWER: Final = 3
"""The outcome of the request *number*: a call, a call of the store, the saving of a
state, or a request for channels.
"""
FREED: Final = 4
"""The coordinator no longer reads some buffers in the worker's shared memory. The body
has the ids of these buffers.
"""
STOP: Final = 5
"""The command to exit all entered contexts, and to end the process. No more tasks
follow.
"""
LEAVE: Final = 6
"""The command to exit the `Context` channels of a run that has ended. The worker
confirms it with a LEFT frame of the same *number*.
"""

# The worker sends these kinds of frames to the coordinator.
READY: Final = 32
"""The worker has started, and has run the pool's initializer."""
ENDED: Final = 33
"""Task *number* has ended. The body is an `EndedHead` and the packed outcome."""
EMITTED: Final = 34
"""Task *number* emits a chunk for the stream mode ``custom``."""
BEAT: Final = 35
"""Task *number* shows a sign of life."""
CALLED: Final = 36
"""Task *number* calls another task."""
ASKED: Final = 37
"""Task *number* calls a method of the run's long-term store."""
LOGGED: Final = 38
"""A log record of task *number*."""
PRINTED: Final = 39
"""Text for stdout or stderr from task *number*."""
RETURNED: Final = 40
"""The worker no longer reads some buffers in the coordinator's shared memory. The body
has the ids of these buffers.
"""
FAILED: Final = 41
"""The worker could not start. The body is the packed error."""
LEFT: Final = 42
"""The worker has exited the contexts of request *number*."""
SAVED: Final = 43
"""Task *number* saves a state for its next attempt. The coordinator answers this as it
answers a call.
"""
CANCELLED: Final = 44
"""Task *number* cancels a call that it has made. There is no answer."""

SPOILED: Final = 45
"""The worker begins no more tasks (it is spoiled), because its last task has changed
process state that cannot be restored. The body names this state.
"""
REFUSED: Final = 46
"""Task *number*, which arrived after the worker was spoiled, has not begun."""
CHANNELS: Final = 47
"""Task *number* requests channels of the run, by their names."""

DOWN: Final = frozenset(range(TASKS, LEAVE + 1))
UP: Final = frozenset(range(READY, CHANNELS + 1))

# These are the flags of frames.
STOPPED: Final = 2
"""Flag of ENDED: the stop signal reached the task."""
CAUGHT: Final = 16
"""Flag of ENDED: the task made calls, so the body has the ids of the failed ones whose
errors have reached the task.
"""
NO_MEMORY: Final = 32
"""Flag of ENDED: the task, or an item of a chunk, raised a ``MemoryError``."""
NO_MODULE: Final = 64
"""Flag of ENDED: the task could not begin, because the worker lacks a module. The
module's name takes the place of the ids of failed calls.
"""
STDERR: Final = 4
"""Flag of PRINTED: the text was written to stderr."""
STRUCTURED: Final = 8
"""Flag of LOGGED: the record is a structlog event."""

DIGEST_SIZE: Final = 16
"""The size, in bytes, of the digest of a node's packed code."""
TOKEN: Final = Struct("<I")
"""The start permission (token) of a task, which is the number that identifies the
task.
"""
REQUEST: Final = Struct("<I")
"""The first part of the body of CALLED, ASKED, SAVED, CANCELLED and CHANNELS: the
number of the request, under which the answer is sent.
"""


STATUS_SIZE: Final = 24
"""The size, in bytes, of the shared memory for a worker's status."""
RUNNING: Final = 0
"""The index, in the status, of the number of the task that began last."""
UNWANTED: Final = 1
"""The index, in the status, of the number of the task that must stop. The coordinator
writes it before it sends the signal that makes the worker read it.
"""

ENDING: Final = 2
"""The index, in the status, of the number of the task that is warned that its run will
end soon.
"""


def map_status(fd: int) -> memoryview:
    """Map the status of a worker, three numbers in memory that both processes share,
    and return it.

    The coordinator can read them even when the worker is dead.
    """
    return memoryview(mmap.mmap(fd, STATUS_SIZE)).cast("Q")


# ------------------------------------------------ the settings of a worker


class WorkerKind(NamedTuple):
    """The properties that distinguish the workers of a pool, and that do not change
    during the life of a worker.
    """

    threads: int | None = None
    """The number of OS threads that numeric libraries may start, or None for
    `PoolSettings.share`.
    """
    gpus: tuple[str, ...] = ()
    """The names of the GPUs that the worker's tasks see. If the tuple is empty, they
    see all GPUs of the program.
    """
    is_fresh: bool = False
    """True if the worker runs one task, and then ends."""


PLAIN: Final = WorkerKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool."""

    size: int
    """The number of workers that run tasks at the same time."""
    env: Mapping[str, str] = field(default_factory=dict)
    initializer: bytes = b""
    """The pickle of the pool's initializer and its arguments, or empty bytes if there
    is none.
    """
    worker_max_tasks: int | None = None
    worker_max_rss: int | None = None
    grace: float = 2.0
    """Seconds between the signal that asks a task to stop and the kill."""
    shared_limit: int = 0
    """The limit on the shared memory for large buffers, in bytes. One half is for
    inputs, the other for results.
    """
    idle_after: float = 60.0
    """Seconds after which an idle worker is stopped."""
    kind: WorkerKind = PLAIN
    """The kind of worker for which these settings are."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """The amount of each resource of the pool, by name."""
    gpus: tuple[str, ...] = ()
    limits_folder: str = ""
    """The folder of the lock files with which programs share the named limits, or an
    empty string if no other program shares them.
    """
    limits_scope: Literal["pool", "store"] = "pool"
    """The calls that share the named limits: those of this pool (``"pool"``), or those
    of all programs that use the store of the run (``"store"``).
    """
    nice: int | None = None
    """The nice value of the workers, or None for that of the program."""
    share: int = 0
    """The number of OS threads that numeric libraries may start in a worker."""
    capped: tuple[str, ...] = ()
    """The names of the environment variables that limit the OS threads of numeric
    libraries, without those that the user has set.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The descriptors and settings of a worker, which it gets when loky starts its
    process.
    """

    settings: PoolSettings
    link: Any
    """The stream socket for messages (frames), in both directions."""
    fd_socket: Any
    """The stream socket for descriptors of shared memory, in both directions."""
    status: Any
    """The shared memory of the worker's status."""
    tokens: Any
    """The pipe with the numbers of the tasks that the worker may begin."""
    stdout: Any
    stderr: Any
    magic: int
    """The random number with which every frame on the link begins."""
    coordinator: int
    """The pid of the coordinator."""
    log_levels: Mapping[str, int]
    """The levels of the coordinator's loggers, by the logger's name. Log records below
    these levels are not sent.
    """


STOP_SIGNAL: Final = (
    # no mutant: The stop works with either of these signals.
    signal.SIGRTMIN + 3 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
)
"""The signal to a worker whose task must stop. Hardly any other program uses it."""


TASK_FIELDS: Final = ("task", "attempt", "step", "thread_id", "run_id")

HEADER: Final = Struct("<IBBHIQ")
"""The header of a frame: magic number, kind, flags, an unused field, number, and the
length of the body.
"""
READ_SIZE: Final = 1 << 16
"""The number of bytes that one end of a link reads at once."""
LONGEST: Final = 1 << 36
"""The greatest length of a body. If a header contains a greater length, the bytes are
not a frame.
"""


class Frame(NamedTuple):
    """One message on the link between the coordinator and a worker."""

    kind: int
    flags: int
    number: int
    body: bytes


class GarbageError(Exception):
    """The error that the bytes on a link are not frames."""


class Parser:
    """A parser that cuts the bytes of a link into frames.

    Args:
        magic: The number with which every frame begins.
        kinds: The kinds of frames that may arrive at this end.
    """

    def __init__(self, magic: int, kinds: frozenset[int]) -> None:
        self._magic = magic
        self._kinds = kinds
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes.

        The parser allocates memory for the bytes that arrived, never for the length
        that a header claims.

        Raises:
            GarbageError: The bytes are not frames. The link cannot be used any more.
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
