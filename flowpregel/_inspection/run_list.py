"""The list of the runs in a store: filtered, sorted, grouped by flow, and cut into
pages.

::

    StoreReader.runs() --> text, flow, time --> status --> groups of flows --> one page
        all runs             states (counts)                 strip, median     rows

A flow is listed with a strip of signs for its last runs, and the median of their
durations. The rows of a page have details that are expensive to read: the input, the
failed calls and the last error. They are read only for these rows, and remembered until
the run changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from flowpregel._inspection.situations import Situation
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.paused import PausedRuns
from flowpregel.checkpoint.work import Status
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._inspection.reader import StoreReader
    from flowpregel._inspection.run_status import Counting
    from flowpregel._inspection.tasks import RunRow

RunOrder: TypeAlias = Literal["run", "status", "failed", "began", "took", "updated"]
STRIP = 20
"""The number of runs in the strip of a flow: a row of signs for its last runs, those
that changed last.
"""
ROWS_OF_FLOW = 8
"""The number of rows of each flow if several flows are listed."""
PAGE_ROWS = 50
"""The number of rows of a page that lists one flow."""
PAGE_FLOWS = 20
"""The number of flows of a page."""
_MOST_COUNTED = 20
"""The number of finished runs whose failed calls are counted for one page of the list.
Those of other runs are counted for later requests.
"""
_URGENCY: Sequence[Status] = (
    "running",
    "waiting",
    "failed",
    "stopped",
    "enqueued",
    "done",
)
"""The statuses in the order in which a list that is sorted by status has them."""
_thread_of: Callable[[RunRow], str] = attrgetter("thread_id")
_RunState: TypeAlias = tuple[Status, int, int]


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """The runs that a list selects, and their order.

    Example:
        >>> query = RunQuery.parse(state="failed,stopped", sort="-took")
        >>> sorted(query.statuses), query.order, query.is_descending
        (['failed', 'stopped'], 'took', True)
    """

    text: str = ""
    """A string that the id or the flow of a run must contain."""
    statuses: frozenset[str] = frozenset()
    """The statuses to select; empty for all."""
    flow: str | None = None
    """The flow to select; empty for runs that recorded no flow, None for all flows."""
    since: float = 0.0
    """Select runs that changed at or after this time, in seconds since the epoch."""
    until: float = float("inf")
    """Select runs that changed before this time, in seconds since the epoch."""
    order: RunOrder = "updated"
    """The value by which the runs are sorted."""
    is_descending: bool = True
    """True to begin with the greatest value."""
    page: int = 0
    """The number of the page, from 0."""

    @classmethod
    def parse(
        cls,
        *,
        q: str = "",
        state: str = "",
        flow: str | None = None,
        sort: str = "-updated",
        **numbers: str,
    ) -> RunQuery:
        """Return the query that the parameters of a page's URL describe.

        Args:
            q: The text that the id or the flow of a run must contain.
            state: The statuses, separated by commas.
            flow: The flow whose runs are selected, or None for all flows.
            sort: A `RunOrder`, after a minus sign for the descending order.
            numbers: ``since``, ``until`` and ``page``.

        Raises:
            ConfigurationError: There is no such order.
            TypeError: There is no such parameter.
            ValueError: The text of a number is not a number.

        Example:
            >>> RunQuery.parse(q="Nightly ", page="2").text
            'nightly'
        """
        order: Any = sort.removeprefix("-")
        if order not in get_args(RunOrder):
            raise ConfigurationError(f"the list of runs has no order {order!r}")
        types: Mapping[str, type] = {
            "since": float,
            "until": float,
            "page": int,
        }
        values: dict[str, Any] = {}
        for name, number in numbers.items():
            if name not in types:
                raise TypeError(f"there is no parameter {name!r}")
            values[name] = types[name](number)
        statuses = frozenset(filter(None, state.split(",")))
        return cls(
            text=q.strip().lower(),
            statuses=statuses,
            flow=flow,
            order=order,
            is_descending=sort.startswith("-"),
            **values,
        )


class RunSummary(NamedTuple):
    """A row of the list of runs."""

    thread_id: str
    """The id of the thread."""
    status: Status
    """The status of the run."""
    situation: Situation
    """The situation of the run, which is more precise than the status."""
    short: str
    """The status in a few words."""
    flow: str | None
    """``MODULE:FLOW``, if the run recorded it."""
    began: int
    """The time at which the thread's last run began, in wall-clock nanoseconds."""
    updated: int
    """The time of the newest checkpoint, in wall-clock nanoseconds."""
    seconds: float | None
    """The duration of a run that is done, or is running; None for any other run,
    because its end is not recorded.
    """
    failed: int | None
    """The number of failed calls, or None if they have not been counted yet."""
    input: str
    """The input of the run as a short text."""
    error: str
    """The call that failed first in the last superstep, and its error."""
    paused: str
    """The reason why the run is paused: ``all``, ``flow`` or ``run``; empty if it is
    not paused.
    """


class StripRun(NamedTuple):
    """A run in the strip of a flow."""

    thread_id: str
    """The id of the thread."""
    status: Status
    """The status of the run."""
    seconds: float | None
    """The duration of the run, as in a `RunSummary`."""
    failed: int | None
    """The number of failed calls of a run that is done; None for any other run, or if
    they have not been counted yet.
    """


class FlowSummary(NamedTuple):
    """A flow in the list of runs."""

    flow: str
    """``MODULE:FLOW``; empty for the runs that recorded no flow."""
    runs: int
    """The number of selected runs of the flow."""
    states: dict[Status, int]
    """The number of selected runs in each status."""
    updated: int
    """The time of the newest checkpoint of the selected runs, in wall-clock
    nanoseconds.
    """
    median: float | None
    """The median of the durations of the finished runs in the strip, in seconds."""
    strip: list[StripRun]
    """The last runs of the flow, the oldest first, including runs that the query does
    not select.
    """


class RunListPage(NamedTuple):
    """A page of the list of runs."""

    runs: list[RunSummary]
    """The rows, flow by flow."""
    flows: list[FlowSummary]
    """The flows of the rows, in the order of the rows."""
    states: dict[Status, int]
    """The number of runs in each status. The filter by status is not applied."""
    total: int
    """The number of runs in the store."""
    matched: int
    """The number of selected runs."""
    page: int
    """The number of this page, from 0."""
    pages: int
    """The number of pages, at least 1."""


class _SelectedRuns(NamedTuple):
    """The runs that a query selects."""

    groups: Mapping[str, Sequence[RunRow]]
    """The selected runs by flow, in the order of the list."""
    all_groups: Mapping[str, Sequence[RunRow]]
    """All runs by flow, the last changed first."""
    states: dict[Status, int]
    """The number of runs in each status. The filter by status is not applied."""
    total: int
    """The number of runs in the store."""
    matched: int
    """The number of selected runs."""


class _PageBounds(NamedTuple):
    """The part of a list that a page shows."""

    page: int
    pages: int
    begin: int
    end: int

    @classmethod
    def of(
        cls,
        count: int,
        size: int,
        page: int,
    ) -> _PageBounds:
        """Return a page of a list, or the last page if there is no such page.

        Args:
            count: The number of items in the list.
            size: The greatest number of items on a page.
            page: The number of the page, from 0.
        """
        pages = max(1, ceil(count / size))
        page = max(0, min(page, pages - 1))
        begin = page * size
        return cls(
            page=page,
            pages=pages,
            begin=begin,
            end=begin + size,
        )


class _RunDetails(NamedTuple):
    """The parts of a row that are read separately for each run."""

    situation: Situation
    short: str
    failed: int | None
    error: str
    paused: str


class RunList:
    """The list of the runs in a store.

    Args:
        reader: The reader of the store.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.func import entrypoint
        >>> from flowpregel.watching import RunQuery, StoreReader
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def double(number: int) -> int:
        ...         return 2 * number
        ...     double.run(4, id="a"), double.run(5, id="b")
        ...     reader = StoreReader(saver)
        ...     page = RunList(reader).page(RunQuery(), now=0)
        ...     print([(run.thread_id, run.input) for run in page.runs])
        ...     print([(flow.runs, len(flow.strip)) for flow in page.flows])
        ...     reader.close()
        (8, 10)
        [('b', '5'), ('a', '4')]
        [(2, 2)]
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._began: dict[str, tuple[_RunState, int, str]] = {}
        """The state of a thread's last run when it was read, and the beginning and the
        input of the run, by thread. An entry is valid while the state stays the same.
        """
        self._pauses = PausedRuns()
        """The paused runs at the last request."""
        self._details: dict[str, tuple[object, _RunDetails]] = {}
        """The details of each thread's run, and the state that the run had when they
        were read.
        """

    def page(self, query: RunQuery, now: int) -> RunListPage:
        """Return a page of the list.

        If all selected runs are of one flow, a page has the next `PAGE_ROWS` rows of
        it. Otherwise a page has the next `PAGE_FLOWS` flows, each with the first
        `ROWS_OF_FLOW` rows. A page that does not exist is the last one.

        Args:
            query: The runs to select, and their order.
            now: The present time, in wall-clock nanoseconds.
        """
        selection = self._select(query, now)
        flows = list(selection.groups)
        rows: list[RunRow] = []
        if query.flow is None and len(flows) != 1:
            part = _PageBounds.of(len(flows), PAGE_FLOWS, query.page)
            flows = flows[part.begin : part.end]
            for flow in flows:
                rows += selection.groups[flow][:ROWS_OF_FLOW]
        else:
            part = _PageBounds.of(selection.matched, PAGE_ROWS, query.page)
            for flow in flows:
                rows += selection.groups[flow][part.begin : part.end]
        return RunListPage(
            runs=self._summaries(rows, now),
            flows=self._flow_summaries(flows, selection, now),
            states=selection.states,
            total=selection.total,
            matched=selection.matched,
            page=part.page,
            pages=part.pages,
        )

    def flows(self, query: RunQuery, now: int) -> list[FlowSummary]:
        """Return all flows of the list, without the rows of their runs.

        Args:
            query: The runs to select, and their order.
            now: The present time, in wall-clock nanoseconds.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> from flowpregel.watching import RunQuery, StoreReader
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     print(RunList(reader).flows(RunQuery(), now=0))
            ...     reader.close()
            []
        """
        selection = self._select(query, now)
        return self._flow_summaries(selection.groups, selection, now)

    def _select(self, query: RunQuery, now: int) -> _SelectedRuns:
        """Return the runs that a query selects, in the order that it names."""
        rows = self._reader.runs()
        self._pauses = self._reader.paused()
        self._forget_deleted(rows)
        candidates = [row for row in rows if _matches(row, query)]
        states = Counter(row.status for row in candidates)
        selected = candidates
        if query.statuses:
            selected = [row for row in candidates if row.status in query.statuses]
        self._sort(selected, query, now)
        return _SelectedRuns(
            groups=_by_flow(selected),
            all_groups=_by_flow(rows),
            states=dict(states),
            total=len(rows),
            matched=len(selected),
        )

    def _forget_deleted(self, rows: Iterable[RunRow]) -> None:
        """Forget the threads that the store no longer has."""
        threads = {row.thread_id for row in rows}
        memories: tuple[dict[str, Any], ...] = (self._began, self._details)
        for memory in memories:
            for thread_id in memory.keys() - threads:
                del memory[thread_id]

    def _sort(self, rows: list[RunRow], query: RunQuery, now: int) -> None:
        """Sort runs in the order of a query. Unknown durations and unknown numbers of
        failed calls come last.
        """
        sign = -1 if query.is_descending else 1

        def duration(row: RunRow) -> tuple[bool, float]:
            """Return a key for the order by duration."""
            seconds = self._seconds(row, now)
            return seconds is None, sign * (seconds or 0.0)

        if query.order in ("began", "took"):
            # All beginnings are read here, in few round trips. `_beginning` remembers
            # them for the sort.
            for row in self._reader.in_snapshots(rows, _thread_of):
                self._beginning(row)
        if query.order == "took":
            rows.sort(key=duration)
            return
        if query.order == "failed":
            numbers = self._failed_numbers(rows)

            def failed(row: RunRow) -> tuple[bool, int]:
                """Return a key for the order by failed calls."""
                number = numbers[row.thread_id]
                return number is None, sign * (number or 0)

            rows.sort(key=failed)
            return
        keys: Mapping[str, Callable[[RunRow], Any]] = {
            "run": lambda row: row.thread_id,
            "status": lambda row: _URGENCY.index(row.status),
            "began": lambda row: self._beginning(row)[0],
            "updated": lambda row: row.updated,
        }
        rows.sort(key=keys[query.order], reverse=query.is_descending)

    def _failed_numbers(self, rows: Iterable[RunRow]) -> dict[str, int | None]:
        """Return the number of failed calls of each run, by thread. For some finished
        runs it is None, because their calls are counted only for later requests.
        """
        numbers: dict[str, int | None] = {}
        left_to_count = _MOST_COUNTED
        for row in self._reader.in_snapshots(rows, _thread_of):
            number: int | None = row.states.get("failed", 0)
            if row.status == "done":
                number = None
                if left_to_count > 0:
                    details, was_counted = self._details_of(row, "some")
                    left_to_count -= was_counted
                    number = details.failed
                elif row.thread_id in self._details:
                    _, details = self._details[row.thread_id]
                    number = details.failed
            numbers[row.thread_id] = number
        return numbers

    def _summaries(self, rows: Iterable[RunRow], now: int) -> list[RunSummary]:
        """Return the rows of a page, with their details."""
        summaries: list[RunSummary] = []
        left_to_count = _MOST_COUNTED
        for row in self._reader.in_snapshots(rows, _thread_of):
            began, run_input = self._beginning(row)
            counting: Counting = "some" if left_to_count else "no"
            details, was_counted = self._details_of(row, counting)
            left_to_count -= was_counted
            seconds = self._seconds(row, now)
            summary = RunSummary(
                thread_id=row.thread_id,
                status=row.status,
                situation=details.situation,
                short=details.short,
                flow=row.flow,
                began=began,
                updated=row.updated,
                seconds=seconds,
                failed=details.failed,
                input=run_input,
                error=details.error,
                paused=details.paused,
            )
            summaries.append(summary)
        return summaries

    def _flow_summaries(
        self,
        flows: Iterable[str],
        selection: _SelectedRuns,
        now: int,
    ) -> list[FlowSummary]:
        """Return flows, each with a strip (the signs for the flow's last runs)."""
        strips: dict[str, Sequence[RunRow]] = {}
        strip_rows: list[RunRow] = []
        for flow in flows:
            strips[flow] = selection.all_groups[flow][:STRIP]
            strip_rows.extend(strips[flow])
        done_rows = [row for row in strip_rows if row.status == "done"]
        failed = self._failed_numbers(done_rows)
        seconds: dict[str, float | None] = {}
        for row in self._reader.in_snapshots(strip_rows, _thread_of):
            seconds[row.thread_id] = self._seconds(row, now)
        summaries: list[FlowSummary] = []
        for flow, rows in strips.items():
            strip = _strip(rows, failed, seconds)
            summary = self._flow_summary(
                flow,
                selection.groups[flow],
                strip,
            )
            summaries.append(summary)
        return summaries

    def _flow_summary(
        self,
        flow: str,
        selected: Sequence[RunRow],
        strip: list[StripRun],
    ) -> FlowSummary:
        """Return a flow with its strip.

        Args:
            flow: The name of the flow, or an empty string.
            selected: The selected runs of the flow.
            strip: The last runs of the flow.
        """
        durations = [
            run.seconds
            for run in strip
            if run.status == "done" and run.seconds is not None
        ]
        states = Counter(row.status for row in selected)
        updated = max(row.updated for row in selected)
        middle: float | None = None
        if durations:
            middle = median(durations)
        return FlowSummary(
            flow=flow,
            runs=len(selected),
            states=dict(states),
            updated=updated,
            median=middle,
            strip=strip,
        )

    def _seconds(self, row: RunRow, now: int) -> float | None:
        """Return the duration of a run so far, or None if its end is not recorded."""
        ends: Mapping[Status, int] = {"running": now, "done": row.updated}
        end = ends.get(row.status)
        if end is None:
            return None
        began, _ = self._beginning(row)
        return max(0.0, (end - began) / 1e9)

    def _beginning(self, row: RunRow) -> tuple[int, str]:
        """Return the time at which a thread's last run began, and its input."""
        state = self._state_of(row)
        known = self._began.get(row.thread_id)
        if known is not None and known[0] == state:
            return known[1:]
        beginning = self._reader.beginning(row.thread_id)
        began = row.created
        run_input = ""
        if beginning is not None:
            began = beginning.at
            run_input = beginning.input
            if beginning.was_enqueued and row.status != "enqueued":
                began = first_call(self._reader, row.thread_id) or began
        self._began[row.thread_id] = (state, began, run_input)
        return began, run_input

    def _state_of(self, row: RunRow) -> _RunState:
        """Return values of which one changes if the run begins, ends, or is resumed,
        perhaps with another input.
        """
        # A run that is resumed with another input, and fails again, has no new
        # checkpoint. While it is running, its tasks change often, but not its input.
        is_running = row.status == "running"
        version = 0 if is_running else self._reader.task_version(row.thread_id)
        return row.status, row.updated, version

    def _details_of(self, row: RunRow, counting: Counting) -> tuple[_RunDetails, bool]:
        """Return the details of a run, and whether its calls had to be counted to get
        them.
        """
        # The pause is compared too, because it changes none of the other values: no
        # checkpoint of the run records a pause.
        pause = self._pauses.reason(row.thread_id, {FLOW: row.flow})
        state = (self._state_of(row), row.states, pause)
        known = self._details.get(row.thread_id)
        if known is not None:
            known_state, known_details = known
            is_complete = known_details.failed is not None
            if is_complete and known_state == state:
                return known_details, False
        if row.status != "done":
            counting = "no"
        is_counted = counting != "no"
        thread_id = row.thread_id
        summary = self._reader.summary(thread_id, counting)
        details = _RunDetails("done", row.status, None, "", "")
        if summary is not None:
            details = _RunDetails(
                situation=summary.text.situation,
                short=summary.text.short,
                failed=summary.failed,
                error=summary.error,
                paused=summary.text.paused,
            )
        self._details[row.thread_id] = state, details
        return details, is_counted


def first_call(reader: StoreReader, thread_id: str) -> int | None:
    """Return the wall-clock nanoseconds at which the first call of a run began, or None
    if no call has ended.
    """
    times = [
        call.began
        for changes in reader.changes(thread_id)
        for call in changes.rows
        if call.began
    ]
    return min(times, default=None)


def _strip(
    rows: Iterable[RunRow],
    failed: Mapping[str, int | None],
    seconds: Mapping[str, float | None],
) -> list[StripRun]:
    """Return the strip of a flow.

    Args:
        rows: The last runs of the flow, the last changed first.
        failed: The numbers of failed calls of runs that are done, by thread.
        seconds: The durations of the runs so far, by thread.
    """
    strip: list[StripRun] = []
    for row in rows:
        run = StripRun(
            thread_id=row.thread_id,
            status=row.status,
            seconds=seconds[row.thread_id],
            failed=failed.get(row.thread_id),
        )
        strip.append(run)
    strip.reverse()
    return strip


def _matches(row: RunRow, query: RunQuery) -> bool:
    """Return whether a query selects a run by its text, flow and time. The status is
    not compared.
    """
    flow = row.flow or ""
    if query.flow is not None and query.flow != flow:
        return False
    seconds = row.updated / 1e9
    if seconds < query.since or seconds >= query.until:
        return False
    return query.text in f"{row.thread_id} {flow}".lower()


def _by_flow(rows: Iterable[RunRow]) -> dict[str, list[RunRow]]:
    """Return runs by their flow, in the order of the first run of each flow."""
    groups: defaultdict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        groups[row.flow or ""].append(row)
    return groups
