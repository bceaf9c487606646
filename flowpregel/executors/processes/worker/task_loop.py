"""A worker process: take a task, run it, answer.

::

    link --> reader --> task --> perform(job) --> outcome --> writer --> link
                                   | emit, call, beat, log, print ^

The main thread runs the tasks, so that signals reach them and libraries that insist on
the main thread work. It reads the link between tasks. Other OS threads: a watchdog,
which ends the process with its coordinator; and, once a task has made a call, one that
reads the link.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any, Final

from flowpregel._core.ids import CallKey
from flowpregel._core.records import Arguments, Node, Outcome, Raised, Withdrawn
from flowpregel._fault import arm, fault
from flowpregel.carried import carried_by
from flowpregel.context import RunClient
from flowpregel.errors import TaskCancelled, TaskExitError, TaskSerializationError
from flowpregel.executors.attempt import perform
from flowpregel.executors.calls import OpenCalls, caught_of
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.executors.processes.wire.guard_process import MARK, end_marked
from flowpregel.executors.processes.wire.node_code import ReceivedCode, pack_node
from flowpregel.executors.processes.wire.protocol import RSS_UNIT, STOP_SIGNAL
from flowpregel.executors.processes.wire.shared_memory import (
    Arena,
    BufferReader,
    FdSocket,
    released_in,
    segments_for,
)
from flowpregel.executors.processes.worker.link import Answer, WorkerLink
from flowpregel.executors.processes.worker.output import bind_fields, take_over
from flowpregel.executors.processes.worker.process import become_worker, own_description
from flowpregel.executors.processes.worker.process_state import ProcessState
from flowpregel.executors.shared import sent_by_key

if TYPE_CHECKING:
    from flowpregel.channels.context import Context

_STOP_AGAIN: Final = 0.01
"""Seconds after which a task that was importing a module is told again to stop."""
_log: Final = logging.getLogger("flowpregel.worker")


def worker_main(setup: protocol.WorkerSetup) -> None:
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
        own_description(setup.tokens, os.O_RDONLY | os.O_NONBLOCK)
        self._link = WorkerLink(socket.socket(fileno=setup.link), setup.mark)
        self._status = protocol.map_status(setup.status)
        self._tokens = Tokens(setup.tokens)
        door = FdSocket(socket.socket(fileno=setup.door))
        self._reader = BufferReader(door)
        writers = 2 * setup.settings.size
        limit = setup.settings.shared_limit // writers
        self._arena = Arena(limit, segments=segments_for(writers), reader=door)
        self._streams = take_over(self._link, setup.log_levels)
        # The link sees for itself whether a task has changed it.
        self._blocking = {setup.door: True, setup.tokens: False}
        self._is_spoiled = False
        self._contexts: dict[bytes, Context[Any]] = {}
        self._codes: dict[bytes, tuple[str, ReceivedCode]] = {}
        """The names and the code of nodes, by digest: the coordinator orders what is
        dropped.
        """
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
            self._link.send(
                protocol.FAILED, 0, messages.pack_outcome(Raised(error), "initializer")
            )
            return False
        self._link.send(protocol.READY)
        return True

    def run(self) -> None:
        """Do what the coordinator orders until it says stop, or is gone."""
        blocking = {**self._blocking, 0: True, 1: True, 2: True}
        self._state = ProcessState(self._streams.current, blocking)
        while (frame := self._link.next()) is not None:
            match frame.kind:
                case protocol.TASKS:
                    self._run_tasks(frame)
                case protocol.FREED:
                    self._arena.release(released_in(frame.body))
                case protocol.LEAVE:
                    self._leave(frame)
                case protocol.STOP:
                    self._close_contexts([*self._contexts], None)
                    return

    # ------------------------------------------------ tasks

    def _run_tasks(self, frame: protocol.Frame) -> None:
        """Run the tasks of a frame, those that were not recalled."""
        for number, digest, code, dropped, body in pickle.loads(frame.body):
            if self._is_spoiled:
                # Those that have tokens are recalled.
                if number == frame.number:
                    self._link.send(protocol.REFUSED, number)
                continue
            for unwanted in dropped:
                del self._codes[unwanted]
            if code:
                name, packed = pickle.loads(code)
                self._codes[digest] = name, ReceivedCode(packed)
            if number == frame.number or self._tokens.take(number):
                self._run_task(number, digest, body)
            if self._reader.released:
                self._link.send(protocol.RETURNED, 0, self._reader.take_released())

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
            self._state.settle()
        except BaseException as error:  # noqa: BLE001 - by a handler that the task has left
            outcome = self._broken_off(digest, error)
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
        # the task may have put others in their place
        for printed in self._streams.printed:
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
        result = messages.pack_outcome(
            outcome, self._codes[digest][0], self._arena.share
        )
        link.send(protocol.ENDED, number, head + result, flags)
        if lasting := self._state.restore():
            self._spoil(lasting)

    def _broken_off(self, digest: bytes, error: BaseException) -> Outcome:
        """Return the outcome of a task that *error* has ended from outside of its own
        code.
        """
        is_settled = False
        while not is_settled:
            # by a handler of the task's: how it ended is known
            with suppress(BaseException):
                self._state.settle()
                is_settled = True
        if isinstance(error, TaskCancelled):
            return Withdrawn()
        if isinstance(error, Exception):
            return Raised(error)
        return Raised(TaskExitError(self._codes[digest][0], repr(error)))

    def _spoil(self, lasting: str) -> None:
        """Begin no more tasks: the process has changed for good. The coordinator
        replaces it.
        """
        self._is_spoiled = True
        self._link.send(protocol.SPOILED, 0, lasting.encode())

    def _perform(self, digest: bytes, body: bytes, client: WorkerRunClient) -> Outcome:
        name, code = self._codes[digest]
        what = "code"
        try:
            node = code.node()
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
        self._close_contexts(
            tokens, outcome.error if isinstance(outcome, Raised) else None
        )
        self._link.send(protocol.LEFT, frame.number)
        if lasting := self._state.restore():
            self._spoil(lasting)

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
        raise TaskCancelled("the task was stopped from outside")

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
                (self._next,) = protocol.TOKEN.unpack(
                    os.read(self._fd, protocol.TOKEN.size)
                )
            # there is none; the coordinator is gone
            except (BlockingIOError, struct.error):
                return False
        # The token of a task further behind is kept for it.
        if self._next != number:
            return False
        self._next = None
        return True


# ------------------------------------------------ what a task can reach


class WorkerRunClient(RunClient):
    """Connects one task in a worker with its run.

    Args:
        link: The worker's.
        number: The task's.
        status: The worker's.
    """

    __slots__ = ("_link", "_number", "_status", "made")

    def __init__(self, link: WorkerLink, number: int, status: memoryview) -> None:
        self._link = link
        self._number = number
        self._status = status
        self.made = OpenCalls()
        self.made.pid, self.made.task = os.getpid(), "a task in a worker"

    def emit(self, chunk: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        body = _packed(chunk, "this", "a stream chunk", "chunk", chunk)
        self._link.send(protocol.EMITTED, self._number, body)

    def beat(self) -> None:
        """Show that the task is alive."""
        self._link.send(protocol.BEAT, self._number)

    def call(
        self, node: Node, arguments: Arguments, asked: CallKey | None, *reply: Any
    ) -> Any:
        """Make a call; return its future: *reply*, if its caller has that already."""
        self.made.check_process()
        content = (
            pack_node(node, called=True),
            arguments,
            asked,
            carried_by(copy_context(), {}),
        )
        with sent_by_key():
            body = _packed(content, node.name, "the input", "arguments", arguments)
        self.made.cancel = partial(self._link.cancel, self._number)
        answer = reply[0] if reply else Answer(None, self.made)
        return self._link.request(protocol.CALLED, self._number, body, answer)

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the run's store; return its result."""
        self.made.check_process()
        body, _ = serialization.pack((method, args, kwargs))
        return self._link.request(protocol.ASKED, self._number, body, Answer()).result()

    def is_ending(self) -> bool:
        """Return whether the task was told that its run is to end."""
        return self._status[protocol.ENDING] == self._number

    def save(self, state: Any) -> None:
        """Keep *state* for the next attempt of the task; return when the run has."""
        if self._link.job is None or self._link.job.run.run_id is None:
            return  # a plain function of the pool: it has one attempt
        self.made.check_process()
        body = _packed(state, "this", "the saved state", "state", state)
        self._link.request(protocol.SAVED, self._number, body, Answer()).result()


def _packed(content: Any, task: str, what: str, name: str, part: Any) -> bytes:
    """Return *content*, pickled.

    Raises:
        TaskSerializationError: It cannot be. It names *task* and *what* that is, and
            what in *part*, which the user knows by *name*, is at fault.
    """
    try:
        return serialization.pack(content).data
    except Exception as error:
        raise TaskSerializationError(
            task, what, *serialization.find_culprit(part, name)
        ) from error
