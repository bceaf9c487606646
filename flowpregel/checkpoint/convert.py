"""Between our records and LangGraph's shapes: configs, checkpoint dicts, metadata.

LangGraph is not imported: its checkpoints are dicts, and its tuples are read by name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from flowpregel._core import ids
from flowpregel._core.records import Address, Checkpoint, Source, Version
from flowpregel.errors import ConfigurationError

FORMAT = 4
"""The version of LangGraph's checkpoint dict that we write."""
_FORMAT_KEY = "__format__"
"""Where the metadata of our record keeps the version of a dict in another one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def address_of(config: Mapping[str, Any]) -> Address:
    """Return the address that *config* names.

    Raises:
        ConfigurationError: It names no thread.
    """
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise ConfigurationError(
            "the config names no thread; pass {'configurable': {'thread_id': ...}}"
        )
    return Address(
        str(thread_id),
        configurable.get("checkpoint_ns") or "",
        configurable.get("checkpoint_id") or None,
    )


def config_of(address: Address, checkpoint_id: str | None = None) -> dict[str, Any]:
    """Return the config that names *address*, or *checkpoint_id* at it."""
    named = checkpoint_id or address.checkpoint_id
    configurable = {"thread_id": address.thread_id, "checkpoint_ns": address.namespace}
    return {"configurable": configurable | ({"checkpoint_id": named} if named else {})}


def checkpoint_id_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the checkpoint id that *config* names, if it does."""
    if not config:
        return None
    return (config.get("configurable") or {}).get("checkpoint_id") or None


def nanoseconds_of(text: str) -> int:
    """Return the wall-clock nanoseconds of an ISO 8601 *text* (without a zone: UTC)."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - _EPOCH) // _MICROSECOND * 1000


def next_version(current: Version | None) -> int:
    """Return a version after *current*: the wall clock's nanoseconds, so that two
    branches of a thread do not give one version to two values.

    Raises:
        ConfigurationError: *current* is a text, which has no next one.
    """
    if isinstance(current, str):
        raise ConfigurationError(
            f"version {current!r} is a text of another saver; go on with the saver that made it"
        )
    return max(time.time_ns(), int(current or 0) + 1)


def metadata_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata of *checkpoint* in LangGraph's shape."""
    kept = {key: value for key, value in checkpoint.metadata.items() if key != _FORMAT_KEY}
    return {"parents": {}, **kept, "source": checkpoint.source, "step": checkpoint.step}


def dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return *checkpoint* as LangGraph's dict; channels kept as deltas have no value in it."""
    updated = checkpoint.updated_channels
    return {
        "v": checkpoint.metadata.get(_FORMAT_KEY, FORMAT),
        "id": checkpoint.id,
        "ts": ids.timestamp(checkpoint.at),
        "channel_values": dict(checkpoint.values),
        "channel_versions": dict(checkpoint.channel_versions),
        "versions_seen": _copied(checkpoint.versions_seen),
        "updated_channels": None if updated is None else list(updated),
    }


def checkpoint_of(
    given: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    parent_id: str | None,
    values: Mapping[str, Any],
    changed: tuple[str, ...] = (),
) -> Checkpoint:
    """Return LangGraph's checkpoint dict as our record, with these *values*."""
    rest = {key: value for key, value in metadata.items() if key not in ("source", "step")}
    if given.get("v", FORMAT) != FORMAT:
        rest[_FORMAT_KEY] = given["v"]
    updated = given.get("updated_channels")
    return Checkpoint(
        id=given["id"],
        parent_id=parent_id,
        at=nanoseconds_of(given["ts"]),
        step=metadata.get("step", -1),
        source=cast(Source, metadata.get("source", "loop")),
        channel_versions=dict(given.get("channel_versions") or {}),
        versions_seen=_copied(given.get("versions_seen") or {}),
        changed=changed,
        updated_channels=None if updated is None else tuple(updated),
        values=values,
        metadata=rest,
    )


def _copied(seen: Mapping[str, Mapping[str, Version]]) -> dict[str, dict[str, Version]]:
    return {node: dict(versions) for node, versions in seen.items()}
