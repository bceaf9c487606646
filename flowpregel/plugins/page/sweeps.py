"""The calls of a sweep, for the page: as a CSV file, as points of a plot, and compared.

::

    GET api/calls/file?thread=a&q=lr:0.1&columns=lr,loss      the lines of a CSV file
    GET api/plot?thread=a&q=lr:0.1&x=lr&y=loss&colour=depth   the points of a plot
    GET api/plot?thread=a&kind=series&y=loss                  a metric over time
    GET api/compare?a=one&b=two&change=different              two runs
    GET api/compare?a=one&b=one&call_a=7f3&call_b=81c         two calls
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.plugins.page.call_answers import query_of
from flowpregel.plugins.page.calls import CallPages
from flowpregel.watching import (
    SERIES_AXES,
    CallIndex,
    CallPoint,
    CallQuery,
    CallRow,
    PlotQuery,
    RunComparison,
    SeriesQuery,
    StoreReader,
    call_plot,
    compare_calls,
    compare_runs,
    csv_of_calls,
    plot_fields,
    series_plot,
)

_RunVersions: TypeAlias = tuple[str, int, int, str, int, int]
_LINES: Final = 500
"""The number of lines of a CSV file that are sent together."""
_MOST_PAIRS: Final = 500
"""The maximum number of pairs of calls in an answer."""


class ComparedRuns(NamedTuple):
    """The calls of two runs that are compared."""

    version: _RunVersions
    """The versions of the two runs: the id of each, with the epoch and the version of
    the index of the calls.
    """
    calls: Mapping[str, Sequence[CallRow]]
    """The calls by run. It is empty if the comparison of these versions is
    remembered.
    """


class SweepPages:
    """The answers to the page's queries about the calls of a sweep.

    Args:
        saver: The saver of the open store.
        reader: The reader of the store.
        calls: The calls of the runs.
    """

    def __init__(
        self,
        saver: DurableSaver,
        reader: StoreReader,
        calls: CallPages,
    ) -> None:
        self._saver = saver
        self._reader = reader
        self._calls = calls
        self._comparison: tuple[_RunVersions, RunComparison] | None = None
        """The last comparison, and the versions of the runs that it compares."""

    def csv(
        self,
        thread: str,
        columns: str = "",
        **parameters: str,
    ) -> Iterator[str]:
        """Return the parts of a CSV file with the calls that match a query.

        Args:
            thread: The id of the run.
            columns: The names of the columns with commas between them, each of them
                percent-encoded, or an empty string for all columns.
            parameters: ``q``, ``state``, ``task`` and ``sort``, as for
                `CallPages.calls`.
        """
        query = query_of(parameters)
        names = [unquote(name) for name in columns.split(",") if name]
        return self._csv_parts(thread, query, names)

    def _csv_parts(
        self,
        thread: str,
        query: CallQuery,
        columns: list[str],
    ) -> Iterator[str]:
        """Yield the parts of a CSV file. While the calls are being read, yield an empty
        string after each part of the reading, so that other requests are answered in
        between.
        """
        index = self._calls.index(thread)
        while index.is_behind:
            yield ""
            index = self._calls.index(thread)
        part: list[str] = []
        for line in csv_of_calls(index, query, columns):
            part.append(f"{line}\r\n")
            if len(part) == _LINES:
                yield "".join(part)
                part.clear()
        yield "".join(part)

    def plot(
        self,
        thread: str,
        x: str = "",
        y: str = "",
        colour: str = "",
        kind: str = "scatter",
        **parameters: str,
    ) -> dict[str, Any]:
        """Return the points of a plot, and the fields that a plot can show.

        Args:
            thread: The id of the run.
            x: The field of the horizontal axis, or an empty string for the first number
                of the calls.
            y: The field of the vertical axis, or an empty string for the last number.
            colour: The field by which the points are coloured.
            kind: ``"scatter"``, ``"line"``, or ``"series"`` for the values of a metric
                over time, a line for each call. Then x is ``"seconds"`` or ``"step"``,
                and y is a metric.
            parameters: ``q``, ``state`` and ``task``, as for `CallPages.calls`.
        """
        query = query_of(parameters)
        index = self._calls.index(thread)
        if kind == "series":
            lines = SeriesQuery(
                metric=y,
                axis=x,
                colour=colour,
            )
            return self._series(thread, index, query, lines)
        fields = plot_fields(index)
        numbers = (*fields.chosen, *fields.common)
        plot = PlotQuery(
            x=x or numbers[0],
            y=y or (fields.chosen[-1] if len(fields.chosen) > 1 else "took"),
            colour=colour,
            is_line=kind == "line",
        )
        if index.is_behind:
            # The index is not complete yet, and the page will ask again, so no calls
            # are plotted.
            index = CallIndex()
        drawn = call_plot(index, query, plot)
        return {
            "x": plot.x,
            "y": plot.y,
            "numbers": numbers,
            "groups": fields.groups,
            "total": drawn.total,
            "points": _points_to_json(index, drawn.points),
            "is_behind": index.is_behind,
        }

    def running(self, thread: str, call: str) -> list[dict[str, Any]]:
        """Return the series of a running call so far.

        Args:
            thread: The id of the thread.
            call: The id of the call.
        """
        activity = self._reader.live(thread)
        series = self._reader.series.running(activity, call)
        return [{"title": name, "series": part} for name, part in series.items()]

    def _series(
        self,
        thread: str,
        index: CallIndex,
        query: CallQuery,
        lines: SeriesQuery,
    ) -> dict[str, Any]:
        """Return the curves of a metric over time, in the form that `plot` returns."""
        groups = plot_fields(index).groups
        if index.is_behind:
            # The index is not complete yet, and the page will ask again, so no calls
            # are plotted.
            index = CallIndex()
        activity = self._reader.live(thread)
        read = partial(
            self._reader.series.read,
            thread,
            activity=activity,
        )
        drawn = series_plot(index, query, lines, read)
        return {
            "x": drawn.axis,
            "y": drawn.metric,
            "axes": SERIES_AXES,
            "numbers": drawn.metrics,
            "groups": groups,
            "lines": drawn.lines,
            "total": drawn.total,
            "points": _points_to_json(index, drawn.points),
            "is_behind": index.is_behind,
        }

    def compared_runs(self, a: str, b: str) -> ComparedRuns | None:
        """Return the calls of two runs, or None if some have not been read yet.

        Args:
            a: The id of the first run.
            b: The id of the second run.
        """
        first = self._calls.index(a)
        second = self._calls.index(b)
        if first.is_behind or second.is_behind:
            return None
        version = (a, first.epoch, first.version, b, second.epoch, second.version)
        if self._comparison is not None and self._comparison[0] == version:
            return ComparedRuns(version, {})
        calls = {
            a: list(first.recorded_rows()),
            b: list(second.recorded_rows()),
        }
        return ComparedRuns(version, calls)

    def compare(
        self,
        runs: ComparedRuns | None,
        a: str,
        b: str,
        call_a: str = "",
        call_b: str = "",
        **page: str,
    ) -> dict[str, Any]:
        """Return the differences between two runs, and some of their calls; or the
        differences between two calls.

        A comparison reads the results of all calls of both runs. It opens a separate
        view of the store, so that it can run on another OS thread while other requests
        are answered. It is remembered until one of the runs changes.

        Args:
            runs: The calls of the runs, or None for two calls.
            a: The id of the first run.
            b: The id of the second run.
            call_a: The id of a call of the first run, or an empty string.
            call_b: The id of a call of the second run.
            page: ``change``, the change of the calls that are listed, and ``offset``,
                the number of such calls to skip.
        """
        if runs is None:
            pair = compare_calls(self._saver, (a, call_a), (b, call_b))
            return pair.to_json()
        known = self._comparison
        if known is None or known[0] != runs.version:
            comparison = compare_runs(self._saver, a, b, calls=runs.calls)
            known = (runs.version, comparison)
            self._comparison = known
        answer = known[1].to_json()
        answer["calls"] = _listed_calls(known[1], **page)
        return answer


def _points_to_json(
    index: CallIndex,
    points: Sequence[CallPoint],
) -> list[Any]:
    """Return the points of a plot, each with the id and the text of the call."""
    ids = index.table.columns["id"]
    answer: list[Any] = []
    for point in points:
        label = index.table.label(point.number)
        answer.append((point.x, point.y, point.colour, ids[point.number], label))
    return answer


def _listed_calls(
    comparison: RunComparison,
    change: str = "different",
    offset: str = "0",
) -> list[dict[str, Any]]:
    """Return one page of the compared calls that have a given kind of change."""
    begin = max(0, int(offset))
    calls = [call for call in comparison.calls if call.change == change]
    return [call.to_json() for call in calls[begin : begin + _MOST_PAIRS]]
