"""What a digest of code asks about a value: whose it is, what it wraps, what it is made of."""

from __future__ import annotations

import enum
import functools
import re
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from pathlib import PurePath
from typing import Any

from flowpregel._code.tree import constant_text

LIBRARY = __name__.partition(".")[0]
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_PLAIN = (type, types.FunctionType, functools.partial, types.MethodType)
"""Kinds of what can be called that nothing is wrapped in."""
_SHOWN = frozenset({"datetime", "decimal", "fractions", "uuid", "zoneinfo"})
"""Modules of small values that `repr` shows in full."""
_MOST_ITEMS = 10_000
"""A container with more is not looked into."""


def top_package(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def module_of(value: Any) -> str:
    """Return the module in which *value* was defined, whatever a wrapper says."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__"))
    if isinstance(value, types.ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)
    known = getattr(value, "__module__", None) or type(owner).__module__
    return known if isinstance(known, str) else ""


def qualname(value: Any) -> str:
    """Return the name of a definition in its module, or that of a value's type."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_qualname
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def outside_name(value: Any) -> str:
    """Return a name that does not depend on where in its package something is defined."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{top_package(module_of(value)).lstrip('_')}:{qualname(value)}"


def is_ours(value: Any) -> bool:
    """Return whether *value* is defined by this library, or an instance of what is."""
    return LIBRARY in (top_package(module_of(value)), top_package(type(value).__module__))


def peeled(value: Any) -> Any:
    """Return the function that a task, a method's descriptor or a cache stands for."""
    for _ in range(20):
        if isinstance(value, _PLAIN):
            break
        inner = getattr(value, "__dict__", {}).get("__wrapped__")
        if isinstance(value, staticmethod | classmethod):
            inner = value.__func__
        elif is_ours(value):
            inner = getattr(value, "func", None)
        if not callable(inner):
            break
        value = inner
    return value


def steps_of(graph: Any) -> list[Any]:
    """Return the nodes of a graph: the name of each, and what it calls."""
    nodes = getattr(graph, "nodes", None)
    nodes = nodes if isinstance(nodes, Mapping) else {}
    return [part for name, node in nodes.items() for part in (name, *getattr(node, "steps", ()))]


def home_of(value: Any) -> Any:
    """Return the function or class that says whose code *value* is."""
    value = peeled(value)
    if isinstance(value, types.FunctionType | type):
        return value
    if isinstance(value, functools.partial | types.MethodType):
        return home_of(value.func if isinstance(value, functools.partial) else value.__func__)
    steps = [step for step in steps_of(value) if callable(step)] if is_ours(value) else []
    return home_of(steps[0]) if steps else type(value)


def cells_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function closes over, by name; None for what is not there yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = None
    return found


def class_of(code: types.CodeType, variables: Mapping[str, Any]) -> Any:
    """Return the class that a method is defined in, whose other methods it may call."""
    first, *others = code.co_qualname.split(".")
    found = variables.get(first) if others and "<locals>" not in others else None
    for name in others[:-1]:
        found = getattr(found, name, None)
    return found


def wrapped_by(value: Any) -> list[Any]:
    """Return the functions that a wrapper from elsewhere calls."""
    if not isinstance(value, types.FunctionType):
        return []
    inner = vars(value).get("__wrapped__")
    found = [inner] if inner is not None else cells_of(value).values()
    return [each for each in found if isinstance(each, types.FunctionType)]


def content_of(value: Any) -> list[Any] | None:
    """Return what *value* is made of, besides its type; None if that is not known."""
    if isinstance(value, Sized) and len(value) > _MOST_ITEMS:
        return None
    for kinds, made_of in _CONTENTS:
        if isinstance(value, kinds):
            return made_of(value)
    return [repr(value)] if top_package(type(value).__module__).lstrip("_") in _SHOWN else None


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return values of all kinds in an order that depends on nothing else."""
    return sorted(values, key=_sort_text)


def _sort_text(value: Any) -> str:
    kind = type(value).__qualname__
    if type(value) in ATOMS:
        return f"{kind} {constant_text(value)}"
    content = content_of(value)
    return f"{kind} {qualname(value) if content is None else [*map(_sort_text, content)]}"


def _items(value: Mapping[Any, Any]) -> list[Any]:
    return [part for key in _sorted(value) for part in (key, value[key])]


_CONTENTS: list[tuple[Any, Callable[[Any], list[Any]]]] = [
    (list | tuple | deque, list),
    (dict | types.MappingProxyType, _items),
    (set | frozenset, _sorted),
    (functools.partial, lambda value: [value.func, value.args, value.keywords]),
    (types.MethodType, lambda value: [value.__func__, value.__self__]),
    (enum.Enum, lambda value: [value.name, value.value]),
    (re.Pattern, lambda value: [value.pattern, int(value.flags)]),
    (PurePath | range | slice | bytearray, lambda value: [str(value)]),
]
