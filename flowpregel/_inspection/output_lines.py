"""The lines that the calls of a run have printed and logged, with their levels.

A log record begins with its level, such as ``WARNING jobs: slow``. The indented lines
and the traceback after it belong to the record. Printed lines have no level.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from flowpregel.checkpoint.call_output import CallOutput

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
"""The levels of log records, in ascending order."""
_RECORD: Final = re.compile(rf"({'|'.join(LEVELS)}) [^:]*: ")
_CONTINUED: Final = re.compile(r"\s|Traceback |[\w.]+(?:Error|Exception|Interrupt)\b")
_ESCAPES: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class OutputLine(NamedTuple):
    """A line of a call's output."""

    call: str
    """The id of the call."""
    name: str
    """The text of the call, or the name of the node."""
    level: str
    """The level of the log record, or an empty string for a printed line."""
    text: str
    """The line, with terminal escape sequences."""


class OutputPage(NamedTuple):
    """Some of the selected lines of a run."""

    lines: Sequence[OutputLine]
    """The lines of this page."""
    first: int
    """The number of selected lines before those of this page."""
    matched: int
    """The number of selected lines."""
    total: int
    """The number of all lines."""


def output_lines(outputs: Iterable[CallOutput]) -> Iterator[OutputLine]:
    """Yield the lines of calls, call by call.

    Args:
        outputs: The output of the calls.

    Example:
        >>> from flowpregel.checkpoint.base import CallOutput
        >>> output = CallOutput("", "1", "f(4)", 0, b"one\\nINFO job: two\\n", b"", 18)
        >>> [(line.level, line.text) for line in output_lines([output])]
        [('', 'one'), ('INFO', 'INFO job: two')]
    """
    for output in outputs:
        for level, line in lines_with_levels(output.text):
            yield OutputLine(
                call=output.task_id,
                name=output.name,
                level=level,
                text=line,
            )


def lines_with_levels(text: str, level: str = "") -> Iterator[tuple[str, str]]:
    """Yield the level and the text of each line, with terminal escape sequences.

    Args:
        text: The output of a call, or a part of it.
        level: The level of the record before the text, to which the first lines may
            belong.

    Example:
        >>> list(lines_with_levels("  at line 4\\none", level="ERROR"))
        [('ERROR', '  at line 4'), ('', 'one')]
    """
    for raw_line in text.removesuffix("\n").split("\n"):
        # A progress bar overwrites its line: only the last state is shown.
        line = raw_line.rstrip("\r").rpartition("\r")[2]
        plain = _ESCAPES.sub("", line)
        record = _RECORD.match(plain)
        if record is not None:
            level = record[1]
        elif not _CONTINUED.match(plain):
            level = ""
        yield level, line


def output_page(
    lines: Sequence[OutputLine],
    text: str = "",
    level: str = "",
    end: int | None = None,
    most: int = 500,
) -> OutputPage:
    """Return the last of the selected lines.

    Args:
        lines: All lines of a run.
        text: A string that a line or its call must contain. Upper and lower case are
            not distinguished.
        level: The lowest level of a line; an empty string also selects printed lines.
        end: The number of selected lines from the beginning, of which the last are
            returned; None for all selected lines.
        most: The greatest number of lines to return.

    Example:
        >>> from flowpregel.watching import OutputLine
        >>> lines = [OutputLine("1", "f(4)", "", text) for text in ("one", "two")]
        >>> page = output_page(lines, text="TWO")
        >>> page.lines[0].text, page.matched, page.total
        ('two', 1, 2)
    """
    words = text.lower()
    levels = LEVELS[LEVELS.index(level) :] if level in LEVELS else ("", *LEVELS)
    selected = [
        line
        for line in lines
        if line.level in levels and words in f"{line.name} {line.text}".lower()
    ]
    last = len(selected)
    if end is not None:
        last = max(0, min(end, last))
    first = max(0, last - most)
    return OutputPage(
        lines=selected[first:last],
        first=first,
        matched=len(selected),
        total=len(lines),
    )
