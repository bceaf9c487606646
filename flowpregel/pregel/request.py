"""What a user asks of one run, checked once, and the forms in which a run is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from flowpregel._core.commands import Interrupt
from flowpregel._core.program import Options, names
from flowpregel._core.records import INTERRUPT, Durability
from flowpregel._engine.drivers import Item
from flowpregel.context import RunControl
from flowpregel.errors import ConfigurationError
from flowpregel.events import StreamMode
from flowpregel.pregel.config import Config, ConfigKeywords, ParsedConfig, merged, parse
from flowpregel.pregel.definition import GraphDefinition, Where, keys_of, names_where
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import MODES as VIEWED
from flowpregel.pregel.progress import ProgressView, progress_is_on

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
    given_config: Config | None,
    asked: Mapping[str, Any],
    *,
    streams: bool = False,
) -> InvokeRequest:
    """Return what a user asked of a run of *graph*.

    Args:
        graph: Gives the defaults.
        given: The input.
        given_config: LangGraph's config, or None.
        asked: The keywords.
        streams: Whether `Pregel.stream` was called: its items show more than an output.

    Raises:
        ConfigurationError: Something cannot be; the message says what.
        TypeError: A keyword that nobody knows.
    """
    wanted: dict[str, Any] = {
        "stream_mode": graph.stream_mode,
        "print_mode": (),
        "output_keys": graph.stream_channels_asis if streams else graph.output_channels,
        "interrupt_before": graph.interrupt_before_nodes,
        "interrupt_after": graph.interrupt_after_nodes,
        "debug": graph.debug,
        "progress": progress_is_on.get(),
        **{name: choices[0] for name, (choices, _) in _CHOICES.items()},
    }
    wanted |= {
        key: value
        for key, value in asked.items()
        if key in OPTIONS and (value is not None or key == "on_mismatch")
    }
    settings = {key: value for key, value in asked.items() if key not in OPTIONS}
    config = parse(merged(graph.config, given_config, **settings))
    if config.namespace:
        # The checkpoint of a nested graph is found when that is called: by the map of them.
        config = replace(config, namespace="", checkpoint_id=config.checkpoint_map.get(""))
    _check(graph, wanted)
    modes = names(wanted["stream_mode"]) if streams or not is_quiet(asked) else ()
    printed = ("updates", "values") if wanted["debug"] else names(wanted["print_mode"])
    view = ProgressView(graph.name) if wanted["progress"] else None
    control: RunControl | None = wanted.get("control")
    return InvokeRequest(
        given=given,
        config=config,
        options=Options(
            durability=Durability(wanted["durability"]),
            recursion_limit=config.recursion_limit,
            interrupt_before=names_where(wanted["interrupt_before"]),
            interrupt_after=names_where(wanted["interrupt_after"]),
            output_channels=keys_of(wanted["output_keys"]),
            modes=frozenset((*modes, *printed, *(VIEWED if view else ()))),
            step_timeout=graph.step_timeout,
            retry=policies_of(graph.retry_policy),
            cache=graph.cache_policy,
            drain=lambda: None if control is None else control.drain_reason,
            on_mismatch=wanted["on_mismatch"],
        ),
        context=_context(graph, wanted.get("context")),
        control=control,
        resume=wanted["resume"],
        modes=modes,
        labelled=asked.get("stream_mode") is not None
        and not isinstance(wanted["stream_mode"], str),
        subgraphs=wanted.get("subgraphs", False),
        printed=printed,
        view=view,
        version=wanted["version"],
    )


_CHOICES: Final[dict[str, tuple[tuple[str | None, ...], str]]] = {
    "durability": (("async", "sync", "exit"), "'sync', 'async' or 'exit'"),
    "on_mismatch": (("error", "rerun", "reuse"), "'error', 'rerun' or 'reuse'"),
    "resume": ((None, "auto"), "'auto', or leave it out"),
    "version": (("v1", "v2"), "'v1' or 'v2'"),
}
"""Options that are one of a few words, the default first, and what to use."""


def _check(graph: GraphDefinition, wanted: Mapping[str, Any]) -> None:
    """Refuse an option of a run that cannot be."""
    for name, (choices, hint) in _CHOICES.items():
        if wanted[name] not in choices:
            raise ConfigurationError(f"{name}={wanted[name]!r}; use {hint}")
    for mode in (*names(wanted["stream_mode"]), *names(wanted["print_mode"])):
        if mode not in STREAM_MODES:
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {', '.join(STREAM_MODES)}"
            )
    for key in names(wanted["output_keys"]):
        if key not in graph.program.channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of {graph.name!r}; "
                f"the channels are: {', '.join(graph.program.channels)}"
            )


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
