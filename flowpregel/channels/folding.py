"""What channels with a reducer share: their empty value, copies, and when two are the same."""

from __future__ import annotations

import collections.abc
import copy
from collections.abc import Callable
from types import FunctionType
from typing import Annotated, Any, NotRequired, Required, TypeVar, get_args, get_origin

Value = TypeVar("Value")

_CONCRETE: dict[Any, type] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}


def concrete(typ: Any) -> Any:
    """Return *typ* without annotations, an abstract collection as the built-in one."""
    origin = get_origin(typ)
    if origin in (Annotated, Required, NotRequired):
        return concrete(get_args(typ)[0])
    return _CONCRETE.get(origin or typ, typ)


def detached(value: Value) -> Value:
    """Return a shallow copy, or *value* itself where it cannot be copied."""
    try:
        return copy.copy(value)
    except (TypeError, copy.Error):
        return value


def identity_of(reducer: Callable[..., Any]) -> Any:
    """Return what is equal for two reducers that do the same.

    A lambda that is written twice is two objects: those that are the same code
    in the same module, and hold no variables, count as one reducer.
    """
    if not isinstance(reducer, FunctionType) or reducer.__closure__:
        return reducer
    code = reducer.__code__
    text = (reducer.__module__, code.co_code, code.co_consts, code.co_names)
    return (*text, reducer.__defaults__, reducer.__kwdefaults__)
