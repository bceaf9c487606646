"""Who is told of a run: handlers, that it starts and how it ends; the live view, how
far it is.

Handlers are those in ``config["callbacks"]``, with LangChain's methods, and the hooks
of a workflow (`EndHooks`), which are told of each end once. A handler needs no more
methods than it wants.

The live view shows how many tasks of each name are done, how fast, how long yet. On a
terminal it stands below what is printed (see `live_view.py`); in a notebook one output
is updated; anywhere else a line is added from time to time. It goes to stderr, so that
what the program prints stays as it is.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TextIO, TypeAlias

from flowpregel._engine.drivers import Item
from flowpregel._engine.engine import RunPlan
from flowpregel._entry_points import STREAMS, load_plugin
from flowpregel._interrupts import is_from_handler
from flowpregel._text import in_one_line
from flowpregel.errors import RunDiedError

_log: Final = logging.getLogger("flowpregel")
MODES = ("tasks", "updates", "recorded", "progress")
"""The stream modes that a view reads."""
_SHOWN = 6
"""The most tasks that get a line each for their report."""
_LONGEST = 60
"""Characters of a message that are shown."""
progress_is_on: ContextVar[bool] = ContextVar("flowpregel_progress", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended: what a hook of its workflow is given."""

    flow: str
    """The name of the workflow."""
    id: str | None
    """The run's; None: nothing keeps it."""
    result: Any = None
    """What the workflow returned."""
    error: Exception | None = None
    """What it failed with; `RunDiedError` if its process died."""


Hook: TypeAlias = Callable[[RunEnd], object]


@dataclass(frozen=True, slots=True)
class EndHooks:
    """The handler for what a workflow was given as ``on_end=`` and ``on_failure=``."""

    on_run_end: Hook | None
    """Called when a run is done."""
    on_run_failure: Hook | None
    """Called when a run has failed, or is found dead."""


@contextmanager
def run_hooks(run: Any, planned: RunPlan) -> Iterator[None]:
    """Call the methods of each handler of *run*, a `GraphRun`, before it and when it
    has ended.

    They are called where the program is, for the outermost run alone; one that fails is
    logged. The run has its thread until they have returned: if the program dies
    meanwhile, the next run finds it dead, and calls them.
    """
    config, around, lease = run.config, planned.around, planned.lease
    known = {
        "run_id": around.run_id,
        "parent_run_id": None,
        "tags": config.shown["tags"],
    }
    was_left = lease is not None and lease.is_inherited

    def tell(method: str, *args: Any, **more: Any) -> None:
        for handler in config.callbacks:
            try:
                if (told := getattr(handler, method, None)) is not None:
                    told(*args, **more)
            except Exception:  # noqa: BLE001 - a run does not depend on who watches it
                _log.exception("%s of a callback failed", method)

    def tell_end(method: str, **how: Any) -> None:
        tell(method, RunEnd(flow=str(config.run_name), id=config.thread_id, **how))

    with planned.resources.pop_all():
        if was_left and not around.is_over:
            tell_end("on_run_failure", error=RunDiedError(str(config.thread_id)))
        labels = {"metadata": config.metadata, "name": config.run_name}
        tell("on_chain_start", None, run.given, **known, **labels)
        try:
            yield
        except BaseException as error:
            tell("on_chain_error", error, **known)
            if isinstance(error, Exception) and not is_from_handler(error):
                tell_end("on_run_failure", error=error)
            raise
        tell("on_chain_end", run.output(), **known)
        result = run.engine.result
        if (
            result is not None
            and not result.paused
            and (was_left or not around.is_over)
        ):
            tell_end("on_run_end", result=result.values)


def message_stream(metadata: Mapping[str, Any]) -> Any:
    """Return what makes the items of mode ``messages``.

    Args:
        metadata: The run's.

    Raises:
        ConfigurationError: LangChain is not installed.
    """
    return load_plugin(STREAMS, "messages")(metadata)


# ---------------------------------------------------------------- the live view


@contextmanager
def progress() -> Iterator[None]:
    """Show a live view of every run that is started inside the ``with`` block.

    Example:
        >>> with progress():  # doctest: +SKIP
        ...     study.invoke([1, 2, 3])
    """
    token = progress_is_on.set(True)
    try:
        yield
    finally:
        progress_is_on.reset(token)


class ProgressView:
    """Counts the tasks in the stream of a run, and shows the counts.

    Args:
        name: The name of the graph.
        out: Where to write; by default stderr, a line from time to time. A terminal
            that is given is written over: nothing else may write on it.
        clock: Returns seconds that only grow.
        workers: Returns the number of workers and their memory, as text.
    """

    def __init__(
        self,
        name: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        workers: Callable[[], str] | None = None,
    ) -> None:
        self._name = name
        self._workers = workers_text if workers is None else workers
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._began = self._shown = clock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By task name: how many were started, done, failed or ask, or were done
        before.
        """
        self._reports: dict[str, dict[str, Any]] = {}
        """The last reports of tasks that run, by their ids."""
        self._show, self._every = _way_to_show(self._out, overwrites=out is not None)
        if self._every < 1:
            # where it is written over, the first event shows it
            self._shown = float("-inf")

    def see(self, item: Item) -> None:
        """Take in an event of the run's stream."""
        _, mode, payload = item
        if mode == "tasks":
            became = "started"
            if "result" in payload:
                self._reports.pop(payload["id"], None)
                became = "asking" if payload["interrupts"] else "done"
                became = became if payload["error"] is None else "failed"
            self._counts[payload["name"]][became] += 1
        elif mode == "recorded" or (mode == "updates" and "__metadata__" in payload):
            for name in payload.keys() - {"__metadata__"}:
                self._counts[name]["before"] += 1
        elif mode == "progress":
            self._reports[payload["id"]] = payload
        now = self._clock()
        if mode in MODES and now - self._shown >= self._every:
            self._shown = now
            self._show(self.lines(now))

    def close(self) -> None:
        """Show how the run ended."""
        self._show(self.lines(self._clock()))

    def lines(self, now: float) -> list[str]:
        """Return what there is to show at *now*."""
        seconds = max(now - self._began, 1e-9)
        # Copied: rich may call this on an OS thread of its own.
        all_reports = [*self._reports.values()]
        whole = next((each for each in all_reports if each["name"] == self._name), None)
        told_of_all = "" if whole is None else self._whole(whole, seconds)
        header = (f"{self._name}: {seconds:.1f} s", self._workers(), told_of_all)
        lines = [", ".join(filter(None, header))]
        for name, count in [*self._counts.items()]:
            if name == self._name:
                continue
            before, done, failed = count["before"], count["done"], count["failed"]
            left = count["started"] - done - failed - count["asking"]
            told = (
                (True, f"{before + done:,} done"),
                (before, f"{before:,} of them before"),
                (failed, f"{failed:,} failed"),
                (count["asking"], f"{count['asking']:,} waiting for an answer"),
                (left, f"{left:,} to do"),
                (done, f"{done / seconds:,.1f}/s"),
                # Where the run itself says how far it is, more of them may start.
                (
                    left and done and not whole,
                    f"{left * seconds / max(done, 1):,.0f} s left",
                ),
            )
            parts = [text for holds, text in told if holds]
            lines.append(f"  {name}: {', '.join(parts)}")
            reports = [each for each in all_reports if each["name"] == name]
            lines += [f"    {how_far(report)}" for report in reports[:_SHOWN]]
        return [in_one_line(line) for line in lines]

    def _whole(self, report: Mapping[str, Any], seconds: float) -> str:
        """Return how far the run itself says it is, and how long the rest takes."""
        counts = sum(self._counts.values(), Counter[str]())
        # What was recorded before took no time.
        share = counts["done"] / max(counts["done"] + counts["before"], 1)
        done = report["done"] * share
        if not (done and report["total"]):
            return how_far(report)
        left = (report["total"] - report["done"]) * seconds / done
        return f"{how_far(report)}, {left:,.0f} s left"


def how_far(report: Mapping[str, Any]) -> str:
    """Return in words what a task said of how far it is: an item of stream mode
    ``progress``.

    Example:
        >>> how_far({"done": 3, "total": 12, "message": "fitting"})
        '3/12 (25 %) fitting'
    """
    done, total = report["done"], report["total"]
    text = _amount(done) if total is None else f"{_amount(done)}/{_amount(total)}"
    if total:
        text += f" ({100 * done / total:.0f} %)"
    message = " ".join(str(report["message"] or "").split())[:_LONGEST]
    return f"{text} {message}" if message else text


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number == round(number, 6) // 1 else f"{number:,.2f}"


def workers_text() -> str:
    """Return in words how many workers there are, and how much memory they take."""
    usage = sys.modules.get("flowpregel.executors.processes.coordinator.executor")
    count, size = (0, 0) if usage is None else usage.worker_memory()
    return (
        f"{count} worker{'s' * (count > 1)} with {size / 1e6:,.0f} MB" if count else ""
    )


def is_notebook() -> bool:
    """Return whether the program is a notebook's."""
    shell = sys.modules.get("IPython")
    return (
        shell is not None
        and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    )


def _way_to_show(
    out: TextIO, *, overwrites: bool
) -> tuple[Callable[[list[str]], object], float]:
    """Return a function that shows lines on *out*, and the seconds between two
    calls.
    """
    if is_notebook():
        shown: Any = import_module("IPython.display")
        handle = shown.display(shown.Pretty(""), display_id=True)
        return lambda lines: handle.update(shown.Pretty("\n".join(lines))), 0.2
    if not (overwrites and out.isatty()):
        return lambda lines: print(" |".join(lines), file=out, flush=True), 2.0
    written = 0

    def over(lines: list[str]) -> None:
        """Write over the lines that were written before."""
        nonlocal written
        back = f"\x1b[{written}F\x1b[J" if written else ""
        print(back + "\n".join(lines), file=out, flush=True)
        written = len(lines)

    return over, 0.1
