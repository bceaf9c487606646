"""A table of a run's tasks by superstep, with their outcomes, durations and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal, TypeAlias
from unicodedata import east_asian_width

from flowpregel._text import in_one_line, printable

Charset: TypeAlias = Literal["unicode", "ascii"]
TaskStatus: TypeAlias = Literal["done", "failed", "waiting", "open"]
_Row: TypeAlias = tuple[str, str, str, str, str]
"""The cells of a row: the superstep, the task, a bar for the duration, the duration,
and details.
"""

_SIGNS: Mapping[TaskStatus, str] = {
    "done": "✓",
    "open": "…",
    "waiting": "?",
    "failed": "✗",
}
_SIGN_OF_ROW = re.compile(r"(?m)^( *(?:step \d+)? *)([✓…?✗])(?= )")
_COLOURS: Mapping[str, str] = {
    "✓": "#2e7d32",
    "…": "#0277bd",
    "?": "#b26a00",
    "✗": "#c62828",
}
"""The colour of each sign in a notebook, which is readable on light and dark pages."""
_ASCII = str.maketrans({"✓": "+", "✗": "x", "…": "~", "█": "#"})
_BAR = 20
"""The number of characters of the longest bar."""
_DURATION = 3
"""The index of the duration's column, which is aligned right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task of a run, with all data that a drawing shows."""

    step: int
    """The superstep of the task."""
    node: str
    """The id of the task's node."""
    name: str
    """The name of the node, or of the called task."""
    seconds: float | None = None
    """The duration of the last attempt, or None if it is unknown."""
    status: TaskStatus = "done"
    """The outcome of the task. An *open* task has not ended. A *waiting* task needs an
    answer.
    """
    detail: str = ""
    """The error of the task, or the question (interrupt) whose answer the task waits
    for.
    """
    attempt: int = 1
    """The number of the last attempt, or 0 if another run shared its result."""
    id: str = ""
    """The id of the task."""
    began: int | None = None
    """Wall-clock nanoseconds at which the last attempt began, if known."""
    executor: str = ""
    """The executor, such as ``"processes"``, or an empty string if it is unknown."""
    pid: int = 0
    """The id of the process that ran the task, or 0 if it is unknown."""
    is_call: bool = False
    """True if the task is a call that another task made."""
    call: str = ""
    """The call with short arguments, such as ``parse('c.txt')``, or an empty string if
    it is unknown.
    """
    inner: tuple[TaskRecord, ...] = ()
    """The calls that the task made and, if the task is a graph, the graph's tasks."""


@dataclass(frozen=True, repr=False)
class RunDrawing:
    """The tasks of a run, which are printed as a table.

    Args:
        tasks: The run's tasks. Their supersteps may be in any order.
        nodes: The full names of the program's nodes, by their ids. The table also
            lists the nodes that have not run.

    Example:
        >>> tasks = (TaskRecord(step=0, node="load", name="load", seconds=0.5),)
        >>> RunDrawing(tasks, {"load": "load", "rank": "rank"})
        step 0  ✓ load  ████████████████████  0.500 s
        not run: rank
    """

    tasks: tuple[TaskRecord, ...]
    nodes: Mapping[str, str]

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return the table of the run's supersteps.

        Args:
            charset: ``"unicode"`` for signs and bars, ``"ascii"`` for ASCII only.
        """
        if not self.tasks:
            return "(no tasks)"
        all_tasks = list(_with_inner(self.tasks))
        longest = max(task.seconds or 0 for task in all_tasks)
        rows = list(_rows(self.tasks, "", longest))
        lines = _aligned(rows)
        run_nodes = {task.node for task in all_tasks}
        idle = [name for id_, name in self.nodes.items() if id_ not in run_nodes]
        if idle:
            lines.append(in_one_line(f"not run: {', '.join(idle)}"))
        text = "\n".join(lines)
        return text.translate(_ASCII) if charset == "ascii" else text

    def __repr__(self) -> str:
        return self.draw_ascii()

    def _repr_html_(self) -> str:
        """Return the table for a notebook, with coloured signs."""
        text = _SIGN_OF_ROW.sub(_coloured_sign, escape(self.draw_ascii()))
        return f'<pre style="line-height: 1.3">{text}</pre>'

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the tasks as values for ``json.dumps``."""
        return {"tasks": [asdict(task) for task in self.tasks]}


def _coloured_sign(match: re.Match[str]) -> str:
    """Return the beginning of a row as HTML, with a coloured sign."""
    indent, sign = match.groups()
    return f'{indent}<span style="color: {_COLOURS[sign]}">{sign}</span>'


def _with_inner(tasks: Iterable[TaskRecord]) -> Iterator[TaskRecord]:
    """Yield *tasks*, each followed by the tasks inside it."""
    for task in tasks:
        yield task
        yield from _with_inner(task.inner)


def _rows(
    tasks: Sequence[TaskRecord],
    indent: str,
    longest: float,
) -> Iterator[_Row]:
    """Yield the rows of *tasks* by superstep, each followed by the rows of the tasks
    inside it.

    Args:
        tasks: The tasks of one graph, or the calls of one task.
        indent: The indentation of the rows.
        longest: The duration, in seconds, that the longest bar represents.
    """
    is_called = tasks[0].is_call
    for step in sorted({task.step for task in tasks}):
        head = "" if is_called else f"{indent}step {step}"
        for group in _groups(tasks, step):
            yield _row(
                group,
                head,
                indent,
                longest,
            )
            head = ""
            inner = group[0].inner
            if inner:
                yield from _rows(inner, f"{indent}  ", longest)


def _groups(
    tasks: Sequence[TaskRecord],
    step: int,
) -> Iterable[list[TaskRecord]]:
    """Return the tasks of a superstep, in groups that share a row.

    Tasks of one node share a row if they are done and have no details.
    """
    groups: dict[tuple[str, int], list[TaskRecord]] = {}
    for number, task in enumerate(tasks, 1):
        if task.step != step:
            continue
        is_plain = task.status == "done" and task.attempt == 1
        if is_plain and not task.detail and not task.inner:
            number = 0
        groups.setdefault((task.node, number), []).append(task)
    return groups.values()


def _row(
    group: Sequence[TaskRecord],
    head: str,
    indent: str,
    longest: float,
) -> _Row:
    """Return the row of a group of tasks."""
    first = group[0]
    durations = [task.seconds for task in group if task.seconds is not None]
    duration = max(durations, default=None)
    bar = ""
    if duration:
        width = round(_BAR * duration / longest)
        bar = "█" * max(1, width)
    name = first.name
    if first.status == "failed" and first.call:
        name = first.call
    if len(group) > 1:
        name += f" x{len(group)}"
    label = f"{indent}{_SIGNS[first.status]} {name}"
    return (
        head,
        in_one_line(label),
        bar,
        _duration_text(duration),
        _details(first),
    )


def _details(task: TaskRecord) -> str:
    """Return the number of the attempt, if it is not 1, and the error or question."""
    parts: list[str] = []
    if task.attempt == 0:
        parts.append("shared by another run")
    elif task.attempt != 1:
        parts.append(f"attempt {task.attempt}")
    # Only the first line of an error is shown, which is its message. Further lines
    # would break the table.
    first_line, _, _ = task.detail.strip().partition("\n")
    if first_line:
        parts.append(first_line)
    return printable(", ".join(parts))


def _aligned(rows: Sequence[_Row]) -> list[str]:
    """Return the lines of a table."""
    columns = zip(*rows, strict=True)
    sizes = [max(map(_width, column)) for column in columns]
    lines: list[str] = []
    for row in rows:
        cells: list[str] = []
        for cell, size in zip(row, sizes, strict=True):
            padding = " " * (size - _width(cell))
            cells.append(cell + padding)
        cells[_DURATION] = row[_DURATION].rjust(sizes[_DURATION])
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Return the number of terminal columns that *text* takes up."""
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide


def _duration_text(seconds: float | None) -> str:
    """Return a duration as text, empty if it is unknown."""
    if seconds is None:
        return ""
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"
