"""A worker process: its start, its connections to the coordinator, and its end.

A worker has six connections, all of them anonymous: a link for frames, a socket for
shared memory descriptors, a page of shared memory for its status, a pipe for the
permissions to start tasks (tokens), and its stdout and stderr. The coordinator creates
both ends of each connection. The new process inherits the descriptors of the far ends,
and the coordinator then closes its copies of these.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from operator import methodcaller
from typing import Any, Final

from flowpregel import _linux
from flowpregel.executors.processes.coordinator.crash_report import reap
from flowpregel.executors.processes.coordinator.guard import Guard
from flowpregel.executors.processes.coordinator.io_loop import Timer
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.guard_process import PROCESS_TAG, TASK_TAG
from flowpregel.executors.processes.wire.messages import PackedOutcome
from flowpregel.executors.processes.wire.protocol import PoolSettings, WorkerSetup
from flowpregel.executors.processes.wire.shared_memory import FdSocket, new_shared_file

_ALL_TOKENS: Final = 1 << 16
"""The size, in bytes, of the pipe for tokens, unless the system gives a smaller one."""
_NO_STATUS: Final = memoryview(bytes(protocol.STATUS_SIZE)).cast("Q")
"""The bytes that replace the shared status of a worker that has ended: zeros."""


class InheritedFd:
    """A descriptor that a new process inherits.

    loky pickles it while it starts the process. In the new process, it is unpickled as
    the number of the descriptor there.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        # The import is done only here, because it is needed only while loky starts a
        # process.
        from multiprocessing.reduction import DupFd  # noqa: PLC0415

        return methodcaller("detach"), (DupFd(self.fd),)


class WorkerConnections:
    """The coordinator's ends of a worker's connections, and the `WorkerSetup` with the
    worker's ends.

    Args:
        settings: The settings of the pool.
        far: The exit stack that closes this process's copies of the worker's ends once
            the worker was started.
    """

    def __init__(self, settings: PoolSettings, far: ExitStack) -> None:
        with ExitStack() as near:
            link, far_link = _socket_pair(near, far)
            self.link: socket.socket = link
            fd_socket, far_fd_socket = _socket_pair(near, far)
            fd_socket.setblocking(False)
            self.fd_socket: FdSocket = FdSocket(fd_socket)
            stdout, far_stdout = _pipe(near, far)
            self.stdout: int = stdout
            stderr, far_stderr = _pipe(near, far)
            self.stderr: int = stderr
            # Both processes read from this pipe: the worker to begin a task, and the
            # coordinator to take a task back. A token can be read only once, so only
            # one of them gets the task.
            tokens, tokens_write = _pipe(near, near)
            self.tokens: int = tokens
            self.tokens_write: int = tokens_write
            self.has_small_token_pipe: bool = False
            """True if the pipe may have no room for the tokens of further tasks while
            it contains other tokens.
            """
            memory = new_shared_file(protocol.STATUS_SIZE)
            far.callback(os.close, memory)
            self.status: memoryview = protocol.map_status(memory)
            self.magic: int = int.from_bytes(os.urandom(4), "little")
            self.setup: WorkerSetup = WorkerSetup(
                link=InheritedFd(far_link.fileno()),
                fd_socket=InheritedFd(far_fd_socket.fileno()),
                status=InheritedFd(memory),
                tokens=InheritedFd(self.tokens),
                stdout=InheritedFd(far_stdout),
                stderr=InheritedFd(far_stderr),
                magic=self.magic,
                coordinator=os.getpid(),
                log_levels=log_levels(),
                settings=settings,
            )
            self._ends = near.pop_all()

    def prepare(self) -> None:
        """Make the descriptors of the coordinator's ends non-blocking and not
        inheritable.
        """
        os.set_inheritable(self.tokens, False)
        self.has_small_token_pipe = _pipe_size(self.tokens_write) < _ALL_TOKENS
        self.link.setblocking(False)
        for fd in (self.tokens, self.tokens_write, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    def running_number(self) -> int:
        """Return the number that identifies, on the link, the task that the worker
        began last.
        """
        return int(self.status[protocol.RUNNING])

    def put_tokens(self, tokens: bytes) -> None:
        """Give the worker the start permissions (tokens) of tasks, which it then begins
        one after another.

        Raises:
            BlockingIOError: The pipe has no room for them. An empty pipe has room for
                one page of tokens.
        """
        os.write(self.tokens_write, tokens)

    def take_tokens(self) -> list[int]:
        """Take back the start permissions (tokens) of the tasks that the worker has not
        begun, and return the numbers that identify these tasks on the link.
        """
        try:
            tokens = os.read(self.tokens, _ALL_TOKENS)
        except BlockingIOError:
            return []
        return [number for (number,) in protocol.TOKEN.iter_unpack(tokens)]

    def close(self) -> None:
        """Close the coordinator's ends of the connections."""
        # Other OS threads may still call `running_number`, so bytes of zeros replace
        # the closed memory.
        self.status = _NO_STATUS
        self._ends.close()


class ProcessHandle:
    """A worker process that was started, with its end and its exit status.

    Args:
        process: loky's process object.
        guard: The connection to the guard process, which kills the processes that the
            worker's tasks started if the coordinator dies.
        tag: The tag by which the guard finds all processes that the worker starts.
    """

    failure: PackedOutcome | None = None
    """The packed error that the pool's initializer has raised in the worker, or
    None.
    """
    start_timer: Timer | None = None
    """The timer that kills the worker if it does not become ready in time, or None
    once it is ready.
    """

    def __init__(self, process: Any, guard: Guard, tag: str) -> None:
        self._process = process
        self._guard = guard
        self._tag = tag
        self.pid: int = process.pid
        self.kill_reason: str | None = None
        """The reason why the pool killed the process, or None if the pool did not kill
        it.
        """
        guard.add(self.pid, tag)
        self._process_fd = _linux.process_fd(self.pid)
        self.exit_fd: int = (
            process.sentinel if self._process_fd is None else self._process_fd
        )
        """A descriptor that is readable when the process has ended."""

    def send_signal(self, number: int) -> bool:
        """Send a signal, and return whether the process still exists."""
        try:
            _linux.send_signal(self.pid, self._process_fd, number)
        except OSError:
            # no mutant: Never reached: the pid exists until the pool notices the end.
            return False
        return True

    def kill(self, reason: str) -> None:
        """Kill the process now, if it still exists."""
        if self._process is None:
            return
        if self.send_signal(signal.SIGKILL) and self.kill_reason is None:
            self.kill_reason = reason

    def take_exit(self) -> tuple[int | None, int | None] | None:
        """Return the exit code and the peak memory in bytes (each None if it is
        unknown), or None if the process has not ended.
        """
        return reap(self._process)

    def end_descendants(self) -> None:
        """Kill the processes that the worker's tasks left in its process group, and
        forget the worker.

        If the pool killed the worker, those that left the group (such as those with a
        session of their own) are killed too. Otherwise they are left alone, because a
        task may start a server.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        is_killed = self.kill_reason is not None
        self._guard.remove(self.pid, self._tag, killed=is_killed)
        # Dropping loky's process object closes its descriptor.
        self._process = None

    def close(self) -> None:
        """Close the descriptor of the process."""
        if self._process_fd is not None:
            os.close(self._process_fd)


def start_process(
    settings: PoolSettings,
    guard: Guard,
    launch: Callable[[WorkerSetup, Mapping[str, str]], Any],
) -> tuple[ProcessHandle, WorkerConnections]:
    """Start a worker process, and return it with the coordinator's connections to it.

    Args:
        settings: The settings of the pool.
        guard: The connection to the guard process, which kills the processes that the
            worker's tasks started if the coordinator dies.
        launch: A function that takes the setup and extra environment variables, and
            starts a process.

    Raises:
        BaseException: The process cannot be started.
    """
    with ExitStack() as far:
        connections = WorkerConnections(settings, far)
        try:
            tag = next(guard.tags)
            # If a task made this pool, its environment has the tag of that task. The
            # workers get an empty tag, because they must not be killed with the task.
            tags = {PROCESS_TAG: tag, TASK_TAG: ""}
            process = launch(connections.setup, {**settings.env, **tags})
            handle = ProcessHandle(process, guard, tag)
            connections.prepare()
        except BaseException:
            connections.close()
            raise
    return handle, connections


def set_nice(pid: int, nice: int) -> None:
    """Set the nice value of a process with all its OS threads, as far as that is
    allowed.

    Args:
        pid: The id of the process.
        nice: The nice value, as `os.setpriority` takes it.
    """
    for thread in _linux.list_proc(f"{pid}/task") or [str(pid)]:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers by name.

    Loggers without a level are left out.
    """
    levels = {"": logging.root.level}
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level:
            levels[name] = logger.level
    return levels


def _pipe_size(fd: int) -> int:
    """Return the number of bytes for which the pipe with the end *fd* has room.

    Linux makes new pipes smaller, down to a page or two, once all pipes of a user
    together are large. On other systems, the size that they usually have is assumed.
    """
    if not hasattr(fcntl, "F_GETPIPE_SZ"):
        return _ALL_TOKENS
    return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)


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
