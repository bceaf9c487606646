"""The picture of a run that `flowpregel watch` draws on a terminal.

::

    study  Running in process 41 on here: 2 calls run now, 379 more wait for a worker.
    ██████████░░░░░░░░░░░░░░░░░░  121 of 500 calls (24 %), 1 failed, about 2 min left
    41.2 s, 8 workers with 1,210 MB, 2.9 calls/s

      parse      120 done, 1 failed, 2 running, 377 waiting

    parse('big.txt')                                             31.0 s, attempt 2
      ████████░░░░░░░░░░░░░░░░  3/12 (25 %) reading           process 52, 812 MB

    c calls   e errors (1)   l logs   r retry (1)   x cancel   q leave

All functions are pure: they return lines for a snapshot and the size of a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from rich.text import Text

from flowpregel._text import in_one_line
from flowpregel.cli.snapshots import RunSnapshot
from flowpregel.cli.wording import SITUATION_STYLES, duration_text
from flowpregel.cli.worker_counts import worker_count_text
from flowpregel.pregel.progress import how_far

ViewName: TypeAlias = Literal["calls", "errors", "logs"]
_CATEGORIES: Final = (
    ("done", "done", "green"),
    ("failed", "failed", "red"),
    ("asking", "waiting for an answer", "yellow"),
    ("running", "running", "cyan"),
    ("unfinished", "interrupted", "magenta"),
    ("waiting", "to do", ""),
)
"""The categories of calls, each with its description and its style."""
_TO_DO: Final = ("running", "unfinished", "waiting")
"""The categories of calls that have not ended."""
_BAR: Final = 30
"""The number of characters of the bar of a run, at most."""
_MOST_EXAMPLES: Final = 3
"""The number of failed calls that are named for each kind of error."""


@dataclass(frozen=True, kw_only=True)
class ScreenState:
    """The choices of the person at the terminal."""

    view: ViewName = "calls"
    message: str = ""
    """A line, such as a question, that replaces the list of keys to press."""
    retries: bool = False
    """True if failed calls are tried again when the run ends."""


def screen_lines(
    snapshot: RunSnapshot,
    state: ScreenState,
    output: Sequence[str],
    size: tuple[int, int],
) -> list[Text]:
    """Return the lines of a picture, which fit on the terminal.

    Args:
        snapshot: The run at one moment.
        state: The view and the message to show.
        output: The last lines that calls have printed, for the view ``logs``.
        size: The columns and lines of the terminal.
    """
    width, height = size
    lines = [*_header_lines(snapshot, width), Text(), *count_lines(snapshot), Text()]
    match state.view:
        case "calls":
            body = list(_running_lines(snapshot, width))
        case "errors":
            body = list(error_lines(snapshot))
        case "logs":
            room = max(1, height - len(lines) - 2)
            body = [Text(in_one_line(line)) for line in output[-room:]]
    footer = [Text(), _footer(snapshot, state)][-height:]
    fitting = (lines + body)[: max(0, height - len(footer))]
    padding = [Text()] * (height - len(fitting) - len(footer))
    picture = [*fitting, *padding, *footer]
    for line in picture:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return picture


def _header_lines(snapshot: RunSnapshot, width: int) -> Iterator[Text]:
    """Yield the status of the run, the bar, and the rate and the workers."""
    style = SITUATION_STYLES[snapshot.text.situation]
    yield Text.assemble(
        (in_one_line(snapshot.thread_id), "bold"),
        "  ",
        (snapshot.text.sentence, style),
    )
    total = snapshot.total
    known = total.total()
    ended = known - sum(total[category] for category in _TO_DO)
    texts = [f"  {ended:,} of {known:,} calls ({_percent(ended, known)} %)"]
    if total["failed"]:
        texts.append(f"{total['failed']:,} failed")
    if snapshot.status == "running":
        texts.append(_time_left_text(snapshot))
    bar = _bar(total, min(_BAR, width // 3), is_full=snapshot.status == "done")
    yield bar.append(", ".join(texts))
    yield Text(", ".join(_usage_texts(snapshot)), "dim")
    for report in snapshot.reports:
        name = in_one_line(report["name"])
        yield Text(f"{name}: {in_one_line(how_far(report))}")


def _percent(part: int, whole: int) -> int:
    """Return a share in percent, rounded down, so that 100 % means all."""
    return 100 * part // whole if whole else 0


def _time_left_text(snapshot: RunSnapshot) -> str:
    """Return the estimate of the remaining time, or the reason that there is none."""
    total = snapshot.total
    if snapshot.time_left is not None:
        return f"{snapshot.time_left} left"
    if total["waiting"] or total["running"]:
        return "time left unknown: too few calls have ended"
    return "the body decides what is next"


def _usage_texts(snapshot: RunSnapshot) -> list[str]:
    """Return the duration of the run, its workers and its rate."""
    seconds = snapshot.now - snapshot.began
    texts = [duration_text(seconds)]
    if snapshot.workers:
        texts.append(worker_count_text(snapshot.workers, snapshot.pools))
        if snapshot.cpus is not None:
            texts.append(f"{snapshot.cpus:.1f} CPUs used")
    done = snapshot.total["done"]
    if done and seconds > 0:
        texts.append(f"{done / seconds:,.1f} calls/s")
    return texts


def _bar(total: Counter[str], width: int, *, is_full: bool) -> Text:
    """Return a bar with a part for each category of calls.

    Args:
        total: The number of calls by category.
        width: The number of characters.
        is_full: True if the run is done. Before that, the bar is never full, because
            the run may make more calls.
    """
    known = total.total()
    most = width if is_full else width - 1
    done = total["done"] + total["before"]
    parts = [(done, "green"), (total["failed"], "red"), (total["running"], "cyan")]
    bar = Text()
    for count, style in parts:
        cells = round(width * count / known) if known else 0
        room = most - len(bar)
        bar.append("█" * min(room, max(cells, bool(count))), style)
    return bar.append("░" * (width - len(bar)), "dim")


def count_lines(snapshot: RunSnapshot) -> Iterator[Text]:
    """Yield a line for each name of calls, with their numbers by category."""
    names = {name: in_one_line(name) for name in snapshot.counts}
    width = max(map(len, names.values()), default=0)
    for name, count in snapshot.counts.items():
        line = Text(f"  {names[name]:<{width}}  ")
        before = count["before"]
        numbers = {**count, "done": count["done"] + before}
        separator = ""
        for category, words, style in _CATEGORIES:
            number = numbers.get(category, 0)
            if number > 0:
                line.append(separator)
                line.append(f"{number:,} {words}", style)
                separator = ", "
        if before:
            line.append(f", {before:,} of them before", "dim")
        yield line


def _running_lines(snapshot: RunSnapshot, width: int) -> Iterator[Text]:
    """Yield two lines for each call that runs now, the longest first."""
    memory = {worker["pid"]: worker.get("memory") for worker in snapshot.workers}
    for task in snapshot.running:
        name = in_one_line(task["text"] or task["name"])
        seconds = snapshot.now - task["began"] / 1e9
        times = duration_text(seconds)
        if task["attempt"] > 1:
            times += f", attempt {task['attempt']}"
        yield _between(Text(name, "bold"), times, width)
        process = f"process {task['pid']}" if task["pid"] else ""
        size = memory.get(task["pid"])
        if size:
            process += f", {size / 1e6:,.0f} MB"
        yield _between(_report_text(task), process, width)


def _report_text(task: Mapping[str, Any]) -> Text:
    """Return the progress that a call reports, with a bar if the total is known."""
    if task["done"] is None:
        return Text()
    line = Text("  ")
    if task["total"]:
        share = min(1.0, max(0.0, task["done"] / task["total"]))
        cells = int(20 * share)
        line.append("█" * cells, "cyan").append("░" * (20 - cells), "dim").append("  ")
    return line.append(in_one_line(how_far(task)))


def _between(left_text: Text, right_text: str, width: int) -> Text:
    """Return a line with one string at its beginning and one at its end. The first
    string is cut if there is not enough room.
    """
    room = width - len(right_text) - 2
    if left_text.cell_len > room:
        left_text.truncate(max(0, room), overflow="ellipsis")
    padding = " " * max(0, width - left_text.cell_len - len(right_text))
    return left_text.append(padding).append(right_text, "dim")


def error_lines(snapshot: RunSnapshot) -> Iterator[Text]:
    """Yield two lines for each kind of error, the most frequent kind first."""
    if not snapshot.errors:
        yield Text("no call has failed", "dim")
    for group in snapshot.errors:
        number = len(group.calls)
        text = f"{number:,} x {in_one_line(group.name)}: {in_one_line(group.error)}"
        line = Text(text, "red")
        if group.condition:
            line.append(f", {group.condition}", "bold")
        yield line
        examples = [in_one_line(call) for call in group.calls[:_MOST_EXAMPLES]]
        if number > _MOST_EXAMPLES:
            examples.append("...")
        yield Text(f"    {', '.join(examples)}", "dim")


def _footer(snapshot: RunSnapshot, state: ScreenState) -> Text:
    """Return the message for the person, or the list of keys to press."""
    if state.message:
        return Text(state.message, "bold yellow")
    failed = sum(len(group.calls) for group in snapshot.errors)
    errors = f"e errors ({failed:,})" if failed else "e errors"
    retry = f"r retry ({failed:,})" if failed else "r retry at the end"
    if state.retries:
        retry = "r do not retry"
    keys = {"calls": "c calls", "errors": errors, "logs": "l logs"}
    line = Text()
    for view, words in keys.items():
        line.append(words, "reverse" if view == state.view else "")
        line.append("   ")
    return line.append(f"{retry}   x cancel   q leave")
