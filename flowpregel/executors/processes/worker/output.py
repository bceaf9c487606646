"""The output of tasks (printed text and log records), which is sent to the coordinator.

Text that Python code prints goes over the link, in order with all other frames of a
task, so it is always labelled with the right task. Text that C code and programs write
to descriptors 1 and 2 goes through pipes, and gets the label of the task that runs at
the time.

structlog events go to the coordinator's structlog, unless a module that tasks import
configures structlog in the workers too. In both cases the events get the fields that
identify the task and its run.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import sys
import threading
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from flowpregel.context import Job
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.protocol import TASK_FIELDS
from flowpregel.executors.processes.worker.link import WorkerLink

_LONGEST_LINE: Final = 1 << 16
_LARGEST_FRAME: Final = 1 << 20
"""The maximum size of the output in one frame, in bytes. It is limited because the
coordinator has several copies of a frame in memory.
"""
_facts: Final = attrgetter(
    "task.name", "task.attempt.number", "step.step", "run.thread_id", "run.run_id"
)
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class StdoutForwarder(io.RawIOBase):
    """The raw stream under ``sys.stdout`` or ``sys.stderr``, which sends whole lines,
    labelled with the number of the task that printed them.
    """

    def __init__(self, link: WorkerLink, fd: int) -> None:
        self._link = link
        self._fd = fd
        self._lock = threading.RLock()
        self.line: bytes = b""
        """The beginning of a line that has not ended."""

    def write(self, data: Any) -> int:
        """Buffer *data*, and send complete lines and any line that is too long."""
        with self._lock:
            self.line += bytes(data)
            if b"\n" in self.line or len(self.line) > _LONGEST_LINE:
                end = self.line.rfind(b"\n") + 1 or len(self.line)
                whole = self.line[:end]
                self.line = self.line[end:]
                self._send(whole)
        return len(data)

    def flush(self) -> None:
        """Send the unfinished line."""
        with self._lock:
            rest = self.line
            self.line = b""
            if rest:
                self._send(rest)

    def _send(self, data: bytes) -> None:
        flags = 0 if self._fd == 1 else protocol.STDERR
        while data:
            end = len(data)
            if end > _LARGEST_FRAME:
                end = data.rfind(b"\n", 0, _LARGEST_FRAME) + 1
            if not end:
                # The first line is longer than a frame.
                end = _start_of_character(data, _LARGEST_FRAME)
            self._link.send(protocol.PRINTED, self._link.task, data[:end], flags)
            data = data[end:]

    def fileno(self) -> int:
        """Return the descriptor of the pipe, 1 or 2. Text that is written to it is sent
        as well.
        """
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True


def _start_of_character(text: bytes, position: int) -> int:
    """Return the beginning of the UTF-8 character that contains the byte at *position*,
    or *position* if none of the last four bytes can begin a character.
    """
    # A character has at most four bytes. All but the first are 0x80 to 0xBF.
    for start in range(position, position - 4, -1):
        if text[start] & 0xC0 != 0x80:
            return start
    return position


class LogSender(logging.Handler):
    """A log handler that sends log records to the coordinator, where the program's
    handlers get them.
    """

    def __init__(self, link: WorkerLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*, with its message and traceback as strings."""
        try:
            job = self._link.job
            ids = {
                "worker_pid": os.getpid(),
                "task_id": None if job is None else job.task.id,
            }
            body = pickle.dumps(_fields_of(record) | _fields_of_task(job) | ids)
        except Exception:  # noqa: BLE001
            # As in any logging handler, errors are printed on stderr, and not raised.
            self.handleError(record)
            return
        self._link.send(protocol.LOGGED, self._link.task, body)


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of *record* as values that can be pickled, and unpickled
    without running user code.
    """
    text = {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and not record.exc_text:
        text["exc_text"] = logging.Formatter().formatException(record.exc_info)
    rest = {
        name: _as_plain(value)
        for name, value in vars(record).items()
        if name not in text
    }
    return rest | text


def _as_plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else repr(value)


def _fields_of_task(job: Job | None) -> dict[str, Any]:
    """Return the fields that identify the task that logs, for log records and structlog
    events.

    Their values are None if no task runs.
    """
    values = (None,) * len(TASK_FIELDS) if job is None else _facts(job)
    return {"pid": os.getpid(), **dict(zip(TASK_FIELDS, values, strict=True))}


class Streams:
    """The standard streams of a worker. What tasks print on them is sent to the
    coordinator.

    Args:
        link: The worker's link.
    """

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self.forwarders: list[StdoutForwarder] = [
            StdoutForwarder(link, 1),
            StdoutForwarder(link, 2),
        ]
        """The raw streams below ``sys.stdout`` and ``sys.stderr``, which send printed
        text.
        """
        self._outputs: list[Any] = [*map(_text_on, self.forwarders)]
        self._input = _open_stdin()

    def current(self) -> tuple[Any, Any, Any]:
        """Return ``stdin``, ``stdout`` and ``stderr``. A stream that a task has closed
        is replaced by a new stream.
        """
        if _is_closed(self._input):
            self._input = _open_stdin()
        for index, stream in enumerate(self._outputs):
            if _is_closed(stream):
                self.forwarders[index] = StdoutForwarder(self._link, index + 1)
                self._outputs[index] = _text_on(self.forwarders[index])
        return self._input, self._outputs[0], self._outputs[1]


def _open_stdin() -> Any:
    """Return a stream on file descriptor 0, which stays open when the stream closes."""
    return open(0, closefd=False)


def _text_on(printed: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        printed, "utf-8", "backslashreplace", "", write_through=True
    )


def _is_closed(stream: Any) -> bool:
    """Return whether *stream* can no longer be read or written."""
    try:
        return bool(stream.closed)
    except ValueError:  # A stream whose buffer was detached cannot be used.
        return True


def take_over(link: WorkerLink, log_levels: Mapping[str, int]) -> Streams:
    """Replace the standard streams and log handlers, so that printed text and log
    records are sent, and return the new streams.
    """
    streams = Streams(link)
    sys.stdin, sys.stdout, sys.stderr = streams.current()
    root = logging.getLogger()
    root.handlers[:] = [LogSender(link)]
    for name, level in log_levels.items():
        logging.getLogger(name or None).setLevel(level)
    return streams


def bind_fields(link: WorkerLink, job: Job) -> None:
    """Configure structlog to send its events to the coordinator, with the fields of the
    task that begins.
    """
    structlog = sys.modules["structlog"]
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                partial(_send_event, link, structlog.DropEvent),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            # Events are sent, not logged in this process. So a logger needs only a
            # name, which is sent with the event.
            logger_factory=lambda *args: tuple(
                arg for arg in args if isinstance(arg, str)
            ),
            cache_logger_on_first_use=False,
        )
    structlog.contextvars.bind_contextvars(**_fields_of_task(job))


def _send_event(
    link: WorkerLink,
    drop: type[Exception],
    names: Any,
    method: str,
    event: Mapping[Any, Any],
) -> Any:
    """Send a structlog event to the coordinator. This function is the last processor of
    structlog's configuration.
    """
    fields = {str(name): _as_plain(value) for name, value in event.items()}
    body = pickle.dumps((names, method, fields))
    link.send(protocol.LOGGED, link.task, body, protocol.STRUCTURED)
    raise drop
