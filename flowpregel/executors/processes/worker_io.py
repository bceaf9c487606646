"""What surrounds the tasks of a worker: its process, and where what they print and log
goes.

Text that Python code prints goes over the link, in order with everything else a
task sends, so it is labelled exactly. What C code and programs write to
descriptors 1 and 2 goes through pipes and gets the label of the task that runs.

structlog's events go to the coordinator's structlog, unless a module that tasks import
configures structlog for the workers too. Either way the run's fields are bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import logging
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from flowpregel.context import Job
from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.io_loop import WorkerLink

_PR_SET_PDEATHSIG: Final = 1
_LOOK_EVERY: Final = 1.0
_LONGEST_LINE: Final = 1 << 16
_LARGEST_FRAME: Final = 1 << 20
"""Bytes of output that are sent at once: the coordinator holds several copies of
them.
"""
TASK_FIELDS: Final = ("task", "attempt", "step", "thread_id", "run_id")
_facts: Final = attrgetter(
    "task.name", "task.attempt", "place.step", "run.thread_id", "run.run_id"
)
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


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
        target=watch_coordinator,
        args=(coordinator,),
        name="flowpregel-watchdog",
        daemon=True,
    ).start()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    faulthandler.enable(file=2, all_threads=True)
    import multiprocessing  # noqa: PLC0415 - loaded by loky anyway

    # With loky's method, pools that tasks make would respawn without end.
    multiprocessing.set_start_method("spawn", force=True)
    part_from_trackers()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the OS thread that started it ends
    (Linux).
    """
    # no mutant: the watchdog does the same, a moment later
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        # no mutant: the kernel does not read the last three
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def watch_coordinator(coordinator: int) -> None:
    """End this process and all of its group when the coordinator is gone."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has pidfds
        ended = os.pidfd_open(coordinator)
        if os.getppid() == coordinator:
            select.select([ended], [], [])
    while os.getppid() == coordinator:
        time.sleep(_LOOK_EVERY)
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    # no mutant: the parent is gone, so the exit code is not read
    os._exit(1)


# ------------------------------------------------ what tasks print and log


class Printed(io.RawIOBase):
    """What is beneath ``sys.stdout`` or ``sys.stderr``: sends whole lines, with their
    task.
    """

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
            ids = {
                "worker_pid": os.getpid(),
                "task_id": None if job is None else job.task.id,
            }
            body = pickle.dumps(_fields_of(record) | _fields_of_task(job) | ids)
        except Exception:  # noqa: BLE001 - logging's own rule: told on stderr, never raised
            self.handleError(record)
            return
        self._link.send(protocol.LOGGED, self._link.task, body)


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return *record*'s fields, all of which can be pickled and are safe to
    unpickle.
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
    """Return what records and events are given of the task that logs; None: there is
    none.
    """
    values = (None,) * len(TASK_FIELDS) if job is None else _facts(job)
    return {"pid": os.getpid(), **dict(zip(TASK_FIELDS, values, strict=True))}


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


class Streams:
    """The standard streams of a worker: what tasks print there is sent.

    Args:
        link: The worker's.
    """

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self.printed = [Printed(link, 1), Printed(link, 2)]
        """What takes the prints."""
        self._outputs: list[Any] = [*map(_text_on, self.printed)]
        self._input: Any = open(0, closefd=False)  # noqa: SIM115 - as long as the process

    def current(self) -> tuple[Any, Any, Any]:
        """Return ``stdin``, ``stdout`` and ``stderr``, made anew where a task has
        closed them.
        """
        if _is_closed(self._input):
            self._input = open(0, closefd=False)  # noqa: SIM115 - as long as the process
        for index, stream in enumerate(self._outputs):
            if _is_closed(stream):
                self.printed[index] = Printed(self._link, index + 1)
                self._outputs[index] = _text_on(self.printed[index])
        return self._input, self._outputs[0], self._outputs[1]


def _text_on(printed: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        printed, "utf-8", "backslashreplace", "", write_through=True
    )


def _is_closed(stream: Any) -> bool:
    """Return whether nothing can be read from *stream*, or written to it, any more."""
    try:
        return bool(stream.closed)
    except ValueError:  # its buffer was detached
        return True


def take_over(link: WorkerLink, log_levels: Mapping[str, int]) -> Streams:
    """Send this worker's log records and prints; return the streams that take the
    prints.
    """
    streams = Streams(link)
    sys.stdin, sys.stdout, sys.stderr = streams.current()
    root = logging.getLogger()
    root.handlers[:] = [LogSender(link)]
    for name, level in log_levels.items():
        logging.getLogger(name or None).setLevel(level)
    return streams


def own_description(fd: int, mode: int) -> None:
    """Give *fd*, one end of a pipe, a file description that no other process has
    (Linux).

    A task may set it blocking or not, and nobody else sees that.
    """
    with contextlib.suppress(OSError):  # without /proc it stays shared
        opened = os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)
        os.dup2(opened, fd, inheritable=False)
        os.close(opened)


def part_from_trackers() -> None:
    """Share no file description with the trackers of named resources, nor hand theirs
    down.

    Every process of the program writes to their pipes: one that a task set non-blocking
    was so for the program as well.
    """
    from multiprocessing import resource_tracker  # noqa: PLC0415 - loaded by loky anyway

    from loky.backend import resource_tracker as loky_tracker  # noqa: PLC0415 - loaded anyway

    trackers: tuple[Any, ...] = (resource_tracker, loky_tracker)
    for fd in {each._resource_tracker._fd for each in trackers} - {None}:  # noqa: SLF001
        own_description(fd, os.O_WRONLY)


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
    """Send an event; the last of structlog's processors."""
    fields = {str(name): _as_plain(value) for name, value in event.items()}
    body = pickle.dumps((names, method, fields))
    link.send(protocol.LOGGED, link.task, body, protocol.STRUCTURED)
    raise drop
