"""`EphemeralValue`, which lasts for one superstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

from flowpregel.channels.base import MISSING, BaseChannel, Missing
from flowpregel.errors import InvalidUpdateError

Value = TypeVar("Value")


class EphemeralValue(BaseChannel[Value, Value], Generic[Value]):
    """Keeps what the superstep before wrote; a superstep without a write empties it.

    Args:
        typ: The type of the value.
        guard: Whether two writes in one superstep are an error; otherwise the
            last one wins.

    Example:
        >>> channel = EphemeralValue(str)
        >>> channel.update(["now"]), channel.get()
        (True, 'now')
        >>> channel.update([]), channel.is_available()
        (True, False)
    """

    __slots__ = ("guard", "value")

    def __init__(self, typ: Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard
        self.value: Value | Missing = MISSING

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write; without one, forget the value.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if not values:
            held = self.value is not MISSING
            self.value = MISSING
            return held
        if self.guard and len(values) != 1:
            raise InvalidUpdateError(
                f"channel {self.key!r} can receive only one value per superstep, not "
                f"{len(values)}; let one node write it, or use "
                "EphemeralValue(typ, guard=False) to keep the last"
            )
        self.value = values[-1]
        return True

    def get(self) -> Value:
        """Return what the superstep before wrote."""
        if self.value is MISSING:
            raise self._empty()
        return self.value

    def is_available(self) -> bool:
        """Return whether the superstep before wrote it."""
        return self.value is not MISSING

    def checkpoint(self) -> Any:
        """Return the bare value: it outlives a crash, for its one superstep."""
        return self.value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds *saved*."""
        new = type(self)(self.typ, self.guard)
        new.key, new.value = self.key, saved
        return new

    def _identity(self) -> tuple[Any, ...]:
        return (self.typ, self.guard)
