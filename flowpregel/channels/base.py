"""The contract of a channel, which folds a superstep's writes into one value; its usual
forms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from flowpregel.errors import EmptyChannelError, InvalidUpdateError

Value = TypeVar("Value")
Update = TypeVar("Update")


class Missing(Enum):
    """The type of `MISSING`, which stands for no value at all (None is a value)."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class BaseChannel(Generic[Value, Update], ABC):
    """A named place that folds the writes of one superstep into one value.

    A channel is used by one run at a time and needs no lock. The loop calls
    `update` once a superstep with all the writes, in task order; `consume` on
    the channels that triggered a task; `finish` when nothing else is left to do.

    Args:
        typ: The type of the value. Documentation and the drawing use it.
        key: The channel's name; filled in by the program that owns it.
    """

    reacts_to_silence: ClassVar[bool] = True
    """Whether ``update(())`` may change an available channel. Kinds that only
    change when written say False, so that a superstep need not visit them."""

    is_tracked: ClassVar[bool] = True
    """Whether checkpoints keep the value, and a `Send` may carry it."""

    @property
    def folds_with(self) -> Callable[..., Any] | None:
        """The function of the user's that folds what is written, if there is one."""
        return None

    def __init__(self, typ: Any, key: str = "") -> None:
        self.typ = typ
        self.key = key

    @property
    def ValueType(self) -> Any:
        """The type of what `get` returns."""
        return self.typ

    @property
    def UpdateType(self) -> Any:
        """The type of one write."""
        return self.typ

    @abstractmethod
    def update(self, values: Sequence[Update]) -> bool:
        """Fold one superstep's writes; return whether the channel changed.

        Raises:
            InvalidUpdateError: The channel cannot take these writes.
        """

    @abstractmethod
    def get(self) -> Value:
        """Return the value.

        Raises:
            EmptyChannelError: The channel holds none.
        """

    @abstractmethod
    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel of this kind holding *saved* (`MISSING`: empty)."""

    def checkpoint(self) -> Any:
        """Return what a checkpoint keeps of the channel, or `MISSING`."""
        try:
            return self.get()
        except EmptyChannelError:
            return MISSING

    def copy(self) -> Self:
        """Return a channel of its own with the same value."""
        return self.from_checkpoint(self.checkpoint())

    def is_available(self) -> bool:
        """Return whether the channel holds a value a node can be given."""
        try:
            self.get()
        except EmptyChannelError:
            return False
        return True

    def consume(self) -> bool:
        """Note that a task was triggered by this channel; return whether it changed."""
        return False

    def finish(self) -> bool:
        """Note that nothing else can run; return whether the channel changed."""
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(type(self))

    def identity(self) -> tuple[Any, ...]:
        """Return what makes two declarations of a state key the same, not the value.

        The type of the value comes first.
        """
        return (self.typ,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.typ, '__name__', self.typ)})"

    def _empty(self) -> EmptyChannelError:
        return EmptyChannelError(f"channel {self.key!r} holds no value")


class HoldingChannel(BaseChannel[Value, Update]):
    """A channel that holds one value or none; what it does with writes is its kind's
    own.

    Args:
        typ: The type of the value.
        key: The channel's name.
    """

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
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
        new = copy(self)
        new.value = saved
        return new

    def copy(self) -> Self:
        """Return a channel of its own with the same value."""
        return copy(self)


class GuardedChannel(HoldingChannel[Value, Value]):
    """A channel that takes one write a superstep, or the last of them.

    Args:
        typ: The type of the value.
        guard: Whether two writes in one superstep are an error; otherwise the
            last one wins.
    """

    instead: ClassVar[str] = "use {}(typ, guard=False) to keep the last"
    """The advice of the error for several writes; ``{}`` is the name of the class."""

    def __init__(self, typ: Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    def update(self, values: Sequence[Value]) -> bool:
        """Take the write; without one, forget the value, if the channel reacts to
        silence.

        Raises:
            InvalidUpdateError: There are several, and the channel is guarded.
        """
        if not values:
            if not self.reacts_to_silence or self.value is MISSING:
                return False
            self.value = MISSING
            return True
        if self.guard and len(values) != 1:
            raise InvalidUpdateError(
                f"channel {self.key!r} can receive only one value per superstep, not "
                f"{len(values)}; let one node write it, or "
                + self.instead.format(type(self).__name__)
            )
        self.value = values[-1]
        return True

    def identity(self) -> tuple[Any, ...]:
        """Return what makes two declarations the same, the type of the value first."""
        return (self.typ, self.guard)


def read(
    channels: Mapping[str, BaseChannel[Any, Any]], keys: str | Sequence[str]
) -> Any:
    """Return the bare value of one channel (None: it is empty), or a dict of
    several.
    """
    if isinstance(keys, str):
        channel = channels[keys]
        return channel.get() if channel.is_available() else None
    return {
        key: channel.get() for key in keys if (channel := channels[key]).is_available()
    }
