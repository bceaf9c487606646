"""Copies of values, which do not change when the original is changed.

A value in an in-memory saver, store or cache must not change after it was stored. A
value of an immutable class is stored itself. Any other value is pickled, and stored as
a tuple whose only item is the pickle. A tuple is not among the immutable classes, so
the two forms can be distinguished.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from flowpregel._pickling.by_value import PROTOCOL, by_value_pickler, dumps_with
from flowpregel.errors import RecordedError, ValueEncodingError

IMMUTABLE: set[type] = {int, str, bytes, type(None), float, bool}
"""The exact types whose values are stored without a copy."""
_Kind = TypeVar("_Kind", bound=type)


def immutable(kind: _Kind) -> _Kind:
    """Mark a class whose instances are stored without a copy. A class decorator."""
    IMMUTABLE.add(kind)
    return kind


def snapshot_value(value: Any, description: object) -> Any:
    """Return a copy of *value* for `restore_value`.

    Args:
        value: Anything that pickle or cloudpickle can write.
        description: The name of the value in error messages. It is converted to a
            string only for an error.

    Raises:
        ValueEncodingError: Neither pickle nor cloudpickle can write *value*.

    Example:
        >>> kept = snapshot_value([1, 2], "an example")
        >>> restore_value(kept, "an example")
        [1, 2]
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        data = pickle.dumps(value, PROTOCOL)
        if isinstance(value, BaseException):
            # Some exceptions can be pickled although their pickles cannot be loaded, so
            # the pickle is loaded once as a test.
            pickle.loads(data)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        data = _dumps_by_value(value, description)
    return (data,)


def as_storable(error: BaseException) -> BaseException:
    """Return *error* if it can be pickled, or else a `RecordedError` that describes
    it.
    """
    try:
        snapshot_value(error, "an error")
    except ValueEncodingError:
        stand_in = RecordedError(type(error).__qualname__, str(error))
        for note in getattr(error, "__notes__", ()):
            stand_in.add_note(note)
        return stand_in
    return error


def restore_value(snapshot: Any, description: object) -> Any:
    """Return a new copy of the value that `snapshot_value` was given.

    Raises:
        ValueEncodingError: The pickle cannot be loaded.
    """
    if type(snapshot) is not tuple:
        return snapshot
    try:
        return pickle.loads(snapshot[0])
    except Exception as error:
        raise ValueEncodingError(
            f"{description} was kept but cannot be read back: {type(error).__name__}: "
            f"{error}; check the class's __reduce__ or __setstate__"
        ) from error


def private_copy(value: Any) -> Any:
    """Return an independent copy of *value*, or *value* itself if it cannot be copied.

    Example:
        >>> given = [1]
        >>> private_copy(given) == given, private_copy(given) is given
        (True, False)
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        return restore_value(snapshot_value(value, "a value"), "a value")
    except ValueEncodingError:
        return value


def _dumps_by_value(value: Any, description: object) -> bytes:
    try:
        data = dumps_with(by_value_pickler(), value)
        pickle.loads(data)
    except Exception as error:
        raise ValueEncodingError(
            f"{description} cannot be kept: a {type(value).__name__} does not survive "
            f"pickling ({type(error).__name__}: {error}); keep it in a Context or "
            "UntrackedValue channel, or give its class a __reduce__"
        ) from error
    return data


Decode: TypeAlias = Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]]
"""A function that decodes the stored writes of several supersteps, and creates new
objects at each call.
"""


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedWrites(Sequence[tuple[Any, ...]]):
    """The writes to a channel, as one tuple for each superstep, oldest first.

    The states of a thread's history have most writes in common. So they share the
    encoded writes, and each state decodes those that it needs, so that no two states
    share a decoded object.
    """

    stored: Sequence[Any]
    """The stored writes of all supersteps of the channel, oldest first."""
    stop: int
    """The number of supersteps in *stored* that belong to this state."""
    decode: Decode
    start: int = 0

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.decode(self.stored[self.start : self.stop]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | ReplayedWrites):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle or a copy of this object is a plain tuple of the decoded writes.
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))
