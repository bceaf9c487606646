"""What a task prints and logs, sent to the coordinator.

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
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from flowpregel.context import Job
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.worker_io import WorkerLink

_LONGEST: Final = 1 << 16
_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_LARGEST_FRAME: Final = 1 << 20
"""Bytes of output that are sent at once: the coordinator holds several copies of them."""


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
            body = pickle.dumps(_plain(record))
        except Exception:  # noqa: BLE001 - logging's own rule: told on stderr, never raised
            self.handleError(record)
            return
        self._link.send(protocol.LOGGED, self._link.task, body)


def _plain(record: logging.LogRecord) -> dict[str, Any]:
    """Return *record*'s fields, all of which can be pickled and are safe to unpickle."""
    fields = {
        name: _as_plain(value)
        for name, value in record.__dict__.items()
        if name not in ("args", "exc_info", "msg")
    }
    fields["msg"] = record.getMessage()
    fields["args"] = None
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    fields["exc_info"] = None
    return fields


def _as_plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else repr(value)


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
    structlog.contextvars.bind_contextvars(
        thread_id=job.run.thread_id,
        run_id=job.run.run_id,
        step=job.place.step,
        task=job.task.name,
        attempt=job.attempt,
        pid=os.getpid(),
    )


def _send_event(
    link: WorkerLink, drop: type[Exception], names: Any, method: str, event: Mapping[Any, Any]
) -> Any:
    """Send an event; the last of structlog's processors."""
    fields = {str(name): _as_plain(value) for name, value in event.items()}
    body = pickle.dumps((names, method, fields))
    link.send(protocol.LOGGED, link.task, body, protocol.STRUCTURED)
    raise drop
