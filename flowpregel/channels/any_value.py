"""`AnyValue`, for writers that all write the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

from flowpregel.channels.base import MISSING, BaseChannel, Missing

Value = TypeVar("Value")


class AnyValue(BaseChannel[Value, Value], Generic[Value]):
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

    __slots__ = ("value",)

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self.value: Value | Missing = MISSING

    def update(self, values: Sequence[Value]) -> bool:
        """Keep the last write; without one, forget the value."""
        held = self.value is not MISSING
        self.value = values[-1] if values else MISSING
        return held or bool(values)

    def get(self) -> Value:
        """Return the value the superstep before wrote."""
        if self.value is MISSING:
            raise self._empty()
        return self.value

    def is_available(self) -> bool:
        """Return whether the superstep before wrote it."""
        return self.value is not MISSING

    def checkpoint(self) -> Any:
        """Return the bare value."""
        return self.value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds *saved*."""
        new = type(self)(self.typ, self.key)
        new.value = saved
        return new
