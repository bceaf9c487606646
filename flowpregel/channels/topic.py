"""`Topic`, which keeps every write as one of a list."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, Union

from flowpregel.channels.base import MISSING, BaseChannel

Value = TypeVar("Value")


class Topic(BaseChannel[list[Value], Value | list[Value]]):
    """Keeps the list of what was written; a written list counts as its items.

    Args:
        typ: The type of one item.
        unique: Whether an item equal to one that is there is dropped: to one of
            this superstep, and, if it accumulates, of any before it. Items that
            cannot be hashed are compared with each other one by one.
        accumulate: Whether items stay for the rest of the run; otherwise a
            superstep's items replace those of the one before.

    Example:
        >>> channel = Topic(str, unique=True)
        >>> channel.update(["a", ["b", "a"]]), channel.get()
        (True, ['a', 'b'])
    """

    def __init__(self, typ: Any, unique: bool = False, accumulate: bool = False) -> None:
        super().__init__(typ)
        self.unique = unique
        self.accumulate = accumulate
        self.values: list[Value] = []
        self.seen = _Seen()

    @property
    def ValueType(self) -> Any:
        """The type of what `get` returns."""
        return list[self.typ]  # type: ignore[name-defined]

    @property
    def UpdateType(self) -> Any:
        """The type of one write."""
        return Union[self.typ, list[self.typ]]  # type: ignore[name-defined]  # noqa: UP007 - may be text

    def update(self, values: Sequence[Value | list[Value]]) -> bool:
        """Add the writes, or replace the items by them; return whether that made a difference."""
        items: list[Value] = []
        for value in values:
            if isinstance(value, list):
                items.extend(value)
            else:
                items.append(value)
        if self.accumulate:
            fresh = self.seen.unseen(items) if self.unique else items
            self.values.extend(fresh)
            return bool(fresh)
        held = bool(self.values)
        self.values = _Seen().unseen(items) if self.unique else items
        return held or bool(items)

    def get(self) -> list[Value]:
        """Return the items, in a list of its own."""
        if not self.values:
            raise self._empty()
        return self.values.copy()

    def is_available(self) -> bool:
        """Return whether it holds an item."""
        return bool(self.values)

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel that holds the items *saved*."""
        if isinstance(saved, tuple):
            # LangGraph once saved a pair: every item there ever was, and the items.
            _, saved = saved
        items = [] if saved is MISSING else saved
        new = copy(self)
        new.seen = _Seen()
        new.values = new.seen.unseen(items) if self.unique and self.accumulate else list(items)
        return new

    def identity(self) -> tuple[Any, ...]:
        """Return what makes two declarations the same, the type of the value first."""
        return (self.typ, self.unique, self.accumulate)


@dataclass(slots=True)
class _Seen:
    """The items there are, to recognise new ones by."""

    hashed: set[Any] = field(default_factory=set)
    others: list[Any] = field(default_factory=list)

    def unseen(self, items: Iterable[Value]) -> list[Value]:
        """Return those of *items* that are new, each once, and take note of them."""
        return [item for item in items if self._is_new(item)]

    def _is_new(self, item: Any) -> bool:
        try:
            count = len(self.hashed)
            self.hashed.add(item)
            return len(self.hashed) > count
        except TypeError:  # not hashable
            if any(_equal(item, other) for other in self.others):
                return False
            self.others.append(item)
            return True


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except ValueError:
        # Arrays and frames have no truth value: they are equal if their content is.
        return type(one) is type(other) and pickle.dumps(one) == pickle.dumps(other)
