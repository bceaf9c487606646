"""The estimated time until calls have ended, from the durations of earlier calls.

The estimate is a range, in which the end is expected in most cases. It has three parts:

* The work: the mean duration for each waiting call, and for a call that runs, the mean
  of what is left of those durations that are longer than it has run.
* The spread of that sum, because durations differ, and because the mean of a few
  durations is uncertain. The range has two standard deviations on each side.
* The end: calls that wait share the workers, but the last call may run alone. So the
  upper end adds the longest duration.

The first durations of a run are the short ones, because the long calls have not ended
yet. So there is no estimate before each worker could have ended two calls. For the
upper end, the time for which calls have been running is added to the durations of the
ended calls, and the sum is divided by the number of ended calls. That is the mean
duration if a call is equally likely to end at any time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, sqrt
from typing import Final, NamedTuple

_MOST: Final = 200
"""The greatest number of durations that are kept for each task: the latest ones."""
_LEAST: Final = 3
"""The least number of ended calls of a task from which an estimate is made."""
_UNITS: Final = {
    "min": 60,
    "h": 3600,
}
"""The units of long durations in seconds, the smallest first."""
_ENOUGH: Final = 50
"""The number of ended calls that is enough for an estimate: with more, the durations of
calls in earlier runs are not used.
"""
_DEVIATIONS: Final = 2.0
"""The number of standard deviations on each side of the range."""


class TimeLeft(NamedTuple):
    """The estimated seconds until calls have ended, as a range."""

    low: float
    """The lower end of the range."""
    high: float
    """The upper end of the range."""

    def __str__(self) -> str:
        """Return the range as text, without false precision.

        Example:
            >>> str(TimeLeft(64.0, 122.3)), str(TimeLeft(40.2, 41.0))
            ('1 to 3 min', 'about 41 s')
        """
        unit = "s"
        size = 1
        for larger_unit, seconds in _UNITS.items():
            if self.high >= 1.5 * seconds:
                unit = larger_unit
                size = seconds
        low = round(self.low / size)
        high = ceil(self.high / size)
        if high - low <= 1:
            return f"about {high} {unit}"
        return f"{low} to {high} {unit}"


class PlannedTime(NamedTuple):
    """The estimated time of calls that a run would make."""

    range: TimeLeft
    """The estimated time, as a range."""
    at_once: int
    """The number of calls that are expected to run at the same time."""

    def __str__(self) -> str:
        """Return the estimate as text.

        Example:
            >>> str(PlannedTime(TimeLeft(480.0, 715.0), 8))
            '8 to 12 min, 8 calls at once'
        """
        if self.at_once == 1:
            return f"{self.range}, one call at a time"
        return f"{self.range}, {self.at_once:,} calls at once"


class CallDurations:
    """The durations of ended calls by task. Of each task, the latest are kept.

    Args:
        earlier: The durations of earlier runs, which are used until enough calls of a
            task have ended.
    """

    def __init__(self, earlier: CallDurations | None = None) -> None:
        self.earlier: CallDurations | None = earlier
        """The durations of earlier runs, or None."""
        self._samples: defaultdict[str, deque[float]] = defaultdict(
            partial(deque, maxlen=_MOST)
        )

    def add(self, name: str, seconds: float) -> None:
        """Add the duration of a call.

        Args:
            name: The name of the task.
            seconds: The duration of the call.
        """
        self._samples[name].append(seconds)

    def clear(self) -> None:
        """Remove all durations, except those of earlier runs."""
        self._samples.clear()

    def of(self, name: str) -> Sequence[float]:
        """Return the durations of calls of a task, in the order in which they ended.

        Args:
            name: The name of the task.
        """
        sample = self._samples.get(name, ())
        if self.earlier is None or len(sample) >= _ENOUGH:
            return sample
        return (*self.earlier.of(name), *sample)


class _Work:
    """The sum of durations that are not known yet."""

    def __init__(self) -> None:
        self.count: int = 0
        self.low: float = 0.0
        """The sum, if the calls take as long as those that have ended."""
        self.high: float = 0.0
        """The sum, if the calls take longer by the factor of `_growths`."""
        self.variance: float = 0.0
        self.longest: float = 0.0

    def add(
        self,
        count: int,
        sample: Sequence[float],
        growth: float,
    ) -> None:
        """Add calls whose durations are like those of a sample.

        Args:
            count: The number of the calls.
            sample: The durations of the calls in the sample.
            growth: The factor by which the durations may be longer.
        """
        from statistics import fmean, pstdev  # noqa: PLC0415 - 8 ms, only to estimate

        total = count * fmean(sample)
        self.count += count
        self.low += total
        self.high += total * growth
        self.longest = max(self.longest, *sample)
        # A single duration gives no information about the spread, so the duration
        # itself is used as the deviation.
        deviation = sample[0]
        if len(sample) > 1:
            deviation = pstdev(sample)
        deviation *= growth
        self.variance += count * deviation**2
        # All calls have the same error of the mean, so these errors are added and do
        # not average out.
        mean_error = deviation / sqrt(len(sample))
        self.variance += (count * mean_error) ** 2

    def add_overdue(self, elapsed: float) -> None:
        """Add a call that has run for longer than all others: it may end now, or take
        as long again.
        """
        self.count += 1
        self.high += elapsed
        self.longest = max(self.longest, elapsed)


def time_left(
    durations: CallDurations,
    running: Sequence[tuple[str, float]],
    waiting: Mapping[str, int],
    workers: int,
) -> TimeLeft | None:
    """Return the estimated time until calls have ended, or None if too little is known.

    Args:
        durations: The durations of earlier calls.
        running: The names of the calls that run, each with the seconds since its
            beginning.
        waiting: The number of calls of each task that wait, by name.
        workers: The number of calls that run at the same time.

    Example:
        >>> durations = CallDurations()
        >>> for seconds in (1.9, 2.0, 2.0, 2.1):
        ...     durations.add("fit", seconds)
        >>> str(time_left(durations, [], {"fit": 30}, workers=2))
        '29 to 33 s'
    """
    growths = _growths(durations, running, waiting, max(_LEAST, 2 * workers))
    if growths is None:
        return None
    work = _Work()
    for name, count in waiting.items():
        work.add(count, durations.of(name), growths[name])
    for name, elapsed in running:
        longer = [
            seconds - elapsed for seconds in durations.of(name) if seconds > elapsed
        ]
        if longer:
            work.add(1, longer, growths[name])
        else:
            work.add_overdue(elapsed)
    return _range_of(work, workers)


def _growths(
    durations: CallDurations,
    running: Sequence[tuple[str, float]],
    waiting: Mapping[str, int],
    least: int,
) -> dict[str, float] | None:
    """Return the factors by which calls may take longer than those that have ended, by
    name. Return None if fewer than *least* calls of a name have ended.
    """
    elapsed_by_name = dict.fromkeys(waiting, 0.0)
    for name, elapsed in running:
        elapsed_by_name[name] = elapsed_by_name.get(name, 0.0) + elapsed
    growths: dict[str, float] = {}
    for name, elapsed in elapsed_by_name.items():
        sample = durations.of(name)
        if len(sample) < least:
            return None
        growths[name] = 1.0
        total = sum(sample)
        if total:
            growths[name] += elapsed / total
    return growths


def _range_of(
    work: _Work,
    workers: int,
) -> TimeLeft | None:
    """Return the range for an amount of work, or None if there is nothing to do."""
    if not work.count:
        return None
    parallel = max(1, min(workers, work.count))
    spread = _DEVIATIONS * sqrt(work.variance)
    low = max(0.0, work.low - spread)
    high = work.high + spread
    alone = work.longest * (1 - 1 / parallel)
    return TimeLeft(
        low=low / parallel,
        high=high / parallel + alone,
    )
