"""`BinaryOperatorAggregate`, which folds each write into the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, Self, TypeVar

from flowpregel.channels.base import MISSING, HoldingChannel
from flowpregel.channels.folding import concrete, detached, identity_of
from flowpregel.channels.overwrite import only_replacement
from flowpregel.errors import ConfigurationError

Value = TypeVar("Value")


class BinaryOperatorAggregate(HoldingChannel[Value, Value], Generic[Value]):
    """Keeps the fold of all writes: ``value = operator(value, write)`` for each.

    It starts with ``typ()``; where a type cannot be called without arguments
    the first write becomes the value. An `Overwrite` replaces the value, and
    every other write of its superstep is dropped.

    Args:
        typ: The type of the value; an abstract ``Sequence``, ``Set`` or
            ``Mapping`` means ``list``, ``set`` or ``dict``.
        operator: Takes the value and a write, returns the new value. It should
            leave its arguments alone: others may still hold them.

    Raises:
        ConfigurationError: *operator* cannot be called.

    Example:
        >>> import operator
        >>> channel = BinaryOperatorAggregate(int, operator.add)
        >>> channel.update([1, 2]), channel.get()
        (True, 3)
    """

    __slots__ = ("operator",)

    reacts_to_silence: ClassVar[bool] = False

    def __init__(self, typ: Any, operator: Callable[[Value, Value], Value]) -> None:
        if not callable(operator):
            raise ConfigurationError(
                f"a reducer is a function of the value and a write, not {operator!r}"
            )
        super().__init__(concrete(typ))
        self.operator = operator
        with suppress(Exception):  # a user's type may refuse in any way it likes
            self.value = self.typ()

    def update(self, values: Sequence[Value]) -> bool:
        """Fold the writes in order, or take the `Overwrite` among them.

        Raises:
            InvalidUpdateError: There are several `Overwrite`.
            Exception: What the reducer raised, with a note that names the
                channel and the write.
        """
        if not values:
            return False
        replaced = only_replacement(values, self.key)
        self.value = self._folded(values) if replaced is MISSING else detached(replaced)
        return True

    def _folded(self, values: Sequence[Value]) -> Value:
        value = self.value
        done = 0
        if value is MISSING:
            value, done = values[0], 1
        operator = self.operator
        try:
            for write in values[1:] if done else values:
                value = operator(value, write)
                done += 1
        except Exception as error:
            error.add_note(
                f"raised by the reducer of channel {self.key!r}, "
                f"at write {done + 1} of {len(values)} of this superstep"
            )
            raise
        return value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds a shallow copy of *saved*."""
        new = type(self)(self.typ, self.operator)
        new.key = self.key
        if saved is not MISSING:
            new.value = detached(saved)
        return new

    def _identity(self) -> tuple[Any, ...]:
        return (self.typ, identity_of(self.operator))
