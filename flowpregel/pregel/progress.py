"""The live view of a run: finished tasks by name, their rate, and the remaining time.

On a terminal the view stays below the printed output (see `live_view.py`). In a
notebook, one output is updated. Anywhere else, a line is printed from time to time. The
view goes to stderr, so that it does not mix with the program's output.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from math import ceil
from typing import Any, TextIO

from flowpregel._engine.drivers import Item
from flowpregel._inspection.time_left import CallDurations, TimeLeft, time_left
from flowpregel._text import in_one_line

MODES = ("tasks", "updates", "recorded", "progress")
"""The stream modes that a view reads."""
_MOST_REPORTS = 6
"""The maximum number of tasks of one name whose reports are shown, a line each."""
_ENDS = ("done", "failed", "asking")
"""The states of calls that have ended in this run."""
_LONGEST = 60
"""The maximum length of a shown message in characters."""
progress_is_on: ContextVar[bool] = ContextVar("flowpregel_progress", default=False)


@contextmanager
def progress() -> Iterator[None]:
    """Show a live view of every run that starts inside the ``with`` block.

    Example:
        >>> from flowpregel import entrypoint
        >>> @entrypoint()
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with progress():  # shows the view on stderr
        ...     double.run(4)
        8
    """
    token = progress_is_on.set(True)
    try:
        yield
    finally:
        progress_is_on.reset(token)


class ProgressView:
    """A view that counts the tasks in the stream of a run, and shows the counts.

    Args:
        name: The name of the graph.
        out: The stream to write to. By default the view prints a line to stderr from
            time to time. If you pass a terminal, the view overwrites its own lines, so
            nothing else may write to that terminal.
        clock: A function that returns monotonic seconds.
        workers: A function that returns the number of workers and their memory, as
            text.
        show: A function that shows the last lines of the run, instead of *out*.
    """

    def __init__(
        self,
        name: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        workers: Callable[[], str] | None = None,
        show: Callable[[list[str]], object] | None = None,
    ) -> None:
        self._name = name
        self._workers = workers_text if workers is None else workers
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._began = clock()
        self._last_shown = self._began
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """The number of tasks in each state, by task name: started, done, failed,
        asking, or done before (in an earlier run).
        """
        self._intervals = CallDurations()
        """The times between the ends of consecutive calls, by the name of the task. The
        times for the calls of all tasks together are under an empty name.
        """
        self._last_ends: dict[str, float] = {}
        """The time at which the last call ended or, if none has ended, the first call
        started. The keys are those of `_intervals`.
        """
        self._reports: dict[str, dict[str, Any]] = {}
        """The last report of each running task, by task id."""
        self._show: Callable[[list[str]], object]
        if show is not None:
            self._show, self._period = show, float("inf")
        else:
            self._show, self._period = _display(
                self._out,
                overwrites=out is not None,
                shares=self.shares,
            )
        if self._period < 1:
            # A view that is overwritten in place is shown from the first event on.
            self._last_shown = float("-inf")

    def see(self, item: Item) -> None:
        """Process an event of the run's stream."""
        _, mode, payload = item
        if mode == "tasks":
            self._count_task(payload)
        elif mode == "recorded" or (mode == "updates" and "__metadata__" in payload):
            names = payload.keys() - {"__metadata__"}
            self._count_recorded(names)
        elif mode == "progress":
            self._reports[payload["id"]] = payload
        now = self._clock()
        if mode in MODES and now - self._last_shown >= self._period:
            self._last_shown = now
            self._show(self.lines(now))

    def _count_recorded(self, names: Iterable[str]) -> None:
        """Count tasks whose results an earlier run has recorded."""
        for name in names:
            self._counts[name]["before"] += 1

    def _count_task(self, payload: Mapping[str, Any]) -> None:
        """Count a task that has started or ended."""
        state = "started"
        if "result" in payload:
            self._reports.pop(payload["id"], None)
            state = "done"
            if payload["interrupts"]:
                state = "asking"
            if payload["error"] is not None:
                state = "failed"
        name = payload["name"]
        self._counts[name][state] += 1
        if name != self._name:
            self._note_interval(name, has_ended=state != "started")
            self._note_interval("", has_ended=state != "started")

    def _note_interval(self, name: str, *, has_ended: bool) -> None:
        """Record the time between the ends of the last two calls."""
        now = self._clock()
        last_end = self._last_ends.setdefault(name, now)
        if has_ended:
            self._intervals.add(name, now - last_end)
            self._last_ends[name] = now

    def _time_left(self, name: str, count: int) -> TimeLeft | None:
        """Return the estimated time until *count* calls of a task have ended, or None.

        The view does not know which calls run. So the estimate treats them as if they
        ran one after another, each for the mean time between the ends of two calls.
        """
        return time_left(self._intervals, (), {name: count}, workers=1)

    def close(self) -> None:
        """Show the final counts of the run."""
        self._show(self.lines(self._clock()))

    def lines(self, now: float) -> list[str]:
        """Return the lines of the view at *now*."""
        seconds = max(now - self._began, 1e-9)
        # The values are copied, because rich may call this method on another OS thread.
        reports = list(self._reports.values())
        counts = list(self._counts.items())
        run_reports = [report for report in reports if report["name"] == self._name]
        run_report = run_reports[0] if run_reports else None
        header = [f"{self._name}: {seconds:.1f} s", self._workers()]
        if run_report is not None:
            header.append(self._run_text(run_report, seconds))
        lines = [", ".join(filter(None, header))]
        for name, count in counts:
            if name == self._name:
                continue
            texts = _count_texts(count, seconds)
            # If the run itself reports its progress, it may make more calls than have
            # started, so an estimate from the started calls would be too short. The
            # line of that report shows the remaining time instead.
            if run_report is None:
                texts.append(self._left_text_of(name, count))
            lines.append(f"  {name}: {', '.join(filter(None, texts))}")
            lines.extend(_report_lines(name, reports))
        return [in_one_line(line) for line in lines]

    def _left_text_of(self, name: str, count: Counter[str]) -> str:
        """Return the estimated time until the calls of a task have ended, as text."""
        remaining = count["started"] - sum(count[state] for state in _ENDS)
        return _left_text(self._time_left(name, remaining)) if remaining > 0 else ""

    def shares(self) -> list[tuple[str, int, int]]:
        """Return the names of tasks, each with the number of ended calls and of known
        calls.
        """
        shares: list[tuple[str, int, int]] = []
        # The counts are copied, because another OS thread may call this method.
        for name, count in list(self._counts.items()):
            if name != self._name:
                ended = count["done"] + count["failed"] + count["asking"]
                before = count["before"]
                shares.append((name, before + ended, before + count["started"]))
        return shares

    def _run_text(
        self,
        report: Mapping[str, Any],
        seconds: float,
    ) -> str:
        """Return the progress that the run itself reports, and its remaining time."""
        counts = sum(self._counts.values(), Counter[str]())
        # Only the items that this run has computed are used for the rate, because
        # results of an earlier run took no time in this run.
        share = counts["done"] / max(counts["done"] + counts["before"], 1)
        done = report["done"] * share
        if not (done and report["total"]):
            return how_far(report)
        # An item of the report may take several calls, or one call may compute a chunk
        # of several items. So the number of remaining items is multiplied by the calls
        # for each item so far.
        calls = (report["total"] - report["done"]) * counts["done"] / done
        estimate = self._time_left("", ceil(calls))
        return ", ".join(filter(None, (how_far(report), _left_text(estimate))))


def _count_texts(count: Counter[str], seconds: float) -> list[str]:
    """Return the counts of the tasks of one name as strings.

    Args:
        count: The number of tasks in each state.
        seconds: The duration of the run so far.
    """
    before = count["before"]
    done = count["done"]
    failed = count["failed"]
    asking = count["asking"]
    remaining = count["started"] - done - failed - asking
    texts = [f"{before + done:,} done"]
    if before:
        texts.append(f"{before:,} of them before")
    if failed:
        texts.append(f"{failed:,} failed")
    if asking:
        texts.append(f"{asking:,} waiting for an answer")
    if remaining:
        texts.append(f"{remaining:,} to do")
    if done:
        texts.append(f"{done / seconds:,.1f}/s")
    return texts


def _report_lines(name: str, reports: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of the first tasks of a name that report progress."""
    texts = [how_far(report) for report in reports if report["name"] == name]
    return [f"    {text}" for text in texts[:_MOST_REPORTS]]


def _left_text(estimate: TimeLeft | None) -> str:
    """Return an estimated time as text, or an empty string if there is none."""
    return "" if estimate is None else f"{estimate} left"


def how_far(report: Mapping[str, Any]) -> str:
    """Return the progress that a task reports, as text.

    Args:
        report: An item of stream mode ``progress``.

    Example:
        >>> how_far({"done": 3, "total": 12, "message": "fitting"})
        '3/12 (25 %) fitting'
    """
    done = report["done"]
    total = report["total"]
    text = _amount(done)
    if total is not None:
        text += f"/{_amount(total)}"
    if total:
        text += f" ({100 * done / total:.0f} %)"
    message = " ".join(str(report["message"] or "").split())[:_LONGEST]
    return f"{text} {message}" if message else text


def _amount(number: float) -> str:
    """Return a number as text, without decimals if it is whole."""
    is_whole = number == round(number, 6) // 1
    return f"{number:,.0f}" if is_whole else f"{number:,.2f}"


def workers_text() -> str:
    """Return the number of workers and their memory as text, or an empty string if
    there are no workers.
    """
    usage = sys.modules.get("flowpregel.executors.processes.coordinator.executor")
    if usage is None:
        return ""
    count, size = usage.worker_memory()
    if not count:
        return ""
    plural = "s" if count > 1 else ""
    return f"{count} worker{plural} with {size / 1e6:,.0f} MB"


def is_notebook() -> bool:
    """Return whether the program runs in a notebook."""
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    return type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class NotebookProgress:
    """The lines of a view in a notebook, with a bar for each task.

    Args:
        lines: The lines of the view.
        shares: The names of tasks, each with the number of ended calls and of known
            calls.
    """

    def __init__(
        self,
        lines: Sequence[str],
        shares: Sequence[tuple[str, int, int]],
    ) -> None:
        self._lines = lines
        self._shares = shares

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        from html import escape  # noqa: PLC0415 - 3 ms, only in a notebook

        rows: list[str] = []
        for name, ended, known in self._shares:
            label = escape(in_one_line(name))
            bar = f'<progress value="{ended}" max="{max(known, 1)}"></progress>'
            rows.append(f"<tr><td>{label}</td><td>{bar}</td></tr>")
        text = escape(repr(self))
        return (
            f'<table>{"".join(rows)}</table><pre style="line-height: 1.3">{text}</pre>'
        )


def _display(
    out: TextIO,
    *,
    overwrites: bool,
    shares: Callable[[], Sequence[tuple[str, int, int]]],
) -> tuple[Callable[[list[str]], object], float]:
    """Return a function that shows lines, and the seconds that must pass between two
    calls of the function.

    Args:
        out: The stream to write to.
        overwrites: Whether the view may overwrite its own lines if *out* is a terminal.
        shares: A function that returns the names of tasks, each with the number of
            ended calls and of known calls.
    """
    if is_notebook():
        display: Any = import_module("IPython.display")
        handle = display.display(NotebookProgress((), ()), display_id=True)

        def update(lines: list[str]) -> None:
            """Replace the output of the notebook's cell."""
            handle.update(NotebookProgress(lines, shares()))

        return update, 0.2
    if not (overwrites and out.isatty()):

        def append(lines: list[str]) -> None:
            """Write one more line."""
            print(" |".join(lines), file=out, flush=True)

        return append, 2.0
    height = 0

    def overwrite(lines: list[str]) -> None:
        """Write over the lines that were written before."""
        nonlocal height
        back = f"\x1b[{height}F\x1b[J" if height else ""
        print(back + "\n".join(lines), file=out, flush=True)
        height = len(lines)

    return overwrite, 0.1
