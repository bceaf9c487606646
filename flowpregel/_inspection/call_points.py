"""The calls of a run (a sweep over parameters, for example) as points of a plot, few
enough for a browser to draw.

::

    calls that match the query, and have a number for x and for y
         | a scatter plot: one call of each cell of a grid
         | a line: the least and the greatest y of each interval of x
         v
    at most `PlotQuery.most` points, each of them a call

The extreme values remain, because each cell and each interval with points keeps one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import CallQuery, FieldValue
from flowpregel._inspection.call_rows import NUMBER_NAMES
from flowpregel._inspection.call_table import CallTable

ORDER: Final = "order"
"""The name of the field with the position of a call in the plot, counted from 1."""
_NUMBERS: Final = (
    "took",
    *NUMBER_NAMES,
    "began",
    "tries",
)
"""The numeric fields that every call has, in the order in which they are offered."""
_GROUPS: Final = ("task", "state", "worker", "host")
"""The fields that every call has, and by which points can be coloured."""
_MOST_COLOURS: Final = 8
"""The greatest number of colours for which the points are reduced separately. With more
colours, all points are reduced together.
"""
_FEWEST_POINTS: Final = 100
_MOST_POINTS: Final = 10_000
_SECOND: Final = 1e9
_Reader: TypeAlias = Callable[[int], FieldValue]
"""A function that takes the number of a call, and returns a field of the call."""


@dataclass(frozen=True, kw_only=True)
class PlotQuery:
    """A request for the points of a plot."""

    x: str
    """The field of the horizontal axis, or ``"order"`` for the calls in order."""
    y: str
    """The field of the vertical axis."""
    colour: str = ""
    """The field by which points are coloured, or an empty string."""
    is_line: bool = False
    """True for a line along x, false for a scatter plot."""
    most: int = 4_000
    """The limit on the points, from 100 to 10,000."""


class CallPoint(NamedTuple):
    """A call as a point of a plot."""

    x: float
    """The value of the horizontal axis."""
    y: float
    """The value of the vertical axis."""
    colour: FieldValue
    """The value by which the point is coloured."""
    number: int
    """The number of the call in the index."""


class CallPlot(NamedTuple):
    """The points of a plot."""

    points: Sequence[CallPoint]
    """The points in ascending order of x."""
    total: int
    """The number of calls that match the query and have a number for both axes."""


class PlotFields(NamedTuple):
    """The fields of a run's calls that a person can choose for a plot."""

    chosen: tuple[str, ...]
    """The numeric fields that the user's code named: arguments, metrics, results."""
    common: tuple[str, ...]
    """The numeric fields that every call has."""
    groups: tuple[str, ...]
    """The fields by which points are coloured."""


def plot_fields(index: CallIndex) -> PlotFields:
    """Return the fields that a plot of a run's calls can show.

    Args:
        index: The calls of the run.

    Example:
        >>> from flowpregel.watching import CallIndex
        >>> plot_fields(CallIndex()).common
        ('order', 'took', 'cpu', 'memory', 'began', 'tries')
    """
    fields = index.table.fields
    numeric: list[str] = []
    for name, values in fields.items():
        numbers = map(_as_number, values.values())
        if any(number is not None for number in numbers):
            numeric.append(name)
    return PlotFields(
        chosen=tuple(numeric),
        common=(ORDER, *_NUMBERS),
        groups=(*fields, *_GROUPS),
    )


def call_plot(index: CallIndex, calls: CallQuery, plot: PlotQuery) -> CallPlot:
    """Return the points of a plot of a run's calls.

    Args:
        index: The calls of the run.
        calls: The query that chooses calls. Its order and its page have no effect.
        plot: The axes and the colour.

    Example:
        >>> from flowpregel.watching import CallIndex, CallQuery, PlotQuery
        >>> plot = PlotQuery(x="order", y="took")
        >>> call_plot(CallIndex(), CallQuery(), plot).total
        0
    """
    numbers = calls_in_order(index, calls)
    points = _plotted_points(index.table, numbers, plot)
    total = len(points)
    most = max(plot.most, _FEWEST_POINTS)
    most = min(most, _MOST_POINTS)
    if total > most:
        cells = _Cells(points)
        reduce = cells.extremes if plot.is_line else cells.one_each
        points = reduce(most)
    return CallPlot(
        points=points,
        total=total,
    )


def _by_x(point: CallPoint) -> float:
    return point.x


def calls_in_order(index: CallIndex, query: CallQuery) -> list[int]:
    """Return the calls that match a query, in the order of their supersteps and, within
    a superstep, of their positions. Tasks that no task called (nodes, and the bodies of
    workflows) are left out, unless no other tasks match.
    """
    columns = index.table.columns
    callers = columns["caller"]
    steps = columns["step"]
    paths = columns["path"]

    def position(number: int) -> tuple[int, str]:
        """Return the superstep and the path (position in the superstep) of a call."""
        return steps[number], paths[number]

    numbers = index.select(query)
    nested = [number for number in numbers if callers[number]]
    return sorted(
        nested or numbers,
        key=position,
    )


def _plotted_points(
    table: CallTable,
    numbers: Sequence[int],
    plot: PlotQuery,
) -> list[CallPoint]:
    """Return a point for each call that has a number for both axes, in ascending order
    of x.
    """
    read_x = _axis(table, numbers, plot.x)
    read_y = _axis(table, numbers, plot.y)
    read_colour: _Reader = _no_colour
    if plot.colour:
        read_colour = table.value_of(plot.colour)
    points: list[CallPoint] = []
    for number in numbers:
        x = _as_number(read_x(number))
        y = _as_number(read_y(number))
        if x is None or y is None:
            continue
        point = CallPoint(
            x=x,
            y=y,
            colour=read_colour(number),
            number=number,
        )
        points.append(point)
    points.sort(key=_by_x)
    return points


def _no_colour(_: int) -> FieldValue:
    return None


def _axis(
    table: CallTable,
    numbers: Sequence[int],
    field: str,
) -> _Reader:
    """Return a function that returns the value of a field for an axis."""
    if field == "began":
        return _seconds_since_first(table)
    if field != ORDER:
        return table.value_of(field)
    positions = dict(zip(numbers, count(1), strict=False))
    return positions.get


def _seconds_since_first(table: CallTable) -> _Reader:
    """Return a function that returns the seconds from the beginning of the first call
    to the beginning of a call.
    """
    began: Sequence[int] = table.columns["began"]
    known = filter(None, began)
    first = min(known, default=0)

    def seconds(number: int) -> float | None:
        """Return the seconds, or None if the call has not begun."""
        at = began[number]
        if not at:
            return None
        return (at - first) / _SECOND

    return seconds


def _as_number(value: FieldValue) -> float | None:
    """Return a finite number, or None for any other value."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, (int, float)):
        return None
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        # The integer is too large for a float, so the plot cannot show it.
        return None
    return value if is_finite else None


class _Cells:
    """The points of a plot that has too many points, divided into the cells of a grid.

    Points of different colours are reduced separately, unless there are many colours.

    Args:
        points: The points in ascending order of x.
    """

    def __init__(self, points: Sequence[CallPoint]) -> None:
        self._points = points
        self._xs = [point.x for point in points]
        self._ys = [point.y for point in points]
        colours = {point.colour for point in points}
        self._is_grouped = len(colours) <= _MOST_COLOURS
        self._group_count = 1
        if self._is_grouped:
            self._group_count = len(colours)

    def one_each(self, most: int) -> list[CallPoint]:
        """Return at most *most* points: one of each group in each cell of a grid."""
        cells = most // self._group_count
        points = self._one_each_of(cells)
        # A single outlier leaves most cells of a coarse grid empty, so finer grids are
        # tried too.
        for factor in (4, 16):
            if len(points) > most // 2:
                break
            finer = self._one_each_of(factor * most)
            if len(finer) <= most:
                points = finer
        return points

    def _one_each_of(self, cells: int) -> list[CallPoint]:
        """Return one point for each cell of a grid and each group (colour)."""
        rows = max(1, math.isqrt(cells // 2))
        columns = max(1, cells // rows)
        column_of = _scale(self._xs, columns)
        row_of = _scale(self._ys, rows)
        points: dict[tuple[FieldValue, int, int], CallPoint] = {}
        for point in self._points:
            group = self._group(point)
            column = column_of(point.x)
            row = row_of(point.y)
            points.setdefault((group, column, row), point)
        return list(points.values())

    def extremes(self, most: int) -> list[CallPoint]:
        """Return at most *most* points: those with the least and the greatest y in each
        interval of x, and the ends of each line.
        """
        intervals = most // (2 * self._group_count) - 1
        interval_of = _scale(self._xs, intervals)
        first: dict[FieldValue, CallPoint] = {}
        last: dict[FieldValue, CallPoint] = {}
        least: dict[tuple[FieldValue, int], CallPoint] = {}
        greatest: dict[tuple[FieldValue, int], CallPoint] = {}
        for point in self._points:
            group = self._group(point)
            first.setdefault(group, point)
            last[group] = point
            key = (group, interval_of(point.x))
            lowest = least.setdefault(key, point)
            if point.y < lowest.y:
                least[key] = point
            highest = greatest.setdefault(key, point)
            if point.y > highest.y:
                greatest[key] = point
        points: set[CallPoint] = set()
        points.update(first.values())
        points.update(last.values())
        points.update(least.values())
        points.update(greatest.values())
        return sorted(points, key=_by_x)

    def _group(self, point: CallPoint) -> FieldValue:
        """Return the group in which a point is reduced: its colour, or None if there
        are too many colours for groups.
        """
        if self._is_grouped:
            return point.colour
        return None


def _scale(values: Sequence[float], intervals: int) -> Callable[[float], int]:
    """Return a function that returns the number of the interval in which a value lies.

    Args:
        values: The values, at least one.
        intervals: The number of equal intervals from the least value to the greatest.
    """
    # The values are halved, because the difference of two large floats may be infinite,
    # but the difference of their halves is finite.
    low = min(values) / 2
    high = max(values) / 2
    width = high - low

    def interval(value: float) -> int:
        """Return the number of the interval in which *value* lies, counted from 0."""
        if width <= 0:
            return 0
        share = (value / 2 - low) / width
        number = int(share * intervals)
        return min(intervals - 1, number)

    return interval
