"""What runs on the machines: tasks that note in a file where and how often they ran."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowpregel.errors import WorkerDiedError
from flowpregel.func import task
from flowpregel.types import RetryPolicy


def note(file: str, line: str) -> None:
    """Append a line in one write."""
    with Path(file).open("a") as out:
        out.write(f"{line}\n")


@task
def steady(file: str, number: int, seconds: float) -> int:
    """Take some seconds, and note the beginning and the end."""
    note(file, f"begin {number} {os.getpid()}")
    time.sleep(seconds)
    note(file, f"end {number} {os.getpid()}")
    return number


@task
def echo(file: str, number: int, seconds: float, value: bytes) -> bytes:
    """Return the value after some seconds, and note the beginning."""
    note(file, f"begin {number} {os.getpid()}")
    time.sleep(seconds)
    return value


@task(retry_policy=RetryPolicy(max_attempts=2, retry_on=WorkerDiedError))
def fragile(file: str, number: int) -> int:
    """Kill its own process the first time."""
    mark = Path(f"{file}.{number}")
    if not mark.exists():
        mark.touch()
        os.abort()
    return number
