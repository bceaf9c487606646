"""The worker's end of the link: what its tasks send and ask for, print and log.

Text that Python code prints goes over the link, in order with everything else a
task sends, so it is labelled exactly. What C code and programs write to
descriptors 1 and 2 goes through pipes and gets the label of the task that runs.

structlog's events go to the coordinator's structlog, unless a module that tasks import
configures structlog for the workers too. Either way the run's fields are bound.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, Final, cast

from flowpregel._core.ids import Asked
from flowpregel._core.records import Arguments, Node
from flowpregel.carried import carried_by
from flowpregel.context import Job, RunClient
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.calls import CallFuture, OpenCalls
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.protocol import ANSWER, DOWN, REQUEST, Frame, Parser
from flowpregel.executors.shared import sent_by_key

_LONGEST_LINE: Final = 1 << 16
_LARGEST_FRAME: Final = 1 << 20
"""Bytes of output that are sent at once: the coordinator holds several copies of them."""
TASK_FIELDS: Final = ("task", "attempt", "step", "thread_id", "run_id")
_facts: Final = attrgetter("task.name", "task.attempt", "place.step", "run.thread_id", "run.run_id")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_CHUNK: Final = 1 << 16


class Answer(CallFuture[Any]):
    """The result of a call that a task in a worker has made."""

    # An OS thread of its own reads the link: a caller that waits here stops nobody else.
    _needs_loop: ClassVar[bool] = False


class WorkerLink:
    """The worker's end of the link.

    Any OS thread sends, whole frames only. The main thread receives, between tasks, until a
    task makes a request and may wait for the answer: from then on an OS thread of its own does.

    Args:
        connection: A connected stream socket.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket = connection
        self._mark = mark
        self._outbox: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._sender: int | None = None
        self._main = threading.main_thread().ident
        self._deferred: BaseException | None = None
        self._parser = Parser(mark, DOWN)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._receiving = threading.Lock()
        self._receiver: threading.Thread | None = None
        self._requests = count(1)
        self.answers: dict[int, Answer] = {}
        """To requests of the task that runs, by number."""
        self.task = 0
        """The number of the task that runs."""
        self.job: Job | None = None
        """Its job, while its code runs."""

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> None:
        """Send a frame. When the coordinator is gone, nothing happens."""
        self._outbox.append(protocol.pack(self._mark, kind, number, body, flags))
        me = threading.get_ident()
        if self._sender == me:
            # A finalizer or signal handler of user code prints while we send: we go on.
            return
        with self._sending:
            self._sender = me
            try:
                while self._outbox:
                    self._socket.sendall(self._outbox.popleft())
            except OSError:
                self._outbox = deque(maxlen=0)
            finally:
                self._sender = None
        if me == self._main and self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error

    def defer(self, error: BaseException) -> bool:
        """Return whether *error* will be raised when the main thread has sent what it sends.

        A signal handler that raises must not cut a frame in two.
        """
        if self._sender == self._main:
            self._deferred = error
            return True
        return False

    def disconnect(self) -> None:
        """Send nothing any more: this process is a fork of the worker."""
        self._outbox = deque(maxlen=0)
        self._sending = threading.Lock()
        self._sender = None

    def cancel(self, task: int, future: CallFuture[Any]) -> None:
        """Tell the run that *task* no longer wants a call that it has made."""
        for request, answer in [*self.answers.items()]:
            if answer is future:
                self.send(protocol.CANCELLED, task, REQUEST.pack(request))

    def next(self) -> Frame | None:
        """Wait for the next frame that is no answer; None: the coordinator is gone."""
        orders = self._orders
        while self._receiver is None and orders.empty():
            with self._receiving:
                if orders.empty():
                    self._receive()
        return orders.get()

    def request(self, kind: int, task: int, body: bytes, answer: Answer) -> Answer:
        """Send a request of *task*; return *answer*, which will have its result."""
        request = next(self._requests) & 0xFFFFFFFF
        self.answers[request] = answer
        if self._receiver is None:
            self._receiver = threading.Thread(
                target=self._receive_all, name="flowpregel-reader", daemon=True
            )
            self._receiver.start()
        self.send(kind, task, REQUEST.pack(request) + body)
        return answer

    def _receive_all(self) -> None:
        with self._receiving:
            while self._receive():
                pass

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._orders.put(None)
            return False
        for frame in self._parser.feed(data):
            if frame.kind != ANSWER:
                self._orders.put(frame)
            elif (answer := self.answers.pop(frame.number, None)) is not None:
                try:
                    answer.settle(messages.unpack_outcome(frame.body))
                except BaseException as error:  # noqa: BLE001 - the caller is told
                    answer.set_exception(error)
        return True


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

    def emit(self, chunk: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        body = _packed(chunk, "this", "a stream chunk", "chunk", chunk)
        self._link.send(protocol.EMITTED, self._number, body)

    def beat(self) -> None:
        """Show that the task is alive."""
        self._link.send(protocol.BEAT, self._number)

    def call(self, node: Node, arguments: Arguments, asked: Asked | None, *reply: Any) -> Any:
        """Make a call; return its future: *reply*, if its caller has that already."""
        content = (
            messages.pack_node(node, called=True),
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
        body, _ = serialization.pack((method, args, kwargs))
        return self._link.request(protocol.ASKED, self._number, body, Answer()).result()

    def is_ending(self) -> bool:
        """Return whether the task was told that its run is to end."""
        return self._status[protocol.ENDING] == self._number

    def save(self, state: Any) -> None:
        """Keep *state* for the next attempt of the task; return when the run has."""
        if self._link.job is None or self._link.job.run.run_id is None:
            return  # a plain function of the pool: it has one attempt
        body = _packed(state, "this", "the saved state", "state", state)
        self._link.request(protocol.SAVED, self._number, body, Answer()).result()


def _packed(content: Any, task: str, what: str, name: str, part: Any) -> bytes:
    """Return *content*, pickled.

    Raises:
        TaskSerializationError: It cannot be. It names *task* and *what* that is, and what in
            *part*, which the user knows by *name*, is at fault.
    """
    try:
        return serialization.pack(content).data
    except Exception as error:
        raise TaskSerializationError(task, what, *serialization.find_culprit(part, name)) from error


# ------------------------------------------------ what tasks print and log


class Printed(io.RawIOBase):
    """What is beneath ``sys.stdout`` or ``sys.stderr``: sends whole lines, with their task."""

    def __init__(self, link: WorkerLink, fd: int) -> None:
        self._link = link
        self._fd = fd
        self._lock = threading.RLock()
        self.line = b""
        """What there is of a line that has not ended."""

    def write(self, data: Any) -> int:
        """Take *data*; send what ends with a newline, and what is long."""
        with self._lock:
            self.line += bytes(data)
            if b"\n" in self.line or len(self.line) > _LONGEST_LINE:
                end = self.line.rfind(b"\n") + 1 or len(self.line)
                whole, self.line = self.line[:end], self.line[end:]
                self._send(whole)
        return len(data)

    def flush(self) -> None:
        """Send what there is of a line."""
        with self._lock:
            rest, self.line = self.line, b""
            if rest:
                self._send(rest)

    def _send(self, data: bytes) -> None:
        flags = 0 if self._fd == 1 else protocol.STDERR
        while data:
            end = len(data)
            if end > _LARGEST_FRAME:
                end = data.rfind(b"\n", 0, _LARGEST_FRAME) + 1 or _LARGEST_FRAME
                # Not within a character, which has at most four bytes.
                end -= next((n for n in range(4) if data[end - n] & 0xC0 != 0x80), 0)
            self._link.send(protocol.PRINTED, self._link.task, data[:end], flags)
            data = data[end:]

    def fileno(self) -> int:
        """Return the descriptor: what is written there is sent as well."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True


class LogSender(logging.Handler):
    """Sends log records to the coordinator, where the program's handlers get them."""

    def __init__(self, link: WorkerLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*, its message and traceback as text."""
        try:
            job = self._link.job
            ids = {"worker_pid": os.getpid(), "task_id": None if job is None else job.task.id}
            body = pickle.dumps(_fields_of(record) | _fields_of_task(job) | ids)
        except Exception:  # noqa: BLE001 - logging's own rule: told on stderr, never raised
            self.handleError(record)
            return
        self._link.send(protocol.LOGGED, self._link.task, body)


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return *record*'s fields, all of which can be pickled and are safe to unpickle."""
    text = {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and not record.exc_text:
        text["exc_text"] = logging.Formatter().formatException(record.exc_info)
    rest = {name: _as_plain(value) for name, value in vars(record).items() if name not in text}
    return rest | text


def _as_plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else repr(value)


def _fields_of_task(job: Job | None) -> dict[str, Any]:
    """Return what records and events are given of the task that logs; None: there is none."""
    values = (None,) * len(TASK_FIELDS) if job is None else _facts(job)
    return {"pid": os.getpid(), **dict(zip(TASK_FIELDS, values, strict=True))}


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers that have one of their own, by name."""
    loggers = tuple(logging.root.manager.loggerDict.items())
    levels = {name: each.level for name, each in loggers if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}


def take_over(link: WorkerLink, log_levels: Mapping[str, int]) -> tuple[Printed, Printed]:
    """Send this worker's log records and prints; return what takes the prints."""
    out, err = Printed(link, 1), Printed(link, 2)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(cast(Any, each), "utf-8", "backslashreplace", "", write_through=True)
        for each in (out, err)
    )
    root = logging.getLogger()
    root.handlers[:] = [LogSender(link)]
    for name, level in log_levels.items():
        logging.getLogger(name or None).setLevel(level)
    return out, err


# ------------------------------------------------ structlog


def bind_fields(link: WorkerLink, job: Job) -> None:
    """Have structlog send its events, with the fields of the task that begins."""
    structlog = sys.modules["structlog"]
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                partial(_send_event, link, structlog.DropEvent),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            # Nothing logs in this process: the logger is only its name.
            logger_factory=lambda *args: tuple(arg for arg in args if isinstance(arg, str)),
            cache_logger_on_first_use=False,
        )
    structlog.contextvars.bind_contextvars(**_fields_of_task(job))


def _send_event(
    link: WorkerLink, drop: type[Exception], names: Any, method: str, event: Mapping[Any, Any]
) -> Any:
    """Send an event; the last of structlog's processors."""
    fields = {str(name): _as_plain(value) for name, value in event.items()}
    body = pickle.dumps((names, method, fields))
    link.send(protocol.LOGGED, link.task, body, protocol.STRUCTURED)
    raise drop
