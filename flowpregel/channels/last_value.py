"""The channels that hold one write: for good, to the end, for a superstep, or for a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, GuardedChannel, HoldingChannel

Value = TypeVar("Value")


class LastValue(GuardedChannel[Value]):
    """Keeps the value written last; two writes in one superstep are an error.

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
    """Keeps the last write, and shows it when nothing else is left to run.

    A task that it triggers uses it up.

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
        self.finished = False

    def update(self, values: Sequence[Value]) -> bool:
        """Keep the last write, out of sight until the next `finish`."""
        if not values:
            return False
        self.value = values[-1]
        self.finished = False
        return True

    def get(self) -> Value:
        """Return the value, once finished."""
        if not self.finished:
            raise self._empty()
        return super().get()

    def is_available(self) -> bool:
        """Return whether there is a value and it is finished."""
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
        """Empty the channel if its value was on show."""
        if not self.finished:
            return False
        self.value, self.finished = MISSING, False
        return True

    def finish(self) -> bool:
        """Show the value, if there is one."""
        if self.finished or self.value is MISSING:
            return False
        self.finished = True
        return True


class AnyValue(GuardedChannel[Value]):
    """Keeps one of a superstep's writes, the last; a superstep without a write empties
    it.

    It takes on trust that all writes of a superstep are equal.

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

    def checkpoint(self) -> Any:
        """Return `MISSING`, always."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new, empty channel, whatever *saved* is."""
        return super().from_checkpoint(MISSING)
