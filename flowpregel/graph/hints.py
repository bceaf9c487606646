"""What a function's annotations say about a graph: its input's schema, where it leads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flowpregel._core.commands import Command


def hints_of(target: Any, *, extras: bool = False, strict: bool = False) -> dict[str, Any]:
    """Return the annotations of *target*, resolved.

    Those that cannot be resolved (a class of a function's own, a missing import)
    say nothing, unless it is *strict*: then the error is raised.
    """
    try:
        return get_type_hints(target, include_extras=extras)
    except (NameError, TypeError, AttributeError):
        if strict:
            raise
        return {}


def function_of(target: Any) -> Callable[..., Any] | None:
    """Return the function or method whose annotations describe *target*, or None."""
    while isinstance(target, partial):
        target = target.func
    if inspect.isfunction(target) or inspect.ismethod(target):
        return target
    call = getattr(target, "__call__", None)  # noqa: B004 - the method itself is looked at
    return call if inspect.ismethod(call) and not isinstance(target, type) else None


def input_schema_of(target: Any) -> type[Any] | None:
    """Return the annotated class of the first parameter, if it has keys of its own."""
    function = function_of(target)
    if function is None:
        return None
    hints = hints_of(function)
    try:
        first = next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None
    hint = hints.get(first) if first else None
    return hint if isinstance(hint, type) and hints_of(hint) else None


def destinations_of(action: Any) -> tuple[str, ...]:
    """Return the nodes of an annotation ``-> Command[Literal["a", "b"]]``."""
    function = function_of(action)
    returned = None if function is None else hints_of(function).get("return")
    options = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
    for option in options:
        if get_origin(option) is Command:
            targets = get_args(option)
            if targets and get_origin(targets[0]) is Literal:
                return get_args(targets[0])
    return ()


def literals_of(path: Any) -> tuple[Any, ...]:
    """Return the values of an annotation ``-> Literal["a", "b"]``."""
    function = function_of(path)
    returned = None if function is None else hints_of(function).get("return")
    return get_args(returned) if get_origin(returned) is Literal else ()
