"""The calls of runs, as JSON for the page: parts of the table, the timeline, the graph.

::

    GET api/calls?thread=a&q=nan&state=failed&offset=400&count=100&since=E.V&known=7,8
        -> the total and the numbers of the calls in this part of the table,
           and the rows that changed since version V, or that the page does not know

The page never gets all calls of a run. The server has a `CallIndex` (a sortable table
of all calls) in memory for each run that a page shows, and updates it with the calls
that have changed. The epoch E identifies one such index: in all answers with the same
epoch, a number stands for the same call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from flowpregel.plugins.page.call_answers import (
    COLUMNS,
    found_cells,
    graph_to_json,
    page_to_json,
    parameter_words,
    positive_counts,
    query_of,
    row_cells,
)
from flowpregel.plugins.page.first_screen import FirstScreen, first_answers
from flowpregel.watching import (
    CallIndex,
    CallQuery,
    CallTimeline,
    FailedCalls,
    RunTimeLeft,
    StoreReader,
    call_graph,
)

_MOST_INDEXES: Final = 4
"""The maximum number of runs with an index in memory: those that were requested
last.
"""
_NOTHING: Final = object()
_WIDEST: Final = 4_000
"""The greatest width of a timeline in columns."""


@dataclass
class _WatchedRun:
    """The calls of a run that a page shows, in several forms that the server computes
    once and then updates.
    """

    index: CallIndex
    time_left: RunTimeLeft
    failed: FailedCalls = field(default_factory=FailedCalls)
    kept_version: tuple[int, int] | None = None
    """The epoch and the version that the index had when `keep_some` last began to store
    it.
    """
    running_at: int = 0
    """The time, in wall-clock nanoseconds, at which the run last published its running
    calls, or 0 if the run is not running.
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
        """The runs with an index in memory, the one that was requested last at the
        end.
        """
        self._keeping: Iterator[None] = iter(())
        """The remaining steps of `keep_some`, which stores the index of a run for the
        next server.
        """
        self._screens: dict[str, FirstScreen | None] = {}
        """The stored first screen (see `FirstScreen`) of runs without an index in
        memory, or None if there is none, or it is outdated.
        """

    def index(self, thread: str) -> CallIndex:
        """Return the index of a run's calls, updated with some of the calls that have
        changed.

        `CallIndex.is_behind` is True if more calls have changed.
        """
        return self._updated(thread).index

    def first_screen(self, thread: str) -> FirstScreen | None:
        """Return the stored first screen of a run whose calls an earlier server has
        read, and this server has not read yet.

        None is returned if this server has read the calls, or if some have changed
        since.
        """
        if thread in self._watched:
            return None
        if thread not in self._screens:
            answers = self._reader.first_answers(thread)
            self._screens[thread] = FirstScreen(answers) if answers else None
        screen = self._screens[thread]
        if screen is None:
            return None
        changes = self._reader.calls(thread, screen.mark)
        has_changed = changes.is_whole or changes.is_more or bool(changes.rows)
        if has_changed or self._reader.live(thread) is not None:
            self._screens[thread] = None
            return None
        return screen

    def failed(self, thread: str) -> FailedCalls | None:
        """Return the failed calls of a run, or None if this server has not read all
        calls yet.
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
        """Store the indexes of all runs in the reader's cache, from which the next
        server can load them.
        """
        for thread, run in self._watched.items():
            for _ in self._kept_in_steps(thread, run):
                pass
        # The cache removes its files of runs whose threads were deleted.
        self._reader.keep({})

    def _kept_in_steps(
        self,
        thread: str,
        run: _WatchedRun,
    ) -> Iterator[None]:
        """Return an iterator that stores the index of a run, a part at each step."""
        answers = partial(first_answers, run.index, run.failed)
        return self._reader.keep_in_steps(thread, run.index, answers)

    def keep_some(self) -> bool:
        """Store a small part of the indexes that `keep` would store. Return False if
        all are stored.

        A server that is killed cannot call `keep`. So each server calls this method
        again and again while it serves. The index of a run is stored once all calls
        have been read.
        """
        if next(self._keeping, _NOTHING) is not _NOTHING:
            return True
        for thread, run in self._watched.items():
            version = (run.index.epoch, run.index.version)
            if run.index.is_behind or run.kept_version == version:
                continue
            run.kept_version = version
            self._keeping = self._kept_in_steps(thread, run)
            return True
        return False

    def _opened(self, thread: str) -> _WatchedRun:
        """Return the `_WatchedRun` of a run, with the index that an earlier server has
        stored, or an empty one.
        """
        run = _WatchedRun(
            self._reader.index(thread),
            RunTimeLeft(self._reader, thread),
        )
        if len(run.index.table):
            run.failed.restore(run.index)
            run.time_left.restore(run.index)
        return run

    def _updated(self, thread: str) -> _WatchedRun:
        """Return the `_WatchedRun` of a run, updated with some of the calls that have
        changed.
        """
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
        """Return the index of a run's calls, updated with all calls that have
        changed.
        """
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
        screen = self.first_screen(thread)
        if screen is not None and not find:
            first_part = screen.calls(query, since, parameter_words(known))
            if first_part is not None:
                return first_part
        index = self.index(thread)
        known_numbers: list[int] = []
        for word in parameter_words(known):
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
        answer["counts"] = positive_counts(index.counts)
        answer["bodies"] = positive_counts(index.body_counts)
        answer["fields"] = sorted(fields)
        answer["found"] = [
            (
                call_id,
                index.position(query, call_id),
                found_cells(index, call_id),
            )
            for call_id in parameter_words(find)
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
            cells = row_cells(index, number)
            rows.append([number, *cells])
        return {
            "columns": COLUMNS,
            "limit": most,
            "numbers": numbers,
            "rows": rows,
            "total": index.counts.total(),
            "counts": positive_counts(index.counts),
            "bodies": positive_counts(index.body_counts),
            "fields": sorted(index.table.fields),
        }

    def timeline(
        self,
        thread: str,
        width: str = "1000",
        begin: str = "0",
        end: str = "0",
    ) -> dict[str, Any]:
        """Return the timeline of a run: its calls by process and time.

        Args:
            thread: The id of the run.
            width: The greatest number of columns.
            begin: The beginning of the part to return, in nanoseconds after the first
                call.
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
