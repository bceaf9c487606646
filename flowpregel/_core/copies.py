"""Copies of values that no later change of the original can reach.

What an in-memory saver, store or cache keeps must read back as it was when it
was kept. A value of an immutable built-in type is kept as it is; any other is
pickled, into a tuple of one item, which no value kept as it is can be.
"""

from __future__ import annotations

import pickle
from typing import Any

from flowpregel._core.ran import Ran
from flowpregel.errors import RecordedError, ValueEncodingError

IMMUTABLE: frozenset[type] = frozenset({int, str, bytes, type(None), float, bool, Ran})
"""The exact types that are kept as they are."""

_PROTOCOL = 5


def keep(value: Any, what: str) -> Any:
    """Return a copy of *value* for `bring_back`.

    Args:
        value: Anything that pickle or cloudpickle can write.
        what: What the value is, for the message of an error.

    Raises:
        ValueEncodingError: Neither can write it.

    Example:
        >>> kept = keep([1, 2], "an example")
        >>> bring_back(kept, "an example")
        [1, 2]
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        data = pickle.dumps(value, _PROTOCOL)
        if isinstance(value, BaseException):
            # Only an exception's class can make one that is written and never read.
            pickle.loads(data)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        data = _dumps_by_value(value, what)
    return (data,)


def keepable(error: BaseException) -> BaseException:
    """Return *error* if it can be kept, or what is to be kept in its place."""
    try:
        keep(error, "an error")
    except ValueEncodingError:
        stand_in = RecordedError(type(error).__qualname__, str(error))
        for note in getattr(error, "__notes__", ()):
            stand_in.add_note(note)
        return stand_in
    return error


def bring_back(kept: Any, what: str) -> Any:
    """Return a new copy of the value that `keep` was given.

    Raises:
        ValueEncodingError: The value's class cannot be read back.
    """
    if type(kept) is not tuple:
        return kept
    try:
        return pickle.loads(kept[0])
    except Exception as error:
        raise ValueEncodingError(
            f"{what} was kept but cannot be read back: {type(error).__name__}: {error}; "
            "check the class's __reduce__ or __setstate__"
        ) from error


def _dumps_by_value(value: Any, what: str) -> bytes:
    """Pickle what plain pickle cannot: lambdas, closures, classes inside functions."""
    import cloudpickle  # noqa: PLC0415 - 30 ms, and seldom needed

    try:
        data: bytes = cloudpickle.dumps(value, _PROTOCOL)
        pickle.loads(data)
    except Exception as error:
        raise ValueEncodingError(
            f"{what} cannot be kept: a {type(value).__name__} does not survive pickling "
            f"({type(error).__name__}: {error}); keep it in a Context or UntrackedValue channel, "
            "or give its class a __reduce__"
        ) from error
    return data
