"""Flows that the tests of the queue enqueue, by the name of this module."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

from flowpregel import signal
from flowpregel.checkpoint.durable import ScheduledFlow
from flowpregel.func import entrypoint, task
from flowpregel.runtime import get_runtime

FLOWS = "tests.runs.queue_flows"


@task
def append(file: str, line: str) -> str:
    """Append a line to a file, in one system call."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
    return line


@entrypoint(executor="threads")
def note(file: str, line: str) -> str:
    """Append one line."""
    return append(file, line).result()


@entrypoint(executor="threads")
def note_priority(file: str, priority: int) -> str:
    """Append one line; the parameter has the name of an option of `enqueue`."""
    return append(file, str(priority)).result()


@entrypoint(executor="threads")
def fail(text: str) -> None:
    """Raise an error."""
    raise ValueError(text)


@entrypoint(executor="threads")
def approve(name: str) -> object:
    """Wait for a signal."""
    return signal(name).result()


@task
def wait_for_file(begun: str, file: str) -> str:
    """Write *begun*, and wait until *file* exists, or the run must end."""
    Path(begun).touch()
    while not Path(file).exists():
        if get_runtime().stopping:
            return "stopped"
        time.sleep(0.01)
    return "found"


@entrypoint(executor="threads")
def two_parts(file: str, begun: str, gate: str) -> str:
    """Append a line, and then wait for a file."""
    append(file, "first part").result()
    found = wait_for_file(begun, gate).result()
    return append(file, found).result()


@entrypoint(executor="processes")
def wait_in_a_worker(begun: str, gate: str) -> str:
    """Wait for a file in a worker process, which can be stopped at once."""
    return wait_for_file(begun, gate).result()


@entrypoint(executor="threads", every="1s", catch_up="all")
def each_second(due: datetime, file: str = "") -> str:
    """Append the time at which the run was due."""
    file = file or os.environ["FLOWPREGEL_TEST_NOTES"]
    return append(file, due.isoformat()).result()


@entrypoint(executor="threads", every="1h")
def hourly(due: datetime) -> str:
    """Append the time at which the run was due."""
    return append(os.environ["FLOWPREGEL_TEST_NOTES"], due.isoformat()).result()


@entrypoint(executor="threads", every="1h", jitter="30m")
def scattered(due: datetime) -> str:
    """Append the time at which the run was due, after a delay."""
    return append(os.environ["FLOWPREGEL_TEST_NOTES"], due.isoformat()).result()


def since(moment: float) -> dict[str, ScheduledFlow]:
    """Return the hourly schedule, whose times until *moment* have been handled."""
    return {f"{FLOWS}:hourly": ScheduledFlow(moment)}
