"""The part of `show` that explains a run: its errors by kind, and its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowpregel._inspection.error_kinds import ErrorKind, FailedCalls
from flowpregel._inspection.time_use import TimedCall, TimeUse, time_use
from flowpregel._inspection.user_traceback import user_traceback
from flowpregel._shell import command_line
from flowpregel._text import in_one_line, printable, size_text
from flowpregel.cli import console
from flowpregel.cli.wording import StyledText, duration_text, sparkline

if TYPE_CHECKING:
    from flowpregel._inspection.call_rows import CallRow
    from flowpregel._inspection.reader import StoreReader

_MOST_KINDS = 10
"""The number of kinds of errors that are printed."""
_LEAST_STOPPED = 0.01
"""The seconds above which the time of a stopped run is printed. A shorter time is only
the difference between two clocks.
"""


@dataclass(frozen=True, kw_only=True)
class ExplainedRun:
    """A run, and the explanations that the user asked for."""

    thread: str
    store: str | None
    """The value of ``--store`` in the commands, or None."""
    has_failures: bool
    """True if calls of the run failed."""
    with_time: bool
    with_tracebacks: bool


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The errors of a run by kind, and where its time went."""

    record: dict[str, Any]
    """The explanation as fields for JSON."""
    parts: list[Any]
    """The explanation as lines and tables for a terminal."""


def explain_run(reader: StoreReader, run: ExplainedRun) -> Explanation:
    """Return the errors of a run by kind, and where its time went.

    Args:
        reader: The reader of the store.
        run: The run, and what to explain.
    """
    record: dict[str, Any] = {}
    parts: list[Any] = []
    if run.has_failures:
        kinds = error_kinds(reader, run.thread)
        record["errors"] = [kind.to_json() for kind in kinds]
        parts += error_parts(kinds, run.thread, run.store)
        if run.with_tracebacks:
            parts += traceback_parts(reader, kinds, run.thread)
    if run.with_time:
        use = time_of_run(reader, run.thread)
        record["time"] = None if use is None else use.to_json()
        parts += time_parts(use)
    return Explanation(record=record, parts=parts)


def error_kinds(reader: StoreReader, thread: str) -> list[ErrorKind]:
    """Return the failed calls of a run by kind of error, the most frequent first.

    Args:
        reader: The reader of the store.
        thread: The id of the run.
    """
    failed = FailedCalls()
    for changes in reader.changes(thread):
        failed.update(changes)
    return failed.kinds()


def error_parts(
    kinds: Sequence[ErrorKind],
    thread: str,
    store: str | None,
) -> Iterator[Any]:
    """Yield the kinds of errors for a terminal, each with the command that tries the
    calls again.

    Args:
        kinds: The kinds of errors.
        thread: The id of the run.
        store: The value of ``--store`` in the commands, or None.
    """
    location = () if store is None else ("--store", store)
    for kind in kinds[:_MOST_KINDS]:
        count = len(kind.ids)
        text = f"{count:,} x {in_one_line(kind.name)}: {in_one_line(kind.error)}"
        if kind.condition:
            text += f", {kind.condition}"
        command = command_line(kind.retry_command(thread), location)
        yield ""
        yield StyledText(text, "red")
        yield f"  try again: {command}"
    hidden = len(kinds) - _MOST_KINDS
    if hidden > 0:
        yield f"{hidden:,} more kinds of errors; --json has them"


def traceback_parts(
    reader: StoreReader,
    kinds: Iterable[ErrorKind],
    thread: str,
) -> Iterator[str]:
    """Yield the traceback of the first failed call of each kind of error.

    Args:
        reader: The reader of the store.
        kinds: The kinds of errors.
        thread: The id of the run.
    """
    for kind in kinds:
        details = reader.call(thread, kind.ids[0])
        attempts = [] if details is None else details["attempts"]
        if attempts and attempts[-1]["traceback"]:
            yield ""
            yield f"{in_one_line(kind.calls[0])}:"
            yield printable(user_traceback(attempts[-1]["traceback"]).rstrip())


# ---------------------------------------------------------------- time


def time_of_run(reader: StoreReader, thread: str) -> TimeUse | None:
    """Return where the time of a run went, or None if no call has ended.

    Args:
        reader: The reader of the store.
        thread: The id of the run.
    """
    rows: dict[str, CallRow] = {}
    for changes in reader.changes(thread):
        if changes.is_whole:
            rows.clear()
        rows.update((row.id, row) for row in changes.rows)
    return time_use(rows.values())


def time_parts(use: TimeUse | None) -> Iterator[Any]:
    """Yield where the time of a run went, for a terminal."""
    yield ""
    if use is None:
        yield "no call has ended, so there are no times"
        return
    yield from _phase_lines(use)
    yield ""
    yield _task_table(use)
    if use.workers:
        yield ""
        yield _worker_table(use)
    yield ""
    yield f"the {len(use.slowest)} slowest calls:"
    yield _call_table(use.slowest)
    path = use.path
    yield ""
    yield (
        f"critical path: {path.calls:,} calls one after another, "
        f"{duration_text(path.seconds)} of work, {duration_text(path.waited)} of "
        f"waiting for a worker, {duration_text(path.between)} between calls; the "
        "longest of them:"
    )
    yield _call_table(path.longest)


def _phase_lines(use: TimeUse) -> Iterator[str]:
    """Yield a line for each part of a run's time, and lines about idle cores."""
    yield f"{duration_text(use.total)} from the first call to the last"
    parts = (
        (use.busy, "calls ran"),
        (use.waiting, "no call ran, and some waited for a worker"),
        (use.body, "no call ran or waited: the body, or between supersteps"),
    )
    for seconds, words in parts:
        yield f"  {_share(seconds, use.total)}  {duration_text(seconds)}: {words}"
    if use.stopped > _LEAST_STOPPED:
        words = "the run was stopped or waited, or its body ran before it was resumed"
        share = _share(use.stopped, use.total)
        yield f"  {share}  {duration_text(use.stopped)}: {words}"
    if use.cores:
        whole = use.cores * (use.total - use.stopped)
        idle = f"{duration_text(use.idle)} of {use.cores:,} cores were idle"
        waiting = duration_text(use.idle_while_waiting)
        yield f"  {_share(use.idle, whole)}  {idle}, {waiting} while calls waited"
    yield f"  a call waited {duration_text(use.median_wait)} for a worker (median)"
    if use.usage:
        yield from _usage_lines(use)


def _usage_lines(use: TimeUse) -> Iterator[str]:
    """Yield the CPUs and the memory of the workers over time, as pictures."""
    cpus = [moment.cpu for moment in use.usage]
    memory = [moment.memory for moment in use.usage]
    mean = sum(cpus) / len(cpus)
    yield f"  {sparkline(cpus, use.cores)}  {mean:.1f} of {use.cores:,} CPUs used"
    most = max(memory)
    yield f"  {sparkline(memory, most)}  {size_text(most)} of memory at most"


def _share(part: float, whole: float) -> str:
    """Return a share in percent, in four characters."""
    share = part / whole if whole else 0.0
    return f"{share:4.0%}"


def _task_table(use: TimeUse) -> Any:
    rows: list[Sequence[str]] = []
    for task in use.tasks:
        cells = (
            task.name,
            f"{task.calls:,}",
            duration_text(task.seconds),
            duration_text(task.median),
            duration_text(task.longest),
            duration_text(task.waited),
            duration_text(task.cpu),
        )
        rows.append(cells)
    heads = ("TASK", "CALLS", "IN ALL", "MEDIAN", "LONGEST", "WAITED", "CPU")
    return console.make_table(heads, rows)


def _worker_table(use: TimeUse) -> Any:
    rows: list[Sequence[str]] = []
    for worker in use.workers:
        cells = (
            f"{worker.pid} on {worker.host}",
            f"{worker.calls:,}",
            duration_text(worker.seconds),
            duration_text(worker.cpu),
            size_text(worker.peak),
        )
        rows.append(cells)
    heads = ("WORKER", "CALLS", "IN ALL", "CPU", "PEAK MEMORY")
    return console.make_table(heads, rows)


def _call_table(calls: Iterable[TimedCall]) -> Any:
    rows: list[Sequence[str]] = []
    for call in calls:
        cells = (
            call.text,
            duration_text(call.seconds),
            duration_text(call.waited),
        )
        rows.append(cells)
    return console.make_table(("CALL", "TOOK", "WAITED"), rows, flexible=("CALL",))
