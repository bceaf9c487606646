"""Where in a value the part is that cannot be encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_DEEPEST = 20
_MOST = 10_000


def find(value: Any, encode: Callable[[Any], object]) -> str | None:
    """Return the path to the innermost part of *value* that *encode* refuses.

    None means that *value* as a whole is refused though each of its parts is not.

    Example:
        >>> import pickle, threading
        >>> find({"a": [1, threading.Lock()]}, pickle.dumps)
        "['a'][1]"
    """
    path = ""
    for _ in range(_DEEPEST):
        inner = _refused_part(value, encode)
        if inner is None:
            break
        step, value = inner
        path += step
    return path or None


def describe(value: Any, path: str | None) -> str:
    """Return what the part at *path* of *value* is, in words."""
    for _ in range(_DEEPEST):
        if not path:
            break
        for step, part in _parts(value):
            if path.startswith(step):
                path, value = path[len(step) :], part
                break
        else:
            break
    kind = type(value)
    return f"a {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def _refused_part(value: Any, encode: Callable[[Any], object]) -> tuple[str, Any] | None:
    for number, (step, part) in enumerate(_parts(value)):
        if number >= _MOST:
            return None
        try:
            encode(part)
        except Exception:  # noqa: BLE001 - a class may raise anything while it is pickled
            return step, part
    return None


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"[{key!r}]", part
            yield f".key({key!r})", key
    elif isinstance(value, list | tuple | set | frozenset):
        for number, part in enumerate(value):
            yield f"[{number}]", part
    if isinstance(value, BaseException):
        for number, part in enumerate(value.args):
            yield f".args[{number}]", part
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())
