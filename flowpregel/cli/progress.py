"""The progress of a run on stderr: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowpregel.cli.console import rich_console
from flowpregel.cli.preview import one_line, printable
from flowpregel.pregel.progress import how_far, workers_text

_WINDOW = 200
"""The rate is that of the last tasks, this many."""
_PAUSE = 2.0
"""Seconds between two plain lines."""
_SHOWN = 12
"""Names of tasks in a live view."""
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
    by_name: defaultdict[str, TaskCounts] = field(default_factory=lambda: defaultdict(TaskCounts))
    step: int = 0
    steps: int = 0
    """Supersteps that ended."""
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last report of progress of each running task, by its id."""
    _running: set[str] = field(default_factory=set)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def note(self, event: Mapping[str, Any], now: float) -> None:
        """Count an event of stream mode ``debug`` that came at *now*."""
        payload = event["payload"]
        match event["type"]:
            case "task":
                self.step = event["step"]
                if payload["id"] not in self._running:
                    self._running.add(payload["id"])
                    self.by_name[payload["name"]].running += 1
            case "task_result":
                self._end(payload, now)
            case "checkpoint" if payload["metadata"].get("source") == "loop":
                self.steps += 1

    def _end(self, payload: Mapping[str, Any], now: float) -> None:
        counts = self.by_name[payload["name"]]
        self.reports.pop(payload["id"], None)
        counts.running -= payload["id"] in self._running
        self._running.discard(payload["id"])
        if payload["error"] is not None:
            counts.failed += 1
        elif payload["interrupts"]:
            counts.waiting += 1
        else:
            counts.done += 1
            self._ends.append(now)

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
        parts = [f"superstep {self.step}"]
        parts += [f"{self.steps} supersteps ended"] if self.steps else []
        parts += [f"{done} tasks done", f"{rate:.1f}/s" if rate else ""]
        parts += [] if left is None else [f"about {left:,.0f} s left"]
        return ", ".join(filter(None, parts))


class RunView:
    """Shows a table that changes in its place; where stderr is no terminal, a line now and then.

    Each failed task and each custom chunk gets a line of its own.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counters = Counters(clock())
        self._next = self._counters.started + _PAUSE
        self._is_live = sys.stderr.isatty()
        self._console = rich_console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=5)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()
        else:
            self._console.print(self._line())

    def event(self, mode: str, data: Any) -> None:
        """Take an event of mode ``debug``, ``custom`` or ``progress``."""
        now = self._clock()
        if mode == "custom":
            self._console.print(f"  {one_line(data)}")
        elif mode == "progress":
            self._counters.reports[data["id"]] = data
        else:
            self._counters.note(data, now)
            if data["type"] == "task_result" and (error := data["payload"]["error"]) is not None:
                text = one_line(f"{type(error).__name__}: {error}")
                name = printable(data["payload"]["name"])
                self._console.print(f"  {name} failed: {text}", style="red")
        if now >= self._next and not self._is_live:
            self._next = now + _PAUSE
            self._console.print(self._line())

    def _line(self) -> str:
        names = [
            ", ".join([f"{name}: {counts.text()}", *self._reports(name)])
            for name, counts in self._counters.by_name.items()
        ]
        return printable(self._summary() + (f" ({'; '.join(names)})" if names else ""))

    def _summary(self) -> str:
        now, counters = self._clock(), self._counters
        parts = [f"[{now - counters.started:7.1f} s] {counters.summary(now)}", workers_text()]
        return ", ".join(filter(None, parts))

    def _reports(self, name: str) -> list[str]:
        """Return the progress of the first tasks of that name that report it."""
        reports = [*self._counters.reports.values()]
        return [how_far(report) for report in reports if report["name"] == name][:_REPORTS]

    def _table(self) -> Group:
        table = Table("task", "done", "in flight", "failed", "waiting", box=None, pad_edge=False)
        # Copied, because the run changes the dict while rich draws on an OS thread of its own.
        for name, counts in [*self._counters.by_name.items()][:_SHOWN]:
            numbers = (counts.done, counts.running, counts.failed, counts.waiting)
            table.add_row(Text(name), *(f"{each:,}" if each else "" for each in numbers))
            for line in self._reports(name):
                table.add_row(Text(f"  {line}"))
        return Group(Text(self._summary()), table)
