"""The replacement of handles, which refer to shared or stored values, by these values
in the arguments of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flowpregel._core.records import Arguments
from flowpregel.executors.shared import Shared
from flowpregel.executors.stored import Stored

HANDLES: Final = frozenset({Shared, Stored})
"""The classes of handles. An argument of one of these classes is replaced by the value
to which it refers.
"""


_CONTAINERS: Final = frozenset({dict, frozenset, list, set, tuple})
"""The classes of the containers in which handles are searched for."""
_MOST_SEARCHED: Final = 10_000
"""The greatest number of containers in a value that are searched. The search through
millions of lists would take longer than to unpickle them.
"""
_SEARCHED: Final = _CONTAINERS | {Stored}
"""The classes of the items that may be handles, or contain some."""


@dataclass(slots=True)
class UnwrappedArguments(Arguments):
    """Arguments in which handles of shared or stored values were replaced by the
    values.
    """

    unwrapped: frozenset[int | str]
    """The positions and names of the arguments that were replaced."""


def with_values(arguments: Arguments) -> Arguments:
    """Return *arguments* with each handle replaced by its value.

    Raises:
        Exception: A value cannot be read.
    """
    args, kwargs = arguments.args, arguments.kwargs
    if HANDLES.isdisjoint(map(type, (*args, *kwargs.values()))):
        return arguments
    values: dict[str, Any] = {}
    for name, argument in kwargs.items():
        values[name] = _value_of(argument)
    return UnwrappedArguments(
        tuple(map(_value_of, args)),
        values,
        frozenset(_positions_of_handles(args, kwargs)),
    )


def stored_handles(value: Any) -> Iterator[Stored[Any]]:
    """Yield the handles of stored values in *value*: the value itself, or items of
    dicts, lists, tuples and sets, however deep. Other objects are not searched, nor are
    more than `_MOST_SEARCHED` containers.
    """
    pending = [value]
    # A container may occur many times in the value, or in itself, and is searched once.
    searched: set[int] = set()
    while pending and len(searched) < _MOST_SEARCHED:
        item = pending.pop()
        if type(item) is Stored:
            yield item
            continue
        if type(item) in _CONTAINERS and id(item) not in searched:
            searched.add(id(item))
            pending += _searched_items(item)


def _searched_items(container: Any) -> list[Any]:
    """Return the items of a container that are handles or containers."""
    items = container
    if type(container) is dict:
        items = container.values()
    return [item for item in items if type(item) in _SEARCHED]


def _value_of(argument: Any) -> Any:
    return argument.value if type(argument) in HANDLES else argument


def _positions_of_handles(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[int | str]:
    """Yield the position or the name of each argument that is a handle."""
    items: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for position, argument in items:
        if type(argument) in HANDLES:
            yield position
