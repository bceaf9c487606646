"""The worker's end of the link: what it sends and receives, and what its tasks ask, print and log.

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
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from itertools import count
from typing import Any, Final, cast

from flowpregel._core.records import Arguments, Node
from flowpregel.carried import carried_by
from flowpregel.context import RunClient, TaskInfo
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.calls import CallFuture, OpenCalls
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.protocol import ANSWER, DOWN, REQUEST, STORED, Frame, Parser
from flowpregel.executors.processes.serialization import find_culprit
from flowpregel.executors.shared import sent_by_key

_CHUNK: Final = 1 << 16
_LONGEST: Final = 1 << 16
_PLAIN: Final = (str, int, float, bool, bytes, type(None))
HOLD: Final = 0.005
"""Seconds for which results may be held back, to send many at once."""


class LinkWriter:
    """Sends whole frames, from any OS thread of the worker.

    A signal handler that raises must not cut a frame in two: while the main thread
    sends, it has its exception raised afterwards (`defer`).

    Args:
        connection: The link.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket: socket.socket | None = connection
        self._mark = mark
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._held: deque[bytes] = deque()
        self._is_awaited = threading.Event()
        self._flusher: threading.Thread | None = None
        self._main = threading.main_thread().ident
        self._deferred: BaseException | None = None
        self.task = 0
        """The number of the task that runs."""

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> None:
        """Send a frame, after those held back; it is on the link when this returns.

        When the coordinator is gone, nothing happens.
        """
        self._held.append(protocol.pack(self._mark, kind, number, body, flags))
        self.flush()

    def hold(self, kind: int, number: int, body: bytes, flags: int = 0) -> None:
        """Send a frame with the next that is sent, or at the next `flush`."""
        self._held.append(protocol.pack(self._mark, kind, number, body, flags))

    def flush_soon(self) -> None:
        """Send what is held back in a moment, while the main thread is busy."""
        if not self._held or self._is_awaited.is_set():
            return
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_later, name="flowpregel-flusher", daemon=True
            )
            self._flusher.start()
        self._is_awaited.set()

    def _flush_later(self) -> None:
        while self._socket is not None:
            self._is_awaited.wait()
            time.sleep(HOLD)
            self._is_awaited.clear()
            self.flush()

    def flush(self) -> None:
        """Send what is held back."""
        me = threading.get_ident()
        if self._holder == me:
            # A finalizer or signal handler of user code prints while we send: we go on.
            return
        with self._lock:
            self._holder = me
            try:
                while self._held:
                    self._write(b"".join([self._held.popleft() for _ in range(len(self._held))]))
            finally:
                self._holder = None
        if me == self._main and self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error

    def _write(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(data)
        except OSError:
            self._socket = None

    def defer(self, error: BaseException) -> bool:
        """Return whether *error* will be raised after the frame that is being sent."""
        if self._holder == self._main:
            self._deferred = error
            return True
        return False

    def forget(self) -> None:
        """Send nothing any more: this process is a fork of the worker."""
        self._socket = None
        self._held.clear()
        self._lock = threading.Lock()
        self._holder = None


class Answer(CallFuture[Any]):
    """The result of a call that a task in a worker has made."""

    def _look(self, how: str) -> None:
        # An OS thread of its own reads the link: a caller that waits here stops nobody else.
        self.looked_at = True


class LinkReader:
    """Receives frames: in the main thread, until a task makes a request and may wait for it.

    Args:
        connection: The link.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket = connection
        self._parser = Parser(mark, DOWN)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._requests = count(1)
        self._open: dict[int, Answer] = {}

    def next(self) -> Frame | None:
        """Wait for the next frame that is no answer; None: the coordinator is gone."""
        orders = self._orders
        while self._reader is None and orders.empty():
            with self._reading:
                if orders.empty():
                    self._receive()
        return orders.get()

    def expect(self, answer: Answer) -> int:
        """Return the number of a request that *answer* is to be the result of.

        From now on an OS thread of its own receives: the main thread may wait in a task.
        """
        request = next(self._requests) & 0xFFFFFFFF
        self._open[request] = answer
        if self._reader is None:
            self._reader = threading.Thread(target=self._run, name="flowpregel-reader", daemon=True)
            self._reader.start()
        return request

    def forget(self) -> None:
        """Forget the requests of a task that has ended: no answer will come."""
        self._open.clear()

    def _run(self) -> None:
        with self._reading:
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
            if frame.kind not in (ANSWER, STORED):
                self._orders.put(frame)
            elif (answer := self._open.pop(frame.number, None)) is not None:
                try:
                    answer.settle(messages.unpack_outcome(frame.body, "in a called task", None))
                except BaseException as error:  # noqa: BLE001 - the caller is told
                    answer.set_exception(error)
        return True


class WorkerRunClient(RunClient):
    """Connects one task in a worker with its run.

    Args:
        writer: Sends frames.
        reader: Receives the answers.
        number: The task's.
    """

    __slots__ = ("_number", "_reader", "_writer", "made")

    def __init__(self, writer: LinkWriter, reader: LinkReader, number: int) -> None:
        self._writer = writer
        self._reader = reader
        self._number = number
        self.made = OpenCalls()

    def emit(self, chunk: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        try:
            body, _ = serialization.pack(chunk)
        except Exception as error:
            path, cause = find_culprit(chunk, "chunk")
            raise TaskSerializationError("this", "a stream chunk", path, cause) from error
        self._writer.send(protocol.EMITTED, self._number, body)

    def beat(self) -> None:
        """Show that the task is alive."""
        self._writer.send(protocol.BEAT, self._number)

    def call(self, node: Node, arguments: Arguments, fingerprint: str | None, describe: str) -> Any:
        """Make a call; return its future."""
        code = messages.pack_node(node, called=True)
        try:
            carried = carried_by(copy_context(), {})
            with sent_by_key():
                body, _ = serialization.pack((code, arguments, fingerprint, describe, carried))
        except Exception as error:
            path, cause = find_culprit(arguments, "arguments")
            raise TaskSerializationError(node.name, "the input", path, cause) from error
        answer = Answer(None, self.made)
        return self._request(protocol.CALLED, body, answer)

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the run's store; return its result."""
        body, _ = serialization.pack((method, args, kwargs))
        return self._request(protocol.ASKED, body, Answer()).result()

    def _request(self, kind: int, body: bytes, answer: Answer) -> Answer:
        """Send a request; return *answer*, which will have its result."""
        request = self._reader.expect(answer)
        self._writer.send(kind, self._number, REQUEST.pack(request) + body)
        return answer


class StoreProxy:
    """The run's long-term store, as a task in a worker reaches it: over the link.

    It has the methods of the coordinator's store; each call is answered there.
    """

    def __init__(self, ask: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        ask = self._ask

        def method(*args: Any, **kwargs: Any) -> Any:
            return ask(name, args, kwargs)

        return method


# ------------------------------------------------ what a task prints and logs


class Printed(io.RawIOBase):
    """What is beneath ``sys.stdout`` or ``sys.stderr``: sends whole lines, with their task."""

    def __init__(self, writer: LinkWriter, fd: int) -> None:
        self._writer = writer
        self._fd = fd
        self._lock = threading.RLock()
        self.line = b""
        """What there is of a line that has not ended."""

    def write(self, data: Any) -> int:
        """Take *data*; send what ends with a newline, and what is long."""
        with self._lock:
            self.line += bytes(data)
            if b"\n" in self.line or len(self.line) > _LONGEST:
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
        self._writer.send(protocol.PRINTED, self._writer.task, data, flags)

    def fileno(self) -> int:
        """Return the descriptor: what is written there is sent as well."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True


class LogSender(logging.Handler):
    """Sends log records to the coordinator, where the program's handlers get them."""

    def __init__(self, writer: LinkWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*, its message and traceback as text."""
        try:
            body = pickle.dumps(_plain(record))
        except Exception:  # noqa: BLE001 - logging's own rule: told on stderr, never raised
            self.handleError(record)
            return
        self._writer.send(protocol.LOGGED, self._writer.task, body)


def _plain(record: logging.LogRecord) -> dict[str, Any]:
    """Return *record*'s fields, all of which can be pickled and are safe to unpickle."""
    fields = {
        name: value if isinstance(value, _PLAIN) else repr(value)
        for name, value in record.__dict__.items()
        if name not in ("args", "exc_info", "msg")
    }
    fields["msg"] = record.getMessage()
    fields["args"] = None
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    fields["exc_info"] = None
    return fields


def take_over(writer: LinkWriter, log_levels: Mapping[str, int]) -> tuple[Printed, Printed]:
    """Send this worker's log records and prints; return what takes the prints."""
    out, err = Printed(writer, 1), Printed(writer, 2)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(cast(Any, each), "utf-8", "backslashreplace", "", write_through=True)
        for each in (out, err)
    )
    root = logging.getLogger()
    root.handlers[:] = [LogSender(writer)]
    for name, level in log_levels.items():
        logging.getLogger(name or None).setLevel(level)
    return out, err


class _NamedLogger:
    """The logger beneath a structlog logger: it keeps its name, and logs nothing."""

    def __init__(self, *args: Any) -> None:
        self.args = tuple(arg for arg in args if isinstance(arg, str))

    def __getattr__(self, method: str) -> Callable[..., None]:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *_, **__: None


class StructlogSender:
    """Has structlog in one worker send its events.

    Args:
        writer: Sends them.
    """

    def __init__(self, writer: LinkWriter) -> None:
        self._writer = writer

    def begin(self, info: TaskInfo) -> None:
        """Bind the run's fields for the task that begins, in the current context."""
        structlog = sys.modules["structlog"]
        if not structlog.is_configured():
            self._configure(structlog)
        structlog.contextvars.bind_contextvars(
            thread_id=info.run.thread_id,
            run_id=info.run.run_id,
            step=info.step,
            task=info.name,
            attempt=info.attempt,
            pid=os.getpid(),
        )

    def _configure(self, structlog: Any) -> None:
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                self._send,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            logger_factory=_NamedLogger,
            cache_logger_on_first_use=False,
        )

    def _send(self, logger: Any, method: str, event: Any) -> str:
        """Send an event; the last of the processors."""
        fields = {
            str(name): value if isinstance(value, _PLAIN) else repr(value)
            for name, value in event.items()
        }
        body = pickle.dumps((logger.args, method, fields))
        self._writer.send(protocol.LOGGED, self._writer.task, body, protocol.STRUCTURED)
        return ""
