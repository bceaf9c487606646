"""`Topic`, which collects all writes in a list."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from copy import copy
from typing import Any, Self, TypeVar, Union

from flowpregel.channels.base import MISSING, HoldingChannel

Value = TypeVar("Value")


class Topic(HoldingChannel[list[Value], Value | list[Value]]):
    """Collects the written items in a list. Each element of a written list is an item.

    Args:
        typ: The type of one item.
        unique: Whether to drop an item that equals an earlier item of the same
            superstep or, with *accumulate*, of any earlier superstep. Items that
            cannot be hashed are compared with each other one by one.
        accumulate: Whether items stay for the rest of the run; otherwise the items of a
            superstep replace the items of the previous superstep.

    Example:
        >>> channel = Topic(str, unique=True)
        >>> channel.update(["a", ["b", "a"]]), channel.get()
        (True, ['a', 'b'])
    """

    def __init__(
        self, typ: Any, unique: bool = False, accumulate: bool = False
    ) -> None:
        super().__init__(typ)
        self.unique = unique
        self.accumulate = accumulate

    @property
    def ValueType(self) -> Any:
        """The type of the value that `get` returns."""
        return list[self.typ]  # type: ignore[name-defined]

    @property
    def UpdateType(self) -> Any:
        """The type of one write."""
        typ: Any = self.typ
        return Union[typ, list[typ]]  # noqa: UP007 - the type may be a text

    def update(self, values: Sequence[Value | list[Value]]) -> bool:
        """Add the writes to the items, or replace the items, and return whether the
        channel changed.
        """
        items: list[Value] = []
        for value in values:
            if isinstance(value, list):
                items.extend(value)
            else:
                items.append(value)
        earlier = [] if self.value is MISSING else self.value
        remaining = earlier if self.accumulate else []
        added = items
        if self.unique:
            added = _unseen(items, remaining)
        self.value = [*remaining, *added] or MISSING
        has_dropped = len(earlier) > len(remaining)
        return has_dropped or bool(added)

    def get(self) -> list[Value]:
        """Return the items in a new list."""
        return super().get().copy()

    def checkpoint(self) -> Any:
        """Return the items in a new list, or `MISSING` if there are none."""
        return copy(self.value)

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that contains the items *saved*."""
        if isinstance(saved, tuple):
            # A tuple comes from an earlier version of LangGraph. It has two items: all
            # items ever written, and the current items.
            _, saved = saved
        if saved is not MISSING:
            saved = [*saved] or MISSING
        return super().from_checkpoint(saved)

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, self.unique, self.accumulate)


def _unseen(items: list[Value], known: list[Value]) -> list[Value]:
    """Return the *items* that are not in *known*, each once."""
    hashed: set[Any] = set()
    unhashable: list[Any] = []
    unseen: list[Value] = []
    for number, item in enumerate((*known, *items)):
        is_known = number < len(known)
        try:
            is_new = item not in hashed
            hashed.add(item)
        except TypeError:  # Items that are not hashable are compared one by one.
            is_new = is_known or not _is_among(item, unhashable)
            unhashable.append(item)
        if is_new and not is_known:
            unseen.append(item)
    return unseen


def _is_among(item: Any, others: list[Any]) -> bool:
    return any(_is_equal(item, other) for other in others)


def _is_equal(item: Any, other: Any) -> bool:
    if item is other:
        return True
    try:
        return bool(item == other)
    except ValueError:
        # Comparing arrays or data frames does not return a bool, so their pickles are
        # compared.
        if type(item) is not type(other):
            return False
        return pickle.dumps(item) == pickle.dumps(other)
