"""The time limit of the SLURM job in which a command runs."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from flowpregel import _clock
from flowpregel.cli.console import print_note

JOB_END: Final = "SLURM_JOB_END_TIME"
"""The environment variable with the end of the job, in seconds since the epoch."""
JOB_ID: Final = "SLURM_JOB_ID"
"""The environment variable with the id of the job."""
_SQUEUE_PATIENCE: Final = 10.0
"""Seconds to wait for an answer of SLURM."""
_RESERVE: Final = 30.0
"""Seconds between the end of the grace period and the end of the job. In this time,
workers end and results are stored.
"""


def seconds_of_job(options: Mapping[str, Any]) -> float | None:
    """Return the seconds after which a run must stop, because its SLURM job ends soon
    after that. Return None outside a job.

    Args:
        options: The options of the run, of which ``stop_grace`` is the grace period.
    """
    from flowpregel.pregel.invocation import (  # noqa: PLC0415 - keeps --help fast
        STOP_GRACE,
    )

    job_end = _end_of_job()
    if job_end is None:
        return None
    grace = options.get("stop_grace")
    if grace is None:
        grace = STOP_GRACE
    return max(0.0, job_end - _RESERVE - grace - _clock.wall())


def _end_of_job() -> float | None:
    """Return the end of the SLURM job in seconds since the epoch. Return None outside
    a job, and if the job has no time limit.
    """
    try:
        return float(os.environ[JOB_END])
    except ValueError:
        return None
    except KeyError:
        job = os.environ.get(JOB_ID)
    return None if job is None else _queried_end(job)


def _queried_end(job: str) -> float | None:
    """Return the end of a job as SLURM's controller reports it, or None.

    Some versions of SLURM, such as 22.05, do not set the variable `JOB_END`.

    Args:
        job: The id of the job.
    """
    # If the id is that of a job array, `squeue` prints a line for each job of the
    # array.
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%A %e"]
    try:
        result = subprocess.run(
            command,
            env={**os.environ, "TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_SQUEUE_PATIENCE,
        )
    except (OSError, subprocess.SubprocessError):
        # A container may lack SLURM's commands. Then the end of the job is unknown.
        return None
    for line in result.stdout.splitlines():
        line_job, _, end = line.strip().partition(" ")
        if line_job == job:
            try:
                return datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp()
            except ValueError:
                return None  # NONE or N/A: the job has no time limit.
    return None


def print_limit(seconds: float) -> None:
    """Print a note that the time limit of the job will stop the command.

    Args:
        seconds: The seconds until the command is stopped.
    """
    print_note(
        f"note: stops in {seconds:,.0f} seconds, before the SLURM job ends; "
        "--stop-after sets another time"
    )


@contextmanager
def ended_after(seconds: float | None, end: Callable[[str], Any]) -> Iterator[None]:
    """Call *end* with a reason if the context is still open after some seconds.

    Args:
        seconds: The seconds after which *end* is called, or None to never call it.
        end: The function, which another OS thread calls.
    """
    if seconds is None:
        yield
        return
    reason = f"the command has run for {seconds:,.0f} seconds"
    timer = threading.Timer(seconds, end, [reason])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
