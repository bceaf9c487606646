"""The coordinator's end of one worker: its process, its link, its tasks, its state."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from math import inf
from operator import methodcaller
from typing import Any, Final
from weakref import ref

from flowpregel.executors.base import HOST, Mailbox
from flowpregel.executors.processes.coordinator.assign import (
    ONE_CPU,
    InFlight,
    WorkerLoad,
    WorkerState,
)
from flowpregel.executors.processes.coordinator.crash_report import reap
from flowpregel.executors.processes.coordinator.guard import Guard
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.side_threads import Unwritten
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.guard_process import MARK
from flowpregel.executors.processes.wire.launch import run_worker
from flowpregel.executors.processes.wire.messages import PackedOutcome
from flowpregel.executors.processes.wire.node_code import RecentlyUsed
from flowpregel.executors.processes.wire.protocol import (
    HEADER,
    READ_SIZE,
    STOP_SIGNAL,
    Frame,
    GarbageError,
    Parser,
)
from flowpregel.executors.processes.wire.shared_memory import (
    BufferReader,
    FdSocket,
    new_shared_file,
)

_SLOW_AFTER: Final = 0.020
"""Seconds without a task's end after which nothing more is sent ahead of time."""
_ALL_TOKENS: Final = 1 << 16
_ENDED: Final = memoryview(bytes(protocol.STATUS_SIZE)).cast("Q")
"""The status of a worker that has ended."""
_PARTING: Final = 0.5
"""Seconds that a worker may live on without its link."""
_START_TIMEOUT: Final = 120.0
"""Seconds that a worker may take to start; its initializer may load a model."""


class Inherited:
    """A descriptor that a new process is to have.

    Pickled while loky starts the process, it becomes its number there.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415 - only while loky starts one

        return methodcaller("detach"), (DupFd(self.fd),)


class WorkerProcess:
    """One worker: its state, its link, and the tasks it has.

    To make one starts its process. All happens on the I/O thread, which outlives it:
    the kernel's death signal of a child fires when the OS *thread* that started it
    ends.

    Args:
        settings: How its pool is set up.
        loop: The I/O loop.
        handlers: What is called with the worker and a frame that it has sent, by kind.
        guard: Ends what its tasks have started, if the coordinator cannot.
        on_end: Called with the worker, its exit code and its peak memory when it has
            ended.

    Raises:
        BaseException: Whatever keeps it from being started.
    """

    is_spoiled = False
    """Whether it begins no more tasks: one has changed its process for good."""
    held_by: Mailbox | None = None
    """The run whose reader is so far behind that the link is left unread."""
    _holds_output = False
    """Whether it is left unread until what it has printed is written."""
    _is_deaf = False
    """Whether nothing more that it sends is read, or believed."""
    killed: str | None = None
    """Why we killed it, if we did."""
    failure: PackedOutcome | None = None
    """What its initializer raised."""
    tail = ""
    """The last lines that it has written to its stderr."""

    def __init__(
        self,
        settings: protocol.PoolSettings,
        loop: IOLoop,
        handlers: Mapping[int, Callable[[Any, Frame], object]],
        guard: Guard,
        on_end: Callable[[WorkerProcess, int | None, int | None], None],
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._on_end = on_end
        self._guard = guard
        self.is_ready = self.is_leaving = False
        self.tasks: dict[int, InFlight] = {}
        """The tasks it has by number, in the order in which it runs them."""
        self.served = 0
        """How many tasks it has begun, or is about to."""
        self.kind = settings.kind
        self.host = HOST
        self.heard = time.monotonic()
        """When it began to work, a task of it last ended, or it became idle."""
        self._codes: RecentlyUsed[bytes, bool] = RecentlyUsed()
        """The digests of the code that it has."""
        self.contexts: set[bytes] = set()
        """Tokens of the contexts that it was given."""
        self.leaving: dict[int, Future[None]] = {}
        """Requests to leave contexts that it has not answered."""
        self.reads: set[int] = set()
        """Buffers of the pool's arena that it reads."""
        self.unwritten = Unwritten(self._resume_output)
        """What it has printed and logged, and nobody has written."""
        self._outbox: deque[memoryview] = deque()
        """What its link did not take yet."""
        self._is_full = False
        self._start(settings)
        self.watch_link()
        self._watch_streams()
        loop.watch(self.end, self._look_for_end)
        self.start_timer = loop.call_at(
            time.monotonic() + _START_TIMEOUT, partial(_give_up_start, ref(self))
        )
        """Kills it if it does not get ready."""

    def _start(self, settings: protocol.PoolSettings) -> None:
        """Start the process; *far* are its ends of what connects us, *near* are
        ours.
        """
        with ExitStack() as far, ExitStack() as near:
            link, far_link = _socket_pair(near, far)
            door, far_door = _socket_pair(near, far)
            stdout, far_stdout = _pipe(near, far)
            stderr, far_stderr = _pipe(near, far)
            self._streams: tuple[tuple[int, bool], ...] = (
                (stdout, False),
                (stderr, True),
            )
            # Read at both ends: whoever reads a token has the task.
            self._tokens, self._tokens_write = _pipe(near, near)
            memory = new_shared_file(protocol.STATUS_SIZE)
            far.callback(os.close, memory)
            mark = int.from_bytes(os.urandom(4), "little")
            setup = protocol.WorkerSetup(
                link=Inherited(far_link.fileno()),
                door=Inherited(far_door.fileno()),
                status=Inherited(memory),
                tokens=Inherited(self._tokens),
                stdout=Inherited(far_stdout),
                stderr=Inherited(far_stderr),
                mark=mark,
                coordinator=os.getpid(),
                log_levels=log_levels(),
                settings=settings,
            )
            self._guard_mark = next(self._guard.marks)
            env = {**settings.env, MARK: self._guard_mark}
            self._process: Any = self.launch(setup, env)
            self.pid: int = self._process.pid
            self._guard.add(self.pid, self._guard_mark)
            os.set_inheritable(self._tokens, False)
            self._status = protocol.map_status(memory)
            ours = (
                link.fileno(),
                door.fileno(),
                self._tokens,
                self._tokens_write,
                stdout,
                stderr,
            )
            for fd in ours:
                os.set_blocking(fd, False)
            self._has_pidfd = hasattr(os, "pidfd_open")
            self.end = (
                os.pidfd_open(self.pid)
                if self._has_pidfd
                else int(self._process.sentinel)
            )
            """Readable when the process has ended."""
            if self._has_pidfd:
                near.callback(os.close, self.end)
            self._ends = near.pop_all()
        self._link, self._mark, self._parser = link, mark, Parser(mark, protocol.UP)
        self.door = FdSocket(door)
        self.reader = BufferReader(self.door)

    def launch(self, setup: protocol.WorkerSetup, env: Mapping[str, str]) -> Any:
        """Start a process that calls `main` with *setup*; return it.

        Args:
            setup: What it is given; the descriptors in there are `Inherited`.
            env: What its environment has beside the program's.
        """
        from loky.backend import get_context  # noqa: PLC0415 - 56 ms, only when needed

        process: Any = get_context("loky").Process(
            target=run_worker, args=(setup,), env=env
        )
        process.start()
        return process

    # ------------------------------------------------ its link

    def watch_link(self) -> None:
        """Watch the link for what matters now: one that is held back is left unread."""
        read = None if self._is_deaf or self.is_held else self._read_link
        self._loop.watch(
            self._link.fileno(), read, self._flush if self._outbox else None
        )

    @property
    def is_held(self) -> bool:
        """Whether what it sends is left unread, so that its own socket holds it
        back.
        """
        return self.held_by is not None or self._holds_output

    def unhold(self) -> None:
        """Read the link again, if it was left unread for a run that is behind."""
        if self.held_by is not None:
            self.held_by = None
            self.watch_link()

    def hold_output(self) -> None:
        """Leave the link and the streams unread until what came is written."""
        self._holds_output = True
        self.watch_link()
        self._watch_streams()

    def _resume_output(self) -> None:
        if self._holds_output:
            self._holds_output = False
            self.watch_link()
            self._watch_streams()

    def listen(self) -> None:
        """Read everything again: its task is to stop, and to say how it ended."""
        self.unhold()
        self._resume_output()

    def _watch_streams(self) -> None:
        for fd, to_stderr in self._streams:
            read = partial(self._read_stream, fd, to_stderr)
            self._loop.watch(fd, None if self._holds_output else read)

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send a frame, now or as soon as the link takes it."""
        head = HEADER.pack(self._mark, kind, 0, 0, number, len(body))
        self._outbox.append(memoryview(head + body))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        """Send as much as fits now."""
        try:
            while self._outbox:
                part = self._outbox[0]
                sent = self._link.send(part)
                if sent < len(part):
                    self._outbox[0] = part[sent:]
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            # The worker is gone. Its end is noticed by its pidfd.
            self._outbox.clear()
        if self._is_full != bool(self._outbox):
            self._is_full = not self._is_full
            self.watch_link()

    def _read_link(self) -> bool:
        """Handle the frames that have arrived; return whether there may be more."""
        try:
            data = self._link.recv(READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        why = None
        try:
            for frame in self._parser.feed(data):
                self._handlers[frame.kind](self, frame)
        except GarbageError as error:
            why = f"it sent garbage on its link ({error})"
        except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
            # No other run, nor the rest of this one, is to pay for it.
            cause = f"{type(error).__name__}: {error}"
            why = f"what it sent cannot be read in the coordinator ({cause})"
        if why is not None:
            self.kill(why)
        elif not data:
            # How it ended, the kernel tells in a moment. One that only closed its link
            # is no use.
            leave = partial(self.kill, "it closed its link")
            self._loop.call_at(time.monotonic() + _PARTING, leave)
        if why is not None or not data:
            self._is_deaf = True
            self.watch_link()
        return not self._is_deaf

    def _read_stream(self, fd: int, to_stderr: bool) -> None:
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            flags = protocol.STDERR if to_stderr else 0
            printed = Frame(
                protocol.PRINTED, flags, self._status[protocol.RUNNING], data
            )
            self._handlers[protocol.PRINTED](self, printed)
        else:
            self._loop.watch(fd)
            self._streams = tuple(each for each in self._streams if each[0] != fd)

    # ------------------------------------------------ its tasks

    @property
    def state(self) -> WorkerState:
        """What it is doing."""
        if self.is_leaving:
            return WorkerState.LEAVING
        if not self.is_ready:
            return WorkerState.STARTING
        # It runs them in order: those behind the first have made no calls yet.
        first = next(iter(self.tasks.values()), None)
        if first is None:
            return WorkerState.IDLE
        return WorkerState.WAITING if first.calls else WorkerState.BUSY

    def load(self, now: float) -> WorkerLoad:
        """Return what it is doing, as `assign` needs it."""
        last = next(reversed(self.tasks.values()), None)
        seconds = inf
        is_slow = now - self.heard > _SLOW_AFTER
        is_closed = self.is_spoiled or self.is_held
        if not (last is None or last.stopping or is_closed or is_slow):
            # At least 10 µs: the token pipe is not endless.
            seconds = len(self.tasks) * max(last.seconds, 1e-5)
        if last is None:
            return WorkerLoad(self.state, seconds, self.kind)
        held = (last.needs or ONE_CPU).amounts
        return WorkerLoad(self.state, seconds, self.kind, held, last.needs)

    def running(self) -> InFlight | None:
        """Return the task that it has begun and not ended."""
        return self.tasks.get(self._status[protocol.RUNNING])

    def sender_of(self, number: int) -> InFlight | None:
        """Return the task that has sent a frame with that *number*, as far as that is
        known.
        """
        return self.tasks.get(number) or self.running()

    def give(self, tasks: Sequence[InFlight]) -> None:
        """Send it *tasks*, which are packed, and let it begin them."""
        if self.reader.released:
            self.send(protocol.FREED, 0, self.reader.take_released())
        # An idle one begins the first at once. What may be taken back needs a token.
        begun = 0 if self.tasks else tasks[0].number
        self.served += len(tasks)
        orders, tokens = [], b""
        for task in tasks:
            self.tasks[task.number] = task
            digest, code, dropped = task.code.digest, b"", list[bytes]()
            if self._codes.get(digest) is None:
                code = task.code.data
                dropped = self._codes.put(digest, True, len(code))
            orders.append((task.number, digest, code, dropped, task.body))
            tokens += b"" if task.number == begun else protocol.TOKEN.pack(task.number)
        if tokens:
            os.write(self._tokens_write, tokens)
        self.send(protocol.TASKS, begun, pickle.dumps(orders, 5))

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Send it what *task*, which it runs, has asked for."""
        self.send(protocol.ANSWER, request, body)

    def take_tokens(self) -> list[int]:
        """Take back the numbers of the tasks that it has not begun."""
        try:
            tokens = os.read(self._tokens, _ALL_TOKENS)
        except BlockingIOError:
            return []
        return [number for (number,) in protocol.TOKEN.iter_unpack(tokens)]

    def signal_stop(self, number: int) -> None:
        """Make the code of task *number* raise, if it still runs."""
        self._status[protocol.UNWANTED] = number
        self._signal(STOP_SIGNAL)

    def warn(self, number: int) -> None:
        """Let the code of task *number* see that its run is to end."""
        self._status[protocol.ENDING] = number

    def dismiss(self) -> None:
        """Tell it, which is idle, to exit."""
        self.is_leaving = True
        self.send(protocol.STOP)

    def kill(self, why: str) -> None:
        """Kill the process now, if it is there; its end is noticed like any other."""
        self.is_leaving = True
        if (
            self._process is not None
            and self._signal(signal.SIGKILL)
            and self.killed is None
        ):
            self.killed = why

    def _signal(self, number: int) -> bool:
        try:
            if self._has_pidfd:
                signal.pidfd_send_signal(self.end, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            # no mutant: a process is there until its end was noticed
            return False
        return True

    # ------------------------------------------------ its end

    def _look_for_end(self) -> None:
        ended = reap(self._process)
        if ended is None:
            return
        # What it has left in its link and its streams.
        while not self._is_deaf and self._read_link():
            pass
        self._is_deaf = True
        self._outbox.clear()
        self.watch_link()
        for fd, to_stderr in self._streams:
            self._read_stream(fd, to_stderr)
            self._loop.watch(fd)
        self._loop.watch(self.end)
        self.start_timer.cancel()
        # What its tasks have started and left behind ends too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._guard.remove(self.pid, self._guard_mark, killed=self.killed is not None)
        self.is_leaving = True
        # With it goes loky's own descriptor.
        self._process = None
        self._on_end(self, *ended)
        # Other OS threads may look at it.
        self._status = _ENDED
        self.reader.close()
        self._ends.close()


def _give_up_start(of: ref[WorkerProcess]) -> None:
    if (worker := of()) is not None and not worker.is_ready:
        worker.kill(f"it was not ready after {_START_TIMEOUT:.0f} seconds")


def _socket_pair(
    near: ExitStack, far: ExitStack
) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.callback(ours.close)
    far.callback(theirs.close)
    return ours, theirs


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers that have one of their own, by
    name.
    """
    loggers = tuple(logging.root.manager.loggerDict.items())
    levels = {
        name: each.level for name, each in loggers if isinstance(each, logging.Logger)
    }
    return {
        "": logging.root.level,
        **{name: level for name, level in levels.items() if level},
    }
