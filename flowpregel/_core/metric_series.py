"""The series of a metric: its values over time, of which a bounded number is kept.

::

    runtime.metric("loss", 0.5)  ──► `MetricSeries.add` ──► at most 200 points
            │
            └─► `UnsentPoints.add` ──► twice a second, at most two points of each
                                       series, for readers of the run's activity
    the attempt ends             ──► `pack_series` ──► a medium of the call's preview
    a reader                     ──► `unpack_series` ──► times, values, steps

Every *n*-th value is kept, and the last one. When the points are too many, every second
of them is dropped, and *n* doubles. So the kept points are spread evenly over the call,
however many values it records, and recording a value takes the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from struct import Struct
from typing import Final, NamedTuple

MOST_POINTS: Final = 200
"""The greatest number of points that one series keeps."""
SERIES: Final = "series"
"""The kind of the preview's medium (larger part) that contains a series. The title of
the medium is the name of the metric.
"""
_POINT: Final = Struct("<ddd")
_SENDING_PERIOD: Final = 0.5
"""Seconds between two messages with the points of a running call."""


class MetricPoint(NamedTuple):
    """One value of a metric, with its time and step."""

    at: float
    """The time in seconds. In a running task, it is that of the monotonic clock; in a
    record, it is in seconds since the epoch.
    """
    value: float
    step: float
    """The number, such as that of an epoch, that the task passed as ``step``, or
    NaN.
    """


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The latest values of a task's metrics, emitted for readers of the run's
    activity.
    """

    points: Mapping[str, Sequence[MetricPoint]]
    """The points by the names of the metrics, with times in seconds since the epoch."""


class MetricSeries:
    """The values of one metric of a running call."""

    __slots__ = ("_count", "_last", "_points", "_stride")

    def __init__(self) -> None:
        self._points: list[MetricPoint] = []
        self._stride = 1
        """The number *n*: every *n*-th value is kept."""
        self._count = 0
        """The number of values that were added so far."""
        self._last: MetricPoint | None = None

    def add(self, at: float, value: float, step: float = nan) -> None:
        """Add a value.

        Args:
            at: The time in seconds, which is never before that of the previous value.
            value: The value of the metric at that time.
            step: The step, or NaN.
        """
        self._last = MetricPoint(at, value, step)
        if self._count % self._stride == 0:
            self._points.append(self._last)
            if len(self._points) == MOST_POINTS:
                self._points = self._points[::2]
                self._stride *= 2
        self._count += 1

    def points(self) -> list[MetricPoint]:
        """Return the points of the kept values. The value that was added last is always
        among them.
        """
        if self._last is None or self._last is self._points[-1]:
            return list(self._points)
        return [*self._points, self._last]


class UnsentPoints:
    """The points of a running call that were not sent to the coordinator yet.

    Points are first sent half a second after the first one was added, so a call that is
    shorter sends none.
    """

    __slots__ = ("_due", "_points")

    def __init__(self) -> None:
        self._points: dict[str, list[MetricPoint]] = {}
        self._due: float | None = None

    def add(
        self,
        name: str,
        point: MetricPoint,
    ) -> Mapping[str, list[MetricPoint]]:
        """Add a point, and return the points to send, if they are due: the first and
        the last of each metric since the points that were sent before.

        Args:
            name: The name of the metric.
            point: The newest value of the metric, with the present time.
        """
        points_of_name = self._points.setdefault(name, [])
        del points_of_name[1:]
        points_of_name.append(point)
        if self._due is None:
            self._due = point.at + _SENDING_PERIOD
        if point.at < self._due:
            return {}
        points = self._points
        self._points = {}
        self._due = point.at + _SENDING_PERIOD
        return points


def pack_series(
    series: Mapping[str, MetricSeries],
    clock_offset: float,
) -> list[tuple[str, str, bytes]]:
    """Return a medium for each series that has more than one point.

    Args:
        series: The series by the names of the metrics.
        clock_offset: The seconds to add to the times of the points.

    Example:
        >>> loss = MetricSeries()
        >>> loss.add(0.0, 0.5)
        >>> loss.add(1.0, 0.25, step=10)
        >>> [(name, kind, data)] = pack_series({"loss": loss}, clock_offset=100.0)
        >>> name, kind, unpack_series(data)[1]
        ('loss', 'series', MetricPoint(at=101.0, value=0.25, step=10.0))
    """
    media: list[tuple[str, str, bytes]] = []
    for name, metric in series.items():
        points = metric.points()
        if len(points) > 1:
            data = _point_bytes(points, clock_offset)
            media.append((name, SERIES, data))
    return media


def _point_bytes(points: Sequence[MetricPoint], clock_offset: float) -> bytes:
    records: list[bytes] = []
    for at, value, step in points:
        record = _POINT.pack(at + clock_offset, value, step)
        records.append(record)
    return b"".join(records)


def unpack_series(data: bytes) -> list[MetricPoint]:
    """Return the points of a recorded series.

    Raises:
        ValueError: The data is not that of a series.
    """
    if not data or len(data) % _POINT.size:
        raise ValueError(f"a series cannot have {len(data)} bytes")
    return [MetricPoint(*fields) for fields in _POINT.iter_unpack(data)]
