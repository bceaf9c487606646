"""`UntrackedValue`, which no checkpoint keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, GuardedChannel

Value = TypeVar("Value")


class UntrackedValue(GuardedChannel[Value]):
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

    reacts_to_silence = False
    is_tracked = False

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write, if there is one.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if not values:
            return False
        self._take(values)
        return True

    def checkpoint(self) -> Any:
        """Return `MISSING`, always."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new, empty channel, whatever *saved* is."""
        return super().from_checkpoint(MISSING)

    def copy(self) -> Self:
        """Return a channel of its own with the same value."""
        return super().from_checkpoint(self.value)
