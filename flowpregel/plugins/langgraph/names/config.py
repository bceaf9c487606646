"""Functions with which other packages make the config of a nested call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowpregel.config import get_config
from flowpregel.runtime import is_inside_run

__all__ = ["ensure_config", "merge_configs", "patch_config", "patch_configurable"]

Config = dict[str, Any]
_KEYS = {
    "callbacks",
    "configurable",
    "max_concurrency",
    "metadata",
    "recursion_limit",
    "run_id",
    "run_name",
    "tags",
}


def patch_configurable(
    config: Mapping[str, Any] | None, patch: Mapping[str, Any]
) -> Config:
    """Return *config* with the keys of *patch* in its ``configurable``."""
    config = config or {}
    configurable = {**config.get("configurable", {}), **patch}
    return {**config, "configurable": configurable}


def patch_config(config: Mapping[str, Any] | None, **changes: Any) -> Config:
    """Return *config* with the keys of *changes* that are not None.

    The keys of ``configurable`` are added to those of *config*. If there are new
    callbacks, they are for another call, so the ``run_id`` and the ``run_name`` of
    *config* are removed.
    """
    patched = dict(config or {})
    if changes.get("callbacks") is not None:
        patched.pop("run_name", None)
        patched.pop("run_id", None)
    for key, value in changes.items():
        if value is None:
            continue
        if key == "configurable":
            value = {**patched.get(key, {}), **value}
        patched[key] = value
    return patched


def merge_configs(*configs: Mapping[str, Any] | None) -> Config:
    """Return *configs* merged into one. If several have a key, the last one applies,
    except that tags, metadata, callbacks and ``configurable`` are merged.
    """
    merged: Config = {"configurable": {}}
    for config in configs:
        for key, value in (config or {}).items():
            if value:
                merged[key] = _merged_value(key, merged.get(key), value)
    return merged


def ensure_config(*configs: Mapping[str, Any] | None) -> Config:
    """Return *configs*, merged over the config of the running node, with all keys that
    LangChain expects. Keys that a config does not have become ``configurable``.
    """
    defaults: Config = {
        "tags": [],
        "metadata": {},
        "callbacks": None,
        "configurable": {},
    }
    current = get_config() if is_inside_run() else {}
    merged = merge_configs(current, *configs)
    for key in merged.keys() - _KEYS:
        merged["configurable"][key] = merged.pop(key)
    return {**defaults, **merged}


def _merged_value(key: str, earlier: Any, later: Any) -> Any:
    if not earlier:
        return later
    if key in ("metadata", "configurable"):
        return {**earlier, **later}
    if key == "tags":
        return [*earlier, *(tag for tag in later if tag not in earlier)]
    if key == "callbacks":
        return _merged_callbacks(earlier, later)
    return later


def _merged_callbacks(earlier: Any, later: Any) -> Any:
    """Return the handlers of two values of ``callbacks``, each a list or a manager."""
    if isinstance(earlier, list) and isinstance(later, list):
        return [*earlier, *later]
    manager, other = (later, earlier) if isinstance(earlier, list) else (earlier, later)
    if not isinstance(other, list):
        return manager.merge(other)
    manager = manager.copy()
    for handler in other:
        manager.add_handler(handler, inherit=True)
    return manager
