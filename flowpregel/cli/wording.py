"""Times, durations, ids and statuses as short texts for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from flowpregel._text import in_one_line, size_text

if TYPE_CHECKING:
    from flowpregel._inspection.call_rows import CallNumber
    from flowpregel._inspection.situations import Situation

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
"""The units of a relative time, each with its number of seconds."""
SITUATION_STYLES: Final[Mapping[Situation, str]] = {
    "running": "cyan",
    "enqueued": "cyan",
    "queued": "cyan",
    "sleeping": "blue",
    "awaiting signal": "yellow",
    "asking": "yellow",
    "paused": "yellow",
    "failed": "red",
    "partly failed": "red",
    "killed": "magenta",
    "stopped": "magenta",
    "done": "green",
    "reading": "",
}
"""The rich style in which each situation is shown."""
STATE_STYLES: Final[Mapping[str, str]] = {
    "running": "cyan",
    "waiting": "yellow",
    "failed": "red",
    "unfinished": "magenta",
    "done": "green",
}
"""The rich style in which each state of a call is shown."""


class StyledText(NamedTuple):
    """A string with the rich style in which a terminal shows it."""

    text: str
    style: str


def relative_time(nanoseconds: int, now: int) -> str:
    """Return how long ago a moment was.

    Args:
        nanoseconds: The moment, in wall-clock nanoseconds.
        now: The present time, in wall-clock nanoseconds.

    Example:
        >>> relative_time(0, 200 * 10**9), relative_time(0, 10**8)
        ('3 min ago', 'now')
    """
    seconds = (now - nanoseconds) // 10**9
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now"


def duration_text(seconds: float) -> str:
    """Return a duration with its two greatest units.

    Example:
        >>> [duration_text(seconds) for seconds in (0.04, 41.26, 200, 90_061)]
        ['0.04 s', '41.3 s', '3 min 20 s', '1 d 1 h']
    """
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    remaining = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, remaining = divmod(remaining, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def number_text(number: CallNumber, value: float) -> str:
    """Return a measured number of a call as text, in the number's unit.

    Example:
        >>> from flowpregel._inspection.call_rows import CALL_NUMBERS
        >>> cpu, memory, *_ = CALL_NUMBERS
        >>> number_text(cpu, 0.04), number_text(memory, 12_345_678)
        ('0.04 s', '12.3 MB')
    """
    match number.unit:
        case "seconds":
            return duration_text(value)
        case "bytes":
            return size_text(int(value))
        case "count":
            return f"{value:,}"


def cut_in_middle(text: str, width: int) -> str:
    """Return *text* in one line, without its middle if it is longer than *width*.

    The beginning and the end of an id tell it from others.

    Example:
        >>> cut_in_middle("nightly-2026-11-28", 11)
        'night…11-28'
    """
    line = in_one_line(text)
    if len(line) <= width:
        return line
    end = (width - 1) // 2
    beginning = width - 1 - end
    return f"{line[:beginning]}…{line[-end:]}"


def sparkline(values: Sequence[float], most: float) -> str:
    """Return a picture of numbers, with a character for each.

    Args:
        values: The numbers, none of them negative.
        most: The number that is drawn at full height. Greater numbers are drawn at the
            same height.

    Example:
        >>> sparkline([0, 1, 4, 9], most=8)
        ' ▁▄█'
    """
    blocks = " ▁▂▃▄▅▆▇█"
    characters: list[str] = []
    for value in values:
        share = min(1.0, value / most) if most else 0.0
        characters.append(blocks[ceil(share * (len(blocks) - 1))])
    return "".join(characters)
