"""The context that is sent with a task: context variables, trace context, log fields.

::

    caller's context --carried_by--> Carried --pickled--> worker --> task's context

Tasks on OS threads and event loops run in a copy of their caller's context, with all
variables. Tasks in other processes get only three parts of that context: the
variables declared with `carry`, the W3C headers of the current OpenTelemetry span, and
the fields bound with structlog.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

from flowpregel.errors import ConfigurationError

Value = TypeVar("Value")
VariablePlace: TypeAlias = tuple[str | None, str]
"""The place where another process finds a context variable: a module, and the
variable's name in it. If no module is known, the module is None, and the name is the
one that the variable was created with.
"""

_HEADERS: Final = ("traceparent", "tracestate", "baggage")
_MAIN: Final = "__main__"
_OBSERVED: Final = ("opentelemetry.trace", "structlog.contextvars")
"""The modules in which OpenTelemetry and structlog store a context's span and log
fields. If neither module is imported, the context has no span or log fields.
"""
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of the caller's context that a task in another process gets."""

    values: Mapping[VariablePlace, Any]
    """The values of those variables declared with `carry` that are set."""
    headers: Mapping[str, str]
    """The headers of the W3C trace context."""
    fields: Mapping[str, Any]
    """The log fields that structlog has bound."""
    traced: bool = False
    """True if the headers came from OpenTelemetry. Then spans of the task become
    children of the span that the headers identify.
    """


_declared: dict[ContextVar[Any], VariablePlace | None] = {}
"""The module and name of each variable that was declared with `carry`. The value is
None until the variable is first sent, because at its declaration the variable is not
yet bound to its name.
"""
_stand_ins: dict[VariablePlace, ContextVar[Any]] = {}
"""The variables that this process uses in place of variables that it cannot import,
such as those of the program's ``__main__``.
"""

_brought: ContextVar[Mapping[str, str] | None] = ContextVar(
    "flowpregel_trace", default=None
)


def carry(variable: ContextVar[Value]) -> ContextVar[Value]:
    """Declare that a context variable is sent with tasks to worker processes, and
    return the variable.

    A task sees the value that the variable had in the caller's context at the time of
    the call. A node sees the value from the context in which the run was started. A
    value that a task sets is not visible outside of the task. The value must be
    picklable.

    Args:
        variable: A context variable, defined at the top level of a module as usual.

    Raises:
        ConfigurationError: *variable* is not a context variable.

    Example:
        >>> from contextvars import ContextVar
        >>> tenant = carry(ContextVar("tenant", default="unknown"))
    """
    if not isinstance(variable, ContextVar):
        raise ConfigurationError(
            f"carry() takes a contextvars.ContextVar, not {variable!r}"
        )
    _declared.setdefault(variable, None)
    return variable


# ------------------------------------------------ functions for the caller's process


def carried_by(context: Context, config: Mapping[str, Any]) -> Carried | None:
    """Return the parts of *context* to send with a task, or None if there are none.

    Args:
        context: The context of the caller.
        config: The config of the run, whose ``configurable`` may have ``traceparent``
            and the other W3C headers.
    """
    headers = headers_in(config)
    values = {}
    for variable in tuple(_declared):
        # A variable without a value is not searched for in the modules. Its module may
        # still be importing, and may not have bound it to a name yet. The search would
        # then record, for all later tasks, that no module has it.
        if variable in context and (location := variable_place(variable)) is not None:
            values[location] = context[variable]
    traced: Mapping[str, str] = {}
    fields: Mapping[str, Any] = {}
    if _brought in context or any(map(sys.modules.__contains__, _OBSERVED)):
        traced, fields = context.copy().run(_observed)
    if values or fields or traced or headers:
        return Carried(values, traced or headers, fields, bool(traced))
    return None


def headers_in(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the W3C headers that the user has put into a run's config."""
    configurable = config.get("configurable")
    if not configurable or "traceparent" not in configurable:
        return {}
    return {name: str(configurable[name]) for name in _HEADERS if name in configurable}


def trace_headers() -> dict[str, str]:
    """Return the W3C headers of the current span, or of the span in which the task was
    called.
    """
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        for propagator in _propagators():
            propagator.inject(headers)
    return headers if "traceparent" in headers else dict(_brought.get() or {})


def _observed() -> tuple[dict[str, str], dict[str, Any]]:
    """Return the current span's headers, and the fields bound with structlog."""
    structlog = sys.modules.get("structlog.contextvars")
    bound = {} if structlog is None else structlog.get_contextvars()
    # A log field that cannot be pickled must not make a task fail, so a value that is
    # not of a basic type, such as a string or a number, is replaced by its repr.
    fields = {k: v if isinstance(v, _PLAIN) else repr(v) for k, v in bound.items()}
    return trace_headers(), fields


def _propagators() -> tuple[Any, ...]:
    # OpenTelemetry is imported only in programs that use it.
    from opentelemetry.baggage.propagation import (  # noqa: PLC0415
        W3CBaggagePropagator,
    )
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator(), W3CBaggagePropagator()


# ------------------------------------------------ functions for the task's process


def brought(carried: Carried) -> Context:
    """Return a new context that contains only the carried values."""
    context = Context()
    for location, value in carried.values.items():
        context.run(variable_at(location).set, value)
    if carried.fields:
        import structlog  # noqa: PLC0415 - only where the caller uses it

        context.run(structlog.contextvars.bind_contextvars, **carried.fields)
    if carried.headers:
        context.run(_brought.set, carried.headers)
        if carried.traced or "opentelemetry.context" in sys.modules:
            context.run(_attach, carried.headers)
    return context


def _attach(headers: Mapping[str, str]) -> None:
    try:
        import opentelemetry.context as tracing  # noqa: PLC0415 - if the caller uses it
    except ImportError:
        # A machine of a cluster may lack OpenTelemetry. The headers stay in `_brought`,
        # so they are passed on to the calls that the task makes.
        return
    context = tracing.get_current()
    for propagator in _propagators():
        context = propagator.extract(headers, context)
    # OpenTelemetry's context is never detached: it is stored in the `contextvars`
    # context in which this function runs, and that ends with the task.
    tracing.attach(context)


# ------------------------------------------------ locations of variables


def variable_place(variable: ContextVar[Any]) -> VariablePlace | None:
    """Return the module and the name under which another process can import *variable*,
    or None if it was not declared with `carry`.
    """
    if variable not in _declared:
        return None
    location = _declared[variable]
    if location is None:
        location = _declared[variable] = _look_for(variable)
    return location


def default_of(variable: ContextVar[Any]) -> tuple[Any, ...]:
    """Return a tuple with the default of *variable*, or an empty tuple if it has
    none.
    """
    try:
        return (Context().run(variable.get),)
    except LookupError:
        return ()


def variable_at(location: VariablePlace, *default: Any) -> ContextVar[Any]:
    """Return the variable with this module and name (*location*) in this process. If it
    cannot be imported, return a new variable that replaces it.
    """
    module, name = location
    variable = None if module in (None, _MAIN) else _imported(str(module), name)
    if variable is None:
        stand_in: ContextVar[Any] = (
            ContextVar(name, default=default[0]) if default else ContextVar(name)
        )
        # The replacements are never removed: there are only as many as the program has
        # declared variables.
        variable = _stand_ins.setdefault(location, stand_in)
    # The variable is declared in this process too, so that it is also sent with the
    # calls that the task makes.
    _declared.setdefault(variable, location)
    return variable


def _imported(module: str, name: str) -> ContextVar[Any] | None:
    try:
        variable = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return variable if isinstance(variable, ContextVar) else None


def _look_for(variable: ContextVar[Any]) -> VariablePlace:
    """Return the module and the name of *variable*, if possible in a module that other
    processes can import.
    """
    location: VariablePlace = (None, variable.name)
    for module, loaded in tuple(sys.modules.items()):
        for name, value in tuple(getattr(loaded, "__dict__", {}).items()):
            if value is variable:
                if module != _MAIN:
                    return module, name
                location = module, name
    return location
