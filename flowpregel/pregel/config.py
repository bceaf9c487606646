"""The config of a run, in LangGraph's form or as plain keywords, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict
from uuid import UUID

from flowpregel._core.ids import thread_name
from flowpregel._core.records import Address
from flowpregel._text import no_such_option
from flowpregel.errors import ConfigurationError

Config: TypeAlias = Mapping[str, Any]
"""A config in the form in which a user writes it."""

DEFAULT_RECURSION_LIMIT = 10_000

_CONFIGURABLE = ("thread_id", "checkpoint_id", "checkpoint_ns")
"""The keywords that are stored under ``configurable``."""
_TOP_LEVEL = ("recursion_limit", "max_concurrency", "tags", "metadata", "run_id")
_HOOKS = ("callbacks", "run_name", "chain_run")
"""The keys of a config that users cannot pass as keywords. The value of ``chain_run``,
a `ChainRun`, is set by `merged`.
"""


_POSITION_KEYS: Final = frozenset(
    {
        "thread_id",
        "checkpoint_id",
        "checkpoint_ns",
        "checkpoint_map",
        "langgraph_step",
        "langgraph_node",
        "langgraph_triggers",
        "langgraph_path",
        "langgraph_checkpoint_ns",
    }
)
"""The metadata keys that name the place of a task: its thread, checkpoint, step and
node. They are left out of a task's metadata in a stream, because the stream item has
this information already.
"""


class ConfigKeywords(TypedDict, total=False):
    """The keys of a config as plain keywords."""

    thread_id: str
    checkpoint_id: str
    checkpoint_ns: str
    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int
    tags: list[str]
    metadata: dict[str, Any]
    run_id: str


@dataclass(frozen=True, slots=True)
class ChainRun:
    """The run of a chain of LangChain, in which a graph is one step."""

    run_id: UUID
    tags: tuple[str, ...] = ()
    """The tags of the step, such as its position in the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A config that has been checked."""

    thread_id: str | None = None
    checkpoint_id: str | None = None
    namespace: str = ""
    checkpoint_map: Mapping[str, str] = field(default_factory=dict)
    """The checkpoints of the outer graphs and of the graph itself, by namespace."""
    recursion_limit: int = DEFAULT_RECURSION_LIMIT
    max_concurrency: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    run_name: str | None = None
    callbacks: Sequence[Any] = ()
    """The callback handlers, called when the run and its nodes start and end."""
    chain_run: ChainRun | None = None
    """The run that callback handlers get as the parent of this run, or None."""
    run_config: Mapping[str, Any] = field(default_factory=dict)
    """The config that is passed to the user's code in the run."""

    @property
    def task_labels(self) -> dict[str, Any]:
        """The metadata of tasks in a stream: the metadata and the tags that the user
        passed.
        """
        labels = dict(self.metadata)
        tags = []
        for tag in self.run_config.get("tags", ()):
            if not tag.startswith("seq:step"):
                tags.append(tag)  # noqa: PERF401 - plainer than the comprehension
        if tags:
            labels["tags"] = tags
        return {key: labels[key] for key in labels if key not in _POSITION_KEYS}

    @property
    def address(self) -> Address:
        """The location of the thread's checkpoints.

        Raises:
            ConfigurationError: There is no thread_id.
        """
        if self.thread_id is None:
            raise ConfigurationError(
                "Checkpointer requires thread_id, which names the thread to use: pass "
                "thread_id='...' (or config={'configurable': {'thread_id': '...'}})"
            )
        return Address(self.thread_id, self.namespace, self.checkpoint_id)


def merged(
    *configs: Config | None,
    **settings: Any,
) -> dict[str, Any]:
    """Return one config merged from several.

    Later configs override earlier ones, except that the tags and callbacks of all
    configs are used.

    Args:
        configs: Config dicts in LangGraph's form.
        settings: The `ConfigKeywords`, which override all *configs*.

    Raises:
        ConfigurationError: A part of a config has a wrong type.
        TypeError: There is no such keyword.
    """
    result: dict[str, Any] = {}
    for config in (*configs, _keywords_as_config(settings)):
        for key, value in _setting_of({"config": config}, "config", {}).items():
            if value is not None:
                result[key] = _with_addition(result, key, value)
            parent_id = getattr(value, "parent_run_id", None)
            if key == "callbacks" and parent_id is not None:
                # If a step of a chain calls the graph, LangChain passes a callback
                # manager, which has the id of the chain's run.
                result["chain_run"] = ChainRun(parent_id, tuple(value.tags))
    return result


def _keywords_as_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config dict that is equivalent to plain keywords."""
    known = ConfigKeywords.__annotations__
    for key in settings:
        if key not in known:
            raise TypeError(no_such_option("a config", key, known))
    config = {key: settings[key] for key in _TOP_LEVEL if key in settings}
    configurable = dict(_setting_of(settings, "configurable", {}))
    for key in _CONFIGURABLE:
        if key in settings:
            configurable[key] = settings[key]
    config["configurable"] = configurable
    return config


def _with_addition(
    config: Mapping[str, Any],
    key: str,
    value: Any,
) -> Any:
    """Return the value under *key* in *config*, with *value* added if the key stands
    for a dict or a list. Otherwise return *value*.
    """
    if key in ("configurable", "metadata"):
        return {**config.get(key, {}), **_setting_of({key: value}, key)}
    if key == "tags":
        # Duplicate tags are removed, because code may pass on the config that it got,
        # and with it the same tags.
        tags = (*config.get(key, ()), *_setting_of({key: value}, key))
        return [*dict.fromkeys(tags)]
    if key == "callbacks":
        # LangChain may pass a callback manager instead of a list of callback handlers.
        # Then the handlers of the manager are used.
        handlers = getattr(value, "handlers", value)
        return [*config.get(key, ()), *handlers]
    return value


def parse(config: Config | None) -> ParsedConfig:
    """Check a config.

    Raises:
        ConfigurationError: A key is unknown, or a value has a wrong type.
    """
    config = _setting_of({"config": config}, "config", {})
    known = (*_TOP_LEVEL, "configurable")
    for key in config:
        if key not in known and key not in _HOOKS:
            raise ConfigurationError(
                f"config has no key {key!r}; it takes: {', '.join(known)}"
            )
    configurable = dict(_setting_of(config, "configurable", {}))
    metadata = dict(_setting_of(config, "metadata", {}))
    checked = {
        "recursion_limit": _setting_of(
            config,
            "recursion_limit",
            DEFAULT_RECURSION_LIMIT,
        ),
        "max_concurrency": _setting_of(config, "max_concurrency"),
        "metadata": metadata,
        "run_id": _run_id_in(config, metadata, configurable),
    }
    run_config = {
        **checked,
        "tags": list(_setting_of(config, "tags", ())),
        "configurable": configurable,
    }
    return ParsedConfig(
        thread_id=_thread_id_of(configurable),
        checkpoint_id=_setting_of(configurable, "checkpoint_id"),
        namespace=_setting_of(configurable, "checkpoint_ns", ""),
        checkpoint_map=configurable.get("checkpoint_map") or {},
        run_name=config.get("run_name"),
        callbacks=config.get("callbacks") or (),
        chain_run=config.get("chain_run"),
        run_config=run_config,
        **checked,
    )


def _thread_id_of(configurable: Mapping[str, Any]) -> str | None:
    """Return the checked id of the thread, or None if the config has none."""
    thread_id = configurable.get("thread_id")
    if thread_id == "":
        raise ConfigurationError(
            "thread_id is empty: name the thread by any other text, or leave it out"
        )
    return None if thread_id is None else thread_name(thread_id)


def _run_id_in(*mappings: Mapping[str, Any]) -> str | None:
    """Return the id of the run, from the first of *mappings* that has one."""
    for mapping in mappings:
        run_id = _setting_of(mapping, "run_id")
        if run_id:
            return str(run_id)
    return None


def configs_of(
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None,
    keywords: Mapping[str, Any],
) -> tuple[list[tuple[Any, Config | None]], int | None]:
    """Return each input with its config, and the maximum number of runs at once, if
    there is a limit.

    Raises:
        ValueError: There are more or fewer configs than inputs.
    """
    configs: list[Any]
    if config is None or isinstance(config, Mapping):
        configs = [config] * len(inputs)
    else:
        configs = list(config)
    if len(configs) != len(inputs):
        raise ValueError(
            f"batch got {len(inputs)} inputs and {len(configs)} configs; give one for "
            "each"
        )
    pairs = list(zip(inputs, configs, strict=True))
    if not pairs:
        return pairs, None
    first = {**(configs[0] or {}), **keywords}
    return pairs, first.get("max_concurrency")


# ---------------------------------------------------------------- types of values


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_run_id(value: Any) -> bool:
    return isinstance(value, str | UUID) and value != ""


def _is_limit(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


_TYPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "config": (_is_mapping, "a dict"),
    "configurable": (_is_mapping, "a dict"),
    "metadata": (_is_mapping, "a dict"),
    "checkpoint_id": (_is_text, "text"),
    "checkpoint_ns": (_is_text, "text"),
    "run_id": (_is_run_id, "text or a UUID"),
    "recursion_limit": (_is_limit, "at least 1"),
    "max_concurrency": (_is_limit, "at least 1"),
    "tags": (_is_list, "a list of texts"),
}
"""The function that checks the value of each part of a config, and the name of the
expected type.
"""


def _setting_of(
    values: Mapping[str, Any],
    key: str,
    default: Any = None,
) -> Any:
    """Return the checked value under *key*, or *default* if there is no value."""
    value = values.get(key)
    if value is None:
        return default
    is_valid, type_name = _TYPES[key]
    if not is_valid(value):
        raise ConfigurationError(f"{key} must be {type_name}, not {value!r}")
    return value
