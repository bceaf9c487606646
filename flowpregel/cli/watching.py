"""Views of runs in progress, in this process or in another process.

A `RunView` reads the events of a run in this process. A `WatchView` reads the store,
and the activity that the process of the run publishes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, nullcontext, redirect_stdout
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Self
from warnings import catch_warnings, simplefilter

from flowpregel._engine.drivers import Item
from flowpregel._inspection.earlier_durations import earlier_durations
from flowpregel._inspection.preview import one_line
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.run_time_left import estimate_of
from flowpregel._inspection.time_left import TimeLeft
from flowpregel._interrupts import on_sigterm
from flowpregel._text import in_one_line, printable
from flowpregel.cli import console
from flowpregel.cli.call_counts import ENDED, CallCounts
from flowpregel.cli.console import Code, print_note, rich_console
from flowpregel.cli.consumers import QueueWait
from flowpregel.cli.dashboard import Dashboard, can_draw
from flowpregel.cli.worker_counts import worker_count_text
from flowpregel.errors import ConfigurationError, RunNotice
from flowpregel.pregel.live_view import SCREEN
from flowpregel.pregel.pregel import Pregel
from flowpregel.pregel.progress import MODES, ProgressView, how_far
from flowpregel.pregel.runner import GraphRun
from flowpregel.pregel.views import view_of

if TYPE_CHECKING:
    from flowpregel._inspection.tasks import RunRow
    from flowpregel.checkpoint.durable import DurableSaver

_PERIOD = 0.2
"""Seconds between two reads of a watched run."""
_ANSWER_TIMEOUT = 2.0
"""Seconds to wait for an answer of the process of the run."""
_MOST_LINES = 10
"""The greatest number of lines for failed calls, and also for running tasks."""
_NO_ACTIVITY: Mapping[str, Any] = {
    "running": [],
    "waiting": {},
    "workers": [],
}


def run_to_end(
    flow: Pregel,
    flow_input: Any,
    options: Mapping[str, Any],
    resume: Any,
    *,
    is_quiet: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """Run a flow and show its progress, then return the output and the open interrupts.

    Args:
        flow: The flow, with its store.
        flow_input: The input of the flow.
        options: The options of the run.
        resume: ``"auto"`` or the flow's `RunIdentity`, with which a stored run is
            resumed. None if only *flow_input* decides whether it is.
        is_quiet: True to show no progress.
    """
    on_conflict = options["on_conflict"]
    if not on_conflict and flow.once and resume:
        on_conflict = "wait"
    keywords = {
        **options,
        "stream_mode": [*MODES, "custom", "notices", "values"],
        "version": "v2",
        "output_keys": flow.output_channels,
        "on_conflict": on_conflict or None,
    }
    run = GraphRun(
        flow,
        flow_input,
        None,
        keywords,
        streams=True,
    )
    run.resume = resume
    view = None if is_quiet else RunView(flow.name)
    parts: Any = run.items()
    # What tasks print goes to stderr, because stdout is only for the result.
    with (
        on_sigterm(run.end, dies=False),
        redirect_stdout(sys.stderr),
        view or nullcontext(),
        closing(parts),
        catch_warnings(),
    ):
        # `_show_parts` prints the notices, so Python must not show them as warnings
        # too.
        simplefilter("ignore", RunNotice)
        return _show_parts(parts, view)


def _show_parts(
    parts: Iterable[Mapping[str, Any]],
    view: RunView | None,
) -> tuple[Any, tuple[Any, ...]]:
    """Show the items of a stream. Return the last output and the open interrupts."""
    output: Any = None
    interrupts: tuple[Any, ...] = ()
    for part in parts:
        if part["type"] == "values":
            output = part["data"]
            interrupts = tuple(part["interrupts"])
        elif part["type"] == "notices":
            notice = part["data"]
            print_note(f"note: {notice}")
        elif view is not None:
            item = (part["ns"], part["type"], part["data"])
            view.see(item)
    return output, interrupts


def watch_run(
    saver: DurableSaver,
    thread: str | None,
    store: str | None,
) -> Code:
    """Show a run until it ends, and return the exit code for its status.

    Args:
        saver: The open store.
        thread: The id of the run, or None for the run that changed last.
        store: The store to name in the commands for the next step.

    Raises:
        ConfigurationError: There is no such run.
    """
    with closing(StoreReader(saver)) as reader:
        if thread is None:
            rows = reader.runs()
            if not rows:
                raise ConfigurationError(
                    f"the store at {saver.path} has no threads yet"
                )
            last_changed = rows[0]
            thread = last_changed.thread_id
        wait = QueueWait(saver, reader, thread)
        if not can_draw():
            return _watch_in_lines(reader, wait, thread, store)
        while (row := reader.run(thread)) is not None and wait.sleep_if_due(row):
            pass
        code = Dashboard(saver, reader, thread, store).show()
        return wait.exit_code(code)


def follow_run(saver: DurableSaver, thread: str, store: str | None) -> Code:
    """Print lines about a run until it has ended or waits for a person, and return the
    exit code for its status. Processes of `work` may take the run in between.

    Args:
        saver: The open store.
        thread: The id of the run.
        store: The store to name in the commands for the next step.

    Raises:
        ConfigurationError: There is no such run.
    """
    with closing(StoreReader(saver)) as reader:
        wait = QueueWait(saver, reader, thread, until_end=True)
        return _watch_in_lines(reader, wait, thread, store)


def _watch_in_lines(
    reader: StoreReader,
    wait: QueueWait,
    thread: str,
    store: str | None,
) -> Code:
    """Print lines about a run until it ends, and return the exit code for its status.

    Args:
        reader: The reader of the store.
        wait: The wait until a process of `work` takes the run.
        thread: The id of the run.
        store: The store to name in the command for the next step.
    """
    view = WatchView(reader, thread)
    row = view.refresh()
    while row.status == "running" or wait.sleep_if_due(row):
        if row.status == "running":
            time.sleep(_PERIOD)
        row = view.refresh()
    if view.started:
        view.close()
    status = row.status
    text = reader.status(thread)
    if text is not None and text.command:
        print_note(f"{text.sentence} {text.next_step}: {text.command_line(store)}")
    console.print_result(
        {"thread_id": thread, "status": status},
        f"{in_one_line(thread)}: {status}",
    )
    return wait.exit_code(console.code_of_status(status))


class RunView:
    """A view of a run's progress, with a line for each failed task, and for each value
    in the stream mode ``custom``.

    Args:
        name: The name of the flow.
        clock: A function that returns seconds and never goes backwards.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view_of(name, clock)
        self._console = rich_console(stderr=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.close()

    def see(self, item: Item) -> None:
        """Show an event of the run's stream."""
        _, mode, payload = item
        if mode == "custom":
            text = one_line(payload)
            self._print(f"  {text}")
        elif mode == "tasks":
            error = payload.get("error")
            if error is not None:
                self._print_failure(payload["name"], error)
        self._view.see(item)

    def _print_failure(self, name: str, error: BaseException) -> None:
        kind = type(error).__name__
        text = one_line(f"{kind}: {error}")
        line = f"  {printable(name)} failed: {text}"
        self._print(line, style="red")

    def _print(
        self,
        line: str,
        style: str | None = None,
    ) -> None:
        terminal = SCREEN.console or self._console
        terminal.print(line, style=style)


class WatchView(ProgressView):
    """A view of the progress of a run in another process.

    Args:
        reader: The reader of the store.
        thread: The id of the run.
    """

    def __init__(self, reader: StoreReader, thread: str) -> None:
        prints_json = console.has_flag("--json")
        stream = sys.stderr if prints_json else sys.stdout
        super().__init__(
            thread,
            stream,
            time.time,
            self._workers_text,
        )
        self._reader = reader
        self._live = _NO_ACTIVITY
        self._calls = CallCounts()
        self._counts = self._calls.counts

    @property
    def started(self) -> int:
        """The time at which the run began or resumed, in wall-clock nanoseconds, or 0
        if it is unknown.
        """
        return self._calls.started

    def refresh(self) -> RunRow:
        """Read the changes, show them if the view is due, and return the run.

        Raises:
            ConfigurationError: There is no such run.
        """
        row = self._reader.run(self._name)
        if row is None:
            raise ConfigurationError(
                f"the store has no thread {self._name!r}; `flowpregel ls` lists them"
            )
        live = self._reader.live(self._name)
        self._live = live or _NO_ACTIVITY
        started = self._live.get("started", self.started)
        if started != self.started:
            # The run has begun or resumed again. Tasks that were done before that are
            # counted separately, so all tasks are read and counted again.
            self._calls.restart(started)
            self._began = started / 1e9
        for changes in self._reader.changes(self._name, self._calls.mark):
            self._calls.apply(changes)
        if row.status == "running":
            self._show_if_due()
        return row

    def _time_left(self, name: str, count: int) -> TimeLeft | None:
        """Return the estimated time until *count* calls of a task have ended, or None.

        The estimate is from the durations of the calls in the store.
        """
        durations = self._calls.durations
        if durations.earlier is None:
            durations.earlier = earlier_durations(self._reader, self._name)
        tasks = self._live["running"]
        running = [task for task in tasks if task["role"] == "leaf"]
        activity = {"waiting": dict(self._live["waiting"])}
        if name:
            running = [task for task in running if task["name"] == name]
            activity = {"waiting": {name: count - len(running)}}
        return estimate_of(durations, activity, running, self._clock())

    def _show_if_due(self) -> None:
        """Show the current lines if the last lines are old enough."""
        now = self._clock()
        age = now - self._last_shown
        if age >= self._period:
            self._last_shown = now
            lines = self.lines(now)
            self._show(lines)

    def lines(self, now: float) -> list[str]:
        """Return the lines to show at *now*, only those that fit on a terminal."""
        activity = self._live["running"]
        tasks = [task for task in activity if task["role"] == "leaf"]
        self._reports = self._reports_of_bodies()
        self._count_started(tasks)
        header, *counts = super().lines(now)
        tasks.sort(key=lambda task: task["began"])
        running: list[str] = []
        for task in tasks[:_MOST_LINES]:
            text = task_line(task, now)
            running.append(f"    {text}")
        failed = self._failure_lines()
        texts = [
            header,
            *failed[-_MOST_LINES:],
            *counts,
            *running,
        ]
        lines = [in_one_line(text) for text in texts]
        if self._out.isatty():
            return _fitted_to_terminal(lines)
        return lines

    def _reports_of_bodies(self) -> dict[str, dict[str, Any]]:
        """Return the progress that the run's bodies (the tasks that make calls) report,
        by task id.
        """
        reports: dict[str, dict[str, Any]] = {}
        for task in self._live["running"]:
            is_body = task["role"] == "body"
            if is_body and task["done"] is not None:
                report = dict(task)
                report["name"] = self._name
                reports[task["id"]] = report
        return reports

    def _count_started(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        """Update the number of started calls by name. Calls that wait for a worker are
        included.
        """
        to_do = Counter(task["name"] for task in tasks)
        to_do += Counter(self._live["waiting"])
        names = self._counts.keys() | to_do.keys()
        for name in names:
            count = self._counts[name]
            started = to_do[name]
            for category in ENDED:
                started += count[category]
            count["started"] = started

    def _failure_lines(self) -> list[str]:
        """Return a line for each failed call."""
        lines: list[str] = []
        for call in self._calls.open_calls.values():
            if call.state == "failed":
                name = call.text or call.name
                lines.append(f"  {name} failed: {call.error}")
        return lines

    def _workers_text(self) -> str:
        """Return the number of workers and their memory, as text."""
        return worker_count_text(self._live["workers"], self._live.get("pools") or ())


def _fitted_to_terminal(lines: list[str]) -> list[str]:
    """Return the lines that fit on the terminal, cut to its width."""
    size = get_terminal_size()
    width = size.columns - 1
    height = size.lines - 1
    fitting = lines[:height]
    return [line[:width] for line in fitting]


def task_line(task: Mapping[str, Any], now: float) -> str:
    """Return a line about a running task, which is an item of `StoreReader.live`."""
    name = task["text"] or task["name"]
    began = task["began"] / 1e9
    duration = max(0.0, now - began)
    parts = [f"{name}: {duration:,.1f} s"]
    attempt = task["attempt"]
    if attempt > 1:
        parts.append(f"attempt {attempt}")
    if task["done"] is not None:
        parts.append(how_far(task))
    return ", ".join(parts)


def live_activity(
    saver: DurableSaver,
    thread: str,
) -> Mapping[str, Any] | None:
    """Return the current activity of a run, as `StoreReader.live` does.

    None is returned if the process of the run does not answer within two seconds.
    """
    deadline = time.monotonic() + _ANSWER_TIMEOUT
    with closing(StoreReader(saver)) as reader:
        live = reader.live(thread)
        while live is None and time.monotonic() < deadline:
            time.sleep(_PERIOD / 4)
            live = reader.live(thread)
    return live
