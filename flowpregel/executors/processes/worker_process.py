"""The coordinator's end of one worker: its process, its link, its tasks, its state."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, Final

from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.assign import (
    InFlight,
    WorkerEvent,
    WorkerLoad,
    WorkerState,
    next_state,
)
from flowpregel.executors.processes.crash_report import Tail
from flowpregel.executors.processes.protocol import TOKEN, Frame, Parser, WorkerStatus, pack
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.shared_memory import (
    Arena,
    BufferReader,
    FdSocket,
    new_shared_file,
    segments_for,
)
from flowpregel.executors.processes.worker import STOP_SIGNAL, WorkerSetup, main

_CHUNK: Final = 1 << 16
STUCK_AFTER: Final = 0.020
"""Seconds after which the tasks behind a slow one are taken back, if a worker is idle."""
_ALL_TOKENS: Final = 1 << 16


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


class Inherited:
    """A descriptor that a new process is to have.

    Pickled while loky starts the process, it becomes its number there.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415 - only while loky starts one

        return methodcaller("detach"), (DupFd(self.fd),)


class Link:
    """The coordinator's end of a link: frames to and from one worker. It never blocks.

    Args:
        connection: A connected stream socket; the link owns it.
        mark: Begins every frame on this link.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._mark = mark
        self._parser = Parser(mark, protocol.UP)
        self._outbox: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._socket.fileno()

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> bool:
        """Send a frame, or as much as fits now; return whether nothing is left over."""
        self._outbox.append(memoryview(pack(self._mark, kind, number, body)))
        return len(self._outbox) == 1 and self.flush()

    def flush(self) -> bool:
        """Send what is left over; return whether nothing is left."""
        while self._outbox:
            part = self._outbox[0]
            try:
                sent = self._socket.send(part)
            except BlockingIOError:
                return False
            except OSError:
                # The worker is gone. Its end is noticed by its pidfd.
                self._outbox.clear()
                return True
            if sent < len(part):
                self._outbox[0] = part[sent:]
                return False
            self._outbox.popleft()
        return True

    def receive(self) -> tuple[list[Frame], int | None]:
        """Return the frames that have arrived, and how many bytes did.

        None: nothing is there now; 0: the other end is closed.

        Raises:
            GarbageError: What arrived is no frame.
        """
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return [], None
        except OSError:
            return [], 0
        return self._parser.feed(data), len(data)


class WorkerProcess:
    """One worker: its state, its link, and the tasks it has.

    To make one starts its process. The kernel's death signal of a child fires when the OS
    *thread* that started it ends, so that one must outlive the worker.

    Args:
        settings: How its pool is set up.

    Raises:
        BaseException: Whatever keeps it from being started.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.state = WorkerState.STARTING
        self.tasks: dict[int, InFlight] = {}
        """The tasks it has by number, in the order in which it runs them."""
        self.open_calls = 0
        """How many calls of its tasks are not answered."""
        self.served = 0
        self.heard = self.idle_since = time.monotonic()
        """When a task of it last ended, or it became idle."""
        self.known: set[bytes] = set()
        """Digests of the nodes that it was sent."""
        self.contexts: set[bytes] = set()
        """Tokens of the contexts that it was given."""
        self.leaving: dict[int, Future[None]] = {}
        """Requests to leave contexts that it has not answered."""
        self.reads: set[int] = set()
        """Buffers of the pool's arena that it reads."""
        self.held_by: Mailbox | None = None
        """The run whose reader is so far behind that the link is left unread."""
        self.is_garbled = False
        """Whether it has sent what cannot be read: nothing after that is believed."""
        self.killed: str | None = None
        """Why we killed it, if we did."""
        self.failure: BaseException | None = None
        """What its initializer raised."""
        self.tail = Tail()
        self._start(settings)

    def _start(self, settings: PoolSettings) -> None:
        """Start the process; *far* are its ends of what connects us, *near* are ours."""
        from loky.backend import get_context  # noqa: PLC0415 - 56 ms, only when needed

        with ExitStack() as far, ExitStack() as near:
            link, far_link = _socket_pair(near, far)
            door, far_door = _socket_pair(near, far)
            self.stdout, far_stdout = _pipe(near, far)
            self.stderr, far_stderr = _pipe(near, far)
            # Read at both ends: whoever reads a token has the task.
            self._tokens, self._tokens_write = _pipe(near, near)
            memory = new_shared_file(protocol.STATUS_SIZE)
            far.callback(os.close, memory)
            mark = int.from_bytes(os.urandom(4), "little")
            setup = WorkerSetup(
                link=Inherited(far_link.fileno()), door=Inherited(far_door.fileno()),
                status=Inherited(memory), tokens=Inherited(self._tokens),
                stdout=Inherited(far_stdout), stderr=Inherited(far_stderr),
                mark=mark, coordinator=os.getpid(), initializer=settings.initializer,
                shared_limit=settings.shared_limit // (2 * settings.size),
                segments=segments_for(2 * settings.size), log_levels=log_levels(),
            )  # fmt: skip
            make = get_context("loky").Process
            self.process: Any = make(target=main, args=(setup,), env=dict(settings.env))
            self.process.start()
            os.set_inheritable(self._tokens, False)
            self._status = WorkerStatus(memory)
            near.callback(self._status.close)
            # None of our ends ever blocks.
            door.setblocking(False)
            for fd in (self._tokens, self._tokens_write, self.stdout, self.stderr):
                os.set_blocking(fd, False)
            self.pid: int = self.process.pid
            self._has_pidfd = hasattr(os, "pidfd_open")
            self.end = os.pidfd_open(self.pid) if self._has_pidfd else int(self.process.sentinel)
            """Readable when the process has ended."""
            if self._has_pidfd:
                near.callback(os.close, self.end)
            self._ends = near.pop_all()
        self.link, self.door = Link(link, mark), FdSocket(door)
        self.reader = BufferReader(self.door)

    def is_stuck(self, now: float) -> bool:
        """Return whether the tasks behind the one that runs have waited for too long."""
        return len(self.tasks) > 1 and now - self.heard > STUCK_AFTER

    def load(self, now: float) -> WorkerLoad:
        """Return what it is doing, as `assign` needs it."""
        last = next(reversed(self.tasks.values()), None)
        seconds = float("inf")
        if not (last is None or last.stopping or self.held_by is not None or self.is_stuck(now)):
            # At least 10 µs: the token pipe is not endless.
            seconds = len(self.tasks) * max(last.seconds, 1e-5)
        return WorkerLoad(self.state, seconds, self.open_calls > 0)

    def note(self, event: WorkerEvent) -> None:
        """Change the state as *event* demands.

        Raises:
            WorkerStateError: It cannot happen now.
        """
        self.state = next_state(self.state, event)

    def running(self) -> InFlight | None:
        """Return the task that it has begun and not ended."""
        return self.tasks.get(self._status.running)

    def give_tokens(self, numbers: Sequence[int]) -> None:
        """Let it begin the tasks of these numbers."""
        os.write(self._tokens_write, b"".join(map(TOKEN.pack, numbers)))

    def take_tokens(self) -> list[int]:
        """Take back the numbers of the tasks that it has not begun."""
        try:
            tokens = os.read(self._tokens, _ALL_TOKENS)
        except BlockingIOError:
            return []
        return [number for (number,) in TOKEN.iter_unpack(tokens)]

    def hand_over(self, refs: Sequence[BufferRef], arena: Arena) -> bool:
        """Give it the descriptors of *refs*; return False if it cannot take them now."""
        try:
            for ref in refs:
                self.door.send(ref.segment, arena.descriptor(ref))
        except OSError:
            return False
        return True

    def signal_stop(self, number: int) -> None:
        """Make the code of task *number* raise, if it still runs."""
        self._status.ask_to_stop(number)
        self._signal(STOP_SIGNAL)

    def kill(self, why: str) -> None:
        """Kill the process now; its end is noticed like any other."""
        if self.state is WorkerState.GONE:
            return
        self.note(WorkerEvent.KILLED)
        if self._signal(signal.SIGKILL) and self.killed is None:
            self.killed = why

    def _signal(self, number: int) -> bool:
        try:
            if self._has_pidfd:
                signal.pidfd_send_signal(self.end, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            return False
        return True

    def end_family(self) -> None:
        """Kill what its tasks have started and left behind."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def close(self) -> None:
        """Close everything that connects it."""
        self.reader.close()
        self._ends.close()
        # With it goes loky's own descriptor.
        self.process = None


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers that have one of their own, by name."""
    loggers = tuple(logging.root.manager.loggerDict.items())
    levels = {name: each.level for name, each in loggers if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}


def _socket_pair(near: ExitStack, far: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.callback(ours.close)
    far.callback(theirs.close)
    return ours, theirs


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write
