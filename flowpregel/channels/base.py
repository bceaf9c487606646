"""The contract of channels, which fold a superstep's writes into one value, and the
usual base classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from types import UnionType
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

from flowpregel.errors import EmptyChannelError, InvalidUpdateError

Value = TypeVar("Value")
Update = TypeVar("Update")
PrepareWrite: TypeAlias = Callable[[Any, str], Any]
"""A function that returns a write in the form in which it is stored and shown. It takes
the write and a string that is unique to the write.
"""


class Missing(Enum):
    """The type of `MISSING`, which means that there is no value (None is a value)."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class BaseChannel(Generic[Value, Update], ABC):
    """A named place that folds the writes of one superstep into one value.

    A channel is used by one run at a time and needs no lock. The run loop calls
    `update` once per superstep with all writes, in task order, `consume` for the
    channels that triggered a task, and `finish` when nothing else is left to run.

    Args:
        typ: The type of the value, for documentation and drawings.
        key: The channel's name, set by the program that the channel belongs to.
    """

    reacts_to_silence: ClassVar[bool] = True
    """True if ``update(())`` may change an available channel. A channel class whose
    value changes only by writes sets False, so that a superstep can skip its channels.
    """

    is_tracked: ClassVar[bool] = True
    """True if checkpoints store the value. If False, the value is also removed from a
    stored `Send`.
    """

    prepares_with: PrepareWrite | None = None
    """The function that prepares each write before the write is stored, if there is
    one.
    """

    @property
    def folds_with(self) -> Callable[..., Any] | None:
        """The user's function that folds the writes, if there is one."""
        return None

    def __init__(self, typ: Any, key: str = "") -> None:
        self.typ: Any = typ
        self.key: str = key

    @property
    def ValueType(self) -> Any:
        """The type of the value that `get` returns."""
        return self.typ

    @property
    def UpdateType(self) -> Any:
        """The type of one write."""
        return self.typ

    @abstractmethod
    def update(self, values: Sequence[Update]) -> bool:
        """Fold one superstep's writes, and return whether the channel changed.

        Args:
            values: The writes of the superstep, in the order of the tasks. Empty if no
                task has written.

        Raises:
            InvalidUpdateError: The channel cannot take these writes.
        """

    @abstractmethod
    def get(self) -> Value:
        """Return the value.

        Raises:
            EmptyChannelError: The channel has no value.
        """

    @abstractmethod
    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel of this class that contains *saved*, or that is empty if
        *saved* is `MISSING`.
        """

    def checkpoint(self) -> Any:
        """Return the value to store in a checkpoint, or `MISSING`."""
        try:
            return self.get()
        except EmptyChannelError:
            return MISSING

    def copy(self) -> Self:
        """Return an independent channel with the same value."""
        return self.from_checkpoint(self.checkpoint())

    def is_available(self) -> bool:
        """Return whether the channel has a value that a node can get."""
        try:
            self.get()
        except EmptyChannelError:
            return False
        return True

    def consume(self) -> bool:
        """Update the channel after it has triggered a task, for example by dropping the
        value. Return whether the channel changed.
        """
        return False

    def finish(self) -> bool:
        """Update the channel when no node can run in the next superstep, for example by
        making a value available. Return whether the channel changed.
        """
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(type(self))

    def identity(self) -> tuple[Any, ...]:
        """Return the parts of this channel that must be equal in all declarations of a
        state key: first the type of the value, then such parts as the reducer, but
        never the value.
        """
        return (self.typ,)

    def __repr__(self) -> str:
        typ = self.typ
        # The name of a union is not used: in Python 3.14 it is "Union", without the
        # types in the union.
        if not isinstance(typ, UnionType):
            typ = getattr(typ, "__name__", typ)
        name = type(self).__name__
        return f"{name}({typ})"

    def _empty(self) -> EmptyChannelError:
        return EmptyChannelError(f"channel {self.key!r} holds no value")


class HoldingChannel(BaseChannel[Value, Update]):
    """A channel that holds one value or none. Subclasses define the effect of writes.

    Args:
        typ: The type of the value.
        key: The channel's name.
    """

    value: Value | Missing
    """The value, or `MISSING` if the channel has none."""

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self.value = MISSING

    def get(self) -> Value:
        """Return the value.

        Raises:
            EmptyChannelError: There is no value.
        """
        if self.value is MISSING:
            raise self._empty()
        return self.value

    def is_available(self) -> bool:
        """Return whether there is a value."""
        return self.value is not MISSING

    def checkpoint(self) -> Any:
        """Return the value itself, or `MISSING`."""
        return self.value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that contains *saved*."""
        new = copy(self)
        new.value = saved
        return new

    def copy(self) -> Self:
        """Return an independent channel with the same value."""
        return copy(self)


class GuardedChannel(HoldingChannel[Value, Value]):
    """A channel that takes one write per superstep, or the last of several writes.

    Args:
        typ: The type of the value.
        guard: True if two writes in one superstep are an error. False if the last write
            replaces the earlier writes.
    """

    instead: ClassVar[str] = "use {}(typ, guard=False) to keep the last"
    """The advice in the error for several writes, where ``{}`` is replaced by the name
    of the class.
    """

    value: Value | Missing
    """The value, or `MISSING` if the channel has none."""

    def __init__(self, typ: Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write. Without a write, drop the value if `reacts_to_silence` is
        True.

        Raises:
            InvalidUpdateError: There are several writes, and the channel is guarded.
        """
        if not values:
            if not self.reacts_to_silence or self.value is MISSING:
                return False
            self.value = MISSING
            return True
        if self.guard and len(values) != 1:
            raise InvalidUpdateError(
                f"At key {self.key!r}: Can receive only one value per step, not "
                f"{len(values)}; let one node write it, or "
                + self.instead.format(type(self).__name__)
                + " (INVALID_CONCURRENT_GRAPH_UPDATE)"
            )
        self.value = values[-1]
        return True

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, self.guard)


def read(
    channels: Mapping[str, BaseChannel[Any, Any]], keys: str | Sequence[str]
) -> Any:
    """Return the value of one channel (None if the channel is empty), or a dict of the
    values of several channels.
    """
    if isinstance(keys, str):
        channel = channels[keys]
        return channel.get() if channel.is_available() else None
    return {
        key: channel.get() for key in keys if (channel := channels[key]).is_available()
    }
