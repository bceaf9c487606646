"""Pools without real worker processes: tests play the workers, or workers are forks of
the test.

What the pool decides depends on what comes up its links, and on how processes end. In a
`PlayedPool` each worker is a process that does nothing, with a real pid, real signals
and a real end; the test has the worker's end of the link, and sends what a worker would
send. In a `ForkedPool` each worker runs the real code of a worker, in a fork of the
test's process: that takes milliseconds, where a real one takes a second to import what
it needs.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from flowpregel._core.commands import call_target_of
from flowpregel._core.effects import Call, Emitted, Ended, Event, Request, StepContext
from flowpregel._core.ids import Cost, Span
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Kind,
    Node,
    Outcome,
    Returned,
    Task,
    TaskOrigin,
)
from flowpregel.context import Job, RunInfo
from flowpregel.executors.base import Backlog
from flowpregel.executors.processes.coordinator import worker_process
from flowpregel.executors.processes.coordinator.executor import PoolExecutor
from flowpregel.executors.processes.coordinator.pool import Pool
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.executors.processes.wire.node_code import pack_node
from flowpregel.executors.processes.wire.protocol import HEADER, Frame, Parser
from flowpregel.executors.processes.worker import task_loop
from flowpregel.executors.unread import UnreadEvent

LONG: Final = 5.0
"""Seconds after which what a test waits for does not come any more."""
SHORT: Final = 20e-6
"""Seconds that a short task takes."""
_numbers = count(1)


# ------------------------------------------------ jobs and what becomes of them


def job_of(
    function: Callable[..., Any] = str,
    *args: Any,
    run: RunInfo | None = None,
    parent: Task | None = None,
    timeout: Any = None,
    **of_node: Any,
) -> Job:
    """Return a job that calls *function* with *args*."""
    name = getattr(function, "__name__", "task")
    node = Node(
        name=name,
        steps=(call_target_of(function, takes_input=False),),
        writers=(lambda output, _: [(RETURN, output)],),
        timeout=timeout,
        **of_node,
    )
    number = next(_numbers)
    task = Task(
        f"task-{number}",
        node,
        Kind.CALL,
        Arguments(args, {}),
        "",
        parent=parent,
        timeout=timeout,
        origin=TaskOrigin(depth=0 if parent is None else parent.depth + 1),
    )
    return Job(
        task, StepContext("", "", 0, 0), run or RunInfo(run_id="run"), (task.id, 1)
    )


def call_of(function: Callable[..., Any], *args: Any) -> bytes:
    """Return the body of a call, as a worker sends it."""
    node = job_of(function).task.node
    return serialization.pack(
        (pack_node(node, called=True), Arguments(args, {}), None, None)
    ).data


class Events:
    """A mailbox that tests read."""

    def __init__(self, backlog: Backlog | None = None) -> None:
        self.backlog = backlog
        self._events: SimpleQueue[Event | UnreadEvent] = SimpleQueue()

    def post(self, *events: Event | UnreadEvent) -> None:
        """Deliver *events*."""
        for event in events:
            self._events.put(event)

    def next_unread(self) -> Event | UnreadEvent:
        """Return the next event as it was posted."""
        return self._events.get(timeout=LONG)

    def next(self) -> Any:
        """Return the next event, as a run would read it."""
        event = self.next_unread()
        return event.read() if isinstance(event, UnreadEvent) else event

    def outcome(self, job: Job) -> Outcome:
        """Return how *job*, which is the next to end, has ended."""
        ended = self.next()
        assert isinstance(ended, Ended), ended
        assert job.key == (ended.task_id, ended.attempt)
        return ended.outcome

    def outcomes(self, *jobs: Job) -> list[Outcome]:
        """Return how *jobs* have ended, which may be in any order; nothing else
        comes.
        """
        found: dict[object, Outcome] = {}
        for _ in jobs:
            ended = self.next()
            assert isinstance(ended, Ended), ended
            found[ended.task_id, ended.attempt] = ended.outcome
        return [found[job.key] for job in jobs]

    def value(self, job: Job) -> Any:
        """Return what *job*, which is the next to end, has returned."""
        outcome = self.outcome(job)
        assert isinstance(outcome, Returned), outcome
        return dict(outcome.writes)[RETURN]

    def chunk(self) -> Any:
        """Return the next event, a chunk of a stream."""
        emitted = self.next()
        assert isinstance(emitted, Emitted)
        return emitted.payload

    def call(self) -> Call:
        """Return the next event, a call."""
        made = self.next()
        assert isinstance(made, Request)
        return made

    def is_empty(self) -> bool:
        """Return whether nothing has come that was not read."""
        return self._events.empty()


def settings(size: int = 1, **changed: Any) -> protocol.PoolSettings:
    """Return the settings of a small pool."""
    amounts = {"cpus": 8.0, "memory": 8e9, "gpus": 2.0}
    plain = protocol.PoolSettings(
        size=size, grace=0.05, amounts=amounts, gpus=("0", "1"), shared_limit=1 << 24
    )
    return replace(plain, **changed)


class QuickExecutor(PoolExecutor):
    """An executor on a pool without real workers."""

    _pool: Any

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, 512)
        self.pool = pool

    def settle(self) -> None:
        """Return when the pool has done all that it can do by now."""
        for _ in range(2):  # what it dispatches comes at the end of a turn
            turned = threading.Event()
            self.pool.loop.call(turned.set)
            assert turned.wait(LONG)

    def elapse(self, seconds: float) -> None:
        """Return when *seconds* have passed for the pool, or a little more."""
        due, loop = threading.Event(), self.pool.loop
        loop.call(lambda: loop.call_at(time.monotonic() + seconds, due.set))
        assert due.wait(LONG)

    def until(self, condition: Callable[[], bool]) -> None:
        """Return when *condition* holds, which is looked at every few milliseconds."""
        end = time.monotonic() + LONG
        while not condition():
            assert time.monotonic() < end
            self.elapse(0.002)


# ------------------------------------------------ workers that tests play


class IdleProcess:
    """A process that does nothing until it is ended. It has what loky's processes
    have.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        # It inherits that the signal is blocked: what it was sent can be seen.
        signal.pthread_sigmask(signal.SIG_BLOCK, {protocol.STOP_SIGNAL})
        try:
            self._process = subprocess.Popen(
                ["cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **env},
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {protocol.STOP_SIGNAL})
        self.pid = self._process.pid
        self._popen = self._process
        self.env = env

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: it has not, as far as is known."""
        return self._process.returncode

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout)

    def end(self) -> None:
        """Let it exit."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kill it from outside."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def has_stop_signal(self) -> bool:
        """Return whether it was sent the signal that stops a task."""
        with open(f"/proc/{self.pid}/status") as file:
            (pending,) = (
                line.split()[1] for line in file if line.startswith("ShdPnd:")
            )
        return bool(int(pending, 16) >> (protocol.STOP_SIGNAL - 1) & 1)


@dataclass(eq=False)
class Order:
    """A task that a played worker was sent."""

    number: int
    digest: bytes
    code: bytes
    dropped: list[bytes]
    body: bytes
    name: str = ""
    has_token: bool = True
    """Whether it needs a start permission; the first task of an idle worker has none.
    """

    @property
    def task_id(self) -> str:
        """The id of the task."""
        _, _, _, _, _, _, (task_id, _), *_ = serialization.unpack(self.body)
        return str(task_id)


@dataclass(eq=False)
class PlayedWorker:
    """The worker's end of a link, in the hands of a test."""

    process: IdleProcess
    settings: protocol.PoolSettings
    link: socket.socket
    fd_socket: socket.socket
    status: memoryview
    tokens: int
    stdout: int
    stderr: int
    magic: int
    orders: deque[Order] = field(default_factory=deque)
    """Tasks that it was sent and has not run."""
    others: deque[Frame] = field(default_factory=deque)
    """Frames of other kinds."""

    def __post_init__(self) -> None:
        self._parser = Parser(self.magic, protocol.DOWN)
        self._names: dict[bytes, str] = {}

    @property
    def pid(self) -> int:
        """The pid of the process that stands for it."""
        return self.process.pid

    def send(
        self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0
    ) -> None:
        """Send a frame up the link."""
        self.link.sendall(
            HEADER.pack(self.magic, kind, flags, 0, number, len(body)) + body
        )

    def ready(self) -> PlayedWorker:
        """Send that it has started."""
        self.send(protocol.READY)
        return self

    def read(self, *, wait: bool) -> bool:
        """Take in what has come down the link; return whether anything has."""
        self.link.settimeout(LONG if wait else 0.0)
        try:
            data = self.link.recv(1 << 20)
        except (BlockingIOError, TimeoutError):
            assert not wait, "nothing comes down the link"
            return False
        assert data, "the coordinator has closed the link"
        for frame in self._parser.feed(data):
            if frame.kind != protocol.TASKS:
                self.others.append(frame)
                continue
            for content in pickle.loads(frame.body):
                order = Order(*content)
                if order.code:
                    self._names[order.digest] = pickle.loads(order.code)[0]
                order.name = self._names[order.digest]
                order.has_token = order.number != frame.number
                self.orders.append(order)
        return True

    def order(self) -> Order:
        """Wait for the next task, and begin it."""
        while not self.orders:
            self.read(wait=True)
        order = self.orders.popleft()
        self.status[protocol.RUNNING] = order.number
        return order

    def has_order(self) -> bool:
        """Return whether there is a task that it was sent and has not begun."""
        while self.read(wait=False):
            pass
        return bool(self.orders)

    def frame(self, kind: int) -> Frame:
        """Wait for the next frame of *kind*; skip others that are no tasks."""
        while True:
            while self.others:
                frame = self.others.popleft()
                if frame.kind == kind:
                    return frame
            self.read(wait=True)

    def has_frame(self, kind: int) -> bool:
        """Return whether a frame of *kind* has come."""
        while self.read(wait=False):
            pass
        return any(frame.kind == kind for frame in self.others)

    def take_tokens(self) -> list[int]:
        """Take all tokens: the numbers of tasks that it may begin."""
        try:
            data = os.read(self.tokens, 1 << 16)
        except BlockingIOError:
            return []
        return [number for (number,) in protocol.TOKEN.iter_unpack(data)]

    def end_task(
        self,
        order: Order,
        outcome: Any = None,
        *,
        seconds: float = SHORT,
        flags: int = 0,
    ) -> None:
        """Send that a task has ended, with an outcome or a result."""
        if not isinstance(outcome, Outcome):
            outcome = Returned(((RETURN, outcome),))
        span = Span(1, seconds, "", cost=Cost(seconds, 1 << 20))
        body = messages.pack_head(span) + messages.pack_outcome(outcome, order.name)
        self.send(protocol.ENDED, order.number, body, flags)

    def run(self, outcome: Any = None, *, seconds: float = SHORT) -> Order:
        """Wait for the next task, and let it end at once."""
        order = self.order()
        self.end_task(order, outcome, seconds=seconds)
        return order

    def request(self, kind: int, order: Order, request: int, body: bytes = b"") -> None:
        """Send a request of a task that runs."""
        self.send(kind, order.number, protocol.REQUEST.pack(request) + body)

    def exit(self) -> None:
        """Wait until it is told to stop, and exit."""
        self.frame(protocol.STOP)
        self.process.end()

    def close(self) -> None:
        """Close its ends of everything."""
        self.link.close()
        self.fd_socket.close()
        for fd in {self.tokens, self.stdout, self.stderr} - {-1}:
            os.close(fd)
        self.tokens = self.stdout = self.stderr = -1


class PlayedProcess(worker_process.WorkerProcess):
    """The coordinator's end of a worker that the test plays."""

    started: SimpleQueue[PlayedWorker]
    token_bytes: int | None = None
    """The size of the pipe for tokens; None: what the system gives."""

    def launch(self, setup: protocol.WorkerSetup, env: Mapping[str, str]) -> Any:
        """Start a process that does nothing; give the test the worker's ends."""
        process = IdleProcess(env)
        if self.token_bytes is not None:
            fcntl.fcntl(setup.tokens.fd, fcntl.F_SETPIPE_SZ, self.token_bytes)
        fds = {
            name: os.dup(getattr(setup, name).fd)
            for name in ("link", "fd_socket", "status", "tokens", "stdout", "stderr")
        }
        status = protocol.map_status(fds["status"])
        os.close(fds["status"])
        os.set_blocking(fds["tokens"], False)
        self.started.put(
            PlayedWorker(
                process,
                setup.settings,
                socket.socket(fileno=fds["link"]),
                socket.socket(fileno=fds["fd_socket"]),
                status,
                fds["tokens"],
                fds["stdout"],
                fds["stderr"],
                setup.magic,
            )
        )
        return process


class PlayedPool(QuickExecutor):
    """An executor whose workers are played by the test."""

    def __init__(self, pool_settings: protocol.PoolSettings) -> None:
        started: SimpleQueue[PlayedWorker] = SimpleQueue()

        class OwnProcess(PlayedProcess):
            """A worker of this pool."""

        OwnProcess.started = started

        class OwnPool(Pool):
            """A pool of such workers."""

            worker_class = OwnProcess

        super().__init__(OwnPool(pool_settings))
        self._started = started
        self.played: list[PlayedWorker] = []

    def worker(self) -> PlayedWorker:
        """Wait for the next worker that the pool starts."""
        started = self._started.get(timeout=LONG)
        self.played.append(started)
        return started

    def is_starting(self) -> bool:
        """Return whether the pool has started a worker that the test does not know."""
        self.settle()
        return not self._started.empty()

    def end(self) -> None:
        """Close the pool; its workers have ended before."""
        self._pool.loop.call(self._pool.close)
        self._take_started()
        for played in self.played:
            played.process.kill()
        self.close()
        # Some may have been started meanwhile.
        self._take_started()
        for played in self.played:
            played.close()

    def _take_started(self) -> None:
        with suppress(Empty):
            while True:
                self.played.append(self._started.get_nowait())


# ------------------------------------------------ workers that are forks


class Fork:
    """A fork of this process that is a worker. It has what loky's processes have."""

    def __init__(self, setup: protocol.WorkerSetup, env: Mapping[str, str]) -> None:
        fds = {
            name: getattr(setup, name).fd
            for name in ("link", "fd_socket", "status", "tokens", "stdout", "stderr")
        }
        own = replace(setup, **{name: os.dup(fd) for name, fd in fds.items()})
        self.pid = os.fork()
        if self.pid == 0:
            be_worker(own, env)
        for name in fds:
            os.close(getattr(own, name))
        self.returncode: int | None = None
        self._popen = self

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: it has not, as far as is known."""
        return self.returncode

    def join(self, timeout: float | None = None) -> None:
        """Reap it, unless that was done."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)


def be_worker(setup: protocol.WorkerSetup, env: Mapping[str, str]) -> None:
    """Live as a worker, and end."""
    code = 1
    try:
        os.environ.update(env)
        for fd in (setup.link, setup.fd_socket, setup.status, setup.tokens):
            os.set_inheritable(fd, True)
        task_loop.worker_main(setup)
        code = 0
    finally:
        os._exit(code)


class ForkedProcess(worker_process.WorkerProcess):
    """The coordinator's end of a worker that is a fork."""

    def launch(self, setup: protocol.WorkerSetup, env: Mapping[str, str]) -> Any:
        """Fork this process."""
        return Fork(setup, env)


class _PoolOfForks(Pool):
    worker_class = ForkedProcess


class ForkedPool(QuickExecutor):
    """An executor whose workers are forks of the test."""

    def __init__(self, pool_settings: protocol.PoolSettings) -> None:
        super().__init__(_PoolOfForks(pool_settings))


PoolMaker: TypeAlias = Callable[..., PlayedPool]
"""Makes a pool of a size whose workers the test plays."""


def quick_pools(kind: type[Any]) -> Iterator[Callable[..., Any]]:
    """Yield what makes executors of a kind; close them in the end."""
    made: list[Any] = []

    def make(size: int = 1, **changed: Any) -> Any:
        made.append(kind(settings(size, **changed)))
        return made[-1]

    yield make
    for executor in made:
        (executor.end if isinstance(executor, PlayedPool) else executor.close)()
