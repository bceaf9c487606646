"""A call as a person reads it, at a cost that does not depend on its arguments' size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST = 40
_MOST = 4
_PLAIN = frozenset({int, float, bool, type(None), complex})
_SIZED = frozenset({list, tuple, dict, set, frozenset, bytearray})
_LONGEST_INT = 128
"""Bits of an int that is written out: longer ones take long to write."""


def described(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a call as text.

    Example:
        >>> described("measure", ("a.py", list(range(100))), {"deep": True})
        "measure('a.py', <list of 100>, deep=True)"
    """
    shown = [_shown(value) for value in args[:_MOST]]
    shown += [f"{key}={_shown(value)}" for key, value in [*kwargs.items()][:_MOST]]
    if len(args) > _MOST or len(kwargs) > _MOST:
        shown.append("...")
    return f"{name}({', '.join(shown)})"


def _shown(value: Any) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > _LONGEST_INT:
        return f"<int of {value.bit_length()} bits>"
    if kind in _PLAIN:
        return repr(value)
    if kind in (str, bytes):
        text = repr(value[:_LONGEST])
        return text if len(value) <= _LONGEST else f"{text[:-1]}...{text[-1]}"
    if kind in _SIZED:
        return f"<{kind.__name__} of {len(value)}>" if len(value) else repr(value)
    # A user's own __repr__ may take as long as it likes, and may raise.
    return f"<{kind.__qualname__}>"
