"""Two days of a program: what its tasks report, and a process that runs many programs
at once.

``python -m tests.runs.replay.working_days JOBS`` imports the library once, and
forks for each job, so that a program has a process of its own for some hundredths of a
second.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

EVENTS = "events"
"""The file in which a program reports, in the order of time."""
OUTCOME = "outcome"
NOTICE, FAILED, AGAIN = "notice: ", "failed: ", "again"
"""How events begin that are no calls."""
DAY = "WORKING_DAY"
FIRST, SECOND = "first", "second"
AT_ONCE = 2
LIMIT = 60
"""Seconds after which a program has hung."""


class Job(NamedTuple):
    """A program to run."""

    folder: str
    """The folder that has it, as ``program.py``; it runs there."""
    day: str
    """`FIRST` or `SECOND`."""


def is_first() -> bool:
    """Return whether this is the day before the edit."""
    return os.environ[DAY] == FIRST


def note(event: str) -> None:
    """Report that a call runs."""
    with open(EVENTS, "a", encoding="utf-8") as events:
        events.write(json.dumps(event) + "\n")


def power_cut(call: str = "") -> None:
    """Fail, on the first day, in *call* or, without one, in a body."""
    if is_first():
        note(FAILED + call)
        raise OSError("power cut")


def kill(call: str) -> None:
    """Kill the process, on the first day, in *call*."""
    if is_first():
        note(FAILED + call)
        os.kill(os.getpid(), signal.SIGKILL)


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    note(f"{NOTICE}{message}")


def _run(job: Job) -> None:
    """Run a program in this process, and write what came of it."""
    os.chdir(job.folder)
    os.environ[DAY] = job.day
    signal.alarm(LIMIT)
    sys.path.insert(0, job.folder)
    warnings.simplefilter("always")
    warnings.showwarning = _show_warning
    try:
        program = importlib.import_module("program")
        outcome = {"result": repr(program.main())}
        if not is_first() and not hasattr(program, "ONCE"):
            note(AGAIN)
            outcome["again"] = repr(program.main())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what came of it
        outcome = {
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc(),
        }
    Path(OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")


def _run_all(jobs: list[Job]) -> None:
    """Run each of *jobs* in a process of its own, `AT_ONCE` at a time."""
    running = 0
    for job in jobs:
        if running == AT_ONCE:
            os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                _run(job)
                sys.stdout.flush()
            finally:
                os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    for module in (
        "lmdb",
        "func",
        "graph",
        "checkpoint.lmdb",
        "executors.local",
        "pregel.runner",
    ):
        importlib.import_module(module if module == "lmdb" else f"flowpregel.{module}")
    _run_all([Job(*job) for job in json.load(sys.stdin)])
