"""The use of worker processes over time, computed from the recorded calls.

A recorded call has one total of CPU time and one peak of memory. So the CPU time is
spread evenly over the duration of the call, and the memory of a moment is an upper
bound: the sum of the peaks of the workers that ran a call then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from flowpregel._inspection.call_rows import CallRow

MOST_MOMENTS: Final = 60
"""The number of parts into which the time of a run is divided."""
_SECOND: Final = 1e9


class UsageMoment(NamedTuple):
    """The use of the worker processes in a part of a run's time."""

    at: float
    """The seconds from the beginning of the run to the beginning of the part."""
    cpu: float
    """The mean number of CPUs that the calls used."""
    busy: float
    """The mean number of calls that ran in worker processes."""
    memory: int
    """The sum of the peak memory of the busy workers, in bytes."""


def worker_usage(
    rows: Iterable[CallRow],
    begin: int,
    end: int,
) -> tuple[UsageMoment, ...]:
    """Return the use of the worker processes over time.

    Args:
        rows: The calls that have ended. Those that ran elsewhere are left out.
        begin: The beginning of the run, in wall-clock nanoseconds.
        end: The end of the run.

    Example:
        >>> worker_usage([], 0, 1_000)
        ()
    """
    size = max(1, end - begin) / MOST_MOMENTS
    cpu = [0.0] * MOST_MOMENTS
    busy = [0.0] * MOST_MOMENTS
    peaks: defaultdict[int, dict[tuple[str, int], int]] = defaultdict(dict)
    for row in rows:
        if row.executor != "processes":
            continue
        duration = max(1.0, row.seconds * _SECOND)
        first_time = row.began - begin
        last_time = first_time + duration
        cpus = row.cpu * _SECOND / duration
        worker = row.host, row.pid
        first = _part_at(first_time, size)
        last = _part_at(last_time, size)
        for part in range(first, last + 1):
            part_begin = max(first_time, part * size)
            part_end = min(last_time, part * size + size)
            share = max(0.0, part_end - part_begin) / size
            busy[part] += share
            cpu[part] += cpus * share
            known_peak = peaks[part].get(worker, 0)
            peaks[part][worker] = max(known_peak, row.peak)
    if not peaks:
        return ()
    return tuple(
        UsageMoment(
            at=part * size / _SECOND,
            cpu=cpu[part],
            busy=busy[part],
            memory=sum(peaks[part].values()),
        )
        for part in range(MOST_MOMENTS)
    )


def _part_at(time: float, size: float) -> int:
    """Return the number of the part of a run's time that contains a moment.

    Args:
        time: The nanoseconds since the beginning of the run.
        size: The duration of a part.
    """
    part = int(time // size)
    return min(MOST_MOMENTS - 1, max(0, part))
