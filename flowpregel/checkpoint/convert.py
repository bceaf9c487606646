"""Between the two forms of a saver: our records and LangGraph's shapes.

Nothing here keeps anything. The first half turns one shape into the other; the
second gives the transactional form of a saver that has only the classic one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from flowpregel._core.records import (
    Address,
    Batch,
    Checkpoint,
    PendingWrite,
    Saved,
    Source,
    TaskWrites,
    Version,
)
from flowpregel.checkpoint.shapes import CheckpointDict, CheckpointTuple, Config
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import BaseCheckpointSaver

FORMAT = 4
"""The version of LangGraph's checkpoint dict that we write."""
_FORMAT_KEY = "__format__"
"""Where the metadata of our record keeps the version of a dict in another one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# ---------------------------------------------------------------- configs and times


def thread_name(thread_id: Any) -> str:
    """Return the text that *thread_id* is kept under: numbers and UUIDs are ids too.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(thread_id, str):
        return thread_id
    if isinstance(thread_id, int | UUID) and not isinstance(thread_id, bool):
        return str(thread_id)
    raise ConfigurationError(f"thread_id must be text, not {thread_id!r}")


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


def config_of(address: Address) -> Config:
    """Return the config that names *address*."""
    configurable = {"thread_id": address.thread_id, "checkpoint_ns": address.namespace}
    if address.checkpoint_id is not None:
        configurable["checkpoint_id"] = address.checkpoint_id
    return {"configurable": configurable}


def id_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the checkpoint id that *config* names, if it does."""
    if not config:
        return None
    return (config.get("configurable") or {}).get("checkpoint_id") or None


def text_of(at: int) -> str:
    """Return wall-clock nanoseconds as an ISO 8601 text (microseconds, UTC)."""
    return (_EPOCH + timedelta(microseconds=at // 1000)).isoformat()


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


# ---------------------------------------------------------------- records and shapes


def metadata_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata of *checkpoint* in LangGraph's shape."""
    metadata = {
        "parents": {},
        **checkpoint.metadata,
        "source": checkpoint.source,
        "step": checkpoint.step,
    }
    metadata.pop(_FORMAT_KEY, None)
    return metadata


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Return whether *metadata*, in LangGraph's shape, has all values of *filter*."""
    return not filter or all(metadata.get(key) == value for key, value in filter.items())


def tuple_of(saved: Saved) -> CheckpointTuple:
    """Return *saved* in LangGraph's shape; channels kept as deltas have no value in it."""
    checkpoint = saved.checkpoint
    address = saved.address
    updated = checkpoint.updated_channels
    parent = checkpoint.parent_id
    return CheckpointTuple(
        config=config_of(Address(address.thread_id, address.namespace, checkpoint.id)),
        checkpoint={
            "v": checkpoint.metadata.get(_FORMAT_KEY, FORMAT),
            "id": checkpoint.id,
            "ts": text_of(checkpoint.at),
            "channel_values": dict(checkpoint.values),
            "channel_versions": dict(checkpoint.channel_versions),
            "versions_seen": _copied(checkpoint.versions_seen),
            "updated_channels": None if updated is None else list(updated),
        },
        metadata=metadata_of(checkpoint),
        parent_config=(
            config_of(Address(address.thread_id, address.namespace, parent)) if parent else None
        ),
        pending_writes=[(write.task_id, write.channel, write.value) for write in saved.writes],
    )


def saved_of(found: CheckpointTuple, newest_id: str | None) -> Saved:
    """Return a tuple of a classic saver as our record; *newest_id*: of the newest one there."""
    address = address_of(found.config)
    return Saved(
        address=Address(address.thread_id, address.namespace, found.checkpoint["id"]),
        checkpoint=checkpoint_of(
            found.checkpoint,
            found.metadata,
            parent_id=id_of(found.parent_config),
            values=found.checkpoint.get("channel_values") or {},
        ),
        writes=tuple(PendingWrite(*write) for write in found.pending_writes or ()),
        is_latest=found.checkpoint["id"] == newest_id,
        newest_id=newest_id,
    )


def checkpoint_of(
    given: CheckpointDict,
    metadata: Mapping[str, Any],
    *,
    parent_id: str | None,
    values: Mapping[str, Any],
    changed: tuple[str, ...] = (),
) -> Checkpoint:
    """Return a checkpoint in LangGraph's shape as our record, with these *values*."""
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


def batch_of_put(
    config: Mapping[str, Any],
    checkpoint: CheckpointDict,
    metadata: Mapping[str, Any],
    new_versions: Mapping[str, Version],
) -> Batch:
    """Return the batch that does what a classic `put` asks for."""
    address = address_of(config)
    values = checkpoint["channel_values"]
    # A version that the checkpoint does not name can never be read.
    moved = tuple(name for name in new_versions if name in checkpoint["channel_versions"])
    return Batch(
        address=Address(address.thread_id, address.namespace),
        checkpoint=checkpoint_of(
            checkpoint,
            metadata,
            parent_id=address.checkpoint_id,
            values={name: values[name] for name in moved if name in values},
            changed=moved,
        ),
    )


def batch_of_writes(
    config: Mapping[str, Any], writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Batch:
    """Return the batch that does what a classic `put_writes` asks for.

    Raises:
        ConfigurationError: *config* names no checkpoint to keep them on.
    """
    address = address_of(config)
    if address.checkpoint_id is None:
        raise ConfigurationError(
            "pending writes belong to a checkpoint; pass its checkpoint_id in the config"
        )
    return Batch(
        address=Address(address.thread_id, address.namespace),
        writes=(
            TaskWrites(address.checkpoint_id, task_id, task_path, tuple((c, v) for c, v in writes)),
        ),
    )


def _copied(seen: Mapping[str, Mapping[str, Version]]) -> dict[str, dict[str, Version]]:
    return {node: dict(versions) for node, versions in seen.items()}


# ---------------------------------------------------------------- a classic saver's other form


def load(saver: BaseCheckpointSaver, address: Address, before: str | None) -> Saved | None:
    """Do what `BaseCheckpointSaver.load` promises with `get_tuple` and `list`."""
    if before is not None:
        return next(history(saver, address, None, before, 1), None)
    found = saver.get_tuple(config_of(address))
    if found is None:
        return None
    named = address.checkpoint_id is not None
    newest = _newest(saver, address) if named else found.checkpoint["id"]
    return saved_of(found, newest)


def history(
    saver: BaseCheckpointSaver,
    address: Address,
    filter: Mapping[str, Any] | None,
    before: str | None,
    limit: int | None,
) -> Iterator[Saved]:
    """Do what `BaseCheckpointSaver.history` promises with `get_tuple` and `list`."""
    newest = _newest(saver, address)
    if newest is None:
        return
    bound = None
    if before is not None:
        bound = config_of(Address(address.thread_id, address.namespace, before))
    found = saver.list(
        config_of(address),
        filter=None if filter is None else dict(filter),
        before=bound,
        limit=limit,
    )
    for item in found:
        yield saved_of(item, newest)


def put_batch(saver: BaseCheckpointSaver, batch: Batch) -> None:
    """Keep *batch* with `put_writes` and `put`, the pending writes first."""
    address = batch.address
    for task in batch.writes:
        config = config_of(Address(address.thread_id, address.namespace, task.checkpoint_id))
        saver.put_writes(config, list(task.writes), task.task_id, task.path)
    checkpoint = batch.checkpoint
    if checkpoint is None:
        return
    parent = Address(address.thread_id, address.namespace, checkpoint.parent_id)
    given = tuple_of(Saved(address=address, checkpoint=checkpoint))
    given.checkpoint["channel_values"] = _all_values(saver, parent, checkpoint)
    saver.put(
        config_of(parent),
        given.checkpoint,
        given.metadata,
        {name: checkpoint.channel_versions[name] for name in checkpoint.changed},
    )


def _newest(saver: BaseCheckpointSaver, address: Address) -> str | None:
    found = saver.get_tuple(config_of(Address(address.thread_id, address.namespace)))
    return None if found is None else found.checkpoint["id"]


def _all_values(
    saver: BaseCheckpointSaver, parent: Address, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Return the values of every channel: classic savers may keep them in one piece."""
    values = dict(checkpoint.values)
    same = checkpoint.channel_versions.keys() - set(checkpoint.changed)
    if same and parent.checkpoint_id is not None:
        found = saver.get_tuple(config_of(parent))
        before = found.checkpoint["channel_values"] if found is not None else {}
        values.update((name, before[name]) for name in same if name in before)
    return values
