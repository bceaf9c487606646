"""The attributes that a callable object sets when it is called. They are state, and
left out of the digest of code.

::

    m(x) ──► `__call__` ──► the methods that it names (``self.scaled``) ──► ...

An attribute that no method in this chain of calls sets, such as a weight, is part of
the digest, as code is. So is an attribute that only other methods set: after
``m.set_weight(2)``, ``m`` is a different function.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

from flowpregel._code.source import AttributesUsed, attributes_used
from flowpregel._code.values import is_ours

_STATELESS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
)
_MOST_METHODS = 200
"""The number of method and attribute names after which the search for methods stops."""


def set_by_call(target: Any) -> Mapping[int, frozenset[str]]:
    """Return the names of the attributes that a call of *target* sets, by the id of the
    object that has them.

    Example:
        >>> class Counting:
        ...     __module__ = "program"  # not a module of this package
        ...
        ...     def __init__(self):
        ...         self.weight, self.calls = 1, 0
        ...
        ...     def __call__(self, x):
        ...         self.calls += 1
        ...         return self.weight * x
        >>> [*set_by_call(Counting()).values()]
        [frozenset({'calls'})]
    """
    while isinstance(target, functools.partial):
        target = target.func
    name = "__call__"
    if isinstance(target, types.MethodType):
        name = getattr(target.__func__, "__name__", name)
        target = target.__self__
    if isinstance(target, _STATELESS):
        return {}
    if is_ours(target):
        return {}
    names: set[str] = set()
    for used in _methods_reached(type(target), name):
        names.update(used.stored)
    if not names:
        return {}
    return {id(target): frozenset(names)}


def _methods_reached(
    class_: type,
    name: str,
) -> Iterator[AttributesUsed]:
    """Yield the attributes used by the method *name*, and by each method that a call of
    it may reach.
    """
    reached = {name}
    pending = [name]
    while pending:
        if len(reached) > _MOST_METHODS:
            return
        current = pending.pop()
        method = inspect.getattr_static(class_, current, None)
        if isinstance(method, property):
            method = method.fget
        if not isinstance(method, types.FunctionType):
            continue
        used = attributes_used(method)
        pending.extend(used.names - reached)
        reached.update(used.names)
        yield used
