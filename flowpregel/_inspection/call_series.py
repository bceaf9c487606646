"""The values of a call's metrics over time, and a plot with such values of several
calls as lines.

::

    calls that match the query ──► the first 40 that have the series ──► lines
        in order                       x: seconds of the call, or steps
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from math import nan
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
)

from flowpregel._core.metric_series import MetricPoint
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_points import CallPoint, calls_in_order
from flowpregel._inspection.call_previews import series_columns, series_in
from flowpregel._inspection.call_query import CallQuery, FieldValue
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.call_table import CallTable
from flowpregel._inspection.tasks import TaskRecords
from flowpregel.checkpoint.layout import MEDIA, checkpoint_key, digest, sidecar_key

SeriesAxis: TypeAlias = Literal["seconds", "step"]
SERIES_AXES: Final[Sequence[SeriesAxis]] = ("seconds", "step")
"""The quantities on the horizontal axis: seconds since the beginning of the call, and
the steps that the task has named.
"""
_MOST_LINES: Final = 40
_MOST_READ: Final = 2_000
"""The limit on the calls whose series are looked up for one plot."""
_READ_AT_ONCE: Final = 100
_NAMING_FIELDS: Final = 3
"""The greatest number of fields that name a line if texts of calls are equal."""
SeriesByMetric: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The series of a call by the name of the metric."""
SeriesReader: TypeAlias = Callable[[Sequence[CallRow]], Mapping[str, SeriesByMetric]]
"""A function that returns the series of calls by the ids of the calls."""


class CallSeries:
    """A reader of the values that calls have recorded with `Runtime.metric`.

    Args:
        tasks: The reader of the tasks' records.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.runtime import Runtime
        >>> from flowpregel.watching import StoreReader
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def train(epochs: int, *, runtime: Runtime) -> None:
        ...         for epoch in range(epochs):
        ...             runtime.metric("loss", 1 / (1 + epoch), step=epoch)
        ...     train.run(3, id="1")
        ...     reader = StoreReader(saver)
        ...     (row,) = reader.calls("1").rows
        ...     loss = reader.series.read("1", [row])[row.id]["loss"]
        ...     print([round(value, 2) for value in loss["values"]], loss["step"])
        ...     reader.close()
        [1.0, 0.5, 0.33] [0.0, 1.0, 2.0]
    """

    def __init__(self, tasks: TaskRecords) -> None:
        self._tasks = tasks

    def read(
        self,
        thread_id: str,
        rows: Sequence[CallRow],
        activity: Mapping[str, Any] | None = None,
    ) -> dict[str, SeriesByMetric]:
        """Return the series of calls, by the id of the call and the name of the metric.

        A series has three columns: ``seconds``, the time since the beginning of the
        call; ``values``, in which None stands for a value that is not finite; and
        ``step``, which is empty if the task has named no steps. A metric with a single
        value has no series.

        Args:
            thread_id: The id of the thread.
            rows: Calls of the thread's last run.
            activity: The activity of the run, as `StoreReader.live` returned it, for
                the series of running calls so far. Without it they have none.
        """
        prefixes: dict[str, bytes] = {}
        for namespace in self._tasks.tables.used(thread_id):
            prefixes[namespace.namespace] = namespace.prefix
        keys: list[bytes] = []
        for row in rows:
            prefix = prefixes.get(row.namespace, b"")
            location = checkpoint_key(prefix, row.checkpoint_id)
            media_key = sidecar_key(MEDIA, location)
            keys.append(media_key + digest(row.id))
        payloads = self._tasks.payloads(keys)
        running_tasks = _published_tasks(activity)
        series: dict[str, SeriesByMetric] = {}
        for row, payload in zip(rows, payloads, strict=True):
            if payload:
                series[row.id] = series_in(payload, row.began)
            elif row.id in running_tasks:
                series[row.id] = _series_so_far(running_tasks[row.id])
        return series

    def running(
        self,
        activity: Mapping[str, Any] | None,
        task_id: str,
    ) -> dict[str, Mapping[str, Any]]:
        """Return the series of a running call so far, by the name of the metric, each
        with the columns of `read`.

        A running call sends some values twice a second. All kept values are
        recorded when it ends.

        Args:
            activity: The activity of the run, as `StoreReader.live` returned it.
            task_id: The id of the call.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> from flowpregel.watching import StoreReader
            >>> points = [(100.5, 0.9, None), (101.0, 0.4, None)]
            >>> call = {"id": "t", "began": 100.0, "series": {"loss": points}}
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     series = reader.series.running({"running": [call]}, "t")
            ...     print(series["loss"]["values"])
            ...     reader.close()
            [0.9, 0.4]
        """
        task = _published_tasks(activity).get(task_id)
        return {} if task is None else _series_so_far(task)


def _published_tasks(
    activity: Mapping[str, Any] | None,
) -> dict[str, Mapping[str, Any]]:
    """Return the running tasks of a run by id."""
    if activity is None:
        return {}
    return {task["id"]: task for task in activity["running"]}


def _series_so_far(task: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the series that a running task has sent, by the name of the metric."""
    series: dict[str, Mapping[str, Any]] = {}
    # A process with an earlier version of flowpregel publishes no series.
    for name, rows in task.get("series", {}).items():
        points = [_point(*row) for row in rows]
        series[name] = series_columns(points, task["began"])
    return series


def _point(at: float, value: float | None, step: float | None) -> MetricPoint:
    """Return a point as a running call has published it, with None in place of NaN."""
    return MetricPoint(
        at,
        nan if value is None else value,
        nan if step is None else step,
    )


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    """A request for the lines of a metric."""

    metric: str = ""
    """The name of the metric, or an empty string for the first."""
    axis: str = ""
    """A `SeriesAxis`, or an empty string for the steps, if there are any."""
    colour: str = ""
    """The field by which lines are coloured. If it is empty, the line of each call has
    a colour of its own.
    """


class SeriesPlot(NamedTuple):
    """The lines of a metric."""

    metric: str
    """The name of the metric, or an empty string if no call has a series."""
    metrics: Sequence[str]
    """The names of all metrics that have a series in these calls."""
    axis: SeriesAxis
    """The horizontal axis."""
    points: Sequence[CallPoint]
    """The points of all lines in ascending order of x."""
    lines: int
    """The number of calls that have a line."""
    total: int
    """The number of calls that match the query."""


def series_plot(
    index: CallIndex,
    calls: CallQuery,
    plot: SeriesQuery,
    read: SeriesReader,
) -> SeriesPlot:
    """Return the series of one metric of the first calls that have it.

    Args:
        index: The calls of the run.
        calls: The query that chooses calls. Its order and its page have no effect.
        plot: The metric, the axis and the colour.
        read: The function that reads the series of calls, such as `CallSeries.read` for
            one thread.

    Example:
        >>> from flowpregel.watching import CallIndex, CallQuery, SeriesQuery
        >>> series_plot(CallIndex(), CallQuery(), SeriesQuery(), lambda rows: {}).lines
        0
    """
    numbers = calls_in_order(index, calls)
    metrics: dict[str, None] = {}
    metric = plot.metric
    lines: dict[int, Mapping[str, Any]] = {}
    for number, series in _series_of_calls(index, numbers, read):
        names = dict.fromkeys(series)
        metrics.update(names)
        if not metric:
            metric = next(iter(metrics))
        if metric in series:
            lines[number] = series[metric]
        if len(lines) == _MOST_LINES:
            break
    axis = _axis_of(lines.values(), plot.axis)
    colour_of: Callable[[int], FieldValue] = _line_names(index.table, lines).get
    if plot.colour:
        colour_of = index.table.value_of(plot.colour)
    points: list[CallPoint] = []
    for number, line in lines.items():
        line_points = _points_of(line, axis, colour_of, number)
        points.extend(line_points)
    points.sort(key=_position)
    return SeriesPlot(
        metric=metric,
        metrics=list(metrics),
        axis=axis,
        points=points,
        lines=len(lines),
        total=len(numbers),
    )


def _position(point: CallPoint) -> float:
    return point.x


def _points_of(
    line: Mapping[str, Any],
    axis: SeriesAxis,
    colour_of: Callable[[int], FieldValue],
    number: int,
) -> Iterator[CallPoint]:
    """Yield the points of a line, without those that have no finite numbers."""
    colour = colour_of(number)
    xs = line[axis]
    ys = line["values"]
    for x, y in zip(xs, ys, strict=True):
        if x is None or y is None:
            continue
        yield CallPoint(
            x=x,
            y=y,
            colour=colour,
            number=number,
        )


def _series_of_calls(
    index: CallIndex,
    numbers: Sequence[int],
    read: SeriesReader,
) -> Iterator[tuple[int, SeriesByMetric]]:
    """Yield the number and the series of each call that has any, among the first calls.

    Args:
        index: The calls of the run.
        numbers: The numbers of the calls, in order.
        read: The function that reads series.
    """
    first_numbers = numbers[:_MOST_READ]
    for begin in range(0, len(first_numbers), _READ_AT_ONCE):
        end = begin + _READ_AT_ONCE
        part = first_numbers[begin:end]
        rows = [index.table.row(number) for number in part]
        series_by_id = read(rows)
        for number, row in zip(part, rows, strict=True):
            series = series_by_id.get(row.id)
            if series:
                yield number, series


def _line_names(
    table: CallTable,
    numbers: Collection[int],
) -> dict[int, str]:
    """Return a name for the line of each call, by the number of the call: the text of
    the call, or the first fields in which the calls differ if several calls have the
    same text.
    """
    names = {number: table.label(number) for number in numbers}
    unique_names = set(names.values())
    if len(unique_names) == len(names):
        return names
    differing = list(_differing_fields(table, numbers))
    if not differing:
        return names
    for number in numbers:
        parts: list[str] = []
        for field in differing[:_NAMING_FIELDS]:
            value = table.fields[field].get(number)
            text = _short_text(value)
            parts.append(f"{field}={text}")
        names[number] = ", ".join(parts)
    return names


def _differing_fields(
    table: CallTable,
    numbers: Collection[int],
) -> Iterator[str]:
    """Yield the names of the fields in which calls differ."""
    for field, values in table.fields.items():
        distinct = {values.get(number) for number in numbers}
        if len(distinct) > 1:
            yield field


def _short_text(value: FieldValue) -> str:
    """Return a value as text. A number has at most six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _axis_of(
    lines: Iterable[Mapping[str, Any]],
    axis: str,
) -> SeriesAxis:
    """Return the axis of a plot: the steps if all lines have steps and the query does
    not ask for seconds, or else the seconds.
    """
    has_steps = all(line["step"] for line in lines)
    if axis == "seconds" or not has_steps:
        return "seconds"
    return "step"
