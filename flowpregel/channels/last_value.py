"""The channels that hold the last write: permanently, until the end of the run, for one
superstep, or outside of checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, GuardedChannel, HoldingChannel

Value = TypeVar("Value")


class LastValue(GuardedChannel[Value]):
    """Holds the last written value; two writes in one superstep are an error.

    Args:
        typ: The type of the value.
        key: The channel's name.

    Example:
        >>> channel = LastValue(int, "count")
        >>> channel.update([1]), channel.get()
        (True, 1)
    """

    reacts_to_silence = False
    instead = (
        "make it a channel that folds several: Annotated[type, reducer] in a state, "
        "BinaryOperatorAggregate or Topic in a Pregel"
    )

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ)
        self.key = key


class LastValueAfterFinish(HoldingChannel[Value, Value]):
    """Holds the last write, which becomes available when nothing else is left to run.

    The value is dropped when it has triggered a task.

    Args:
        typ: The type of the value.
        key: The channel's name.

    Example:
        >>> channel = LastValueAfterFinish(int)
        >>> channel.update([1, 2]), channel.is_available()
        (True, False)
        >>> channel.finish(), channel.get()
        (True, 2)
    """

    reacts_to_silence = False

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self.finished: bool = False

    def update(self, values: Sequence[Value]) -> bool:
        """Store the last write, which is unavailable until the next `finish`."""
        if not values:
            return False
        self.value = values[-1]
        self.finished = False
        return True

    def get(self) -> Value:
        """Return the value, if `finish` has made it available."""
        if not self.finished:
            raise self._empty()
        return super().get()

    def is_available(self) -> bool:
        """Return whether there is a value that `finish` has made available."""
        return self.finished and super().is_available()

    def checkpoint(self) -> Any:
        """Return ``(value, finished)``."""
        if self.value is MISSING:
            return MISSING
        return self.value, self.finished

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel from a ``(value, finished)`` pair."""
        value: Any = MISSING
        finished = False
        if saved is not MISSING:
            value, finished = saved
        new = super().from_checkpoint(value)
        new.finished = finished
        return new

    def consume(self) -> bool:
        """Drop the value if it was available, and return whether it was."""
        if not self.finished:
            return False
        self.value, self.finished = MISSING, False
        return True

    def finish(self) -> bool:
        """Make the value available, if there is one."""
        if self.finished or self.value is MISSING:
            return False
        self.finished = True
        return True


class AnyValue(GuardedChannel[Value]):
    """Holds the last of a superstep's writes. A superstep without a write empties the
    channel.

    The channel assumes, without checking, that all writes of a superstep are equal.

    Args:
        typ: The type of the value.
        key: The channel's name.

    Example:
        >>> channel = AnyValue(int)
        >>> channel.update([3, 3]), channel.get()
        (True, 3)
    """

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, guard=False)
        self.key = key


class EphemeralValue(GuardedChannel[Value]):
    """Holds the write of the previous superstep. A superstep without a write empties
    the channel.

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


class UntrackedValue(GuardedChannel[Value]):
    """Holds the last written value until the end of the run; it is never in a
    checkpoint.

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

    def checkpoint(self) -> Any:
        """Return `MISSING`, so that the value is not stored."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new, empty channel, whatever *saved* is."""
        return super().from_checkpoint(MISSING)
