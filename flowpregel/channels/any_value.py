"""`AnyValue`, for writers that all write the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flowpregel.channels.base import MISSING, HoldingChannel

Value = TypeVar("Value")


class AnyValue(HoldingChannel[Value, Value]):
    """Keeps one of a superstep's writes, the last; a superstep without a write empties it.

    It takes on trust that all writes of a superstep are equal.

    Args:
        typ: The type of the value.
        key: The channel's name.

    Example:
        >>> channel = AnyValue(int)
        >>> channel.update([3, 3]), channel.get()
        (True, 3)
    """

    def update(self, values: Sequence[Value]) -> bool:
        """Keep the last write; without one, forget the value."""
        held = self.value is not MISSING
        self.value = values[-1] if values else MISSING
        return held or bool(values)
