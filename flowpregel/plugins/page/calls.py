"""The calls of runs, as JSON for the page: parts of the table, the timeline, the graph.

::

    GET api/calls?thread=a&q=nan&state=failed&offset=400&count=100&since=E.V&known=7,8
        -> the total and the numbers of the calls in this part of the table,
           and the rows that changed since version V, or that the page does not know

The page never gets all calls of a run. Each watched run has a `CallIndex` in the memory
of the server, which is updated by the calls that changed. A number stands for the same
call in all answers with the same epoch E.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flowpregel.errors import ConfigurationError
from flowpregel.watching import (
    CallGraph,
    CallIndex,
    CallPage,
    CallQuery,
    CallRow,
    CallTimeline,
    FailedCalls,
    RunTimeLeft,
    StoreReader,
    call_graph,
)

_MOST_INDEXES: Final = 4
"""The number of runs that have an index. They are the last requested runs."""
_COLUMNS: Final = (*CallRow._fields[:-1], "fields")
"""The names of a row's cells. The last field of a `CallRow` is the preview."""
_NOTHING: Final = object()
_WIDEST: Final = 4_000
"""The greatest width of a timeline in columns."""


@dataclass
class _WatchedRun:
    """The calls of a run, in forms that the server has computed."""

    index: CallIndex
    time_left: RunTimeLeft
    failed: FailedCalls = field(default_factory=FailedCalls)
    kept_version: tuple[int, int] | None = None
    """The epoch and the version of the index that was stored, or was not worth it."""
    running_at: int = 0
    """Wall-clock nanoseconds at which its running calls were running, or 0 if the run
    is not.
    """
    timeline: CallTimeline | None = None
    drawing: Mapping[str, Any] | None = None
    """The nodes and edges of the graph, if the process of the run has published
    them, or they are stored with the run.
    """
    graph: dict[str, Any] = field(default_factory=dict)
    graph_version: tuple[int, int] | None = None
    """The epoch and the version of the index from which *graph* was made."""


class CallPages:
    """The answers to the page's queries about the calls of runs.

    The page passes the parameters of these methods by name.

    Args:
        reader: The reader of the store.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._watched: dict[str, _WatchedRun] = {}
        """The runs that have an index, in the order of the last requests."""
        self._keeping: Iterator[None] = iter(())
        """The rest of the work of storing a run."""

    def index(self, thread: str) -> CallIndex:
        """Return the index of a run's calls, updated by some of the calls that changed.

        `CallIndex.is_behind` specifies whether more have changed.
        """
        return self._updated(thread).index

    def failed(self, thread: str) -> FailedCalls | None:
        """Return the failed calls of a run, or None if some calls have not been read
        yet.
        """
        run = self._updated(thread)
        return None if run.index.is_behind else run.failed

    def time_left(
        self,
        thread: str,
        activity: Mapping[str, Any] | None,
    ) -> str | None:
        """Return the estimated time left of a run, as a range in words.

        Return None if too little is known, or if the calls of the run were not
        requested before.

        Args:
            thread: The id of the run.
            activity: The activity of the run, as `StoreReader.live` returns it.
        """
        run = self._watched.get(thread)
        if run is None or run.index.is_behind:
            return None
        estimate = run.time_left.estimate(activity, time.time())
        return None if estimate is None else str(estimate)

    def keep(self) -> None:
        """Store the indexes for the next server."""
        indexes = {thread: run.index for thread, run in self._watched.items()}
        self._reader.keep(indexes)

    def keep_some(self) -> bool:
        """Do a small part of the work of `keep`, or return False if nothing is left.

        A server that is killed does not call `keep`, so it calls this method while it
        serves. A run is stored once it has been read to its end and does not run.
        """
        if next(self._keeping, _NOTHING) is not _NOTHING:
            return True
        for thread, run in self._watched.items():
            version = (run.index.epoch, run.index.version)
            if run.index.is_behind or run.kept_version == version:
                continue
            run.kept_version = version
            self._keeping = self._reader.keep_in_steps(thread, run.index)
            return True
        return False

    def _opened(self, thread: str) -> _WatchedRun:
        """Return a run with the calls that an earlier server has read."""
        run = _WatchedRun(
            self._reader.index(thread),
            RunTimeLeft(self._reader, thread),
        )
        if len(run.index.table):
            run.failed.restore(run.index)
            run.time_left.restore(run.index)
        return run

    def _updated(self, thread: str) -> _WatchedRun:
        """Return a run, updated by some of the calls that changed."""
        run = self._watched.pop(thread, None) or self._opened(thread)
        self._watched[thread] = run
        while len(self._watched) > _MOST_INDEXES:
            oldest = next(iter(self._watched))
            del self._watched[oldest]
        changes = self._reader.calls(thread, run.index.mark)
        run.failed.update(changes)
        run.time_left.update(changes)
        run.index.update(changes)
        activity = self._reader.live(thread)
        if activity is None:
            run.running_at = 0
            run.index.set_running([])
        else:
            run.running_at = int(activity["at"])
            run.drawing = activity["drawing"]
            run.index.set_running(activity["running"])
        return run

    def complete_index(self, thread: str) -> CallIndex:
        """Return the index of a run's calls, updated by all calls that changed."""
        index = self.index(thread)
        while index.is_behind:
            index = self.index(thread)
        return index

    def calls(self, thread: str, **parameters: str) -> dict[str, Any]:
        """Return a part of the table of calls, and the number of calls in each state.

        Args:
            thread: The id of the run.
            parameters: ``q``, ``state``, ``task``, ``sort``, ``offset`` and ``count``,
                the fields of a `CallQuery`; ``since``, the version of the page's rows;
                ``known``, the numbers of these rows; and ``find``, the ids of calls
                whose position is wanted.
        """
        find = parameters.pop("find", "")
        known = parameters.pop("known", "")
        since = parameters.pop("since", "0.0")
        query = query_of(parameters)
        index = self.index(thread)
        known_numbers: list[int] = []
        for word in _words(known):
            known_number = int(word)
            known_numbers.append(known_number)
        epoch, _, version = since.partition(".")
        version_number = int(version)
        if int(epoch) != index.epoch:
            known_numbers.clear()
        page = index.page(
            query,
            since=version_number,
            known=known_numbers,
        )
        answer = page_to_json(index, page)
        fields = index.table.fields
        answer["counts"] = _positive(index.counts)
        answer["bodies"] = _positive(index.body_counts)
        answer["fields"] = sorted(fields)
        answer["found"] = [
            (
                call_id,
                index.position(query, call_id),
                _found_cells(index, call_id),
            )
            for call_id in _words(find)
        ]
        return answer

    def report(self, thread: str, most: int) -> dict[str, Any]:
        """Return the most urgent calls of a run, at most *most*, and the number of
        calls in each state.
        """
        index = self.complete_index(thread)
        query = CallQuery()
        numbers = index.select(query)[:most]
        rows: list[Any] = []
        for number in numbers:
            cells = _cells(index, number)
            rows.append([number, *cells])
        return {
            "columns": _COLUMNS,
            "limit": most,
            "numbers": numbers,
            "rows": rows,
            "total": index.counts.total(),
            "counts": _positive(index.counts),
            "bodies": _positive(index.body_counts),
            "fields": sorted(index.table.fields),
        }

    def timeline(
        self,
        thread: str,
        width: str = "1000",
        begin: str = "0",
        end: str = "0",
    ) -> dict[str, Any]:
        """Return a picture of the calls by process and time.

        Args:
            thread: The id of the run.
            width: The greatest number of columns.
            begin: The begin of the part, in nanoseconds after the first call.
            end: The end of the part, or 0 for the whole timeline.
        """
        run = self._updated(thread)
        index = run.index
        version = (index.epoch, index.version)
        timeline = run.timeline
        is_running = index.counts["running"] > 0
        is_outdated = timeline is None or timeline.version != version
        if timeline is None or is_outdated or is_running:
            timeline = CallTimeline(index, run.running_at)
            run.timeline = timeline
        columns = max(int(width), 1)
        picture = timeline.picture(
            min(columns, _WIDEST),
            int(begin),
            int(end),
        )
        answer = picture._asdict()
        answer["is_behind"] = index.is_behind
        return answer

    def graph(self, thread: str) -> dict[str, Any]:
        """Return the tasks of a run, with the number of calls in each state."""
        run = self._updated(thread)
        index = run.index
        version = (index.epoch, index.version)
        if run.graph_version != version:
            graph = call_graph(index)
            run.graph = graph_to_json(graph)
            run.graph_version = version
            run.drawing = run.drawing or self._reader.drawing(thread)
        return {
            **run.graph,
            "drawing": run.drawing,
            "is_behind": index.is_behind,
        }


def query_of(parameters: Mapping[str, str]) -> CallQuery:
    """Return the query that a request describes.

    Raises:
        ConfigurationError: There is no such parameter, or a value is wrong.
    """
    values = dict(parameters)
    text = values.pop("q", "")
    task = values.pop("task", "")
    order = values.pop("sort", "urgency")
    states = values.pop("state", "")
    offset = values.pop("offset", "0")
    count = values.pop("count", "100")
    query = CallQuery(
        text=text,
        states=_words(states),
        task=task,
        order=order,
        offset=int(offset),
        count=int(count),
    )
    if values:
        names = ", ".join(values)
        raise ConfigurationError(f"a query of calls has no parameter {names}")
    return query


def page_to_json(index: CallIndex, page: CallPage) -> dict[str, Any]:
    """Return a part of the table of calls.

    Args:
        index: The calls.
        page: The part.
    """
    rows: list[Any] = []
    for number in page.rows:
        cells = _cells(index, number)
        rows.append([number, *cells])
    return {
        "columns": _COLUMNS,
        "epoch": page.epoch,
        "version": page.version,
        "total": page.total,
        "numbers": page.numbers,
        "rows": rows,
        "is_behind": page.is_behind,
    }


def graph_to_json(graph: CallGraph) -> dict[str, Any]:
    """Return the tasks of a run, and the edges between them."""
    nodes = [
        {
            "id": node.id,
            "name": node.name,
            "parent": node.parent,
            "states": node.states,
        }
        for node in graph.nodes
    ]
    answer = graph._asdict()
    answer["nodes"] = nodes
    return answer


def _cells(index: CallIndex, number: int) -> tuple[Any, ...]:
    """Return the row of a call, with its own fields instead of the preview."""
    fields: dict[str, Any] = {}
    for name, values in index.table.fields.items():
        if number in values:
            fields[name] = values[number]
    row = index.table.row(number)
    cells = row[:-1]
    return (*cells, fields)


def _found_cells(index: CallIndex, call_id: str) -> tuple[Any, ...] | None:
    """Return the row of a call, or None if it is unknown or gone."""
    number = index.table.number_of(call_id)
    if number is None:
        return None
    urgency = index.table.urgency[number]
    if urgency < 0:
        return None
    return _cells(index, number)


def _positive(counts: Counter[str]) -> dict[str, int]:
    positive = +counts
    return dict(positive)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
