"""`UntrackedValue`, which no checkpoint keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from flowpregel.channels.base import MISSING, BaseChannel, Missing
from flowpregel.errors import InvalidUpdateError

Value = TypeVar("Value")


class UntrackedValue(BaseChannel[Value, Value], Generic[Value]):
    """Keeps the value written last for as long as the run lasts, never in a checkpoint.

    Args:
        typ: The type of the value.
        guard: Whether two writes in one superstep are an error; otherwise the
            last one wins.

    Example:
        >>> channel = UntrackedValue(int)
        >>> channel.update([1]), channel.get(), channel.checkpoint()
        (True, 1, MISSING)
    """

    __slots__ = ("guard", "value")

    reacts_to_silence: ClassVar[bool] = False
    is_tracked: ClassVar[bool] = False

    def __init__(self, typ: Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard
        self.value: Value | Missing = MISSING

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write, if there is one.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if not values:
            return False
        if self.guard and len(values) != 1:
            raise InvalidUpdateError(
                f"channel {self.key!r} can receive only one value per superstep, not "
                f"{len(values)}; let one node write it, or use "
                "UntrackedValue(typ, guard=False) to keep the last"
            )
        self.value = values[-1]
        return True

    def get(self) -> Value:
        """Return the value written last in this run."""
        if self.value is MISSING:
            raise self._empty()
        return self.value

    def is_available(self) -> bool:
        """Return whether it was written in this run."""
        return self.value is not MISSING

    def checkpoint(self) -> Any:
        """Return `MISSING`, always."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new, empty channel, whatever *saved* is."""
        new = type(self)(self.typ, self.guard)
        new.key = self.key
        return new

    def copy(self) -> Self:
        """Return a channel of its own with the same value."""
        new = self.from_checkpoint(MISSING)
        new.value = self.value
        return new

    def _identity(self) -> tuple[Any, ...]:
        return (self.typ, self.guard)
