"""What a user asks of one run, checked once, and the forms in which a run is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from flowpregel._core.commands import Interrupt
from flowpregel._core.program import Keys, Options
from flowpregel._core.records import INTERRUPT, Durability
from flowpregel.context import RunControl
from flowpregel.errors import ConfigurationError
from flowpregel.events import StreamMode
from flowpregel.pregel.config import Config, ConfigKeywords, ParsedConfig, merged, parse
from flowpregel.pregel.definition import GraphDefinition, Where, keys_of, names_where
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import MODES as VIEWED
from flowpregel.pregel.progress import Item, ProgressView, view_of

Version: TypeAlias = Literal["v1", "v2"]
STREAM_MODES: tuple[str, ...] = get_args(StreamMode)


class RunKeywords(ConfigKeywords, total=False):
    """The keywords of `Pregel.invoke` and `Pregel.ainvoke`, beside the input."""

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
    on_mismatch: Literal["error", "rerun", "reuse"]
    progress: bool | None
    version: Version


class StreamKeywords(RunKeywords, total=False):
    """The keywords of `Pregel.stream` and `Pregel.astream`."""

    subgraphs: bool


OPTIONS = StreamKeywords.__annotations__.keys() - ConfigKeywords.__annotations__.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeRequest:
    """What a user asked of one run, with the graph's defaults filled in."""

    given: Any
    config: ParsedConfig
    options: Options
    """All but what the thread's saver decides."""
    context: Any
    control: RunControl | None
    resume: Literal["auto"] | None
    modes: tuple[str, ...]
    """The stream modes that the user reads."""
    labelled: bool
    """Whether several modes were asked for, so that each item names its own."""
    subgraphs: bool
    """Whether nested graphs stream too, so that each item names its namespace."""
    printed: tuple[str, ...]
    """The stream modes that are printed."""
    view: ProgressView | None
    """Shows how far the run is."""
    version: Version


def is_quiet(asked: Mapping[str, Any]) -> bool:
    """Return whether an invocation returns the output, and not the items of a stream mode."""
    return asked.get("stream_mode") in (None, "values")


def request_of(
    graph: GraphDefinition,
    given: Any,
    config: Config | None,
    asked: Mapping[str, Any],
    *,
    streams: bool = False,
) -> InvokeRequest:
    """Return what a user asked of a run of *graph*.

    Args:
        graph: Gives the defaults.
        given: The input.
        config: LangGraph's config, or None.
        asked: The keywords.
        streams: Whether `Pregel.stream` was called: its items show more than an output.

    Raises:
        ConfigurationError: Something cannot be; the message says what.
        TypeError: A keyword that nobody knows.
    """
    wanted = {
        key: value
        for key, value in asked.items()
        if key in OPTIONS and (value is not None or key == "on_mismatch")
    }
    settings = {key: value for key, value in asked.items() if key not in OPTIONS}
    parsed = parse(merged(graph.config, config, **settings)).outermost()
    mode = wanted.get("stream_mode", graph.stream_mode)
    modes = _modes(mode) if streams or not is_quiet(asked) else ()
    debug = wanted.get("debug", graph.debug)
    printed = ("updates", "values") if debug else _modes(wanted.get("print_mode", ()))
    view = view_of(graph.name, wanted.get("progress"))
    options = _options(graph, parsed, wanted, streams=streams)
    return InvokeRequest(
        given=given,
        config=parsed,
        options=replace(options, modes=frozenset((*modes, *printed, *(VIEWED if view else ())))),
        context=_context(graph, wanted.get("context")),
        control=wanted.get("control"),
        resume=_choice(wanted, "resume", "'auto', or leave it out", None, "auto"),
        modes=modes,
        labelled="stream_mode" in wanted and not isinstance(mode, str),
        subgraphs=wanted.get("subgraphs", False),
        printed=printed,
        view=view,
        version=_choice(wanted, "version", "'v1' or 'v2'", "v1", "v2"),
    )


def _options(
    graph: GraphDefinition, config: ParsedConfig, wanted: Mapping[str, Any], *, streams: bool
) -> Options:
    keys = graph.stream_channels_asis if streams else graph.output_channels
    durability = "'sync', 'async' or 'exit'"
    mismatch = "'error', 'rerun' or 'reuse'"
    control: RunControl | None = wanted.get("control")
    return Options(
        namespace=config.namespace,
        durability=Durability(_choice(wanted, "durability", durability, "async", "sync", "exit")),
        recursion_limit=config.recursion_limit,
        interrupt_before=names_where(wanted.get("interrupt_before", graph.interrupt_before_nodes)),
        interrupt_after=names_where(wanted.get("interrupt_after", graph.interrupt_after_nodes)),
        output_channels=_output_keys(graph, wanted.get("output_keys", keys)),
        step_timeout=graph.step_timeout,
        retry=policies_of(graph.retry_policy),
        cache=graph.cache_policy,
        drain=lambda: None if control is None else control.drain_reason,
        on_mismatch=_choice(wanted, "on_mismatch", mismatch, "error", "rerun", "reuse"),
    )


def _choice(wanted: Mapping[str, Any], name: str, hint: str, default: Any, *others: Any) -> Any:
    value = wanted.get(name, default)
    if value not in (default, *others):
        raise ConfigurationError(f"{name}={value!r}; use {hint}")
    return value


def _modes(wanted: str | Sequence[str]) -> tuple[str, ...]:
    modes = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for mode in modes:
        if mode not in STREAM_MODES:
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {', '.join(STREAM_MODES)}"
            )
    return modes


def _output_keys(graph: GraphDefinition, wanted: str | Sequence[str]) -> Keys:
    keys = keys_of(wanted)
    for key in (keys,) if isinstance(keys, str) else keys:
        if key not in graph.program.channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of {graph.name!r}; "
                f"the channels are: {', '.join(graph.program.channels)}"
            )
    return keys


def _context(graph: GraphDefinition, context: Any) -> Any:
    """Return *context* in the form that its schema gives it."""
    schema = graph.context_schema
    if schema is None or not isinstance(context, Mapping):
        return context
    if hasattr(schema, "__dataclass_fields__") or hasattr(schema, "model_validate"):
        try:
            return schema(**context)
        except TypeError as error:
            raise ConfigurationError(f"context does not fit {schema.__name__}: {error}") from error
    return context


# ---------------------------------------------------------------- how a run is shown


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What ``invoke(version="v2")`` returns."""

    value: Any
    """What the output channels hold."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; empty if the run is done."""

    def __iter__(self) -> Iterator[Any]:
        """Yield value and interrupts, for unpacking."""
        return iter((self.value, self.interrupts))

    def __getitem__(self, key: str) -> Any:
        """Return what a plain output has under *key*, for programs that were written for one."""
        if key == INTERRUPT:
            return self.interrupts
        value = self.value
        return value[key] if isinstance(value, Mapping) else getattr(value, key)

    def __contains__(self, key: object) -> bool:
        """Return whether a plain output would have *key*."""
        if key == INTERRUPT:
            return bool(self.interrupts)
        value = self.value
        return key in value if isinstance(value, Mapping) else hasattr(value, str(key))


def stream_item(graph: GraphDefinition, item: Item, request: InvokeRequest) -> Any:
    """Return what a run emitted in the form that was asked for."""
    namespace, mode, payload = item
    if request.version == "v1":
        parts = ((namespace,) if request.subgraphs else ()) + ((mode,) if request.labelled else ())
        return (*parts, payload) if parts else payload
    if mode != "values":
        return {"type": mode, "ns": namespace, "data": payload}
    interrupts = ()
    if isinstance(payload, dict) and INTERRUPT in payload:
        payload = dict(payload)
        interrupts = payload.pop(INTERRUPT)
    data = payload if namespace else graph.shaped(payload)
    return {"type": mode, "ns": namespace, "data": data, "interrupts": interrupts}


def print_item(item: Item) -> None:
    """Print what a run emitted, for ``print_mode`` and ``debug``."""
    namespace, mode, payload = item
    where = f" [{'|'.join(namespace)}]" if namespace else ""
    sys.stdout.write(f"[{mode}]{where} {payload!r}\n")
