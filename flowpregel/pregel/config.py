"""The config of a run: LangGraph's dict or plain keywords, parsed once, at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict
from uuid import UUID

from flowpregel._core.records import Address
from flowpregel.checkpoint.base import thread_name
from flowpregel.errors import ConfigurationError

Config: TypeAlias = Mapping[str, Any]
"""A config as a user writes it."""

DEFAULT_RECURSION_LIMIT = 10_000

_CONFIGURABLE = ("thread_id", "checkpoint_id", "checkpoint_ns")
_TOP_LEVEL = ("recursion_limit", "max_concurrency", "tags", "metadata", "run_id")
_IGNORED = ("callbacks", "run_name")
"""LangChain's, which a program that moves over may still pass."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A config that was checked."""

    thread_id: str | None = None
    checkpoint_id: str | None = None
    namespace: str = ""
    checkpoint_map: Mapping[str, str] = field(default_factory=dict)
    recursion_limit: int = DEFAULT_RECURSION_LIMIT
    max_concurrency: int | None = None
    tags: list[str] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    configurable: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None

    @property
    def address(self) -> Address:
        """Where the thread's checkpoints live.

        Raises:
            ConfigurationError: There is no thread_id.
        """
        if self.thread_id is None:
            raise ConfigurationError(
                "a graph with a checkpointer needs to know which thread to work on: pass "
                "thread_id='...' (or config={'configurable': {'thread_id': '...'}})"
            )
        return Address(self.thread_id, self.namespace, self.checkpoint_id)

    def shown(self) -> dict[str, Any]:
        """Return the config that the run's own code is shown."""
        return {name: getattr(self, name) for name in (*_TOP_LEVEL, "configurable")}


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
        configurable["checkpoint_map"] = {**parents, address.namespace: address.checkpoint_id}
    return {"configurable": configurable}


def merged(*configs: Config | None, **settings: Any) -> dict[str, Any]:
    """Return one config of several; later ones win, tags and metadata add up.

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
            raise TypeError(
                f"unexpected keyword {key!r}; the settings of a run are: {', '.join(known)}"
            )
    configurable = dict(_checked(settings, "configurable", {}))
    configurable |= {key: settings[key] for key in _CONFIGURABLE if key in settings}
    top_level = {key: settings[key] for key in _TOP_LEVEL if key in settings}
    result: dict[str, Any] = {}
    for config in (*configs, {**top_level, "configurable": configurable}):
        for key, value in _checked({"config": config}, "config", {}).items():
            if value is None:
                continue
            if key in ("configurable", "metadata"):
                value = {**result.get(key, {}), **_checked({key: value}, key)}
            elif key == "tags":
                value = [*result.get(key, ()), *_checked({key: value}, key)]
            result[key] = value
    return result


def parse(config: Config | None) -> ParsedConfig:
    """Check a config.

    Raises:
        ConfigurationError: A key nobody knows, or a value that cannot be.
    """
    config = _checked({"config": config}, "config", {})
    unknown = [key for key in config if key not in (*_TOP_LEVEL, *_IGNORED, "configurable")]
    if unknown:
        known = ", ".join((*_TOP_LEVEL, "configurable"))
        raise ConfigurationError(f"config has no key {unknown[0]!r}; it takes: {known}")
    configurable = dict(_checked(config, "configurable", {}))
    metadata = dict(_checked(config, "metadata", {}))
    thread_id = configurable.get("thread_id")
    places = (config, metadata, configurable)
    run_id = next((found for place in places if (found := _checked(place, "run_id"))), None)
    return ParsedConfig(
        thread_id=None if thread_id is None else thread_name(thread_id),
        checkpoint_id=_checked(configurable, "checkpoint_id"),
        namespace=_checked(configurable, "checkpoint_ns", ""),
        checkpoint_map=configurable.get("checkpoint_map") or {},
        recursion_limit=_checked(config, "recursion_limit", DEFAULT_RECURSION_LIMIT),
        max_concurrency=_checked(config, "max_concurrency"),
        tags=[*_checked(config, "tags", ())],
        metadata=metadata,
        configurable=configurable,
        run_id=None if run_id is None else str(run_id),
    )


def _is_limit(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_RULES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "config": (lambda value: isinstance(value, Mapping), "a dict"),
    "configurable": (lambda value: isinstance(value, Mapping), "a dict"),
    "metadata": (lambda value: isinstance(value, Mapping), "a dict"),
    "checkpoint_id": (lambda value: isinstance(value, str), "text"),
    "checkpoint_ns": (lambda value: isinstance(value, str), "text"),
    "run_id": (lambda value: isinstance(value, str | UUID) and value != "", "text or a UUID"),
    "recursion_limit": (_is_limit, "at least 1"),
    "max_concurrency": (_is_limit, "at least 1"),
    "tags": (lambda value: not isinstance(value, str), "a list of texts"),
}
"""What the parts of a config have to be."""


def _checked(values: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return what *values* have under *key*; None counts as left out."""
    value = values.get(key)
    if value is None:
        return default
    fits, form = _RULES[key]
    if not fits(value):
        raise ConfigurationError(f"{key} must be {form}, not {value!r}")
    return value
