"""What a task in a worker prints and logs."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from flowpregel.executors.processes.wire import protocol
from tests.process_changes import stop_reports
from tests.unit.executors.driven_workers import DrivenWorker, WorkerMaker, value
from tests.unit.executors.quick_pools import job_of
from tests.unit.executors.test_worker import surroundings

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def print_lines(*texts: str) -> None:
    """Print texts."""
    for text in texts:
        print(text, end="")
    print("error", file=sys.stderr)


def test_what_a_task_prints_is_sent_before_its_end(worker: DrivenWorker) -> None:
    """By whole lines, and what is left of one when it ends."""
    (number,) = worker.order(job_of(print_lines, "one\ntw", "o\nrest"))

    frames = [worker.frame(protocol.PRINTED) for _ in range(4)]

    assert [
        (0, b"one\n"),
        (0, b"two\n"),
        (protocol.STDERR, b"error\n"),
        (0, b"rest"),
    ] == [(frame.flags, frame.body) for frame in frames]
    assert {number} == {frame.number for frame in frames}
    worker.end(number)


def test_what_an_initializer_prints_is_of_no_task(worker_of: WorkerMaker) -> None:
    """It is sent before the worker is ready."""
    worker = worker_of(is_ready=False, initializer=pickle.dumps((print, ("loading",))))

    frame = worker.frame(protocol.PRINTED)

    assert (0, b"loading\n") == (frame.number, frame.body)
    worker.frame(protocol.READY)


def descriptors_of_streams() -> list[int]:
    """Return the descriptors of the standard streams."""
    return [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]


def test_the_standard_streams_have_the_usual_descriptors(worker: DrivenWorker) -> None:
    """A program that a task starts may be given them."""
    assert [0, 1, 2] == value(worker, descriptors_of_streams)


def log(name: str) -> None:
    """Log an error with what a reader needs."""
    try:
        int("x")
    except ValueError:
        logging.getLogger(name).exception(
            "it %s", "failed", extra={"size": {1}, "n": 2}
        )


def test_what_a_task_logs_is_sent_with_its_task(worker: DrivenWorker) -> None:
    """Its message and traceback as text, and nothing that only this process could
    read.
    """
    (number,) = worker.order(job_of(log, "steps"))

    frame = worker.frame(protocol.LOGGED)

    record = pickle.loads(frame.body)
    assert number == frame.number
    assert ("it failed", None, None) == (
        record["msg"],
        record["args"],
        record["exc_info"],
    )
    assert "ValueError" in record["exc_text"]
    assert ("{1}", 2) == (record["size"], record["n"])
    assert ("log", worker.pid, "run") == (
        record["task"],
        record["worker_pid"],
        record["run_id"],
    )
    worker.end(number)


def test_a_logger_that_is_quiet_here_is_quiet_there(worker: DrivenWorker) -> None:
    """Its records are not sent."""
    (number,) = worker.order(job_of(logging.getLogger("quiet").warning, "x"))

    worker.end(number)


def write_to_descriptor(text: bytes) -> None:
    """Write as a program in C would."""
    os.write(1, text)
    os.write(2, text)


def test_what_is_written_to_descriptors_goes_through_pipes(
    worker: DrivenWorker,
) -> None:
    """Those of stdout and of stderr."""
    value(worker, write_to_descriptor, b"raw")

    assert [b"raw", b"raw"] == [os.read(worker.stdout, 9), os.read(worker.stderr, 9)]


@pytest.mark.parametrize("before", [list, stop_reports])
def test_a_crash_leaves_its_tracebacks_on_stderr(
    before: Callable[..., Any], worker: DrivenWorker
) -> None:
    """Those of all its OS threads, whatever an earlier task did; the pipe outlives the
    worker.
    """
    value(worker, before)
    worker.order(job_of(os.abort))

    assert -signal.SIGABRT == worker.exit_code()
    report = os.read(worker.stderr, 1 << 16)
    assert b"Fatal Python error: Aborted" in report
    assert b"\nThread 0x" in report
    assert b"\nCurrent thread 0x" in report


def close_streams() -> None:
    """Close the standard streams."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_streams_that_a_task_has_closed_are_made_anew(worker: DrivenWorker) -> None:
    """The next task prints as if nothing had happened."""
    value(worker, close_streams)
    (number,) = worker.order(job_of(print_lines, "one\n"))

    frames = [worker.frame(protocol.PRINTED) for _ in range(2)]
    assert [(0, b"one\n"), (protocol.STDERR, b"error\n")] == [
        (frame.flags, frame.body) for frame in frames
    ]
    worker.end(number)
    assert "" == value(worker, surroundings)["stdin"]


def close_stdin() -> bool:
    """Close ``sys.stdin``; return whether its descriptor is still open."""
    sys.stdin.close()
    return os.isatty(0) or os.fstat(0).st_rdev > 0


def test_a_task_that_closes_stdin_leaves_its_descriptor_open(
    worker: DrivenWorker,
) -> None:
    """A file that it opens then is not the stdin of what it starts."""
    assert [True, True] == [value(worker, close_stdin) for _ in range(2)]


# ------------------------------------------------ what structlog does

events = structlog.get_logger()


def log_event(text: str) -> None:
    """Log an event of structlog."""
    try:
        int("x")
    except ValueError:
        events.exception(text, size={1}, n=2)


def test_an_event_of_structlog_is_sent_with_its_task(worker: DrivenWorker) -> None:
    """What is no plain value is text, so that it is safe to unpickle."""
    (number,) = worker.order(job_of(log_event, "seen"))

    frame = worker.frame(protocol.LOGGED)

    names, method, event = pickle.loads(frame.body)
    assert (protocol.STRUCTURED, number) == (frame.flags, frame.number)
    assert ((), "error") == (names, method)
    assert ("seen", "{1}", 2) == (event["event"], event["size"], event["n"])
    assert "ValueError" in event["exception"]
    assert ("log_event", worker.pid, "run") == (
        event["task"],
        event["pid"],
        event["run_id"],
    )
    worker.end(number)


def print_event(text: str) -> None:
    """Log an event of structlog that is printed."""
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(["event", "task"])],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    log_event(text)


def test_a_task_may_configure_structlog_after_another_has_logged(
    worker: DrivenWorker,
) -> None:
    """Its own configuration holds from then on, for a logger that was used before
    too.
    """
    for function in (log_event, print_event, log_event):
        numbers = worker.order(job_of(function, "seen"))
        frame = worker.frame()
        is_sent = frame.kind == protocol.LOGGED
        assert is_sent or frame.body.startswith(b"event='seen'"), frame
        assert is_sent == (1 == numbers[0])
        worker.end(numbers[0])
