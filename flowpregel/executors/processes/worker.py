"""A worker process: take a task, run it, answer.

::

    link --> reader --> task --> perform(job) --> outcome --> writer --> link
                                   | emit, call, beat, log, print ^

The main thread runs the tasks, so that signals reach them and libraries that insist on the
main thread work. It reads the link between tasks. Other OS threads: a watchdog, which ends
the process with its coordinator; and, once a task has made a call, one that reads the link.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any, Final

from flowpregel._core.records import Node, Outcome, Raised, Withdrawn
from flowpregel._fault import arm, fault
from flowpregel.errors import TaskCancelled, TaskSerializationError
from flowpregel.executors.attempt import perform
from flowpregel.executors.local import caught_of
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.crash_report import RSS_UNIT
from flowpregel.executors.processes.guard import MARK, end_marked
from flowpregel.executors.processes.shared_memory import (
    Arena,
    BufferReader,
    FdSocket,
    released_in,
    segments_for,
)
from flowpregel.executors.processes.worker_io import (
    WorkerLink,
    WorkerRunClient,
    bind_fields,
    take_over,
)

if TYPE_CHECKING:
    from flowpregel.channels.context import Context

STOP_SIGNAL: Final = signal.SIGRTMIN + 3 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Sent to a worker whose task is to stop; hardly anything else uses it."""
_STOP_AGAIN: Final = 0.01
"""Seconds after which a task that was importing a module is told again to stop."""
_PR_SET_PDEATHSIG: Final = 1
_LOOK_EVERY: Final = 1.0
_log: Final = logging.getLogger("flowpregel.worker")


def main(setup: protocol.WorkerSetup) -> None:
    """Live as a worker until the coordinator is gone or says stop."""
    arm("worker.")
    serialization.mark_as_worker()
    become_worker(setup.stdout, setup.stderr, setup.coordinator)
    worker = Worker(setup)
    if worker.initialize(setup.settings.initializer):
        worker.run()


class Worker:
    """Runs one task at a time.

    Args:
        setup: Its descriptors and settings.
    """

    def __init__(self, setup: protocol.WorkerSetup) -> None:
        for fd in (setup.link, setup.door, setup.status, setup.tokens):
            os.set_inheritable(fd, False)
        self._link = WorkerLink(socket.socket(fileno=setup.link), setup.mark)
        self._status = protocol.map_status(setup.status)
        self._tokens = Tokens(setup.tokens)
        door = FdSocket(socket.socket(fileno=setup.door))
        self._reader = BufferReader(door)
        writers = 2 * setup.settings.size
        limit = setup.settings.shared_limit // writers
        self._arena = Arena(limit, segments=segments_for(writers), reader=door)
        self._printed = take_over(self._link, setup.log_levels)
        self._contexts: dict[bytes, Context[Any]] = {}
        self._nodes: dict[bytes, tuple[str, bytes | Node]] = {}
        self._guard_mark = os.environ[MARK].encode()
        self._stoppable = self._stopped = self._forked = False
        os.register_at_fork(after_in_child=self._after_fork)
        signal.signal(STOP_SIGNAL, self._on_stop_signal)

    def initialize(self, initializer: bytes) -> bool:
        """Run the pool's initializer; tell the coordinator how that went."""
        try:
            if initializer:
                function, arguments = pickle.loads(initializer)
                function(*arguments)
        except BaseException as error:  # noqa: BLE001 - the coordinator is told why
            error.add_note("in the pool's initializer")
            self._link.send(protocol.FAILED, 0, messages.pack_outcome(Raised(error), "initializer"))
            return False
        self._link.send(protocol.READY)
        return True

    def run(self) -> None:
        """Do what the coordinator orders until it says stop, or is gone."""
        while (frame := self._link.next()) is not None:
            match frame.kind:
                case protocol.TASKS:
                    for number, digest, code, body in pickle.loads(frame.body):
                        if code:
                            self._nodes[digest] = pickle.loads(code)
                        if number == frame.number or self._tokens.take(number):
                            self._run_task(number, digest, body)
                        if self._reader.released:
                            returned = self._reader.take_released()
                            self._link.send(protocol.RETURNED, 0, returned)
                case protocol.FREED:
                    self._arena.release(released_in(frame.body))
                case protocol.LEAVE:
                    self._leave(frame)
                case protocol.STOP:
                    self._close_contexts([*self._contexts], None)
                    return

    # ------------------------------------------------ tasks

    def _run_task(self, number: int, digest: bytes, body: bytes) -> None:
        link = self._link
        client = WorkerRunClient(link, number, self._status)
        link.task, self._stopped = number, False
        began, at, cpu = time.monotonic(), time.time_ns(), time.process_time()
        try:
            self._stoppable = True
            self._status[protocol.RUNNING] = number
            if self._status[protocol.UNWANTED] == number:
                # The signal came before the task did.
                self._stopped = True
                raise TaskCancelled  # noqa: TRY301 - as the signal's handler does
            outcome = self._perform(digest, body, client)
        except TaskCancelled:
            outcome = Withdrawn()
        finally:
            self._stoppable = False
            link.job = None
        if self._forked:
            # A fork of the worker that came out of the task: it is not the worker.
            os._exit(0)
        if self._stopped:
            # Before the next task begins: what that one starts is to live.
            end_marked({self._guard_mark}, os.getpid(), began)
        link.answers.clear()
        for printed in self._printed:  # the task may have put other streams in their place
            if printed.line:
                printed.flush()
        fault("task.send.before")
        flags = protocol.STOPPED if self._stopped else 0
        caught = caught_of(outcome, client.made) if client.made.count else None
        flags |= 0 if caught is None else protocol.CAUGHT
        ids = " ".join(caught or ()).encode()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        peak = getrusage(RUSAGE_SELF).ru_maxrss * RSS_UNIT
        head = protocol.RAN.pack(seconds, at, cpu, peak, len(ids)) + ids
        result = messages.pack_outcome(outcome, self._nodes[digest][0], self._arena.share)
        link.send(protocol.ENDED, number, head + result, flags)

    def _perform(self, digest: bytes, body: bytes, client: WorkerRunClient) -> Outcome:
        name, node = self._nodes[digest]
        what = "code"
        try:
            if isinstance(node, bytes):
                node = pickle.loads(node)
                self._nodes[digest] = name, node
            what = "input"
            job = messages.unpack_job(body, node, client.ask, self._reader.open)
        except TaskCancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's __setstate__ may raise anything
            cause = f"{type(error).__name__}: {error} (in the worker)"
            failure = TaskSerializationError(name, f"the {what}", what, cause)
            failure.__cause__ = error
            return Raised(failure)
        if node.contexts:
            from flowpregel.channels.context import contexts_in  # noqa: PLC0415 - all channels

            # Kept: the run's next task finds them entered.
            for channel in contexts_in(job.task.input):
                self._contexts.setdefault(channel.held.token, channel)
        self._link.job = job
        # Each task has its own context: what it sets does not leak into the next.
        if "structlog" in sys.modules:
            job.variables.run(bind_fields, self._link, job)
        return job.variables.run(perform, job, client)

    # ------------------------------------------------ contexts

    def _leave(self, frame: protocol.Frame) -> None:
        """Leave the contexts of a run that ended, and answer."""
        tokens, ended = serialization.unpack(frame.body)
        outcome = None if ended is None else messages.unpack_outcome(ended)
        self._close_contexts(tokens, outcome.error if isinstance(outcome, Raised) else None)
        self._link.send(protocol.LEFT, frame.number)

    def _close_contexts(self, tokens: list[bytes], error: BaseException | None) -> None:
        for token in tokens:
            channel = self._contexts.pop(token, None)
            try:
                if channel is not None:
                    channel.close(error)
            except Exception:  # noqa: BLE001 - the run has ended, and stays as it ended
                _log.exception("a Context channel could not be left")

    # ------------------------------------------------ what comes from outside

    def _on_stop_signal(self, number: int, frame: Any) -> None:
        """Stop the running task if it is the one that is unwanted."""
        if not self._stoppable or self._status[protocol.UNWANTED] != self._link.task:
            return
        if _imports(frame):
            # Broken off, it would leave half a module behind, for all later tasks.
            again = threading.Timer(_STOP_AGAIN, os.kill, (os.getpid(), STOP_SIGNAL))
            again.daemon = True
            again.start()
            return
        self._stopped, self._stoppable = True, False
        error = TaskCancelled("the task was stopped from outside")
        if not self._link.defer(error):
            raise error

    def _after_fork(self) -> None:
        self._forked = True
        self._stoppable = False
        self._link.disconnect()


def _imports(frame: Any) -> bool:
    """Return whether *frame* is in the middle of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class Tokens:
    """The numbers of the tasks that this worker may begin; each is taken once.

    Args:
        fd: The reading end of the token pipe, which never blocks.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next: int | None = None

    def take(self, number: int) -> bool:
        """Return whether task *number* is ours to run; False: it was recalled."""
        if self._next is None:
            try:
                (self._next,) = protocol.TOKEN.unpack(os.read(self._fd, protocol.TOKEN.size))
            except (BlockingIOError, struct.error):  # there is none; the coordinator is gone
                return False
        # The token of a task further behind is kept for it.
        if self._next != number:
            return False
        self._next = None
        return True


# ------------------------------------------------ how a process becomes a worker


def become_worker(stdout: int, stderr: int, coordinator: int) -> None:
    """Give this process its group, its signals, its streams and its watchdog.

    Args:
        stdout: The pipe that becomes descriptor 1.
        stderr: The pipe that becomes descriptor 2.
        coordinator: The pid of the process to end with.
    """
    # An own process group: Ctrl-C in the terminal is the coordinator's to handle, and
    # what a task starts can be ended with its worker.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    # Unlike SIG_IGN, this is not inherited by programs that a task starts.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    threading.Thread(
        target=watch, args=(coordinator,), name="flowpregel-watchdog", daemon=True
    ).start()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    faulthandler.enable(file=2, all_threads=True)
    import multiprocessing  # noqa: PLC0415 - loaded by loky anyway

    # With loky's method, pools that tasks make would respawn for ever.
    multiprocessing.set_start_method("spawn", force=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the OS thread that started it ends (Linux)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def watch(coordinator: int) -> None:
    """End this process and all of its group when the coordinator is gone."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has pidfds
        ended = os.pidfd_open(coordinator)
        if os.getppid() == coordinator:
            select.select([ended], [], [])
    while os.getppid() == coordinator:
        time.sleep(_LOOK_EVERY)
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
