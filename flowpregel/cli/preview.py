"""Any value as JSON, with limits: a preview of a big value is small, and never fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

from flowpregel._text import printable


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of a value is shown."""

    depth: int = 4
    """Levels of containers."""
    count: int = 12
    """Items of each container."""
    size: int = 200
    """Characters of a text, or bytes."""
    total: int = 300
    """Items in all."""


FULL = Limits(depth=100, count=1 << 40, size=1 << 40, total=1 << 40)
"""Everything; only a value that contains itself is cut off."""


def plain(value: Any, limits: Limits | None = None) -> Any:
    """Return *value* as dicts, lists, texts and numbers that JSON has.

    What JSON does not have is shown as its ``repr``. What is left out is
    counted in a text that begins with an ellipsis.
    """
    return _Cutter(limits or Limits()).cut(value, 0)


def one_line(value: Any, limits: Limits | None = None) -> str:
    """Return *value* in one line for a terminal."""
    limits = limits or Limits()
    return line_of(plain(value, limits), 4 * limits.size)


def line_of(shown: Any, size: int) -> str:
    """Return the first *size* characters of what `plain` returned, in one line."""
    return printable(clipped(json.dumps(shown, ensure_ascii=False), size))


def clipped(text: str, size: int) -> str:
    """Return the first *size* characters of *text*, and how many more there are."""
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more)"


class _Cutter:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.total

    def cut(self, value: Any, depth: int) -> Any:
        self._left -= 1
        size = self._limits.size
        # Not `str` alone and the like: subclasses are shown as what JSON has.
        match value:
            case None | bool():
                return value
            case str():
                return clipped(str(value), size)
            case bytes() | bytearray():
                return f"{clipped(repr(bytes(value[:size])), size)} ({len(value):,} bytes)"
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case int():
                bits = value.bit_length()
                return int(value) if bits <= 1_024 else f"an int of {bits:,} bits"
        parts = _parts(value)
        if parts is None:
            return clipped(_text(value), size)
        if depth >= self._limits.depth:
            return f"… {type(value).__name__} of {len(parts)}"
        return self._container(parts, depth)

    def _container(self, parts: dict[Any, Any] | list[Any], depth: int) -> Any:
        shown = max(0, min(len(parts), self._limits.count, self._left))
        more = [f"{len(parts) - shown:,} more"] if len(parts) > shown else []
        if isinstance(parts, list):
            return [self.cut(each, depth + 1) for each in parts[:shown]] + [f"… {m}" for m in more]
        result: dict[str, Any] = {}
        for key in islice(parts, shown):
            name = key if isinstance(key, str) else _text(key)
            result[clipped(name, self._limits.size)] = self.cut(parts[key], depth + 1)
        return {**result, "…": more[0]} if more else result


def _parts(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return what a container holds, or None for what is none."""
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": _text(value, str)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=False))
    if isinstance(value, list | tuple | Set):
        return [*value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name, None) for each in fields(value)}
    if isinstance(names := getattr(type(value), "model_fields", None), Mapping):  # of pydantic
        return {name: getattr(value, name, None) for name in names}
    return None


def _text(value: Any, form: Any = repr) -> str:
    try:
        return str(form(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"
