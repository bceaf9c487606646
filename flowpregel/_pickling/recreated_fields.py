"""Fields that are left out when an object is sent to another process, which recreates
them.

A pool of OS threads, for example, cannot be sent to another process, and need not be:
the object works there with a pool of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_fields: Final[dict[str, tuple[str, ...]]] = {}
"""The names of the fields, by the module and the name of the class."""


def recreate_fields(class_name: str, fields: Sequence[str]) -> None:
    """Leave fields of a class's instances out when an instance is sent to another
    process, which recreates them.

    The receiving process takes the fields from a new instance, which it makes without
    arguments. So the fields must not depend on the arguments of the class, nor contain
    a state that matters. Objects that protect something across tasks, such as a lock
    around a file, must not be listed, because each process would have its own.

    This is for plug-ins. Worker processes send objects too, so they must call this
    function as well, which a plug-in arranges with ``FLOWPREGEL_PRELOAD``.

    Args:
        class_name: The module and the name of the class. Subclasses are included.
        fields: The names of the fields; none restores the usual behaviour.

    Example:
        >>> from flowpregel.executors import recreate_fields
        >>> recreate_fields("shop.Index", ["_threads"])
        >>> recreate_fields("shop.Index", [])
    """
    if fields:
        _fields[class_name] = tuple(fields)
    else:
        _fields.pop(class_name, None)


def reduced_without_fields(value: Any) -> tuple[Any, ...] | None:
    """Return a reduction of *value* without the fields that are recreated, or None if
    its class has no such fields.
    """
    if not _fields:
        return None
    for base in type(value).__mro__:
        fields = _fields.get(f"{base.__module__}.{base.__qualname__}")
        if fields is not None:
            sent = {
                name: part for name, part in vars(value).items() if name not in fields
            }
            state = base, fields, sent
            return new_instance, (type(value),), state, None, None, fill_instance
    return None


def new_instance(kind: type) -> Any:
    """Return an instance of *kind* without any fields, which `fill_instance` then
    sets.
    """
    return object.__new__(kind)


def fill_instance(
    instance: Any, state: tuple[type, Sequence[str], Mapping[str, Any]]
) -> None:
    """Give *instance* the fields that were sent, and, for those that were left out, the
    fields of a new instance.

    Args:
        instance: The instance to fill.
        state: The class that has the recreated fields, the names of these fields, and
            the other fields, which were sent.
    """
    base, fields, sent = state
    recent = base()
    vars(instance).update(sent)
    for name in fields:
        setattr(instance, name, getattr(recent, name))
