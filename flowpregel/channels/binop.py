"""`BinaryOperatorAggregate`, which folds each write into the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from flowpregel.channels.base import MISSING, HoldingChannel
from flowpregel.channels.folding import (
    concrete,
    detached,
    hooks_of,
    identity_of,
    only_replacement,
    without_snapshot,
)
from flowpregel.errors import ConfigurationError

Value = TypeVar("Value")


class BinaryOperatorAggregate(HoldingChannel[Value, Value]):
    """Folds each write into the value: ``value = operator(value, write)``.

    The initial value is ``typ()``. If the type cannot be called without arguments, the
    first write becomes the value. An `Overwrite` replaces the value, and every other
    write of the same superstep is dropped.

    Args:
        typ: The type of the value; an abstract ``Sequence``, ``Set`` or
            ``Mapping`` means ``list``, ``set`` or ``dict``.
        operator: A function that takes the value and a write, and returns the new
            value. It should not modify its arguments, to which other objects may refer.

    Raises:
        ConfigurationError: *operator* cannot be called.

    Example:
        >>> import operator
        >>> channel = BinaryOperatorAggregate(int, operator.add)
        >>> channel.update([1, 2]), channel.get()
        (True, 3)
    """

    reacts_to_silence = False

    def __init__(self, typ: Any, operator: Callable[[Value, Value], Value]) -> None:
        if not callable(operator):
            raise ConfigurationError(
                f"a reducer is a function of the value and a write, not {operator!r}"
            )
        super().__init__(concrete(typ))
        self.operator = operator
        self.prepares_with: Callable[[Any, str], Any] | None = hooks_of(
            operator
        ).prepare
        self.value = self._start()

    @property
    def folds_with(self) -> Callable[..., Any] | None:
        """The operator, which folds the writes."""
        return self.operator

    def _start(self) -> Any:
        try:
            return self.typ()
        except Exception:  # noqa: BLE001 - a user's type may refuse in any way it likes
            return MISSING

    def update(self, values: Sequence[Value]) -> bool:
        """Fold the writes in order, or take the `Overwrite` among them.

        Raises:
            InvalidUpdateError: The writes contain several `Overwrite`.
            Exception: The exception of the reducer, with a note that names the
                channel and the write.
        """
        if not values:
            return False
        replaced = only_replacement(values, self.key)
        self.value = self._folded(values) if replaced is MISSING else detached(replaced)
        return True

    def _folded(self, values: Sequence[Value]) -> Any:
        value: Any = self.value
        for number, write in enumerate(values, 1):
            try:
                value = write if value is MISSING else self.operator(value, write)
            except Exception as error:
                error.add_note(
                    f"raised by the reducer of channel {self.key!r}, "
                    f"at write {number} of {len(values)} of this superstep"
                )
                raise
        return value

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that contains a shallow copy of *saved*."""
        return super().from_checkpoint(
            self._start() if saved is MISSING else detached(without_snapshot(saved))
        )

    def copy(self) -> Self:
        """Return an independent channel with a shallow copy of the value."""
        return self.from_checkpoint(self.value)

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, identity_of(self.operator))
