"""The writers of nodes, which write outputs or fixed values to channels.

The module has the same name as LangGraph's.
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
        value: The value to write; by default the node's output.
        skip_none: Whether to write nothing if the value is None.
        mapper: Converts the value before it is written.

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
        """Return the write for a node's *output*, in a list that may be empty."""
        value = output if self.value is MISSING else self.value
        if self.mapper is not None:
            value = self.mapper(value)
        return [] if self.skip_none and value is None else [(self.channel, value)]


class ChannelWrite:
    """A writer of a node's output to channels, which ends a pipe.

    Args:
        writes: The entries, each of which is applied to the node's output, in this
            order.

    Example:
        >>> from flowpregel.pregel import ChannelWriteEntry
        >>> write = ChannelWrite(
        ...     [ChannelWriteEntry("text"), ChannelWriteEntry("length", mapper=len)]
        ... )
        >>> write("abc")
        [('text', 'abc'), ('length', 3)]
    """

    __slots__ = ("writes",)

    def __init__(self, writes: Sequence[ChannelWriteEntry]) -> None:
        self.writes: list[ChannelWriteEntry] = list(writes)

    def __call__(
        self,
        output: Any,
        scope: Any = None,
    ) -> list[Write]:
        """Return the writes for a node's *output*."""
        return [write for entry in self.writes for write in entry.writes_of(output)]

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels to write to, for drawings and checks."""
        return tuple(entry.channel for entry in self.writes)

    def __repr__(self) -> str:
        return f"ChannelWrite({', '.join(self.channels)})"
