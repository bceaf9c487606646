"""The timeline of a run: a picture of a given width, not a list of all calls.

::

    lane    process 71   ████▌▌▌▌███     a bar for a long call, and a bar for calls
            process 72   ██▌▌█████       that are thinner than a column

Calls of one process that overlap, because the process has several OS threads, are in
different lanes. Each lane and state has its calls in order, so a picture skips the
calls of a column that it has drawn: its cost depends on the columns, not on the calls.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import STATES, CallQuery

MOST_LANES: Final = 200
_MOST_LANES_OF_PROCESS: Final = 16
_MOST_BARS: Final = 6_000
"""The limit on the bars of a picture. It determines how many columns the picture has.
"""
_FEWEST_COLUMNS: Final = 40
_MOST_LABELS: Final = 500
"""The greatest number of bars that are labelled with their call: the widest ones."""
_SECOND: Final = 1_000_000_000
_SHORTEST: Final = 1_000_000
"""The shortest extent of a timeline in nanoseconds."""


class Bar(NamedTuple):
    """A bar in a lane. Its ends are numbers of columns."""

    begin: int
    end: int
    urgency: int
    """The position of the calls' state in `STATES`."""
    number: int
    """The number of the call. If the bar joins several calls, it is their count, as a
    negative number.
    """


class LanePicture(NamedTuple):
    """A lane of a picture."""

    pid: int
    """The id of the process; 0 if it is unknown."""
    bars: list[Bar]
    """The bars, those of the most urgent state last, so that they are drawn over the
    others.
    """


class TimelinePicture(NamedTuple):
    """A picture of a part of a timeline. Times are wall-clock nanoseconds."""

    first: int
    """The time at which the first call began."""
    last: int
    """The time at which the last call ended."""
    total: int
    """The number of calls in the whole timeline."""
    begin: int
    """The time at which the shown part begins."""
    end: int
    """The time at which the shown part ends."""
    columns: int
    """The number of columns of the part."""
    lanes: list[LanePicture]
    """The lanes, sorted by process."""
    labels: dict[int, tuple[str, str]]
    """The id and the label of the calls with the widest bars, by number."""


@dataclass(slots=True)
class _Calls:
    """The calls of a lane (a row of the timeline) that are in the same state, such as
    "failed", in the order in which they began.
    """

    begins: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))

    def bars(self, view: _View, urgency: int) -> Iterator[Bar]:
        """Yield the bars in a part of the timeline."""
        index = max(0, bisect_left(self.begins, view.begin) - 1)
        while index < len(self.begins):
            if self.begins[index] > view.end:
                return
            begin = view.column(self.begins[index])
            end = view.column(self.ends[index])
            if end - begin >= 2:
                yield Bar(
                    begin,
                    end,
                    urgency,
                    self.numbers[index],
                )
                index += 1
                continue
            next_column = view.time(begin + 1)
            next_index = bisect_left(
                self.begins,
                next_column,
                index + 1,
            )
            is_visible = self.ends[next_index - 1] >= view.begin
            if is_visible:
                number = index - next_index
                if number == -1:
                    number = self.numbers[index]
                yield Bar(
                    begin,
                    begin + 1,
                    urgency,
                    number,
                )
            index = next_index


@dataclass(frozen=True, slots=True)
class _View:
    """The part of a timeline that a picture shows."""

    begin: int
    end: int
    columns: int

    def column(self, time: int) -> int:
        """Return the column of a time, or the nearest column."""
        offset = (time - self.begin) * self.columns
        column = offset // (self.end - self.begin)
        return min(max(column, 0), self.columns)

    def time(self, column: int) -> int:
        """Return the first time in a column."""
        offset = column * (self.end - self.begin)
        return self.begin - (-offset // self.columns)


class _Lane:
    """Calls of a process that do not overlap."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.end = 0
        self._calls = [_Calls() for _ in STATES]

    def add(self, begin: int, end: int, urgency: int, number: int) -> None:
        """Add a call that began after all others."""
        calls = self._calls[urgency]
        calls.begins.append(begin)
        calls.ends.append(end)
        calls.numbers.append(number)
        self.end = max(self.end, end)

    def picture(self, view: _View) -> LanePicture:
        """Return the bars in a part of the timeline."""
        bars: list[Bar] = []
        for urgency in reversed(range(len(STATES))):
            calls = self._calls[urgency]
            bars += _joined_bars(calls.bars(view, urgency))
        return LanePicture(self.pid, bars)


class CallTimeline:
    """The calls of a run by process and time.

    Args:
        index: The calls.
        now: The present time in wall-clock nanoseconds, up to which running calls are
            drawn.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import CallIndex, CallTimeline, StoreReader
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def double(number: int) -> int:
        ...         return 2 * number
        ...     double.run(4, id="1")
        ...     reader = StoreReader(saver)
        ...     index = CallIndex()
        ...     index.update(reader.calls("1"))
        ...     timeline = CallTimeline(index, now=0)
        ...     print(len(timeline.picture(100).lanes))
        ...     reader.close()
        8
        1
    """

    def __init__(self, index: CallIndex, now: int) -> None:
        self.version = (index.epoch, index.version)
        """The version of the index from which the timeline was made."""
        self._table = index.table
        self._lanes: dict[int, list[_Lane]] = {}
        self._total = 0
        self._first = 0
        self._last = 0
        began = index.table.columns["began"]
        pids = index.table.columns["pid"]
        seconds = index.table.columns["seconds"]
        urgencies = index.table.urgency
        running = STATES.index("running")
        query = CallQuery(order="began")
        for number in index.select(query):
            begin = began[number]
            if not begin:
                continue
            duration = seconds[number] * _SECOND
            end = begin + int(duration)
            urgency = urgencies[number]
            if urgency == running:
                end = max(begin, now)
            pid = pids[number]
            lane = self._free_lane(pid, begin)
            lane.add(
                begin,
                end,
                urgency,
                number,
            )
            self._first = self._first or begin
            self._last = max(self._last, end)
            self._total += 1

    def _free_lane(self, pid: int, begin: int) -> _Lane:
        """Return the first lane of a process whose calls have ended at *begin*, or a
        new lane. If the process has too many lanes, return its last one, in which calls
        may then overlap.
        """
        lanes = self._lanes.setdefault(pid, [])
        for lane in lanes:
            if lane.end <= begin:
                return lane
        if len(lanes) < _MOST_LANES_OF_PROCESS:
            lanes.append(_Lane(pid))
        return lanes[-1]

    def picture(
        self,
        width: int,
        begin: int = 0,
        end: int = 0,
    ) -> TimelinePicture:
        """Return a picture of a part of the timeline.

        Args:
            width: The greatest number of columns.
            begin: The beginning of the part, in nanoseconds after the first call.
            end: The end of the part, or 0 for the whole timeline.
        """
        lanes: list[_Lane] = []
        for pid in sorted(self._lanes):
            lanes += self._lanes[pid]
        lanes = lanes[:MOST_LANES]
        columns = _MOST_BARS // max(1, len(lanes))
        columns = min(width, max(columns, _FEWEST_COLUMNS))
        last = max(self._last, self._first + _SHORTEST)
        view = _View(
            self._first,
            last,
            columns,
        )
        if end > begin:
            view = _View(
                self._first + begin,
                self._first + end,
                columns,
            )
        pictures: list[LanePicture] = []
        bars: list[Bar] = []
        for lane in lanes:
            picture = lane.picture(view)
            pictures.append(picture)
            bars += picture.bars
        return TimelinePicture(
            first=self._first,
            last=last,
            total=self._total,
            begin=view.begin,
            end=view.end,
            columns=columns,
            lanes=pictures,
            labels=self._labels(bars),
        )

    def _labels(self, bars: Iterable[Bar]) -> dict[int, tuple[str, str]]:
        """Return the id and the label of the calls with the widest bars."""
        single = [bar for bar in bars if bar.number >= 0]
        single.sort(key=lambda bar: bar.begin - bar.end)
        ids = self._table.columns["id"]
        return {
            bar.number: (ids[bar.number], self._table.label(bar.number))
            for bar in single[:_MOST_LABELS]
        }


def _joined_bars(bars: Iterable[Bar]) -> list[Bar]:
    """Return the bars, with neighbouring bars joined into one if each of them stands
    for several calls. The bar of a single call stays separate.
    """
    joined: list[Bar] = []
    for bar in bars:
        last = joined[-1] if joined else None
        if last is not None and _is_joined(last, bar):
            joined[-1] = Bar(
                begin=last.begin,
                end=bar.end,
                urgency=bar.urgency,
                number=last.number + bar.number,
            )
        else:
            joined.append(bar)
    return joined


def _is_joined(last: Bar, bar: Bar) -> bool:
    """Return whether two bars are drawn as one: both have several calls, and there is
    no gap.
    """
    have_several = last.number < 0 and bar.number < 0
    return have_several and last.end >= bar.begin
