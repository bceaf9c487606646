"""`EphemeralValue`, which lasts for one superstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flowpregel.channels.base import MISSING, GuardedChannel

Value = TypeVar("Value")


class EphemeralValue(GuardedChannel[Value]):
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

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write; without one, forget the value.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if not values:
            held = self.value is not MISSING
            self.value = MISSING
            return held
        self._take(values)
        return True
