"""The progress of a run on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from flowpregel.cli.console import note
from flowpregel.cli.preview import one_line

_WINDOW = 200
"""The rate is that of the last tasks, this many."""
_PAUSE = 2.0
"""Seconds between two plain lines."""
_SHOWN = 12
"""Names of tasks in a live table."""
_REPORTS = 4
"""Tasks of one name whose own progress is shown."""


@dataclass(slots=True)
class TaskCounts:
    """The tasks of one name."""

    running: int = 0
    """Or waiting for a worker: a run does not know which."""
    done: int = 0
    failed: int = 0
    waiting: int = 0

    def text(self) -> str:
        """Return them in words, leaving out what is none."""
        rest = [(self.running, "in flight"), (self.failed, "failed"), (self.waiting, "waiting")]
        return ", ".join([f"{self.done} done", *(f"{n} {word}" for n, word in rest if n)])


@dataclass(slots=True)
class Counters:
    """What a run has done so far, and how fast: counted from the events of its stream.

    Args:
        started: When it started, in seconds of any clock.
    """

    started: float
    by_name: dict[str, TaskCounts] = field(default_factory=dict)
    step: int = 0
    steps: int = 0
    """Supersteps that ended."""
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last report of progress of each running task, by its id."""
    _running: dict[str, str] = field(default_factory=dict)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def note(self, event: Mapping[str, Any], now: float) -> None:
        """Count an event of stream mode ``debug`` that came at *now*."""
        payload = event["payload"]
        match event["type"]:
            case "task":
                self.step = event["step"]
                if payload["id"] not in self._running:
                    self._running[payload["id"]] = payload["name"]
                    self._counts(payload).running += 1
            case "task_result":
                self._end(payload, now)
            case "checkpoint" if payload["metadata"].get("source") == "loop":
                self.steps += 1

    def note_report(self, report: Mapping[str, Any]) -> None:
        """Keep a task's report of its progress: an item of stream mode ``progress``."""
        self.reports[report["id"]] = report

    def reports_of(self, name: str) -> list[Mapping[str, Any]]:
        """Return the last reports of running tasks of that name."""
        return [report for report in [*self.reports.values()] if report["name"] == name]

    def _end(self, payload: Mapping[str, Any], now: float) -> None:
        counts = self._counts(payload)
        self.reports.pop(payload["id"], None)
        if self._running.pop(payload["id"], None) is not None:
            counts.running -= 1
        if payload["error"] is not None:
            counts.failed += 1
        elif payload["interrupts"]:
            counts.waiting += 1
        else:
            counts.done += 1
            self._ends.append(now)

    def _counts(self, payload: Mapping[str, Any]) -> TaskCounts:
        return self.by_name.setdefault(payload["name"], TaskCounts())

    def rate(self, now: float) -> float:
        """Return how many tasks finish in a second, by the last ones."""
        if len(self._ends) < 2:
            return 0.0
        since = self.started if len(self._ends) < _WINDOW else self._ends[0]
        return len(self._ends) / max(now - since, 1e-6)

    def left(self, now: float) -> float | None:
        """Return the seconds that the tasks in flight take at this rate; None: unknown.

        Names of which no task has ended are left out: a body waits for the others.
        """
        rate = self.rate(now)
        in_flight = sum(each.running for each in [*self.by_name.values()] if each.done)
        return in_flight / rate if rate and in_flight else None

    def summary(self, now: float) -> str:
        """Return a line about the whole run."""
        rate, left = self.rate(now), self.left(now)
        done = sum(counts.done for counts in [*self.by_name.values()])
        parts = [f"superstep {self.step}", f"{done} tasks done"]
        if self.steps:
            parts.insert(1, f"{self.steps} supersteps ended")
        parts += [f"{rate:.1f}/s"] if rate else []
        parts += [] if left is None else [f"about {left:,.0f} s left"]
        return ", ".join(parts)


class ProgressView:
    """Shows nothing of a run's events; the base of the views that do.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        from flowpregel.pregel.progress import (  # noqa: PLC0415 - keeps --help fast
            how_far,
            workers_text,
        )

        self._clock = clock
        self._counters = Counters(clock())
        self._how_far = how_far
        self._workers = workers_text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""

    def event(self, mode: str, data: Any) -> None:
        """Take an event of mode ``debug``, ``custom`` or ``progress``."""
        if mode == "progress":
            self._counters.note_report(data)
        elif mode == "debug":
            self._counters.note(data, self._clock())

    def _summary(self, now: float) -> str:
        return ", ".join(filter(None, (self._counters.summary(now), self._workers())))

    def _reports(self, name: str) -> list[str]:
        """Return a text for each of the first tasks of that name that report progress."""
        return [self._how_far(report) for report in self._counters.reports_of(name)[:_REPORTS]]


class LineView(ProgressView):
    """Prints a line now and then, and one for each failed task and each custom chunk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._next = self._counters.started + _PAUSE

    def event(self, mode: str, data: Any) -> None:
        """Count it, and print a line if one is due."""
        super().event(mode, data)
        if line := _line_of(mode, data):
            note(line)
        now = self._clock()
        if now >= self._next:
            self._next = now + _PAUSE
            note(self._line(now))

    def __exit__(self, *_: object) -> None:
        note(self._line(self._clock()))

    def _line(self, now: float) -> str:
        names = "; ".join(
            ", ".join((f"{name}: {counts.text()}", *self._reports(name)))
            for name, counts in self._counters.by_name.items()
        )
        line = f"[{now - self._counters.started:7.1f} s] {self._summary(now)}"
        return f"{line} ({names})" if names else line


class LiveView(ProgressView):
    """A table that changes in its place."""

    def __init__(self, clock: Callable[[], float]) -> None:
        from rich.console import Console  # noqa: PLC0415 - 30 ms, for terminals only
        from rich.live import Live  # noqa: PLC0415 - as above

        super().__init__(clock)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=5)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, mode: str, data: Any) -> None:
        """Count it; the table is drawn by its own clock."""
        super().event(mode, data)
        if line := _line_of(mode, data):
            style = None if mode == "custom" else "red"
            self._console.print(line, markup=False, highlight=False, style=style)

    def _table(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        now = self._clock()
        table = Table(box=None, pad_edge=False)
        for column in ("task", "done", "in flight", "failed", "waiting"):
            table.add_column(column, justify="left" if column == "task" else "right")
        # rich draws on an OS thread of its own, while the run changes the dict.
        rows = [*self._counters.by_name.items()]
        for name, counts in rows[:_SHOWN]:
            numbers = (counts.done, counts.running, counts.failed, counts.waiting)
            table.add_row(Text(name), *(f"{each:,}" if each else "" for each in numbers))
            for line in self._reports(name):
                table.add_row(Text(f"  {line}"))
        if len(rows) > _SHOWN:
            table.add_row(f"… {len(rows) - _SHOWN} more")
        return Group(Text(f"{now - self._counters.started:.0f} s, {self._summary(now)}"), table)


def view_of(clock: Callable[[], float], *, quiet: bool) -> ProgressView:
    """Return the view that fits stderr."""
    if quiet:
        return ProgressView(clock)
    return LiveView(clock) if sys.stderr.isatty() else LineView(clock)


def _line_of(mode: str, data: Any) -> str | None:
    """Return a line for a custom chunk or a task that failed; None for any other event."""
    if mode == "custom":
        return f"  {one_line(data)}"
    if mode != "debug" or data["type"] != "task_result" or data["payload"]["error"] is None:
        return None
    error = data["payload"]["error"]
    return f"  {data['payload']['name']} failed: {one_line(f'{type(error).__name__}: {error}')}"
