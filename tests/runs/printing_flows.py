"""Workflows whose tasks print and log."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import structlog

from flowpregel.func import entrypoint, task

LONG = 60.0
"""Seconds that nothing takes, unless it is broken."""


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + LONG
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@task
def speak(name: str) -> str:
    """Print and log, in every way."""
    print("out", name)
    print("error", name, file=sys.stderr)
    logging.getLogger("study").warning("careful with %s", name)
    structlog.get_logger().info("seen", name=name)
    return name


@task
def shout(size: int) -> None:
    """Print so many bytes, with a beginning and an end."""
    print("first")
    print("x" * size)
    print("last")


@task
def silent() -> int:
    """Print nothing."""
    return 1


@task
def escape() -> None:
    """Print what a terminal would obey."""
    print("\x1b[2Jgone")


@task
def die() -> None:
    """Print, and be killed."""
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def stay(folder: str) -> None:
    """Print, then run until it is let go on."""
    print("still here", flush=True)
    Path(folder, "begun").touch()
    wait_for(Path(folder, "go"))
    print("and gone")


@entrypoint(executor="processes")
def speaking(names: list[str]) -> list[str]:
    """Call `speak` for each."""
    return [future.result() for future in speak.map(names)]


@entrypoint(executor="processes")
def shouting(size: int) -> None:
    """Call `shout` and `silent`."""
    shout(size).result()
    silent().result()


@entrypoint(executor="processes")
def escaping(_: int) -> None:
    """Call `escape`."""
    escape().result()


@entrypoint(executor="processes")
def dying(_: int) -> None:
    """Call `die`."""
    die().result()


@entrypoint(executor="processes")
def staying(folder: str) -> None:
    """Call `stay`."""
    stay(folder).result()
