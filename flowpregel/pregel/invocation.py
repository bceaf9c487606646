"""The options of one invocation: keywords of `Pregel.invoke`, checked once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeGuard, get_args

from flowpregel._core.program import Keys, Options, names
from flowpregel._text import no_such_option
from flowpregel.checkpoint.base import BaseCheckpointSaver, OnConflict
from flowpregel.errors import ConfigurationError
from flowpregel.events import StreamMode
from flowpregel.pregel.config import ConfigKeywords
from flowpregel.pregel.definition import START, GraphDefinition, Where
from flowpregel.pregel.naming import RunIdentity
from flowpregel.pregel.progress import progress_is_on
from flowpregel.runtime import RunControl

STOP_GRACE: Final = 20.0
"""Seconds for tasks to end after a request to stop. Most schedulers allow 30 seconds
before they kill a process.
"""
MUTATIONS_VARIABLE: Final = "FLOWPREGEL_CHECK_MUTATIONS"
"""The environment variable whose value 1 turns ``check_mutations`` on by default."""


class RunKeywords(ConfigKeywords, total=False):
    """The keywords of `Pregel.invoke`, `Pregel.stream` and their async forms."""

    context: Any
    stream_mode: str | Sequence[str] | None
    print_mode: str | Sequence[str]
    output_keys: str | Sequence[str] | None
    interrupt_before: Where | None
    interrupt_after: Where | None
    durability: Literal["sync", "async", "exit"] | None
    control: RunControl | None
    debug: bool | None
    resume: Literal["auto"] | None
    on_code_change: Literal["keep", "rerun", "error"]
    on_unreadable: Literal["error", "rerun"]
    on_unmatched: Literal["run", "error"]
    on_conflict: OnConflict
    fail_fast: bool
    check_mutations: bool | None
    progress: bool | None
    stop_after: float | timedelta | None
    stop_grace: float
    version: Literal["v1", "v2", "v3"]
    subgraphs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationOptions:
    """The options of a run, with the defaults filled in."""

    stream_mode: str | Sequence[str]
    output_keys: Keys
    interrupt_before: Where
    interrupt_after: Where
    debug: bool
    progress: bool
    check_mutations: bool
    print_mode: str | Sequence[str] = ()
    context: Any = None
    control: RunControl | None = None
    subgraphs: bool = False
    fail_fast: bool = False
    stop_after: float | None = None
    """Seconds after which the run is asked to stop."""
    stop_grace: float = STOP_GRACE
    """Seconds that running tasks have to end after a request to stop."""
    durability: Literal["sync", "async", "exit"] = "async"
    on_code_change: Literal["keep", "rerun", "error"] = "keep"
    on_unreadable: Literal["error", "rerun"] = "error"
    on_unmatched: Literal["run", "error"] = "run"
    on_conflict: OnConflict = "raise"
    resume: Literal["auto"] | RunIdentity | None = None
    version: Literal["v1", "v2", "v3"] = "v1"


OPTION_NAMES: Final = frozenset(field.name for field in fields(InvocationOptions))
BREAKPOINT_OPTIONS: Final = ("interrupt_before", "interrupt_after")
"""The options that name nodes at which a run stops."""
WHOLE_OUTPUT: Final = (None, "values")
"""The values of ``stream_mode`` with which `Pregel.invoke` returns the output of the
run. With any other mode it returns a list of the stream's items.
"""

_CHOICES: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "durability": (("async", "sync", "exit"), "'sync', 'async' or 'exit'"),
    "on_code_change": (("keep", "rerun", "error"), "'keep', 'rerun' or 'error'"),
    "on_unreadable": (("error", "rerun"), "'error' or 'rerun'"),
    "on_unmatched": (("run", "error"), "'run' or 'error'"),
    "on_conflict": (("raise", "wait", "takeover"), "'raise', 'wait' or 'takeover'"),
    "check_mutations": ((None, True, False), "True or False"),
    "resume": ((None, "auto"), "'auto', or leave it out"),
    "version": (("v1", "v2", "v3"), "'v1', 'v2' or 'v3'"),
}
"""The allowed values of each option, and the text that lists them in messages."""


def options_of(
    definition: GraphDefinition,
    keywords: Mapping[str, Any],
    *,
    streams: bool,
) -> InvocationOptions:
    """Return the options of a run, with the defaults filled in.

    Args:
        definition: The parts of the graph, including its defaults.
        keywords: The keywords of the run. Config keywords are ignored.
        streams: Whether `Pregel.stream` was called, whose items show all stream
            channels by default.

    Raises:
        ConfigurationError: A value is not allowed.
        TypeError: There is no such option.
    """
    for name in keywords.keys() - OPTION_NAMES - ConfigKeywords.__annotations__.keys():
        raise TypeError(no_such_option("a run", name, RunKeywords.__annotations__))
    output_keys: Any = definition.output_channels
    if streams:
        output_keys = definition.stream_channels_asis
    defaults: dict[str, Any] = {
        "stream_mode": definition.stream_mode,
        "output_keys": output_keys,
        "interrupt_before": definition.interrupt_before_nodes,
        "interrupt_after": definition.interrupt_after_nodes,
        "debug": definition.debug,
        "progress": progress_is_on.get(),
        "check_mutations": os.environ.get(MUTATIONS_VARIABLE) == "1",
        **definition.run_options,
    }
    options = dict(defaults)
    for name in keywords.keys() & OPTION_NAMES:
        value = keywords[name]
        if value is not None or name == "on_code_change":
            options[name] = value
    check_choices(options)
    _check_modes(options)
    for name in BREAKPOINT_OPTIONS:
        # As in LangGraph, an empty list leaves the breakpoints of the graph in place.
        nodes = keywords.get(name) or defaults[name]
        options[name] = _breakpoints_of(definition, name, nodes)
    _check_output_keys(options, definition)
    for name in ("stop_after", "stop_grace"):
        if options.get(name) is not None:
            options[name] = _in_seconds(name, options[name])
    return InvocationOptions(**options)


def _in_seconds(
    name: str,
    duration: Any,
) -> float:
    """Return the duration given for the option *name*, in seconds."""
    seconds = duration
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    if not _is_duration(seconds):
        raise ConfigurationError(f"{name}={seconds!r}; use seconds, or a timedelta")
    return seconds


def _is_duration(seconds: Any) -> TypeGuard[float]:
    return isinstance(seconds, int | float) and seconds >= 0


def _check_modes(options: Mapping[str, Any]) -> None:
    """Refuse an unknown stream mode."""
    known = get_args(StreamMode)
    printed = names(options.get("print_mode", ()))
    for mode in (*names(options["stream_mode"]), *printed):
        if mode not in known:
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {', '.join(known)}"
            )


def _breakpoints_of(
    definition: GraphDefinition,
    option: str,
    breakpoints: Where,
) -> Where:
    """Return the nodes at which a run stops: ``"*"``, or their names.

    Raises:
        ConfigurationError: The graph has no node of such a name.
    """
    if breakpoints == "*":
        return breakpoints
    nodes = names(breakpoints)
    for name in nodes:
        if name not in definition.nodes:
            known = ", ".join(key for key in definition.nodes if key != START)
            raise ConfigurationError(
                f"{option} names node {name!r}, which does not exist; the nodes are: "
                f"{known}"
            )
    return nodes


def _check_output_keys(
    options: Mapping[str, Any],
    definition: GraphDefinition,
) -> None:
    """Refuse the name of a channel that the graph does not have."""
    channels = definition.program.channels
    for key in names(options["output_keys"]):
        if key not in channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of "
                f"{definition.name!r}; the channels are: {', '.join(channels)}"
            )


def check_choices(options: Mapping[str, Any]) -> None:
    """Refuse an option whose value is not among the allowed values.

    Raises:
        ConfigurationError: An option has a value that is not allowed. The message lists
            the allowed values.
    """
    for name, (choices, hint) in _CHOICES.items():
        if name in options and options[name] not in choices:
            raise ConfigurationError(f"{name}={options[name]!r}; use {hint}")


def context_of(
    schema: type[Any] | None,
    context: Any,
) -> Any:
    """Return *context* as an object of the schema.

    The context is returned unchanged unless it is a dict and the schema is a dataclass
    or a pydantic model.

    Raises:
        ConfigurationError: The context does not fit the schema.
    """
    makes_objects = hasattr(schema, "__dataclass_fields__") or hasattr(
        schema, "model_validate"
    )
    if schema is None or not makes_objects or not isinstance(context, Mapping):
        return context
    try:
        return schema(**context)
    except TypeError as error:
        raise ConfigurationError(
            f"context does not fit {schema.__name__}: {error}"
        ) from error


def options_for_saver(
    options: Options,
    saver: BaseCheckpointSaver,
) -> Options:
    """Return *options* with the features that *saver* supports (such as storing
    deltas), and with its way to create channel versions, if it has one.
    """
    options = replace(
        options,
        keeps_deltas=saver.keeps_deltas,
        keeps_arguments=saver.keeps_arguments,
        keeps_attempts=saver.keeps_attempts,
    )
    if not saver.owns_versions:
        return options
    return replace(
        options,
        next_version=lambda newest, _: saver.get_next_version(newest, None),
    )
