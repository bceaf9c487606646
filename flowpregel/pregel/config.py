"""What a user asks of a run: LangGraph's config or plain keywords, checked once, at the
door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args
from uuid import UUID

from flowpregel._core.program import names
from flowpregel._core.records import Address
from flowpregel._text import no_such_option
from flowpregel.checkpoint.base import OnConflict
from flowpregel.checkpoint.layout import thread_name
from flowpregel.errors import ConfigurationError
from flowpregel.events import StreamMode
from flowpregel.pregel.definition import START, GraphDefinition, Where
from flowpregel.pregel.progress import progress_is_on
from flowpregel.runtime import RunControl

Config: TypeAlias = Mapping[str, Any]
"""A config as a user writes it."""

DEFAULT_RECURSION_LIMIT = 10_000
STOP_GRACE: Final = 20.0
"""Seconds that tasks have to end in time: less than the 30 that most schedulers
give.
"""

_CONFIGURABLE = ("thread_id", "checkpoint_id", "checkpoint_ns")
_TOP_LEVEL = ("recursion_limit", "max_concurrency", "tags", "metadata", "run_id")
_HOOKS = ("callbacks", "run_name")


class ConfigKeywords(TypedDict, total=False):
    """A config as plain keywords of ``invoke`` and its kin."""

    thread_id: str
    checkpoint_id: str
    checkpoint_ns: str
    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int
    tags: list[str]
    metadata: dict[str, Any]
    run_id: str


class RunKeywords(ConfigKeywords, total=False):
    """The keywords of `Pregel.invoke`, `Pregel.stream` and their kin, beside the
    input.
    """

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
    progress: bool | None
    stop_after: float | timedelta | None
    stop_grace: float
    version: Literal["v1", "v2"]
    subgraphs: bool


OPTIONS = RunKeywords.__annotations__.keys() - ConfigKeywords.__annotations__.keys()
WHOLE = (None, "values")
"""The stream modes of an invocation that returns the output, and not a list of
items.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A config that was checked."""

    thread_id: str | None = None
    checkpoint_id: str | None = None
    namespace: str = ""
    checkpoint_map: Mapping[str, str] = field(default_factory=dict)
    recursion_limit: int = DEFAULT_RECURSION_LIMIT
    max_concurrency: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    run_name: str | None = None
    callbacks: Sequence[Any] = ()
    """What is told that the run starts, and how it ended."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """The config that the run's own code is shown."""

    @property
    def address(self) -> Address:
        """Where the thread's checkpoints live.

        Raises:
            ConfigurationError: There is no thread_id.
        """
        if self.thread_id is None:
            raise ConfigurationError(
                "a graph with a checkpointer needs to know which thread to work on: "
                "pass "
                "thread_id='...' (or config={'configurable': {'thread_id': '...'}})"
            )
        return Address(self.thread_id, self.namespace, self.checkpoint_id)


def config_for(address: Address, parents: Mapping[str, str]) -> dict[str, Any]:
    """Return the config that addresses a checkpoint.

    Args:
        address: Where it is.
        parents: The checkpoints of the graphs around, by namespace; empty: not known.
    """
    configurable: dict[str, Any] = {
        "thread_id": address.thread_id,
        "checkpoint_ns": address.namespace,
        "checkpoint_id": address.checkpoint_id,
    }
    if parents:
        configurable["checkpoint_map"] = {
            **parents,
            address.namespace: address.checkpoint_id,
        }
    return {"configurable": configurable}


def merged(*configs: Config | None, **settings: Any) -> dict[str, Any]:
    """Return one config of several; later ones win, tags, metadata and callbacks add
    up.

    Args:
        configs: LangGraph's dicts.
        settings: `ConfigKeywords`, which win over all of them.

    Raises:
        ConfigurationError: A part of a config is not of its type.
        TypeError: A keyword that nobody knows.
    """
    known = ConfigKeywords.__annotations__
    for key in settings:
        if key not in known:
            raise TypeError(no_such_option("a config", key, known))
    configurable = dict(_setting_of(settings, "configurable", {}))
    configurable |= {key: settings[key] for key in _CONFIGURABLE if key in settings}
    top_level = {key: settings[key] for key in _TOP_LEVEL if key in settings}
    result: dict[str, Any] = {}
    for config in (*configs, {**top_level, "configurable": configurable}):
        for key, value in _setting_of({"config": config}, "config", {}).items():
            if value is None:
                continue
            if key in ("configurable", "metadata"):
                value = {**result.get(key, {}), **_setting_of({key: value}, key)}
            elif key == "tags":
                value = [*result.get(key, ()), *_setting_of({key: value}, key)]
            elif key == "callbacks":
                # What LangChain gives may be a manager of them.
                value = [*result.get(key, ()), *getattr(value, "handlers", value)]
            result[key] = value
    return result


def parse(config: Config | None) -> ParsedConfig:
    """Check a config.

    Raises:
        ConfigurationError: A key nobody knows, or a value that cannot be.
    """
    config = _setting_of({"config": config}, "config", {})
    unknown = [
        key for key in config if key not in (*_TOP_LEVEL, *_HOOKS, "configurable")
    ]
    if unknown:
        known = ", ".join((*_TOP_LEVEL, "configurable"))
        raise ConfigurationError(f"config has no key {unknown[0]!r}; it takes: {known}")
    configurable = dict(_setting_of(config, "configurable", {}))
    metadata = dict(_setting_of(config, "metadata", {}))
    places = (config, metadata, configurable)
    run_id = next(
        (str(found) for place in places if (found := _setting_of(place, "run_id"))),
        None,
    )
    checked = {
        "recursion_limit": _setting_of(
            config, "recursion_limit", DEFAULT_RECURSION_LIMIT
        ),
        "max_concurrency": _setting_of(config, "max_concurrency"),
        "metadata": metadata,
        "run_id": run_id,
    }
    return ParsedConfig(
        thread_id=_thread_id_of(configurable),
        checkpoint_id=_setting_of(configurable, "checkpoint_id"),
        namespace=_setting_of(configurable, "checkpoint_ns", ""),
        checkpoint_map=configurable.get("checkpoint_map") or {},
        run_name=config.get("run_name"),
        callbacks=config.get("callbacks") or (),
        shown={
            **checked,
            "tags": [*_setting_of(config, "tags", ())],
            "configurable": configurable,
        },
        **checked,
    )


def _thread_id_of(configurable: Mapping[str, Any]) -> str | None:
    thread_id = configurable.get("thread_id")
    if thread_id == "":
        raise ConfigurationError(
            "thread_id is empty: name the thread by any other text, or leave it out"
        )
    return None if thread_id is None else thread_name(thread_id)


def configs_of(
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None,
    asked: Mapping[str, Any],
) -> tuple[list[tuple[Any, Config | None]], int | None]:
    """Return each input with its config, and how many may run at once, if that is
    bounded.

    Raises:
        ValueError: There are more configs than inputs, or fewer.
    """
    is_one = config is None or isinstance(config, Mapping)
    configs: list[Any] = [config] * len(inputs) if is_one else [*(config or ())]
    if len(configs) != len(inputs):
        raise ValueError(
            f"batch got {len(inputs)} inputs and {len(configs)} configs; give one for "
            "each"
        )
    first = {**(configs[0] or {}), **asked} if configs else {}
    return [*zip(inputs, configs, strict=True)], first.get("max_concurrency")


def _is_limit(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_RULES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "config": (lambda value: isinstance(value, Mapping), "a dict"),
    "configurable": (lambda value: isinstance(value, Mapping), "a dict"),
    "metadata": (lambda value: isinstance(value, Mapping), "a dict"),
    "checkpoint_id": (lambda value: isinstance(value, str), "text"),
    "checkpoint_ns": (lambda value: isinstance(value, str), "text"),
    "run_id": (
        lambda value: isinstance(value, str | UUID) and value != "",
        "text or a UUID",
    ),
    "recursion_limit": (_is_limit, "at least 1"),
    "max_concurrency": (_is_limit, "at least 1"),
    "tags": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str),
        "a list of texts",
    ),
}
"""What the parts of a config have to be."""


def _setting_of(values: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return what *values* have under *key*; None counts as left out."""
    value = values.get(key)
    if value is None:
        return default
    fits, form = _RULES[key]
    if not fits(value):
        raise ConfigurationError(f"{key} must be {form}, not {value!r}")
    return value


# ---------------------------------------------------------------- options

_CHOICES: Final[dict[str, tuple[tuple[str | None, ...], str]]] = {
    "durability": (("async", "sync", "exit"), "'sync', 'async' or 'exit'"),
    "on_code_change": (("keep", "rerun", "error"), "'keep', 'rerun' or 'error'"),
    "on_unreadable": (("error", "rerun"), "'error' or 'rerun'"),
    "on_unmatched": (("run", "error"), "'run' or 'error'"),
    "on_conflict": (("raise", "wait", "takeover"), "'raise', 'wait' or 'takeover'"),
    "resume": ((None, "auto"), "'auto', or leave it out"),
    "version": (("v1", "v2"), "'v1' or 'v2'"),
}
"""Options that are one of a few words, the default first, and what to use."""


def options_of(
    graph: GraphDefinition, asked: Mapping[str, Any], *, streams: bool
) -> dict[str, Any]:
    """Return the options of a run, with the defaults filled in.

    Args:
        graph: Gives the defaults.
        asked: The keywords of a run, settings of its config among them.
        streams: Whether `Pregel.stream` was called: its items show more than an output.

    Raises:
        ConfigurationError: One cannot be.
        TypeError: There is no such option.
    """
    for name in asked.keys() - OPTIONS - ConfigKeywords.__annotations__.keys():
        raise TypeError(no_such_option("a run", name, RunKeywords.__annotations__))
    options: dict[str, Any] = {
        "stream_mode": graph.stream_mode,
        "print_mode": (),
        "output_keys": graph.stream_channels_asis if streams else graph.output_channels,
        "interrupt_before": graph.interrupt_before_nodes,
        "interrupt_after": graph.interrupt_after_nodes,
        "debug": graph.debug,
        "progress": progress_is_on.get(),
        "context": None,
        "control": None,
        "subgraphs": False,
        "fail_fast": False,
        "stop_after": None,
        "stop_grace": STOP_GRACE,
        **{name: choices[0] for name, (choices, _) in _CHOICES.items()},
    }
    options |= graph.run_options
    options |= {
        key: value
        for key, value in asked.items()
        if key in OPTIONS and (value is not None or key == "on_code_change")
    }
    check_choices(options)
    for name in ("stop_after", "stop_grace"):
        seconds = options[name]
        if isinstance(seconds, timedelta):
            seconds = options[name] = seconds.total_seconds()
        if seconds is not None and not (
            isinstance(seconds, int | float) and seconds >= 0
        ):
            raise ConfigurationError(f"{name}={seconds!r}; use seconds, or a timedelta")
    for mode in (*names(options["stream_mode"]), *names(options["print_mode"])):
        if mode not in get_args(StreamMode):
            known = ", ".join(get_args(StreamMode))
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {known}"
            )
    for name in ("interrupt_before", "interrupt_after"):
        options[name] = _breakpoints_of(graph, name, options[name])
    for key in names(options["output_keys"]):
        if key not in graph.program.channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of {graph.name!r}; "
                f"the channels are: {', '.join(graph.program.channels)}"
            )
    return options


def _breakpoints_of(graph: GraphDefinition, option: str, where: Where) -> Where:
    """Return the nodes at which a run stops: ``"*"``, or their names.

    Raises:
        ConfigurationError: The graph has no node of such a name.
    """
    if where == "*":
        return where
    nodes = names(where)
    for name in nodes:
        if name not in graph.nodes:
            known = ", ".join(key for key in graph.nodes if key != START)
            raise ConfigurationError(
                f"{option} names node {name!r}, which does not exist; the nodes are: "
                f"{known}"
            )
    return nodes


def check_choices(options: Mapping[str, Any]) -> None:
    """Refuse an option whose value is none of the words that it may be.

    Raises:
        ConfigurationError: There is one; the message lists the words.
    """
    for name, (choices, hint) in _CHOICES.items():
        if name in options and options[name] not in choices:
            raise ConfigurationError(f"{name}={options[name]!r}; use {hint}")


def context_of(schema: type[Any], context: Any) -> Any:
    """Return *context* in the form that its schema gives it.

    Raises:
        ConfigurationError: It does not fit.
    """
    makes_objects = hasattr(schema, "__dataclass_fields__") or hasattr(
        schema, "model_validate"
    )
    if not makes_objects or not isinstance(context, Mapping):
        return context
    try:
        return schema(**context)
    except TypeError as error:
        raise ConfigurationError(
            f"context does not fit {schema.__name__}: {error}"
        ) from error
