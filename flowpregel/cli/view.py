"""A run's progress on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from flowpregel.cli.output import note
from flowpregel.cli.preview import one_line
from flowpregel.cli.tally import Tally

_PAUSE = 2.0
"""Seconds between two plain lines."""
_SHOWN = 12
"""So many names of tasks a live table has."""
_REPORTS = 4
"""So many tasks of a name that say how far they are."""


class View(Protocol):
    """Shows what a run's events tell, while it runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def event(self, mode: str, data: Any) -> None:
        """Take an event of mode ``debug``, ``custom`` or ``progress``."""


def view_of(clock: Callable[[], float], *, quiet: bool) -> View:
    """Return the view that fits stderr."""
    if quiet:
        return Silent()
    return Live(clock) if sys.stderr.isatty() else Plain(clock)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Have nothing to end."""

    def event(self, mode: str, data: Any) -> None:
        """Show nothing of it."""


class Plain(Silent):
    """A line now and then, and one for each failed task and each custom chunk.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tally = Tally(clock())
        self._next = self._tally.started + _PAUSE

    def event(self, mode: str, data: Any) -> None:
        """Count it, and print a line if one is due."""
        now = self._clock()
        if mode == "custom":
            note(f"  {one_line(data)}")
            return
        if mode == "progress":
            self._tally.note_report(data)
        else:
            self._tally.note(data, now)
            if line := _failure(data):
                note(line)
        if now >= self._next:
            self._next = now + _PAUSE
            note(self._line(now))

    def __exit__(self, *_: object) -> None:
        note(self._line(self._clock()))

    def _line(self, now: float) -> str:
        tally = self._tally
        names = "; ".join(
            ", ".join((f"{name}: {counts.text()}", *_reports(tally, name)))
            for name, counts in tally.by_name.items()
        )
        said = ", ".join(filter(None, (tally.summary(now), _workers())))
        return f"[{now - tally.started:7.1f} s] {said}" + (f" ({names})" * bool(names))


class Live(Silent):
    """A table that changes in its place.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        from rich.console import Console  # noqa: PLC0415 - 30 ms, for terminals only
        from rich.live import Live as RichLive  # noqa: PLC0415 - 30 ms, for terminals only

        self._clock = clock
        self._tally = Tally(clock())
        self._console = Console(stderr=True)
        self._live = RichLive(
            console=self._console, get_renderable=self._table, refresh_per_second=5
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, mode: str, data: Any) -> None:
        """Count it; the table is drawn by its own clock."""
        if mode == "custom":
            self._console.print(f"  {one_line(data)}", markup=False, highlight=False)
            return
        if mode == "progress":
            self._tally.note_report(data)
            return
        self._tally.note(data, self._clock())
        if line := _failure(data):
            self._console.print(line, markup=False, style="red")

    def _table(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - 30 ms, for terminals only
        from rich.table import Table  # noqa: PLC0415 - 30 ms, for terminals only
        from rich.text import Text  # noqa: PLC0415 - 30 ms, for terminals only

        now = self._clock()
        summary = (f"{now - self._tally.started:.0f} s", self._tally.summary(now), _workers())
        title = Text(", ".join(filter(None, summary)))
        table = Table(box=None, pad_edge=False)
        for column in ("task", "done", "in flight", "failed", "waiting"):
            table.add_column(column, justify="left" if column == "task" else "right")
        # The drawing thread must not meet a dict that the run changes.
        tally = self._tally
        rows = [*tally.by_name.items()]
        for name, counts in rows[:_SHOWN]:
            numbers = (counts.done, counts.running, counts.failed, counts.waiting)
            table.add_row(Text(name), *(f"{each:,}" if each else "" for each in numbers))
            for line in _reports(tally, name):
                table.add_row(Text(f"  {line}"))
        if len(rows) > _SHOWN:
            table.add_row(f"… {len(rows) - _SHOWN} more")
        return Group(title, table)


def _reports(tally: Tally, name: str) -> list[str]:
    """Return a text for each of the first tasks of that name that say how far they are."""
    from flowpregel.pregel.progress import how_far  # noqa: PLC0415 - keeps --help fast

    return [how_far(report) for report in tally.reports_of(name)[:_REPORTS]]


def _workers() -> str:
    from flowpregel.pregel.progress import workers_text  # noqa: PLC0415 - keeps --help fast

    return workers_text()


def _failure(event: Mapping[str, Any]) -> str | None:
    """Return a line for a task that failed, or None."""
    if event["type"] != "task_result" or event["payload"]["error"] is None:
        return None
    error = event["payload"]["error"]
    return f"  {event['payload']['name']} failed: {one_line(f'{type(error).__name__}: {error}')}"
