"""The search for the part of a value that cannot be stored or sent."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

_DEEPEST = 30
_MOST_PARTS = 10_000
"""The greatest number of parts of one value that are searched. `_DEEPEST` is the
greatest depth of the search.
"""


def culprit_in(
    value: Any,
    encode: Callable[[Any], object],
    owners: list[Any] | None = None,
) -> tuple[str, Any]:
    """Return the path to the innermost part of *value* that *encode* refuses, and that
    part.

    The path is empty if *encode* refuses *value* and accepts each part.

    Args:
        value: The value that *encode* refuses.
        encode: A function that raises an error for a value that it refuses.
        owners: A list that receives the objects on the path, from *value* to the owner
            of the innermost part.

    Example:
        >>> import pickle, threading
        >>> culprit_in({"a": [1, threading.Lock()]}, pickle.dumps)[0]
        "['a'][1]"
    """
    path = ""
    seen = {id(value)}
    # Reading the parts of an object may raise any error. The search then ends, and the
    # object itself is the culprit.
    with suppress(Exception):
        while len(seen) < _DEEPEST:
            refused = _first_refused(value, encode, seen)
            if refused is None:
                break
            if owners is not None:
                owners.append(value)
            step, value = refused
            path += step
            seen.add(id(value))
    return path, value


def _first_refused(
    value: Any,
    encode: Callable[[Any], object],
    seen: set[int],
) -> tuple[str, Any] | None:
    """Return the first part of *value* that *encode* refuses, with the step of the path
    that leads to it.
    """
    unseen = (part for part in _parts(value) if id(part[1]) not in seen)
    for step, part in islice(unseen, _MOST_PARTS):
        if why_refused(part, encode):
            return step, part
    return None


def why_refused(value: Any, encode: Callable[[Any], object]) -> str | None:
    """Return the reason why *encode* refuses *value*, or None if it accepts *value*."""
    try:
        encode(value)
    except RecursionError:
        return "it is nested too deeply"
    except BaseException as error:  # noqa: BLE001 - a user's class may raise any error
        return f"{type(error).__name__}: {error}"
    return None


def foreign_classes(owners: Iterable[Any]) -> list[str]:
    """Return the names of the classes of *owners*, except classes of the standard
    library and of flowpregel.

    Example:
        >>> from decimal import Decimal
        >>> foreign_classes([Decimal(1), ["one"]])
        []
    """
    names: dict[str, None] = {}
    for owner in owners:
        package = type(owner).__module__.partition(".")[0]
        if package not in sys.stdlib_module_names and package != "flowpregel":
            names[class_name(owner)] = None
    return [*names]


def class_name(value: Any) -> str:
    """Return the name of *value*'s class, with its module unless that is `builtins`."""
    class_ = type(value)
    name = f"{class_.__module__}.{class_.__qualname__}"
    return name.removeprefix("builtins.")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of *value*, each with the step of the path that leads to it, such
    as ``['a']``.
    """
    if isinstance(value, Mapping):
        yield from _steps_into_mapping(value)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, FunctionType):
        yield from _steps_into_function(value)
    else:
        yield from _steps_into_object(value)


def _steps_into_mapping(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, part in mapping.items():
        yield f"[{key!r}]", part
    for index, key in enumerate(mapping):
        yield f".keys()[{index}]", key


def _steps_into_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    variables = inspect.getclosurevars(function)
    for name, part in variables.nonlocals.items():
        yield f".<closure {name}>", part
    for name, part in variables.globals.items():
        yield f".<global {name}>", part
    yield ".__defaults__", function.__defaults__


def _steps_into_object(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, BaseException):
        yield ".args", value.args
    for name in _attribute_names(value):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


def _attribute_names(value: Any) -> Iterable[str]:
    """Return the names of the attributes of *value* that are pickled."""
    if isinstance(value, MethodType):
        return ("__self__",)
    if isinstance(value, partial):
        return ("func", "args", "keywords")
    slots: set[str] = set()
    for class_ in type(value).__mro__:
        slots.update(getattr(class_, "__slots__", ()))
    return (*sorted(slots), *getattr(value, "__dict__", ()))
