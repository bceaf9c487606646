"""The conversion of flowpregel's records (`Send`, `Interrupt`, `Overwrite`) to
LangGraph's, and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

from flowpregel.checkpoint import base
from flowpregel.types import Interrupt, Overwrite, Send, TimeoutPolicy


def to_foreign(value: Any) -> Any:
    """Return *value*, with flowpregel's records converted to LangGraph's, also inside a
    list or tuple.
    """
    if not isinstance(value, Interrupt | Overwrite | Send):
        return _with_items(value, to_foreign)
    types = _records_of_langgraph()
    if isinstance(value, Interrupt):
        return types.Interrupt(value=value.value, id=value.id)
    if isinstance(value, Overwrite):
        return types.Overwrite(value.value)
    timeout = value.timeout
    if timeout is not None:
        timeout = types.TimeoutPolicy(**_set_fields(timeout))
    return types.Send(
        value.node,
        value.arg,
        timeout=timeout,
    )


def _records_of_langgraph() -> Any:
    """Return a module with record classes whose instances LangGraph can read from a
    store.
    """
    # The import of LangGraph's module succeeds, because a program that uses LangGraph's
    # savers has installed LangGraph, or flowpregel's import hook.
    types: Any = import_module("langgraph.types")
    if types.Send is not Send:
        return types
    # The import hook has replaced LangGraph's module by flowpregel's, whose record
    # classes LangGraph could not read. So the classes in `stored` are used, which have
    # LangGraph's names.
    from flowpregel.plugins.langgraph import stored  # noqa: PLC0415

    return stored


def from_foreign(value: Any) -> Any:
    """Return *value*, with LangGraph's records converted to flowpregel's, also inside a
    list or tuple.
    """
    kind = type(value)
    # The class is recognized by its name, because LangGraph's savers do not need the
    # module that defines the records.
    if kind.__module__ != "langgraph.types":
        return _with_items(value, from_foreign)
    if kind.__name__ == "Interrupt":
        return Interrupt(value.value, value.id)
    if kind.__name__ == "Overwrite":
        return Overwrite(value.value)
    if kind.__name__ == "Send":
        timeout = _timeout_of(getattr(value, "timeout", None))
        return Send(
            value.node,
            value.arg,
            timeout=timeout,
        )
    return value


def _timeout_of(policy: Any) -> TimeoutPolicy | None:
    """Return a timeout policy of LangGraph as a `TimeoutPolicy` of flowpregel."""
    return TimeoutPolicy(**_set_fields(policy)) if policy else None


def _set_fields(policy: Any) -> dict[str, Any]:
    """Return the fields of a timeout policy that differ from their defaults. The other
    fields are left out, because the policy of the other library may lack them.
    """
    values: dict[str, Any] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if value != field.default:
            values[field.name] = value
    return values


def _with_items(
    value: Any,
    convert: Callable[[Any], Any],
) -> Any:
    """Return *value* with each item converted by *convert*.

    The items are those of a list or a tuple, or the interrupts in the result of a
    graph.
    """
    kind = type(value)
    if kind in (list, tuple):
        return kind(convert(item) for item in value)
    if kind is dict and base.INTERRUPT in value:
        return {**value, base.INTERRUPT: convert(value[base.INTERRUPT])}
    return value
