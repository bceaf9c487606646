"""What the tests of watching have in common: looking until something is seen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.tasks import TaskRecords
from flowpregel.checkpoint.durable import DurableSaver

Found = TypeVar("Found")
_LONG = 60.0
"""Seconds after which a test gives up: no test is about how long anything takes."""


def until(look: Callable[[], Found | None]) -> Found:
    """Return what *look* finds, as soon as it finds something."""
    end = time.monotonic() + _LONG
    while not (found := look()):
        assert time.monotonic() < end, "it was never seen"
        time.sleep(0.01)
    return found


def reading(saver: DurableSaver, **options: int) -> AbstractContextManager[StoreReader]:
    """Read what the saver's store keeps."""
    return closing(StoreReader(saver, **options))


@contextmanager
def counted_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Note each record that is decoded."""
    decoded: list[bytes] = []
    original = TaskRecords.record

    def record(self: TaskRecords, data: bytes) -> object:
        decoded.append(data)
        return original(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(TaskRecords, "record", record)
        yield decoded


JOB = """
import os, sys, time
from flowpregel import entrypoint, report_progress, task

@task
def hold(n):
    open(f"{sys.argv[2]}.begun", "a").close()
    report_progress(n, 10, "at it \\x1b[2J")
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    return n

@entrypoint(checkpointer=sys.argv[1], executor="threads")
def flow(count):
    return [each.result() for each in [hold(n) for n in range(count)]]

if __name__ == "__main__":
    flow.invoke(3, thread_id="job", max_concurrency=2, durability="sync")
"""


@contextmanager
def job(folder: Path, store: str = "store") -> Iterator[subprocess.Popen[bytes]]:
    """Run three tasks, two at a time, in another process; they end when a file ``go``
    is there.

    When a file ``go.begun`` is there, a task runs: the run's first commit is on disk.
    """
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, "job.py", store, "go"]
    process = subprocess.Popen(command, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
