"""The coordinator's end of one worker: its process, its link, its tasks, its state.

Workers are started by one OS thread that lives as long as the program: the kernel's death
signal of a child fires when the OS *thread* that started it ends.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.assign import (
    InFlight,
    WorkerEvent,
    WorkerState,
    next_state,
)
from flowpregel.executors.processes.arena import Door, Returns, segments_for
from flowpregel.executors.processes.board import new_shared_file
from flowpregel.executors.processes.crash_report import Tail
from flowpregel.executors.processes.protocol import TOKEN, Frame, Parser, WorkerStatus, pack
from flowpregel.executors.processes.reader import Reader
from flowpregel.executors.processes.settings import Inherited, PoolSettings, WorkerSetup
from flowpregel.executors.processes.worker import STOP_SIGNAL, main

_CHUNK: Final = 1 << 18
_ALL_TOKENS: Final = 1 << 16


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
        self._inbox = memoryview(bytearray(_CHUNK))
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
            size = self._socket.recv_into(self._inbox)
        except BlockingIOError:
            return [], None
        except OSError:
            return [], 0
        return self._parser.feed(bytes(self._inbox[:size])), size


class WorkerProcess:
    """One worker: its state, its link, and the tasks it has."""

    def __init__(self, name: str) -> None:
        self.name = name
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
        self.reads: Counter[int] = Counter()
        """Leases of the pool's arena that it reads, and how often they were sent."""
        self.returns = Returns()
        """Leases of the worker's arena that we read no more."""
        self.held_by: Mailbox | None = None
        """The run whose reader is so far behind that the link is left unread."""
        self.is_garbled = False
        """Whether it has sent what cannot be read: nothing after that is believed."""
        self.killed: str | None = None
        """Why we killed it, if we did."""
        self.failure: BaseException | None = None
        """What its initializer raised."""
        self.tail = Tail()
        self._started: Started | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether its task waits for tasks that it called."""
        return self.open_calls > 0

    def note(self, event: WorkerEvent) -> None:
        """Change the state as *event* demands.

        Raises:
            WorkerStateError: It cannot happen now.
        """
        self.state = next_state(self.state, event)

    def attach(self, started: Started) -> None:
        """Take the ends of the process that was started."""
        self._started = started
        self.link = Link(started.link, started.mark)
        self.door = Door(started.door)
        self.reader = Reader(self.door, self.returns)

    @property
    def started(self) -> Started:
        """The ends of its process."""
        assert self._started is not None
        return self._started

    @property
    def is_started(self) -> bool:
        """Whether there is a process."""
        return self._started is not None

    @property
    def pid(self) -> int:
        """The pid of its process; 0 before it was started."""
        return self._started.pid if self._started else 0

    def running(self) -> InFlight | None:
        """Return the task that it has begun and not ended."""
        return self.tasks.get(self.started.status.running)

    def give_tokens(self, numbers: Sequence[int]) -> None:
        """Let it begin the tasks of these numbers."""
        os.write(self.started.tokens_write, b"".join(map(TOKEN.pack, numbers)))

    def take_tokens(self) -> list[int]:
        """Take back the numbers of the tasks that it has not begun."""
        try:
            tokens = os.read(self.started.tokens_read, _ALL_TOKENS)
        except BlockingIOError:
            return []
        return [number for (number,) in TOKEN.iter_unpack(tokens)]

    def signal_stop(self, number: int) -> None:
        """Make the code of task *number* raise, if it still runs."""
        self.started.status.ask_to_stop(number)
        self._signal(STOP_SIGNAL)

    def kill(self, why: str) -> None:
        """Kill the process now; its end is noticed like any other."""
        self.note(WorkerEvent.KILLED)
        if self._started is None or (self._signal(signal.SIGKILL) and self.killed is None):
            self.killed = why

    def _signal(self, number: int) -> bool:
        try:
            if self.started.pidfd is not None:
                signal.pidfd_send_signal(self.started.pidfd, number)
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
        self.started.ends.close()


# ------------------------------------------------ how it is started


@dataclass(slots=True, kw_only=True)
class Started:
    """A process that was started, and the coordinator's ends of what connects it."""

    process: Any
    """The loky process."""
    pid: int
    pidfd: int | None
    """Readable when the process has ended; None where there is no such thing."""
    link: socket.socket
    door: socket.socket
    status: WorkerStatus
    tokens_read: int
    tokens_write: int
    stdout: int
    stderr: int
    mark: int
    ends: ExitStack
    """Closes all of them."""

    @property
    def end(self) -> int:
        """The descriptor that is readable when the process has ended."""
        return int(self.process.sentinel) if self.pidfd is None else self.pidfd


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers that have one of their own, by name."""
    loggers = tuple(logging.root.manager.loggerDict.items())
    levels = {name: each.level for name, each in loggers if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}


def start_process(name: str, settings: PoolSettings) -> Started:
    """Start a worker process, and return its ends; none of ours ever blocks.

    Raises:
        BaseException: Whatever keeps it from being started.
    """
    from loky.backend import get_context  # noqa: PLC0415 - 56 ms, only when needed

    with ExitStack() as far, ExitStack() as near:
        link, far_link = _socket_pair(near, far)
        door, far_door = _socket_pair(near, far)
        stdout, far_stdout = _pipe(near, far)
        stderr, far_stderr = _pipe(near, far)
        # Read at both ends: whoever reads a token has the task.
        tokens_read, tokens_write = _pipe(near, near)
        memory = new_shared_file(protocol.STATUS_SIZE)
        far.callback(os.close, memory)
        mark = int.from_bytes(os.urandom(4), "little")
        setup = WorkerSetup(
            link=Inherited(far_link.fileno()), door=Inherited(far_door.fileno()),
            status=Inherited(memory), tokens=Inherited(tokens_read),
            stdout=Inherited(far_stdout), stderr=Inherited(far_stderr),
            mark=mark, coordinator=os.getpid(), initializer=settings.initializer,
            shared_limit=settings.shared_limit // (2 * settings.size),
            segments=segments_for(2 * settings.size), log_levels=log_levels(),
        )  # fmt: skip
        context = get_context("loky")
        process = context.Process(target=main, args=(setup,), name=name, env=dict(settings.env))
        process.start()
        os.set_inheritable(tokens_read, False)
        status = WorkerStatus(memory)
        near.callback(status.close)
        pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        if pidfd is not None:
            near.callback(os.close, pidfd)
        door.setblocking(False)
        for fd in (tokens_read, tokens_write, stdout, stderr):
            os.set_blocking(fd, False)
        return Started(
            process=process, pid=process.pid, pidfd=pidfd, link=link, door=door, status=status,
            tokens_read=tokens_read, tokens_write=tokens_write, stdout=stdout, stderr=stderr,
            mark=mark, ends=near.pop_all(),
        )  # fmt: skip


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


class Spawner:
    """Starts workers one after the other, on an OS thread that lives as long as the program."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: in a forked process the OS thread is not there."""
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_started = False

    def submit(self, order: Callable[[], object]) -> None:
        """Call *order*, which raises nothing, on the OS thread that starts workers."""
        self._orders.put(order)
        with self._lock:
            if not self._is_started:
                self._is_started = True
                threading.Thread(
                    target=self._run, args=(self._orders,), name="flowpregel-spawner", daemon=True
                ).start()

    def _run(self, orders: queue.SimpleQueue[Callable[[], object]]) -> None:
        while True:
            orders.get()()


spawner: Final = Spawner()
"""The one of this program."""
os.register_at_fork(after_in_child=spawner.renew)
