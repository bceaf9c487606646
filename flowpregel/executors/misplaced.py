"""The search for futures deep inside an argument, where no future is replaced by its
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from flowpregel._annotations import signature_of
from flowpregel.executors.calls import Unresolved

_MOST: Final = 100_000
"""The greatest number of parts of an argument (items and attributes) that are searched
for a future.
"""


def misplaced_future(
    task: str,
    func: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> TypeError | None:
    """Return the error for a future somewhere inside an argument, or None if there is
    no such future.

    Args:
        task: The name of the task.
        func: The function of the task, whose parameters are the names of the arguments.
        args, kwargs: The arguments of the call.
    """
    names = _parameters_of(func)
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(args):
        has_name = position < len(names)
        name = names[position] if has_name else f"args[{position}]"
        arguments[name] = argument
    for name, value in (arguments | dict(kwargs)).items():
        path = path_to_future(value)
        if path is not None:
            return TypeError(
                f"task {task!r} got a future in argument {name!r}, at {name}{path}: a "
                "future is replaced by its result only as a whole argument, or "
                "directly in a list, tuple or dict that is an argument; at other "
                "positions, write future.result() (in async code: await future)"
            )
    return None


def path_to_future(value: Any) -> str | None:
    """Return the path to the first future in *value*, such as ``[3].model``, or
    None.
    """
    waiting = [("", value)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        path, part = waiting.pop()
        if isinstance(part, Unresolved):
            return path
        if id(part) in seen:
            continue
        seen.add(id(part))
        parts = [(path + step, item) for step, item in _parts_of(part)]
        # `pop` takes the last entry. The parts are added in reverse, so that the first
        # of them is searched first.
        waiting += reversed(parts)
    return None


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Return pairs of a path and a part: the items of a container, or the fields of an
    object.
    """
    kind = type(value)
    if kind in (list, tuple):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if kind is dict:
        return ((f"[{key!r}]", item) for key, item in value.items())
    if kind in (set, frozenset):
        return (("{...}", item) for item in value)
    if isinstance(value, type) or callable(value):
        return iter(())
    return _attribute_items(value)


def _attribute_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield pairs of a path and a value: the attributes in the ``__dict__`` of an
    object.
    """
    try:
        # `vars` is not used, because it would call the `__getattribute__` of a user's
        # class, which may run any code.
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(fields) is dict:
        for name, item in fields.items():
            yield f".{name}", item


def _parameters_of(func: Callable[..., Any] | None) -> list[str]:
    """Return the names of the parameters that may be passed by position."""
    try:
        parameters = signature_of(func).parameters.values() if func is not None else ()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
