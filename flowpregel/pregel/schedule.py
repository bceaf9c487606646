"""Schedules: the times at which `flowpregel work` begins runs of a workflow.

A schedule only computes times: it starts no run, and reads no clock. The id of a run
contains the time at which the run is due, so two processes that see the same time begin
one run.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from flowpregel.errors import ConfigurationError
from flowpregel.units import seconds_in

if TYPE_CHECKING:
    from types import ModuleType
    from zoneinfo import ZoneInfo

CatchUp: TypeAlias = Literal["skip", "last", "all"]
"""The missed due times (no process was running to start their runs) for which runs are
started later: none, the last one, or all.
"""
MOST_AT_ONCE: Final = 1_000
"""The greatest number of missed due times for which runs are started at once."""
PUNCTUAL: Final = 60.0
"""Seconds after which a due time is regarded as missed."""
_MARGIN: Final = timedelta(hours=3)
"""The times of a cron expression after a moment are computed from an earlier moment on,
by this margin, and those before the moment are dropped. Otherwise the times around a
change of the clocks (to or from summer time) would depend on whether the computation
starts before or after the change.
"""
_WINDOWS: Final = tuple(timedelta(days=days) for days in (1, 40, 400, 20_000))
"""The lengths of the periods, each of which ends now, in which the last due time is
searched for. A longer period is searched only if the shorter ones contain no due time.
"""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The times at which runs of a workflow are due.

    Example:
        >>> from datetime import UTC, datetime
        >>> schedule = Schedule(every=3600)
        >>> noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
        >>> [str(due) for due in schedule.next_times(noon, 2)]
        ['2026-05-01 13:00:00+00:00', '2026-05-01 14:00:00+00:00']
        >>> [due.hour for due in schedule.due_times(noon, noon.replace(hour=16))]
        [16]
    """

    cron: str | None = None
    """The times as a cron expression of five fields, or six with seconds first."""
    every: float | timedelta | str | None = None
    """The period: seconds, a timedelta, or a string such as ``1h30m``. The periods are
    counted from 1970-01-01 00:00 UTC, so that all processes agree.
    """
    timezone: str = "UTC"
    """The name of the time zone of the cron expression, such as ``Europe/Berlin``."""
    catch_up: CatchUp = "last"
    """The missed due times for which runs are started later."""
    jitter: float | timedelta | str = 0.0
    """The longest delay of a run. The delay is chosen by the run's id, so all processes
    agree.
    """

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise ConfigurationError("a schedule has either cron= or every=")
        if self.catch_up not in get_args(CatchUp):
            raise ConfigurationError(
                f"catch_up={self.catch_up!r}; use 'skip', 'last' or 'all'"
            )
        try:
            self._zone()
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"timezone={self.timezone!r} is no time zone; use a name such as "
                "'Europe/Berlin'"
            ) from error
        if self.every is not None:
            _seconds_of_period("every", self.every, least=1.0)
        _seconds_of_period("jitter", self.jitter, least=0.0)
        if self.cron is not None:
            self._check_cron(self.cron)

    @staticmethod
    def _check_cron(cron: str) -> None:
        """Refuse a *cron* that is not a cron expression.

        Raises:
            ConfigurationError: *cron* is not a cron expression.
        """
        cronsim = _imported_cronsim()
        try:
            cronsim.CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC))
        except (AttributeError, cronsim.CronSimError) as error:
            raise ConfigurationError(f"cron={cron!r}: {error}") from error

    def next_times(self, after: datetime, count: int = 1) -> list[datetime]:
        """Return the first due times after a moment, in the schedule's time zone.

        Args:
            after: The moment, with a time zone.
            count: The number of times.
        """
        return list(islice(self._times(after), count))

    def due_times(self, since: datetime, now: datetime) -> list[datetime]:
        """Return the times at which runs must begin now, in order.

        Args:
            since: The time up to which the runs of all due times are already enqueued.
            now: The present time.
        """
        if self.catch_up == "all":
            times = takewhile(lambda due: due <= now, self._times(since))
            return list(islice(times, MOST_AT_ONCE))
        last = self._last_time(since, now)
        if last is None:
            return []
        is_missed = (now - last).total_seconds() > PUNCTUAL
        return [] if is_missed and self.catch_up == "skip" else [last]

    def delay(self, run_id: str) -> timedelta:
        """Return the delay of a run, which is less than the jitter.

        Args:
            run_id: The id of the run.
        """
        longest = _seconds_of_period("jitter", self.jitter, least=0.0)
        fraction = zlib.crc32(run_id.encode()) / 2**32
        return timedelta(seconds=longest * fraction)

    def _zone(self) -> ZoneInfo:
        """Return the time zone.

        Raises:
            KeyError, ValueError, TypeError, OSError: There is no such time zone.
        """
        from zoneinfo import ZoneInfo  # noqa: PLC0415 - 4 ms, only for schedules

        return ZoneInfo(self.timezone)

    def _last_time(self, since: datetime, now: datetime) -> datetime | None:
        """Return the last due time after *since* and not after *now*, or None."""
        for window in _WINDOWS:
            start = max(since, now - window)
            last = None
            for due in takewhile(lambda due: due <= now, self._times(start)):
                last = due
            if last is not None or start == since:
                return last
        return None

    def _times(self, after: datetime) -> Iterator[datetime]:
        """Yield the due times after a moment, in order."""
        zone = self._zone()
        times = self._periods(after) if self.cron is None else self._cron_times(after)
        for due in times:
            yield _with_fixed_offset(due.astimezone(zone))

    def _periods(self, after: datetime) -> Iterator[datetime]:
        """Yield the beginnings of periods after a moment."""
        period = _seconds_of_period("every", self.every, least=1.0)
        number = int(after.timestamp() // period) + 1
        while True:
            yield datetime.fromtimestamp(number * period, UTC)
            number += 1

    def _cron_times(self, after: datetime) -> Iterator[datetime]:
        """Yield the times of the cron expression after a moment.

        A time that the clocks skip in spring is due right after the change. A time that
        they repeat in autumn is due once, unless the expression is for each hour or
        minute.
        """
        cronsim = _imported_cronsim()
        begin = (after - _MARGIN).astimezone(self._zone())
        last = after.astimezone(UTC)
        for local in cronsim.CronSim(self.cron, begin):
            due = local.astimezone(UTC)
            if due > last:
                last = due
                yield due


def scheduled_run_id(flow: str, due: datetime) -> str:
    """Return the id of the run of a workflow that is due at a time.

    Example:
        >>> scheduled_run_id("jobs:study", datetime(2026, 5, 1, 3, tzinfo=UTC))
        'jobs:study@2026-05-01T03:00:00Z'
    """
    return f"{flow}@{due.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _with_fixed_offset(moment: datetime) -> datetime:
    """Return a time with a fixed offset from UTC in place of the time zone."""
    offset = moment.utcoffset() or timedelta()
    return moment.replace(tzinfo=timezone(offset) if offset else UTC, fold=0)


def _seconds_of_period(name: str, period: Any, *, least: float) -> float:
    """Return a period in seconds.

    Raises:
        ConfigurationError: The value is not a period, or is shorter than *least*
            seconds.
    """
    seconds: Any = period
    if isinstance(period, timedelta):
        seconds = period.total_seconds()
    elif isinstance(period, str):
        seconds = seconds_in(period)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not least <= seconds < float("inf"):
        raise ConfigurationError(
            f"{name}={period!r}; use seconds, a timedelta, or a text such as '1h30m', "
            f"of at least {least:g} seconds"
        )
    return float(seconds)


def _imported_cronsim() -> ModuleType:
    """Import the package that understands cron expressions.

    Raises:
        ConfigurationError: The package cronsim is not installed.
    """
    try:
        import cronsim  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "cron= needs the package cronsim, which is not installed; get it with: pip "
            "install 'flowpregel[schedule]'"
        ) from error
    return cronsim
