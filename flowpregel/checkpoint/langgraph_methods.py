"""LangGraph's interface for savers: the methods `get_tuple`, `list`, `put` and
`put_writes`, and the dicts that they take and return.

LangGraph is not imported: its configs, checkpoints and metadata are dicts, and its
tuples are read by field name.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
)

from flowpregel._async_forms import async_form
from flowpregel._core import ids
from flowpregel._core.records import (
    ASKED,
    DRAWING,
    DURABILITY,
    NOTHING_DUE,
    TASKS,
    TASKS_DUE,
    Address,
    Batch,
    Checkpoint,
    Saved,
    Source,
    TaskWrites,
    Version,
)
from flowpregel.checkpoint.delta_history import (
    COUNTERS,
    DeltaChannelHistory,
    in_langgraphs_form,
    walk_back,
    with_langgraphs_deltas,
)
from flowpregel.errors import ConfigurationError

__all__ = [
    "COUNTERS",
    "CheckpointTuple",
    "DeltaChannelHistory",
    "LangGraphMethods",
    "address_of",
    "async_form",
    "checkpoint_id_of",
    "checkpoint_of",
    "dict_of",
    "is_overridden",
    "langgraph_config",
    "metadata_of",
    "with_langgraphs_deltas",
]

FORMAT = 4
"""The version of LangGraph's checkpoint dict that flowpregel writes."""
_FORMAT_KEY = "__format__"
"""The metadata key for the version of LangGraph's checkpoint dict, if that version is
not `FORMAT`.
"""

_BRANCH, _JOIN = "branch:to:", "join:"
"""Prefixes of the names of the channels that trigger the nodes of LangGraph's
`StateGraph`.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Params = ParamSpec("Params")
Value = TypeVar("Value")
Shape: TypeAlias = Mapping[str, Any]
"""One of LangGraph's dicts: a config, a checkpoint, or metadata."""


class CheckpointTuple(NamedTuple):
    """A checkpoint in the form that LangGraph programs read."""

    config: dict[str, Any]
    """The config that names the checkpoint."""
    checkpoint: dict[str, Any]
    """LangGraph's dict of the checkpoint."""
    metadata: dict[str, Any]
    """The metadata of the checkpoint."""
    parent_config: dict[str, Any] | None = None
    """The config that names the previous checkpoint, or None for the first."""
    pending_writes: Sequence[tuple[str, str, Any]] | None = None
    """The id of the task, the channel and the value of each pending write."""


class LangGraphMethods:
    """A mixin with the saver methods that LangGraph programs call.

    A subclass of a saver may override these methods, as LangGraph programs do. Runs
    then call them instead of `load`, `history` and `commit`.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> config = {"configurable": {"thread_id": "1"}}
        >>> saver.get_tuple(config).metadata["step"]
        0
        >>> [saved.metadata["step"] for saved in saver.list(config)]
        [0, -1]
        >>> sorted(saver.get(config))[:3]
        ['channel_values', 'channel_versions', 'id']
        >>> saver.put_writes(saver.get_tuple(config).config, [("note", "hi")], "task-1")
        >>> saver.get_tuple(config).pending_writes[-1]
        ('task-1', 'note', 'hi')
    """

    load: Callable[[Address], Saved | None]
    history: Callable[..., Iterator[Saved]]
    commit: Callable[[Sequence[Batch]], None]
    namespaces: Callable[..., Iterator[Address]]
    commits_at_once: ClassVar[bool]

    def get(self, config: Shape) -> dict[str, Any] | None:
        """Return, as LangGraph's dict, the checkpoint that *config* names."""
        saved = self.get_tuple(config)
        return None if saved is None else saved.checkpoint

    def get_tuple(self, config: Shape) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, or the newest checkpoint if
        *config* names only a thread.
        """
        saved = self.load(address_of(config))
        return None if saved is None else _tuple_of(saved)

    def list(
        self,
        config: Shape | None,
        *,
        filter: Any = None,
        before: Any = None,
        limit: Any = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first.

        Args:
            config: The config of a thread, or None to yield the checkpoints of all
                threads. Without a ``checkpoint_ns``, the checkpoints of all namespaces
                are yielded.
            filter: Yield only checkpoints whose metadata has these values.
            before: Yield only checkpoints with a smaller id than the checkpoint that
                this config names.
            limit: The greatest number of checkpoints to yield.
        """
        bound = checkpoint_id_of(before)
        histories = [
            self.history(address, filter=filter, before=bound, limit=limit)
            for address in self._listed(config)
        ]
        newest_first = merge(
            *histories, key=lambda saved: saved.checkpoint.id, reverse=True
        )
        if limit is not None:
            limit = max(limit, 0)
        for saved in islice(newest_first, limit):
            yield _tuple_of(saved)

    def put(
        self, config: Shape, checkpoint: Shape, metadata: Shape, new_versions: Shape
    ) -> Any:
        """Store *checkpoint* as a child of the checkpoint that *config* names.

        Only the values of the channels in *new_versions* are stored.

        Args:
            config: The config of the thread, with the ``checkpoint_id`` of the parent
                if there is one.
            checkpoint: LangGraph's dict of the checkpoint.
            metadata: The metadata, with ``source`` and ``step``.
            new_versions: The versions of the channels whose values are stored.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> checkpoint = {
            ...     "v": 4,
            ...     "id": "1f1e0000-0000-6000-8000-000000000001",
            ...     "ts": "2026-11-28T12:00:00+00:00",
            ...     "channel_values": {"names": ["ada"]},
            ...     "channel_versions": {"names": 1},
            ...     "versions_seen": {},
            ... }
            >>> config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
            >>> metadata = {"source": "input", "step": -1}
            >>> stored = saver.put(config, checkpoint, metadata, {"names": 1})
            >>> saver.get(stored)["channel_values"]
            {'names': ['ada']}

        Returns:
            The config that names the new checkpoint.
        """
        address = address_of(config)
        values = checkpoint["channel_values"]
        # A value whose version is not in the checkpoint could never be read, so it is
        # not stored.
        changed = tuple(
            name for name in new_versions if name in checkpoint["channel_versions"]
        )
        record = checkpoint_of(
            checkpoint,
            metadata,
            parent_id=address.checkpoint_id,
            values={name: values[name] for name in changed if name in values},
            changed=changed,
        )
        namespace = Address(address.thread_id, address.namespace)
        self.commit([Batch(address=namespace, checkpoint=record)])
        return langgraph_config(namespace, record.id)

    def put_writes(
        self,
        config: Shape,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's pending writes on the checkpoint that *config* names.

        A write is stored under its position in *writes*, and a later write at the same
        position is ignored. Writes to the channels of `WRITES_IDX_MAP` have fixed
        positions, and replace the older write.

        Args:
            config: The config of the checkpoint.
            writes: The name of the channel and the value of each write.
            task_id: The id of the task.
            task_path: The path of the task, by which the writes of tasks are ordered.

        Raises:
            ConfigurationError: *config* names no checkpoint.
        """
        address = address_of(config)
        if address.checkpoint_id is None:
            raise ConfigurationError(
                "pending writes belong to a checkpoint; pass its checkpoint_id in the "
                "config"
            )
        pairs = tuple((channel, value) for channel, value in writes)
        task = TaskWrites(address.checkpoint_id, task_id, task_path, pairs)
        namespace = Address(address.thread_id, address.namespace)
        self.commit([Batch(namespace, (task,))])

    def get_delta_channel_history(
        self,
        *,
        config: Shape,
        channels: Sequence[str],
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for each of *channels*, the writes from which the value at a
        checkpoint is rebuilt.

        The writes of other branches and the pending writes on the checkpoint are not
        included.

        Args:
            config: Names the checkpoint.
            channels: The names of the channels.

        Example:
            >>> from typing import Annotated, TypedDict
            >>> from flowpregel import InMemorySaver
            >>> from flowpregel.channels import DeltaChannel
            >>> from flowpregel.graph import START, StateGraph
            >>> def extend(log: list, writes: list) -> list:
            ...     return [*log, *(item for write in writes for item in write)]
            >>> channel = Annotated[list, DeltaChannel(extend)]
            >>> State = TypedDict("State", {"log": channel})
            >>> graph = StateGraph(State).add_node("add", lambda _: {"log": ["b"]})
            >>> saver = InMemorySaver()
            >>> app = graph.add_edge(START, "add").compile(saver, executor="inline")
            >>> app.invoke({"log": ["a"]}, thread_id="1")
            {'log': ['a', 'b']}
            >>> config = {"configurable": {"thread_id": "1"}}
            >>> history = saver.get_delta_channel_history(
            ...     config=config, channels=["log"]
            ... )
            >>> [value for _, _, value in history["log"]["writes"]]
            [['a'], ['b']]
        """
        saved = self.load(address_of(config)) if channels else None
        histories = walk_back(self.load, saved, channels)
        result = {}
        for name, history in histories.items():
            result[name] = in_langgraphs_form(name, history)
        return result

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        """Return a version of a channel after *current* that no other branch of the
        thread has.

        If *current* is None, return the first version.

        Args:
            current: The version of the channel, or None if it has no version.
            channel: Not used; LangGraph's programs pass None.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> version = saver.get_next_version(None)
            >>> version < saver.get_next_version(version)
            True
        """
        return version_after(current)

    @async_form(get)
    async def aget(self, *args: Any, **kwargs: Any) -> Any:
        """`get`, without blocking the event loop."""
        return await self._off_loop(self.get, *args, **kwargs)

    @async_form(get_tuple)
    async def aget_tuple(self, *args: Any, **kwargs: Any) -> Any:
        """`get_tuple`, without blocking the event loop."""
        return await self._off_loop(self.get_tuple, *args, **kwargs)

    @async_form(put)
    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        """`put`, without blocking the event loop."""
        return await self._off_loop(self.put, *args, **kwargs)

    @async_form(put_writes)
    async def aput_writes(self, *args: Any, **kwargs: Any) -> Any:
        """`put_writes`, without blocking the event loop."""
        return await self._off_loop(self.put_writes, *args, **kwargs)

    @async_form(get_delta_channel_history)
    async def aget_delta_channel_history(self, *args: Any, **kwargs: Any) -> Any:
        """`get_delta_channel_history`, without blocking the event loop."""
        return await self._off_loop(self.get_delta_channel_history, *args, **kwargs)

    async def alist(
        self, config: Any, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the same checkpoints as `list`, without blocking the event loop.

        Args:
            config: The config of a thread, or None, as `list` takes it.
            options: The keyword arguments of `list`.
        """
        for saved in await self._off_loop(self._all_listed, config, **options):
            yield saved

    def _all_listed(self, config: Any, **options: Any) -> Sequence[CheckpointTuple]:
        return [*self.list(config, **options)]

    async def _off_loop(
        self,
        method: Callable[Params, Value],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Value:
        """Call *method*, on another OS thread if it would block the event loop."""
        if self.commits_at_once:
            return method(*args, **kwargs)
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        return await asyncio.to_thread(method, *args, **kwargs)

    def _listed(self, config: Shape | None) -> Iterator[Address]:
        """Yield the addresses of the namespaces whose histories `list` merges."""
        if not config:
            yield from self.namespaces()
            return
        address = address_of(config)
        if (config.get("configurable") or {}).get("checkpoint_ns") is not None:
            yield address
            return
        for namespace in self.namespaces(address.thread_id):
            yield Address(
                namespace.thread_id, namespace.namespace, address.checkpoint_id
            )


_REQUIRED = ("get_tuple", "list", "put", "put_writes")


def _is_defined(
    owner: type,
    method: str,
) -> bool:
    """Return whether the class *owner* overrides the *method* of `LangGraphMethods`, or
    its async form.
    """
    for name in (method, f"a{method}"):
        present = getattr(owner, name, None)
        original = getattr(LangGraphMethods, name, None)
        if present is not original:
            return True
    return False


def has_langgraphs_methods(owner: type) -> bool:
    """Return whether the class *owner* has the methods of a saver that was written for
    LangGraph.
    """
    return all(_is_defined(owner, method) for method in _REQUIRED)


def is_overridden(saver: LangGraphMethods) -> bool:
    """Return whether the class of *saver* overrides one of the methods of
    `LangGraphMethods` that a run would call.

    Example:
        >>> from flowpregel import InMemorySaver
        >>> class Loud(InMemorySaver):
        ...     def get_tuple(self, config):
        ...         print("reading")
        ...         return super().get_tuple(config)
        >>> is_overridden(InMemorySaver()), is_overridden(Loud())
        (False, True)
    """
    attributes = getattr(saver, "__dict__", {})
    for method in _REQUIRED:
        if method in attributes or f"a{method}" in attributes:
            return True
        if _is_defined(type(saver), method):
            return True
    return False


def _tuple_of(saved: Saved) -> CheckpointTuple:
    checkpoint = saved.checkpoint
    address = saved.address
    parent_config = None
    if checkpoint.parent_id:
        parent_config = langgraph_config(address, checkpoint.parent_id)
    return CheckpointTuple(
        config=langgraph_config(address, checkpoint.id),
        checkpoint=dict_of(checkpoint),
        metadata=metadata_of(checkpoint),
        parent_config=parent_config,
        pending_writes=[
            (write.task_id, write.channel, write.value)
            for write in saved.writes
            # LangGraph would mistake a record of questions for a task's output, so it
            # is left out.
            if write.channel != ASKED
        ],
    )


# ---------------------------------------------------------------- LangGraph's dicts


def address_of(config: Mapping[str, Any]) -> Address:
    """Return the address that *config* names.

    Raises:
        ConfigurationError: *config* names no thread.

    Example:
        >>> address_of({"configurable": {"thread_id": "1"}})
        Address(thread_id='1', namespace='', checkpoint_id=None)
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


def langgraph_config(
    address: Address, checkpoint_id: str | None = None
) -> dict[str, Any]:
    """Return the config that names *address*.

    Args:
        address: The thread, the namespace and, optionally, the checkpoint.
        checkpoint_id: The id of a checkpoint that replaces the id in *address*.

    Example:
        >>> from flowpregel.checkpoint.base import Address
        >>> langgraph_config(Address("1"))
        {'configurable': {'thread_id': '1', 'checkpoint_ns': ''}}
    """
    named = checkpoint_id or address.checkpoint_id
    configurable = {"thread_id": address.thread_id, "checkpoint_ns": address.namespace}
    if named:
        configurable["checkpoint_id"] = named
    return {"configurable": configurable}


def checkpoint_id_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the checkpoint id in *config*, or None if it has none.

    Example:
        >>> checkpoint_id_of({"configurable": {"thread_id": "1", "checkpoint_id": "c"}})
        'c'
    """
    configurable = (config or {}).get("configurable") or {}
    return configurable.get("checkpoint_id") or None


def nanoseconds_of(text: str) -> int:
    """Return an ISO 8601 time in wall-clock nanoseconds.

    A time without a zone is a UTC time.
    """
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - _EPOCH) // _MICROSECOND * 1000


def version_after(current: Version | None) -> int:
    """Return a version after *current*.

    The version is the time in wall-clock nanoseconds, so that two branches of a thread
    do not give the same version to different values.

    Raises:
        ConfigurationError: *current* is a str, for which there is no next version.
    """
    if isinstance(current, str):
        raise ConfigurationError(
            f"version {current!r} is the text of another saver; continue with the "
            "saver that made it"
        )
    return max(time.time_ns(), int(current or 0) + 1)


def metadata_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata of *checkpoint* in LangGraph's shape.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.checkpoint.base import Address
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> metadata = metadata_of(saver.load(Address("1")).checkpoint)
        >>> metadata["source"], metadata["step"]
        ('loop', 0)
    """
    hidden = (_FORMAT_KEY, DURABILITY, DRAWING)
    items = {
        key: value for key, value in checkpoint.metadata.items() if key not in hidden
    }
    return {
        "parents": {},
        **items,
        "source": checkpoint.source,
        "step": checkpoint.step,
    }


def dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return *checkpoint* as LangGraph's dict.

    Channels that are stored as deltas have no value in the dict.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.checkpoint.base import Address
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> dict_of(saver.load(Address("1")).checkpoint)["v"]
        4
    """
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
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    parent_id: str | None,
    values: Mapping[str, Any],
    changed: tuple[str, ...] = (),
) -> Checkpoint:
    """Return LangGraph's checkpoint dict as a `Checkpoint` with these *values*.

    Args:
        checkpoint: The dict.
        metadata: LangGraph's metadata of the checkpoint.
        parent_id: The id of the parent checkpoint, or None.
        values: The values of the channels.
        changed: The channels whose version has changed since the parent.

    Example:
        >>> checkpoint = {
        ...     "v": 4,
        ...     "id": "1f1e0000-0000-6000-8000-000000000001",
        ...     "ts": "2026-11-28T12:00:00+00:00",
        ...     "channel_versions": {"names": 1},
        ... }
        >>> metadata = {"source": "input", "step": -1}
        >>> record = checkpoint_of(
        ...     checkpoint, metadata, parent_id=None, values={"names": ["ada"]}
        ... )
        >>> record.step, record.values
        (-1, {'names': ['ada']})
    """
    rest = {
        key: value for key, value in metadata.items() if key not in ("source", "step")
    }
    if checkpoint.get("v", FORMAT) != FORMAT:
        rest[_FORMAT_KEY] = checkpoint["v"]
    updated = checkpoint.get("updated_channels")
    if updated is not None:
        updated = tuple(updated)
    follows = NOTHING_DUE
    if has_due_tasks(checkpoint):
        follows = TASKS_DUE
    return Checkpoint(
        id=checkpoint["id"],
        parent_id=parent_id,
        at=nanoseconds_of(checkpoint["ts"]),
        step=metadata.get("step", -1),
        source=cast(Source, metadata.get("source", "loop")),
        channel_versions=dict(checkpoint.get("channel_versions") or {}),
        versions_seen=_copied(checkpoint.get("versions_seen") or {}),
        changed=changed,
        updated_channels=updated,
        values=values,
        metadata=rest,
        follows=follows,
    )


def has_due_tasks(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether LangGraph's checkpoint dict shows tasks that are due.

    This function cannot access the graph. So the triggers of nodes are inferred from
    the names that `StateGraph` gives to channels, and from the channel versions that
    each node had read when it last ran. In a `Pregel` that was built by hand, a due
    node that has never run is therefore not found.
    """
    values = checkpoint.get("channel_values") or {}
    versions = checkpoint.get("channel_versions") or {}
    if values.get(TASKS):
        return True
    if any(_is_trigger(name, value) for name, value in values.items()):
        return True
    for node, triggers in (checkpoint.get("versions_seen") or {}).items():
        # Keys that begin with "__" are skipped, because they are not nodes: their
        # values are the channel versions at the input and at breakpoints.
        if not node.startswith("__") and _has_news(triggers, values, versions):
            return True
    return False


def _has_news(
    triggers: Mapping[str, Version], values: Shape, versions: Mapping[str, Version]
) -> bool:
    """Return whether one of a node's *triggers* has a value that the node has not
    read.
    """
    for name, version in triggers.items():
        value = values.get(name)
        is_empty = isinstance(value, list | set) and not value
        if name not in values or name.startswith(_JOIN) or is_empty:
            continue
        if versions.get(name) != version:
            return True
    return False


def _is_trigger(name: str, value: Any) -> bool:
    """Return whether the channel *name*, which contains the name of a node, triggers
    this node.

    Args:
        name: The name of the channel.
        value: The value of the channel.
    """
    if name.startswith(_JOIN):
        # A join's channel triggers its node once all nodes that it waits for have
        # ended. The channel's name lists the nodes that it waits for, and its value
        # lists those that have ended.
        awaited, _, _ = name.removeprefix(_JOIN).rpartition(":")
        ended = value if isinstance(value, set | frozenset) else ()
        # The name of a node may contain a "+", so the names are split in both lists.
        ended_names = "+".join(map(str, ended)).split("+")
        awaited_names = awaited.split("+")
        return sorted(ended_names) == sorted(awaited_names)
    return name.startswith(_BRANCH)


def _copied(seen: Mapping[str, Mapping[str, Version]]) -> dict[str, dict[str, Version]]:
    return {node: dict(versions) for node, versions in seen.items()}
