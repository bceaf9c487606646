"""The common parts of channels with a reducer: `Overwrite`, empty values, copies, the
comparison of reducers, and the hooks of reducers.
"""

from __future__ import annotations

import collections.abc
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Protocol,
    Required,
    TypeVar,
    get_args,
    get_origin,
)

from flowpregel.channels.base import MISSING, PrepareWrite
from flowpregel.errors import InvalidUpdateError

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])

_TAG: Literal["__overwrite__"] = "__overwrite__"


@dataclass(slots=True)
class Overwrite:
    """A write that replaces a channel's value without calling the reducer.

    ``{"__overwrite__": value}`` has the same effect, and so has the dict to which a
    JSON codec converts an `Overwrite`: ``{"type": "__overwrite__", "value": value}``.

    Example:
        >>> from flowpregel.channels import BinaryOperatorAggregate
        >>> channel = BinaryOperatorAggregate(int, lambda a, b: a + b)
        >>> channel.update([1, Overwrite(10), 5]), channel.get()
        (True, 10)
    """

    value: Any
    """The new value of the channel."""
    type: Literal["__overwrite__"] = _TAG
    """The tag that identifies an `Overwrite` which a JSON codec converted to a dict."""


def replacement(write: Any) -> Any:
    """Return the new value if *write* is an `Overwrite` in some form, or `MISSING`."""
    if isinstance(write, Overwrite):
        return write.value
    if isinstance(write, dict):
        if len(write) == 1:
            return write.get(_TAG, MISSING)
        # Only a string is compared with the tag, because `==` of another type, such as
        # an array, may not return a bool.
        tag = write.get("type") if len(write) == 2 else None
        if isinstance(tag, str) and tag == _TAG:
            return write.get("value", MISSING)
    return MISSING


def has_overwrite(values: Iterable[Any]) -> bool:
    """Return whether any write in *values* is an `Overwrite` in some form."""
    return any(replacement(value) is not MISSING for value in values)


def only_replacement(values: Sequence[Any], key: str) -> Any:
    """Return the new value of the `Overwrite` among one superstep's writes, or
    `MISSING` if there is none.

    Raises:
        InvalidUpdateError: There are several `Overwrite`.
    """
    replacements = [replacement(value) for value in values]
    overwrites = [value for value in replacements if value is not MISSING]
    if len(overwrites) > 1:
        raise InvalidUpdateError(
            f"At key {key!r}: Can receive only one Overwrite value per super-step, but "
            "got several; let one node overwrite it (INVALID_CONCURRENT_GRAPH_UPDATE)"
        )
    return overwrites[0] if overwrites else MISSING


_CONCRETE: dict[Any, type] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}


def concrete(typ: Any) -> Any:
    """Return *typ* without ``Annotated``, and with an abstract collection type replaced
    by the built-in class.
    """
    origin = get_origin(typ)
    if origin in (Annotated, Required, NotRequired):
        return concrete(get_args(typ)[0])
    return _CONCRETE.get(origin or typ, typ)


def detached(value: Value) -> Value:
    """Return a shallow copy of *value*, or *value* itself if it cannot be copied."""
    try:
        return copy.copy(value)
    except (TypeError, copy.Error):
        return value


def identity_of(reducer: Callable[..., Any]) -> Any:
    """Return a value that is equal for two reducers with the same behaviour.

    A lambda that is written twice gives two objects. So functions with the same code in
    the same module, and without closure variables, are treated as the same reducer.
    """
    if not isinstance(reducer, FunctionType) or reducer.__closure__:
        return reducer
    code = reducer.__code__
    text = (reducer.__module__, code.co_code, code.co_consts, code.co_names)
    return (*text, reducer.__defaults__, reducer.__kwdefaults__)


# ---------------------------------------------------------------- hooks of reducers


class Fold(Protocol):
    """A value to which a reducer adds writes, with an index of the value, such as the
    positions of messages by id.

    A channel keeps the fold from one superstep to the next, so that the index is not
    built again.
    """

    def continues(self, value: Any) -> bool:
        """Return whether *value* is still the value of which this fold has an index."""

    def copy(self, value: Any) -> Fold:
        """Return an independent copy of this fold. Its value is *value*, which is
        itself a copy of the present value.
        """

    def add(self, writes: Sequence[Any]) -> Any:
        """Return a new value with *writes* added. The old value is not modified."""


@dataclass(frozen=True, slots=True)
class ReducerHooks:
    """The functions that a reducer offers to its channel, each of them optional."""

    prepare: PrepareWrite | None = None
    """The function that prepares each write: see `BaseChannel.prepares_with`."""
    fold: Callable[[Any], Fold] | None = None
    """A function that returns the `Fold` of a value. If the reducer is a partial, the
    function takes the partial's keywords too.
    """


_NO_HOOKS = ReducerHooks()
_HOOKS: Literal["__flowpregel_hooks__"] = "__flowpregel_hooks__"


def with_hooks(hooks: ReducerHooks) -> Callable[[Function], Function]:
    """Return a decorator that gives a reducer these *hooks*.

    Example:
        >>> @with_hooks(ReducerHooks(prepare=lambda write, identity: sorted(write)))
        ... def extend(value, write):
        ...     return value + write
        >>> hooks_of(extend).prepare([2, 1], "")
        [1, 2]
    """

    def decorate(reducer: Function) -> Function:
        setattr(reducer, _HOOKS, hooks)
        return reducer

    return decorate


def hooks_of(reducer: Callable[..., Any]) -> ReducerHooks:
    """Return the hooks of *reducer*.

    The keywords of a `functools.partial` are passed to the fold too.
    """
    if isinstance(reducer, partial):
        hooks = hooks_of(reducer.func)
        if hooks.fold is None or not reducer.keywords:
            return hooks
        return replace(hooks, fold=partial(hooks.fold, **reducer.keywords))
    hooks = getattr(reducer, _HOOKS, _NO_HOOKS)
    # A function that wraps a reducer has a copy of the reducer's hooks, made by
    # `functools.wraps`. These hooks are not used, because the wrapper may take writes
    # of a different form.
    is_wrapper = hasattr(reducer, "__wrapped__")
    if is_wrapper or not isinstance(hooks, ReducerHooks):
        return _NO_HOOKS
    return hooks


def without_snapshot(saved: Any) -> Any:
    """Return the value in a snapshot of a DeltaChannel that LangGraph stored, or
    *saved* itself if it is not such a snapshot.
    """
    kind = type(saved)
    # The class is recognized by its name, because LangGraph need not be installed.
    if kind.__name__ == "_DeltaSnapshot" and kind.__module__.startswith("langgraph."):
        return saved.value
    return saved
