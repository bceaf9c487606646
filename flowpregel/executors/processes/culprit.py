"""The path to the part of a value that cannot be pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Final

from flowpregel.executors.processes.serialization import dumps

_MOST_PARTS: Final = 2_000
_DEEPEST: Final = 30


def find_culprit(value: Any, name: str) -> tuple[str, str]:
    """Return the path to the innermost part that cannot be pickled, and why not.

    Args:
        value: What could not be pickled as a whole.
        name: What to call it at the start of the path.

    Example:
        >>> import threading
        >>> find_culprit({"model": [1, threading.Lock()]}, "result")[0]
        "result['model'][1]: _thread.lock"
    """
    path, seen, count = name, {id(value)}, 0
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            count += 1
            if id(part) in seen or count > _MOST_PARTS or _reason(part) is None:
                continue
            path, value = path + step, part
            seen.add(id(part))
            break
        else:
            break
    kind = type(value)
    reason = _reason(value) or "it cannot be pickled as a whole"
    if isinstance(value, ContextVar):
        reason += "; pass it to flowpregel.carry() where it is made, and it travels"
    return f"{path}: {kind.__module__}.{kind.__qualname__}".replace(": builtins.", ": "), reason


def _reason(value: Any) -> str | None:
    """Return why *value* cannot be pickled, or None if it can."""
    try:
        dumps(value)
    except RecursionError:
        return "it is nested too deeply"
    except BaseException as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what *value* is made of, each with how to get there."""
    try:
        yield from _known_parts(value)
    except Exception:  # noqa: BLE001 - an object may refuse to be looked at; then it is the culprit
        return


def _known_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
        yield from ((f".keys()[{index}]", key) for index, key in enumerate(value))
        return
    if isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
        return
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
        return
    if isinstance(value, BaseException):
        yield ".args", value.args
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    for name in sorted(slots):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)
    for name, part in getattr(value, "__dict__", {}).items():
        yield f".{name}", part


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield f".<closure {name}>", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f".<global {name}>", function.__globals__[name]
    for index, default in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{index}]", default
