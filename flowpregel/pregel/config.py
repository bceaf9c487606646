"""The config of a run: LangGraph's dict or plain keywords, parsed once, at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias, TypedDict
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
    tags: tuple[str, ...] = ()
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

    def outermost(self) -> Self:
        """Return the config of the outermost run, if this addresses a checkpoint of a nested graph.

        The checkpoint of the nested graph is found when it is called: it stays in
        `checkpoint_map`.
        """
        if not self.namespace:
            return self
        return replace(self, namespace="", checkpoint_id=self.checkpoint_map.get(""))

    def shown(self) -> dict[str, Any]:
        """Return the config that the run's own code is shown."""
        return {
            "configurable": dict(self.configurable),
            "recursion_limit": self.recursion_limit,
            "max_concurrency": self.max_concurrency,
            "tags": list(self.tags),
            "metadata": dict(self.metadata),
            "run_id": self.run_id,
        }


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
    configurable = dict(_mapping(settings.get("configurable") or {}, "configurable"))
    configurable |= {key: settings[key] for key in _CONFIGURABLE if key in settings}
    top_level = {key: settings[key] for key in _TOP_LEVEL if key in settings}
    result: dict[str, Any] = {}
    for config in (*configs, {**top_level, "configurable": configurable}):
        for key, value in _mapping(config or {}, "config").items():
            if value is None:
                continue
            if key in ("configurable", "metadata"):
                result[key] = {**result.get(key, {}), **_mapping(value, key)}
            elif key == "tags":
                result[key] = [*result.get(key, ()), *_sequence({key: value}, key)]
            else:
                result[key] = value
    return result


def parse(config: Config | None) -> ParsedConfig:
    """Check a config.

    Raises:
        ConfigurationError: A key nobody knows, or a value that cannot be.
    """
    config = _mapping(config or {}, "config")
    unknown = [key for key in config if key not in (*_TOP_LEVEL, *_IGNORED, "configurable")]
    if unknown:
        known = ", ".join((*_TOP_LEVEL, "configurable"))
        raise ConfigurationError(f"config has no key {unknown[0]!r}; it takes: {known}")
    configurable = dict(_mapping(config.get("configurable") or {}, "configurable"))
    metadata = dict(_mapping(config.get("metadata") or {}, "metadata"))
    thread_id = configurable.get("thread_id")
    return ParsedConfig(
        thread_id=None if thread_id is None else thread_name(thread_id),
        checkpoint_id=_text(configurable, "checkpoint_id"),
        namespace=_text(configurable, "checkpoint_ns") or "",
        checkpoint_map=configurable.get("checkpoint_map") or {},
        recursion_limit=_at_least_one(config, "recursion_limit") or DEFAULT_RECURSION_LIMIT,
        max_concurrency=_at_least_one(config, "max_concurrency"),
        tags=tuple(_sequence(config, "tags")),
        metadata=metadata,
        configurable=configurable,
        run_id=_run_id(config, metadata, configurable),
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{what} must be a dict, not {value!r}")
    return value


def _run_id(*places: Mapping[str, Any]) -> str | None:
    """Return the first id of a run that one of *places* has."""
    found = next((run_id for place in places if (run_id := place.get("run_id")) is not None), None)
    if isinstance(found, UUID):
        return str(found)
    if found is not None and (not isinstance(found, str) or not found):
        raise ConfigurationError(f"run_id must be text or a UUID, not {found!r}")
    return found


def _text(configurable: Mapping[str, Any], key: str) -> str | None:
    value = configurable.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ConfigurationError(f"{key} must be text, not {value!r}")


def _at_least_one(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{key} must be at least 1, not {value!r}")
    return value


def _sequence(config: Mapping[str, Any], key: str) -> Sequence[str]:
    value = config.get(key) or ()
    if isinstance(value, str):
        raise ConfigurationError(f"{key} must be a list of texts, not the text {value!r}")
    return tuple(value)
