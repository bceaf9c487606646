"""The task loop of a worker, which takes a task from the link, runs it, and sends its
outcome.

::

    link --> next() --> task --> perform(job) --> outcome --> send() --> link
                                   | emit, call, beat, log, print ^

Theory of operation. The main thread runs the tasks one after another, so that signals
reach the tasks' code, and libraries that require the main thread work. Between two
tasks the main thread also reads the link. Once a task has made a call and may wait for
the answer, another OS thread reads the link (`WorkerLink`). One more OS thread ends the
process when the coordinator ends (`process`).

A task begins when the worker has taken its start permission (token) from the pipe. The
first task for an idle worker needs none: the frame that brings it has its number. The
task's number is then written to the status, which the coordinator can read even when
the worker is dead.

A task is stopped by a signal. The signal handler raises `TaskCancelled` in the task's
code, but only if three conditions hold: a task runs (`_is_stoppable`), the coordinator
has written the number of this task to the status, and the task is not importing a
module at the moment. The signal may arrive before its task begins, so the status is
read again when a task begins. After the handler has raised once, further signals raise
no error, so that the end of the task is always sent.

When a task has ended, these things happen in this order:

1. The task's timers and signal handlers, which could call its code, are removed, and
   the old ones restored (`ProcessState.settle`). If a handler raises in this step, the
   error becomes the outcome of the task.
2. If the task was stopped, the processes that it started are killed. This happens
   before the next task begins, whose processes must survive.
3. The text that the task has printed is sent, so that it is on the screen before the
   run gets the task's end.
4. The outcome is sent.
5. Everything else that the task changed in the process is restored. If that is not
   possible, the worker is spoiled: it begins no more tasks, and the coordinator
   replaces it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowpregel import _fault, _linux
from flowpregel._core.ids import CallKey, Span
from flowpregel._core.previews import NO_PREVIEW
from flowpregel._core.records import Arguments, Node, Outcome, Raised, Withdrawn
from flowpregel._fault import arm
from flowpregel._loggers import worker_log
from flowpregel._pickling import crossing
from flowpregel.carried import carried_by
from flowpregel.context import RunClient
from flowpregel.errors import TaskCancelled, TaskExitError, TaskSerializationError
from flowpregel.executors.attempt import ProcessStopwatch, perform
from flowpregel.executors.calls import OpenCalls, observed_failures
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.executors.processes.wire.guard_process import (
    PROCESS_TAG,
    TASK_TAG,
    end_processes_with,
)
from flowpregel.executors.processes.wire.node_code import ReceivedCode, pack_node
from flowpregel.executors.processes.wire.protocol import STOP_SIGNAL
from flowpregel.executors.processes.wire.shared_memory import (
    Arena,
    BufferReader,
    FdSocket,
    released_in,
    segments_for,
)
from flowpregel.executors.processes.worker.link import Answer, WorkerLink
from flowpregel.executors.processes.worker.output import bind_fields, take_over
from flowpregel.executors.processes.worker.process import (
    PRELOAD,
    become_worker,
    preload,
)
from flowpregel.executors.processes.worker.process_state import ProcessState
from flowpregel.executors.shared import sent_by_key
from flowpregel.policies import is_out_of_memory

if TYPE_CHECKING:
    from flowpregel.channels.context import Context

_TASK_VARIABLE: Final = TASK_TAG.encode()
_TASK_TAGS: Final = 1_000
"""The number of tags (values of an environment variable) by which the processes that a
task starts are found. The C library never frees the value of an environment variable,
so there are few, which are reused in turn. Tasks with the same tag begin so long after
each other that the start time of a process shows which of them started it.
"""
_STOP_AGAIN: Final = 0.01
"""Seconds after which the signal is sent again to a task that was importing a
module.
"""


def worker_main(setup: protocol.WorkerSetup) -> None:
    """Run a worker in this process until the coordinator stops it, or ends."""
    arm("worker.")
    crossing.mark_as_worker()
    become_worker(setup.stdout, setup.stderr, setup.coordinator)
    if setup.settings.nice is not None:
        # An error means that the nice value is below that of the program, which only
        # privileged users may set.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, setup.settings.nice)
    worker = Worker(setup)
    if worker.initialize(setup.settings.initializer):
        worker.run()


class Worker:
    """The loop of one worker process.

    Args:
        setup: The worker's descriptors and settings.
    """

    def __init__(self, setup: protocol.WorkerSetup) -> None:
        for fd in (setup.link, setup.fd_socket, setup.status, setup.tokens):
            os.set_inheritable(fd, False)
        _linux.own_description(setup.tokens, os.O_RDONLY | os.O_NONBLOCK)
        self._link = WorkerLink(socket.socket(fileno=setup.link), setup.magic)
        self._status = protocol.map_status(setup.status)
        self._tokens = Tokens(setup.tokens)
        fd_socket = FdSocket(socket.socket(fileno=setup.fd_socket))
        self._reader = BufferReader(fd_socket)
        writers = 2 * setup.settings.size
        limit = setup.settings.shared_limit // writers
        self._arena = Arena(limit, segments=segments_for(writers), reader=fd_socket)
        self._streams = take_over(self._link, setup.log_levels)
        # The link's socket is not in the dict, because `WorkerLink` itself notices when
        # a task has changed its blocking mode.
        self._blocking = {setup.fd_socket: True, setup.tokens: False}
        self._is_spoiled = False
        """True if a task has changed the state of the process irreversibly, so that no
        more tasks may begin.
        """
        self._contexts: dict[bytes, Context[Any]] = {}
        """The `Context` channels that tasks have entered and not exited yet, by the
        channel's id (token).
        """
        self._codes: dict[bytes, tuple[str, ReceivedCode]] = {}
        """The names and the packed code of nodes, by digest: a cache, of which the
        coordinator decides which entries are dropped.
        """
        self._process_tag = os.environ[PROCESS_TAG].encode()
        self._is_stoppable = False
        """True while the handler of the stop signal may raise an error in the task's
        code.
        """
        self._is_stopped = False
        """True if the handler of the stop signal has raised an error in the running
        task.
        """
        self._is_fork = False
        """True in a process that a task has forked."""
        self._preview = NO_PREVIEW
        """The preview of the call of the task that ended last."""
        self._missing_module = ""
        """The name of the module without which the task could not begin."""
        os.register_at_fork(after_in_child=self._after_fork)
        signal.signal(STOP_SIGNAL, self._on_stop_signal)

    def initialize(self, initializer: bytes) -> bool:
        """Import what ``FLOWPREGEL_PRELOAD`` names, and run the pool's initializer.
        Report to the coordinator whether both succeeded, and return that.
        """
        note = f"in {PRELOAD}"
        try:
            # The modules are preloaded first, because the initializer may need an
            # import hook that one of them installs.
            preload(os.environ.get(PRELOAD, ""))
            note = "in the pool's initializer"
            if initializer:
                function, arguments = pickle.loads(initializer)
                function(*arguments)
        except BaseException as error:  # noqa: BLE001 - the coordinator gets it
            error.add_note(note)
            packed = messages.pack_outcome(Raised(error), "initializer")
            self._link.send(protocol.FAILED, body=packed)
            return False
        self._link.send(protocol.READY)
        return True

    def run(self) -> None:
        """Act on the coordinator's messages (frames) until it stops the worker, or
        ends.
        """
        blocking = {**self._blocking, 0: True, 1: True, 2: True}
        self._state = ProcessState(self._streams.current, blocking)
        while (frame := self._link.next()) is not None:
            match frame.kind:
                case protocol.TASKS:
                    self._run_tasks(frame)
                case protocol.FREED:
                    self._arena.release(released_in(frame.body))
                case protocol.LEAVE:
                    self._exit_contexts(frame)
                case protocol.STOP:
                    self._close_contexts([*self._contexts], None)
                    return

    # ------------------------------------------------ tasks

    def _run_tasks(self, frame: protocol.Frame) -> None:
        """Run the tasks in a TASKS message (frame), except those that the coordinator
        has taken back.
        """
        if self._is_spoiled:
            self._refuse(frame)
            return
        for number, digest, code, dropped, body in pickle.loads(frame.body):
            if code:
                self._receive_code(digest, code, dropped)
            if number == frame.number or self._tokens.take(number):
                self._run_task(number, digest, body)
            if self._reader.released:
                self._link.send(protocol.RETURNED, body=self._reader.take_released())
            if self._is_spoiled:
                return

    def _refuse(self, frame: protocol.Frame) -> None:
        """Refuse the first task in a TASKS message (frame) if it needs no token to
        begin. The coordinator takes back the other tasks by their tokens.
        """
        if frame.number:
            self._link.send(protocol.REFUSED, frame.number)

    def _receive_code(self, digest: bytes, code: bytes, dropped: list[bytes]) -> None:
        """Store new packed code in the cache, and drop the older code that the
        coordinator names, to make room.
        """
        for old_digest in dropped:
            del self._codes[old_digest]
        name, packed = pickle.loads(code)
        self._codes[digest] = name, ReceivedCode(packed)

    def _run_task(self, number: int, digest: bytes, body: bytes) -> None:
        """Run one task and send its end, in the order that the module's docstring
        describes.
        """
        link = self._link
        client = WorkerRunClient(link, number, self._status)
        link.task = link.requester = number
        self._is_stopped = False
        self._preview = NO_PREVIEW
        self._missing_module = ""
        watch = ProcessStopwatch()
        task_tag = b"%b.%d" % (self._process_tag, number % _TASK_TAGS)
        self._state.set_variable(_TASK_VARIABLE, task_tag)
        try:
            outcome = self._settled_outcome(number, digest, body, client)
        except BaseException as error:  # noqa: BLE001 - of a handler of the task's
            # The task's timer has called the handler once more before the timer was
            # stopped, so the task ends with the handler's error.
            outcome = self._interrupted_outcome(digest, error)
        finally:
            self._is_stoppable = False
            link.job = None
        if self._is_fork:
            # If the task has forked this process, the child arrives here too. The child
            # exits, because it is not the worker.
            os._exit(0)
        if self._is_stopped:
            end_processes_with({_TASK_VARIABLE + b"=" + task_tag}, watch.started)
        # The worker's own streams are flushed, because the task may have replaced those
        # in `sys`.
        for forwarder in self._streams.forwarders:
            if forwarder.line:
                forwarder.flush()
        if _fault.points:
            _fault.fault("task.send.before")
        self._send_end(client, digest, outcome, watch.stop(self._preview))
        link.end_requests()
        self._restore_process()

    def _settled_outcome(
        self,
        number: int,
        digest: bytes,
        body: bytes,
        client: WorkerRunClient,
    ) -> Outcome:
        """Perform a task, remove the timers and signal handlers that it has set, and
        return the outcome.
        """
        try:
            self._is_stoppable = True
            self._status[protocol.RUNNING] = number
            if self._status[protocol.UNWANTED] == number:
                # The signal to stop this task arrived before the task began, so the
                # task ends here.
                self._is_stopped = True
                raise TaskCancelled  # noqa: TRY301 - as the signal's handler does
            outcome = self._perform(digest, body, client)
            self._state.settle()
        except BaseException as error:  # noqa: BLE001 - of a handler of the task's
            outcome = self._interrupted_outcome(digest, error)
        return outcome

    def _send_end(
        self,
        client: WorkerRunClient,
        digest: bytes,
        outcome: Outcome,
        span: Span,
    ) -> None:
        """Send the end of a task.

        Args:
            client: The task's connection to its run.
            digest: The digest of the task's code.
            outcome: The outcome of the task.
            span: The span of the attempt.
        """
        flags = protocol.STOPPED if self._is_stopped else 0
        failed_ids = b""
        if client.open_calls.count:
            flags |= protocol.CAUGHT
            observed = observed_failures(outcome, client.open_calls)
            failed_ids = " ".join(observed).encode()
        if self._missing_module:
            flags |= protocol.NO_MODULE
            failed_ids = self._missing_module.encode()
        if isinstance(outcome, Raised) and any(map(is_out_of_memory, outcome.errors())):
            flags |= protocol.NO_MEMORY
        head = messages.pack_head(span, failed_ids)
        name, _ = self._codes[digest]
        packed = messages.pack_outcome(outcome, name, self._arena.share)
        self._link.send(protocol.ENDED, self._link.task, head + packed, flags)

    def _interrupted_outcome(self, digest: bytes, error: BaseException) -> Outcome:
        """Return the outcome of a task that ended because a signal handler raised
        *error*, after removing the timers and signal handlers that the task has set.
        """
        is_settled = False
        while not is_settled:
            # `settle` is repeated until it succeeds, because another signal handler of
            # the task may raise an error during the call. `suppress` cannot be used: it
            # is a Python function, and a handler that runs when the function begins
            # could raise an error outside of the block.
            try:
                self._state.settle()
                is_settled = True
            except BaseException:  # noqa: BLE001 - the loop tries again
                pass
        if isinstance(error, TaskCancelled):
            return Withdrawn()
        if isinstance(error, Exception):
            return Raised(error)
        name, _ = self._codes[digest]
        return Raised(TaskExitError(name, repr(error)))

    def _restore_process(self) -> None:
        """Restore the process state that a task has changed. If that is not possible,
        report to the coordinator that this worker is spoiled, and begin no more tasks.
        """
        lasting = self._state.restore()
        if lasting:
            self._is_spoiled = True
            self._link.send(protocol.SPOILED, body=lasting.encode())

    def _perform(self, digest: bytes, body: bytes, client: WorkerRunClient) -> Outcome:
        """Unpack a job, call its task, and return the outcome."""
        name, code = self._codes[digest]
        part = "code"
        try:
            node = code.node()
            part = "input"
            job = messages.unpack_job(body, node, client.ask, self._reader.open)
        except TaskCancelled:
            raise
        except BaseException as error:  # noqa: BLE001
            if isinstance(error, ModuleNotFoundError):
                self._missing_module = error.name or ""
            # A user's `__setstate__` may raise any error.
            cause = f"{type(error).__name__}: {error} (in the worker)"
            failure = TaskSerializationError(name, f"the {part}", part, cause)
            failure.__cause__ = error
            return Raised(failure)
        if node.contexts:
            # The import is done only here, because `flowpregel.channels.context` loads
            # all channels.
            from flowpregel.channels.context import contexts_in  # noqa: PLC0415

            # The entered contexts are recorded and not exited, because the run's next
            # task in this worker uses them too.
            for channel in contexts_in(job.task.input):
                self._contexts.setdefault(channel.held.token, channel)
        self._link.job = job
        # Each task runs in a context of its own, so that its context variables do not
        # leak into the next task.
        if "structlog" in sys.modules:
            job.variables.run(bind_fields, self._link, job)
        outcome: Outcome = job.variables.run(perform, job, client)
        self._preview = job.preview
        return outcome

    # ------------------------------------------------ contexts

    def _exit_contexts(self, frame: protocol.Frame) -> None:
        """Exit the `Context` channels of a run that has ended, and confirm that to the
        coordinator.
        """
        tokens, packed = serialization.unpack(frame.body)
        error: BaseException | None = None
        if packed is not None:
            outcome = messages.unpack_outcome(packed)
            if isinstance(outcome, Raised):
                error = outcome.error
        self._close_contexts(tokens, error)
        self._link.send(protocol.LEFT, frame.number)
        self._restore_process()

    def _close_contexts(self, tokens: list[bytes], error: BaseException | None) -> None:
        for token in tokens:
            channel = self._contexts.pop(token, None)
            try:
                if channel is not None:
                    channel.close(error)
            except Exception:  # noqa: BLE001 - the run has ended, and stays as it ended
                worker_log.exception("a Context channel could not be left")

    # ------------------------------------------------ signals and forks

    def _on_stop_signal(self, number: int, frame: Any) -> None:
        """Raise `TaskCancelled` in the code of the running task, if this task must
        stop.
        """
        is_meant = self._status[protocol.UNWANTED] == self._link.task
        if not self._is_stoppable or not is_meant:
            return
        if _imports(frame):
            # An interrupted import would leave a half-initialized module behind, for
            # all later tasks. So the signal is sent again a little later.
            again = threading.Timer(_STOP_AGAIN, os.kill, (os.getpid(), STOP_SIGNAL))
            # no mutant: Without this, the process ends a hundredth of a second later.
            again.daemon = True
            again.start()
            return
        self._is_stopped = True
        self._is_stoppable = False
        raise TaskCancelled("the task was stopped from outside")

    def _after_fork(self) -> None:
        self._is_fork = True
        self._is_stoppable = False
        self._link.disconnect()


def _imports(frame: Any) -> bool:
    """Return whether the code at the stack frame *frame* was called by an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class Tokens:
    """The start permissions (tokens) of the tasks that this worker may begin, in a
    pipe. Each token is taken once.

    Args:
        fd: The reading end of the token pipe, which never blocks.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next: int | None = None

    def take(self, number: int) -> bool:
        """Take the start permission of task *number*, and return True. Return False if
        the coordinator has taken it back.
        """
        if self._next is None:
            try:
                token = os.read(self._fd, protocol.TOKEN.size)
                (self._next,) = protocol.TOKEN.unpack(token)
            except (BlockingIOError, struct.error):
                # There is no token in the pipe, or the coordinator is gone, so the task
                # must not begin.
                return False
        # The tokens are read in order, so this one permits the start of a later task.
        # It is kept until that task's turn.
        if self._next != number:
            return False
        self._next = None
        return True


# ------------------------------------------------ the connection of a task to its run


class WorkerRunClient(RunClient):
    """The connection between one task in a worker and its run.

    Args:
        link: The worker's link.
        number: The number of the task.
        status: The worker's status.
    """

    __slots__ = ("_link", "_number", "_status", "open_calls")

    def __init__(self, link: WorkerLink, number: int, status: memoryview) -> None:
        self._link = link
        self._number = number
        self._status = status
        self.open_calls: OpenCalls = OpenCalls()
        self.open_calls.pid = os.getpid()
        self.open_calls.task = "a task in a worker"

    def emit(self, chunk: Any) -> None:
        """Send a chunk of the stream mode ``custom``, or a `Report`, to the run."""
        body = _packed(chunk, "this", "a stream chunk", "chunk", chunk)
        self._link.send(protocol.EMITTED, self._number, body)

    def beat(self) -> None:
        """Send a sign of life of the task."""
        self._link.send(protocol.BEAT, self._number)

    def call(
        self, node: Node, arguments: Arguments, call_key: CallKey | None, *reply: Any
    ) -> Any:
        """Make a call, and return the call's future: *reply* if it is passed, or else a
        new future.
        """
        self.open_calls.check_process()
        code = pack_node(node, called=True)
        content = (code, arguments, call_key, carried_by(copy_context(), {}))
        with sent_by_key():
            body = _packed(content, node.name, "the input", "arguments", arguments)
        self.open_calls.cancel = partial(self._link.cancel, self._number)
        answer = reply[0] if reply else Answer(None, self.open_calls)
        return self._link.request(protocol.CALLED, self._number, body, answer)

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the run's long-term store in the coordinator, and return the
        result.
        """
        self.open_calls.check_process()
        body, _ = serialization.pack((method, args, kwargs))
        answer = self._link.request(protocol.ASKED, self._number, body, Answer())
        return answer.result()

    def channels(self, names: Sequence[str]) -> Any:
        """Return the channels and the managed values of the run that have one of
        *names*.
        """
        self.open_calls.check_process()
        body, _ = serialization.pack((*names,))
        answer = self._link.request(protocol.CHANNELS, self._number, body, Answer())
        return answer.result()

    def is_ending(self) -> bool:
        """Return whether the task was warned that its run will end."""
        return self._status[protocol.ENDING] == self._number

    def save(self, state: Any) -> None:
        """Store *state* for the task's next attempt, and wait until the run has
        received it.
        """
        if self._link.job is None or self._link.job.run.run_id is None:
            # The function was passed to `submit`, so its call is never repeated, and
            # there is no next attempt to read the state.
            return
        self.open_calls.check_process()
        body = _packed(state, "this", "the saved state", "state", state)
        self._link.request(protocol.SAVED, self._number, body, Answer()).result()


def _packed(content: Any, task: str, kind: str, name: str, part: Any) -> bytes:
    """Pickle *content*, the content of a message, and return the bytes.

    Args:
        content: The whole message.
        task: The name of the task, for the error.
        kind: A description of *part*, for the error.
        name: The user's name for *part*.
        part: The user's part of *content*.

    Raises:
        TaskSerializationError: A part cannot be pickled.
    """
    try:
        return serialization.pack(content).data
    except Exception as error:
        culprit = crossing.find_culprit(part, name)
        raise TaskSerializationError(task, kind, *culprit) from error
