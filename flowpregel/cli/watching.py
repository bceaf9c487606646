"""Runs shown while they go on: by their own events, or by what their store and process
tell.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, redirect_stdout
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Self
from warnings import catch_warnings, simplefilter

from flowpregel._engine.drivers import Item
from flowpregel._interrupts import ending
from flowpregel._text import in_one_line, printable
from flowpregel.cli import console
from flowpregel.cli.console import Code, note, rich_console
from flowpregel.errors import ConfigurationError, RunNotice
from flowpregel.pregel.live_view import SCREEN
from flowpregel.pregel.pregel import Pregel
from flowpregel.pregel.progress import MODES, ProgressView, how_far
from flowpregel.pregel.runner import GraphRun
from flowpregel.pregel.views import view_of
from flowpregel.watching.preview import one_line
from flowpregel.watching.reader import StoreReader

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.watching.tasks import CallChanges, CallRow, RunRow

_PERIOD = 0.2
_ANSWER = 2.0
"""Seconds for which an answer of the running process is waited for."""
_MOST = 10
"""Of the calls that failed, and of the tasks that run, so many get a line each."""
_CODES = {status: code for code, status in console.STATUSES.items()}
_NOTHING: Mapping[str, Any] = {"running": [], "waiting": {}, "workers": []}


def run_to_end(
    flow: Pregel, given: Any, options: Mapping[str, Any], resume: Any, *, is_quiet: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Run a flow and show it; return the output, and the questions that wait for an
    answer.

    Args:
        flow: On its store.
        given: The input.
        options: Those of the run.
        resume: What becomes of a run that is kept, as a `GraphRun` takes it.
        is_quiet: Whether no progress is shown.
    """
    view = None if is_quiet else RunView(flow.name)
    output, interrupts = None, ()
    asked = {
        **options,
        "stream_mode": [*MODES, "custom", "notices", "values"],
        "version": "v2",
        "output_keys": flow.output_channels,
        "on_conflict": options["on_conflict"]
        or ("wait" if flow.once and resume else None),
    }
    run = GraphRun(flow, given, None, asked, streams=True)
    run.resume = resume
    parts: Any = run.items()
    # What tasks print is no result: stdout is for that alone.
    with (
        ending(run.end, dies=False),
        redirect_stdout(sys.stderr),
        view or nullcontext(),
        closing(parts),
        catch_warnings(),
    ):
        simplefilter("ignore", RunNotice)  # they are printed here
        for part in parts:
            if part["type"] == "values":
                output, interrupts = part["data"], tuple(part["interrupts"])
            elif part["type"] == "notices":
                note(f"note: {part['data']}")
            elif view is not None:
                view.see((part["ns"], part["type"], part["data"]))
    return output, interrupts


def watch_run(saver: DurableSaver, thread: str | None) -> Code:
    """Show a run until it ends; return the code that says how it ended.

    Args:
        saver: Keeps it.
        thread: Whose run; None: the one that changed last.
    """
    with closing(StoreReader(saver)) as reader:
        if thread is None:
            if not (rows := reader.runs()):
                raise ConfigurationError(
                    f"the store at {saver.path} has no threads yet"
                )
            thread = rows[0].thread_id
        view = WatchView(reader, thread)
        while (row := view.look()).status == "running":
            time.sleep(_PERIOD)
    if view.started:
        view.close()
    console.print_result(
        {"thread_id": thread, "status": row.status}, f"{thread}: {row.status}"
    )
    return _CODES[row.status]


class RunView:
    """The progress of a run, and a line for each failed task and each custom chunk.

    Args:
        name: The name of the flow.
        clock: Returns seconds that only grow.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view_of(name, clock)
        self._console = rich_console(stderr=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.close()

    def see(self, item: Item) -> None:
        """Take in an event of the run's stream."""
        _, mode, payload = item
        if mode == "custom":
            self._print(f"  {one_line(payload)}")
        elif mode == "tasks" and (error := payload.get("error")) is not None:
            text = one_line(f"{type(error).__name__}: {error}")
            self._print(f"  {printable(payload['name'])} failed: {text}", style="red")
        self._view.see(item)

    def _print(self, line: str, style: str | None = None) -> None:
        (SCREEN.console or self._console).print(line, style=style)


class WatchView(ProgressView):
    """Shows a run by what its store keeps, and by what its process says that it does.

    Args:
        reader: Reads the store.
        thread: The run's.
    """

    def __init__(self, reader: StoreReader, thread: str) -> None:
        out = sys.stderr if console.is_asked("--json") else sys.stdout
        super().__init__(thread, out, time.time, self._workers_text)
        self._reader = reader
        self._live = _NOTHING
        self._not_done: dict[str, CallRow] = {}
        """Calls that left something, and have not ended well."""
        self._mark = 0
        self.started = 0
        """Wall-clock nanoseconds since when the run goes on; 0: it was never seen
        to.
        """

    def look(self) -> RunRow:
        """Read what changed, show it now and then, and return how the run stands.

        Raises:
            ConfigurationError: There is no such run.
        """
        row = self._reader.run(self._name)
        if row is None:
            raise ConfigurationError(
                f"the store has no thread {self._name!r}; `flowpregel ls` lists them"
            )
        self._live = self._reader.live(self._name) or _NOTHING
        if (started := self._live.get("started", self.started)) != self.started:
            # What was done before it went on is counted by itself.
            self.started, self._began, self._mark = started, started / 1e9, 0
        for changes in self._reader.changes(self._name, self._mark):
            self._take_in(changes)
        now = self._clock()
        if row.status == "running" and now - self._shown >= self._every:
            self._shown = now
            self._show(self.lines(now))
        return row

    def _take_in(self, changes: CallChanges) -> None:
        if changes.is_whole:
            self._not_done.clear()
            self._counts.clear()
        for call in changes.rows:
            if (before := self._not_done.pop(call.id, None)) is not None:
                self._counts[before.name][self._became(before)] -= 1
            self._counts[call.name][self._became(call)] += 1
            if call.state != "done":
                self._not_done[call.id] = call
        self._mark = changes.mark

    def _became(self, call: CallRow) -> str:
        if call.state == "done" and call.began < self.started:
            return "before"
        return "asking" if call.state == "waiting" else call.state

    def lines(self, now: float) -> list[str]:
        """Return what there is to show at *now*: as much as fits on a terminal."""
        tasks = [each for each in self._live["running"] if each["role"] == "leaf"]
        self._reports = {
            each["id"]: {**each, "name": self._name}
            for each in self._live["running"]
            if each["role"] == "body" and each["done"] is not None
        }
        todo = Counter(each["name"] for each in tasks) + Counter(self._live["waiting"])
        for name in {*self._counts, *todo}:
            count = self._counts[name]
            count["started"] = (
                count["done"] + count["failed"] + count["asking"] + todo[name]
            )
        header, *counts = super().lines(now)
        failed = [
            f"  {call.text or call.name} failed: {call.error}"
            for call in self._not_done.values()
            if call.state == "failed"
        ]
        tasks.sort(key=lambda each: each["began"])
        running = [f"    {task_line(each, now)}" for each in tasks[:_MOST]]
        lines = map(in_one_line, [header, *failed[-_MOST:], *counts, *running])
        if not self._out.isatty():
            return [*lines]
        size = get_terminal_size()
        return [line[: size.columns - 1] for line in lines][: size.lines - 1]

    def _workers_text(self) -> str:
        workers = self._live["workers"]
        size = sum(each.get("memory", 0) for each in workers)
        return (
            f"{len(workers)} worker{'s' * (len(workers) > 1)} with {size / 1e6:,.0f} MB"
            if workers
            else ""
        )


def task_line(task: Mapping[str, Any], now: float) -> str:
    """Return in words what a task that runs does: an item of what `StoreReader.live`
    returns.
    """
    parts = [
        f"{task['text'] or task['name']}: {max(0.0, now - task['began'] / 1e9):,.1f} s"
    ]
    if task["attempt"] > 1:
        parts.append(f"attempt {task['attempt']}")
    if task["done"] is not None:
        parts.append(how_far(task))
    return ", ".join(parts)


def going_on(saver: DurableSaver, thread: str) -> Mapping[str, Any]:
    """Return what a thread's run does now, if its process tells that within two
    seconds.

    As `StoreReader.live` does.
    """
    end = time.monotonic() + _ANSWER
    with closing(StoreReader(saver)) as reader:
        while (live := reader.live(thread)) is None and time.monotonic() < end:
            time.sleep(_PERIOD / 4)
    return live or _NOTHING
