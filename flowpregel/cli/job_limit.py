"""The time limit of the SLURM job in which a command runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from flowpregel import _clock
from flowpregel.cli.console import print_note

JOB_END: Final = "SLURM_JOB_END_TIME"
"""The environment variable with the end of the job, in seconds since the epoch."""
_RESERVE: Final = 30.0
"""Seconds between the grace period and the end of the job, in which workers end and
results are stored.
"""


def seconds_of_job(options: Mapping[str, Any]) -> float | None:
    """Return the seconds after which a run must stop, because the SLURM job ends soon
    after, or None outside a job.

    Args:
        options: The options of the run, of which ``stop_grace`` is the grace period.
    """
    from flowpregel.pregel.invocation import (  # noqa: PLC0415 - keeps --help fast
        STOP_GRACE,
    )

    try:
        job_end = float(os.environ.get(JOB_END, ""))
    except ValueError:
        return None
    grace = options.get("stop_grace")
    if grace is None:
        grace = STOP_GRACE
    return max(0.0, job_end - _RESERVE - grace - _clock.wall())


def print_limit(seconds: float) -> None:
    """Print that the time limit of the job stops the command.

    Args:
        seconds: The seconds until then.
    """
    print_note(
        f"note: stops in {seconds:,.0f} seconds, before the SLURM job ends "
        f"({JOB_END}); --stop-after sets another time"
    )


@contextmanager
def ended_after(seconds: float | None, end: Callable[[str], Any]) -> Iterator[None]:
    """Call *end* with a reason if the context is still open after some seconds.

    Args:
        seconds: The seconds, or None to never call it.
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
