"""What channels share whose state is one value, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

from flowpregel.channels.base import MISSING, BaseChannel, Missing
from flowpregel.errors import InvalidUpdateError

Value = TypeVar("Value")
Update = TypeVar("Update")


class HoldingChannel(BaseChannel[Value, Update], Generic[Value, Update]):
    """A channel that holds one value or none; what it does with writes is its kind's own.

    Args:
        typ: The type of the value.
        key: The channel's name.
    """

    __slots__ = ("value",)

    def __init__(self, typ: Any, key: str = "") -> None:
        self.typ = typ
        self.key = key
        self.value: Value | Missing = MISSING

    def get(self) -> Value:
        """Return the value.

        Raises:
            EmptyChannelError: There is none.
        """
        if self.value is MISSING:
            raise self._empty()
        return self.value

    def is_available(self) -> bool:
        """Return whether there is a value."""
        return self.value is not MISSING

    def checkpoint(self) -> Any:
        """Return the bare value, or `MISSING`."""
        return self.value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds *saved*."""
        new = type(self)(self.typ, self.key)
        new.value = saved
        return new


class GuardedChannel(HoldingChannel[Value, Value], Generic[Value]):
    """A channel that takes one write a superstep, or the last of them.

    Args:
        typ: The type of the value.
        guard: Whether two writes in one superstep are an error; otherwise the
            last one wins.
    """

    __slots__ = ("guard",)

    def __init__(self, typ: Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    def _take(self, values: Sequence[Value]) -> None:
        """Hold the write to be kept; there must be one.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if self.guard and len(values) != 1:
            raise InvalidUpdateError(
                f"channel {self.key!r} can receive only one value per superstep, not "
                f"{len(values)}; let one node write it, or use "
                f"{type(self).__name__}(typ, guard=False) to keep the last"
            )
        self.value = values[-1]

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds *saved*."""
        new = type(self)(self.typ, self.guard)
        new.key, new.value = self.key, saved
        return new

    def _identity(self) -> tuple[Any, ...]:
        return (self.typ, self.guard)
