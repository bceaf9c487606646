"""What a node writes: entries that turn its output into writes to channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from flowpregel._core.records import TASKS, Write
from flowpregel.errors import InvalidUpdateError


class _Mark(Enum):
    PASSTHROUGH = "PASSTHROUGH"
    SKIP_WRITE = "SKIP_WRITE"


PASSTHROUGH: Final = _Mark.PASSTHROUGH
"""Stands for the node's output."""
SKIP_WRITE: Final = _Mark.SKIP_WRITE
"""A mapper returns it to write nothing."""


@dataclass(frozen=True, slots=True)
class ChannelWriteEntry:
    """One write that a node makes.

    Args:
        channel: The channel to write to.
        value: What to write; by default the node's output.
        skip_none: Whether to write nothing instead of None.
        mapper: Makes the value to write from *value*.

    Example:
        >>> ChannelWriteEntry("length", mapper=len).writes_of("abc")
        [('length', 3)]
    """

    channel: str
    value: Any = PASSTHROUGH
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.channel == TASKS:
            raise InvalidUpdateError(
                f"{TASKS!r} is written by returning Send, not by a ChannelWriteEntry"
            )

    def writes_of(self, output: Any) -> list[Write]:
        """Return the write for a node's *output*: one, or none."""
        value = output if self.value is PASSTHROUGH else self.value
        if self.mapper is not None:
            value = self.mapper(value)
        if value is SKIP_WRITE or (self.skip_none and value is None):
            return []
        return [(self.channel, value)]


class ChannelWrite:
    """Writes a node's output to channels; the end of a pipe.

    Args:
        writes: The entries, applied to the same output in this order. A `Send`
            asks for a task.
    """

    __slots__ = ("writes",)

    def __init__(self, writes: Sequence[ChannelWriteEntry]) -> None:
        self.writes = list(writes)

    def __call__(self, output: Any, scope: Any = None) -> list[Write]:
        """Return the writes for a node's *output*."""
        return [write for entry in self.writes for write in entry.writes_of(output)]

    def __ror__(self, before: Callable[[Any], Any]) -> ChannelWrite:
        """Return a writer whose value *before* makes: ``len | Channel.write_to("n")``."""
        return ChannelWrite([_after(before, entry) for entry in self.writes])

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it writes to, for drawing and checking."""
        return tuple(entry.channel for entry in self.writes)

    def __repr__(self) -> str:
        return f"ChannelWrite({', '.join(self.channels)})"


def _after(before: Callable[[Any], Any], entry: ChannelWriteEntry) -> ChannelWriteEntry:
    own = entry.mapper

    def mapper(value: Any) -> Any:
        made = before(value)
        return made if own is None else own(made)

    return ChannelWriteEntry(entry.channel, entry.value, entry.skip_none, mapper)


def entries_of(
    channels: Sequence[str | ChannelWriteEntry], named: dict[str, Any]
) -> list[ChannelWriteEntry]:
    """Return the entries that ``write_to(*channels, **named)`` stands for.

    A named callable maps the output and writes nothing for None; any other
    named value is written as it is.
    """
    found = [
        item if isinstance(item, ChannelWriteEntry) else ChannelWriteEntry(item)
        for item in channels
    ]
    for channel, value in named.items():
        if callable(value):
            found.append(ChannelWriteEntry(channel, skip_none=True, mapper=value))
        else:
            found.append(ChannelWriteEntry(channel, value))
    return found
