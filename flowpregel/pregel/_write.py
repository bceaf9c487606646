"""The writers of nodes: they write outputs, or other values, to channels.

LangGraph has a module of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowpregel._core.records import TASKS, Write
from flowpregel.channels.base import MISSING
from flowpregel.errors import InvalidUpdateError

__all__ = ["ChannelWrite", "ChannelWriteEntry"]


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
    value: Any = MISSING
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.channel == TASKS:
            raise InvalidUpdateError(
                f"{TASKS!r} is written by returning Send, not by a ChannelWriteEntry"
            )

    def writes_of(self, output: Any) -> list[Write]:
        """Return the write for a node's *output*: one, or none."""
        value = output if self.value is MISSING else self.value
        if self.mapper is not None:
            value = self.mapper(value)
        return [] if self.skip_none and value is None else [(self.channel, value)]


class ChannelWrite:
    """Writes a node's output to channels; the end of a pipe.

    Args:
        writes: The entries, applied to the same output in this order. A `Send`
            asks for a task.
    """

    __slots__ = ("writes",)

    def __init__(self, writes: Sequence[ChannelWriteEntry]) -> None:
        self.writes = list(writes)

    def __call__(
        self,
        output: Any,
        scope: Any = None,
    ) -> list[Write]:
        """Return the writes for a node's *output*."""
        return [write for entry in self.writes for write in entry.writes_of(output)]

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it writes to, for drawing and checking."""
        return tuple(entry.channel for entry in self.writes)

    def __repr__(self) -> str:
        return f"ChannelWrite({', '.join(self.channels)})"
