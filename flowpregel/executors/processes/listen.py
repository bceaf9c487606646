"""Passes on what workers say: log records to the program's loggers, text to its streams."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from operator import attrgetter
from typing import Final

from flowpregel.executors.processes.death import Tail
from flowpregel.executors.processes.slot import Flight

_FIELDS: Final = (
    ("task", "name"),
    ("task_id", "task_id"),
    ("attempt", "attempt"),
    ("step", "step"),
    ("thread_id", "run.thread_id"),
    ("run_id", "run.run_id"),
)
"""What a record is given, and where a `TaskInfo` has it."""


def pass_on_record(body: bytes, flight: Flight | None, pid: int) -> None:
    """Give a worker's log record to the logger of its name, with what is known of its task."""
    fields = pickle.loads(body)
    record = logging.makeLogRecord(fields)
    info = flight.job.info if flight else None
    for name, attribute in _FIELDS:
        record.__dict__[name] = None if info is None else attrgetter(attribute)(info)
    record.__dict__["pid"] = record.__dict__["worker_pid"] = pid
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class Lines:
    """One stream of one worker, passed on line by line with a label.

    Args:
        to_stderr: Which of the program's streams gets it.
        tail: Also told, for a post-mortem.
    """

    def __init__(self, *, to_stderr: bool, tail: Tail | None = None) -> None:
        self._to_stderr = to_stderr
        self._tail = tail

    def write(self, text: str, flight: Flight | None, pid: int) -> None:
        """Pass *text* on; each line begins with the name of its task."""
        if self._tail is not None:
            self._tail.write(text)
        label = f"[{flight.job.info.name}]" if flight else f"[worker {pid}]"
        lines = "".join(f"{label} {line}\n" for line in text.splitlines())
        stream = sys.stderr if self._to_stderr else sys.stdout
        # A program that has closed its streams does not want to hear it.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.write(lines)
            stream.flush()
