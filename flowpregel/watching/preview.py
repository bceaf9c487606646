"""Previews of values and of channels: as much as fits is shown, as what JSON has.

None of it can fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from typing import Any

from flowpregel._core.records import TASKS, Saved
from flowpregel._text import in_one_line
from flowpregel.watching.inert import Shown, ShownKey, is_small


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


PREVIEW = Limits()
FULL = Limits(depth=100, count=1 << 40, size=1 << 40, total=10_000_000)
"""Everything; only a value that contains itself is cut off, or one that grows by being shown: a
list that holds the same list many times."""


class Fields(dict[str, Any]):
    """What an object holds, by name; for people it is shown as ``Report(words=3)``.

    Args:
        name: The object's class.
    """

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        super().__init__(parts)
        self.name = name


class Written(str):
    """How an object, or what was left out, is written: no text of the user's."""

    __slots__ = ()


def plain(value: Any, limits: Limits = PREVIEW) -> Any:
    """Return *value* as dicts, lists, texts and numbers that JSON has.

    An object is a dict of what it holds, or, if that has no names, its ``repr``.
    What is left out is counted in a text that begins with an ellipsis.
    """
    return _Cutter(limits).cut(value, 0)


def question(asked: Any, limits: Limits = PREVIEW) -> dict[str, Any]:
    """Return the ``id`` and the ``value`` of what a task asks, as `plain` does."""
    # One of LangGraph's, which is no class of ours, is shown as it is.
    value = getattr(asked, "value", asked)
    return {"id": plain(getattr(asked, "id", None), limits), "value": plain(value, limits)}


def one_line(value: Any, limits: Limits = PREVIEW) -> str:
    """Return *value* in one line for a terminal."""
    return line_of(plain(value, limits), limits)


def line_of(shown: Any, limits: Limits) -> str:
    """Return the beginning of what `plain` returned, in one line."""
    text = _written(shown, partial(json.dumps, ensure_ascii=False))
    return in_one_line(clipped(text, 4 * limits.size))


def _written(shown: Any, write: Callable[[Any], str]) -> str:
    """Return what `plain` returned as one text; *write* writes texts and numbers."""
    match shown:
        case Fields():
            return _call_of(shown.name, (), shown)
        case dict():
            items = (f"{write(key)}: {_written(value, write)}" for key, value in shown.items())
            return f"{{{', '.join(items)}}}"
        case list():
            return f"[{', '.join(_written(each, write) for each in shown)}]"
        case Written():
            return str(shown)
    return write(shown)


def _call_of(name: str, args: Iterable[Any], fields: Mapping[str, Any]) -> str:
    named = (f"{key}={_written(value, repr)}" for key, value in fields.items())
    return f"{name}({', '.join([*(_written(each, repr) for each in args), *named])})"


def clipped(text: str, size: int) -> str:
    """Return the first *size* characters of *text*, and how many more there are."""
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more)"


class _Cutter:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.total
        self._around = list[int]()
        """The ids of the containers that are being cut."""

    def cut(self, value: Any, depth: int) -> Any:
        self._left -= 1
        size = self._limits.size
        # Not `str` alone and the like: subclasses are shown as what JSON has.
        match value:
            case None | bool():
                return value
            case str():
                return clipped(str.__str__(value), size)
            case bytes() | bytearray() | memoryview():
                text = clipped(repr(bytes(value[:size])), size)
                return Written(f"{text} ({len(value):,} bytes)")
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case int():
                bits = value.bit_length()
                return int(value) if bits <= 1_024 else Written(f"an int of {bits:,} bits")
        parts, is_full = None, self._limits is FULL
        with suppress(Exception):  # a user's container may raise anything
            parts = _parts(value, full=is_full)
        if parts is None:
            return Written(clipped(_text_of(value), size))
        if depth >= self._limits.depth or (is_full and id(value) in self._around):
            return Written(f"… {getattr(parts, 'name', type(value).__name__)} of {len(parts)}")
        self._around.append(id(value))
        shown = self._container(parts, depth)
        if isinstance(value, Shown) and (value.args or not parts):
            args = self._container(value.args, depth)
            shown = Written(clipped(_call_of(type(value).__name__, args, shown), size))
        self._around.pop()
        return shown

    def _container(self, parts: dict[Any, Any] | list[Any], depth: int) -> Any:
        shown = max(0, min(len(parts), self._limits.count, self._left))
        more = [f"{len(parts) - shown:,} more"] if len(parts) > shown else []
        if isinstance(parts, list):
            left_out = [Written(f"… {each}") for each in more]
            return [self.cut(each, depth + 1) for each in parts[:shown]] + left_out
        result = Fields(parts.name, {}) if isinstance(parts, Fields) else {}
        for key in islice(parts, shown):
            name = key if isinstance(key, str) else _text_of(_value_of_key(key))
            result[clipped(name, self._limits.size)] = self.cut(parts[key], depth + 1)
        if more:
            result["…"] = Written(more[0])
        return result


def _parts(value: Any, *, full: bool) -> dict[Any, Any] | list[Any] | None:
    """Return what a container holds, or None for what is none."""
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": _text_of(value, str)}
    if isinstance(value, Mapping):
        return dict(value)
    name = type(value).__name__
    if isinstance(value, Shown):
        return Fields(name, {**value.fields, **(value.data if full else {})})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Fields(name, dict(zip(value._fields, value, strict=False)))
    if isinstance(value, list | tuple | Set):
        return [*value]
    if is_dataclass(value) and not isinstance(value, type):
        return Fields(name, {each.name: getattr(value, each.name, None) for each in fields(value)})
    if isinstance(names := getattr(type(value), "model_fields", None), Mapping):  # of pydantic
        return Fields(name, {name: getattr(value, name, None) for name in names})
    return None


def _value_of_key(key: Any) -> Any:
    return key.value if isinstance(key, ShownKey) else key


def _text_of(value: Any, form: Any = repr) -> str:
    try:
        if not is_small(value):
            return f"<{type(value).__name__}, too large to be shown>"
        return str(form(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"


# ---------------------------------------------------------------- channels


_ENGINES = ("branch:to:", "join:", TASKS)
"""What the names of the engine's own channels begin with."""
_NAMES = {
    "__start__": "input",
    "__end__": "result",
    "__previous__": "previous",
    "__root__": "state",
}
"""What people call the channels of an entrypoint, and of a graph without named ones."""


def values_of(saved: Saved) -> dict[str, Any]:
    """Return what the channels hold, by the names that the engine gives them."""
    # Only the flow knows how to fold deltas.
    deltas = {
        name: {"seed": history.seed, "deltas": (*history.writes,)}
        for name, history in saved.deltas.items()
    }
    return {**saved.checkpoint.values, **deltas}


def named(channels: Mapping[str, Any], *, internals: bool = False) -> dict[str, Any]:
    """Return channels in order, by the names that people give them.

    Args:
        channels: What is known of each, by its name.
        internals: With the engine's own, and under the names that it uses.
    """
    found = dict(sorted(channels.items()))
    if internals:
        return found
    kept = {k: v for k, v in found.items() if not k.startswith(_ENGINES)}
    return {k if _NAMES.get(k) in kept else _NAMES.get(k, k): v for k, v in kept.items()}
