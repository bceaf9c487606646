"""What LangGraph's programs call on a saver: `get_tuple`, `list`, `put`, `put_writes`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from heapq import merge
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeAlias

from flowpregel._core.records import Address, Batch, Saved, TaskWrites, Version
from flowpregel.checkpoint import convert
from flowpregel.errors import ConfigurationError

Shape: TypeAlias = Mapping[str, Any]
"""One of LangGraph's dicts: a config, a checkpoint, metadata."""


class CheckpointTuple(NamedTuple):
    """A checkpoint as LangGraph's programs read it."""

    config: dict[str, Any]
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    parent_config: dict[str, Any] | None = None
    pending_writes: Sequence[tuple[str, str, Any]] | None = None


def async_form(method: Callable[..., Any]) -> Any:
    """Return *method* of a saver as a coroutine function that does not block the event loop."""

    @wraps(method, updated=())  # an abstract method has an async form that is none
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # By its name: a subclass may have a method of its own.
        done = partial(getattr(self, method.__name__), *args, **kwargs)
        if self.commits_at_once:
            return done()
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        return await asyncio.to_thread(done)

    return call


class LangGraphMethods:
    """Gives a saver the methods that LangGraph's programs call, on top of its own.

    A subclass of a saver may override them, as such programs do: runs then call these
    instead of `load`, `history` and `commit`.
    """

    load: Any
    history: Any
    commit: Any
    namespaces: Any
    commits_at_once: ClassVar[bool]

    def get(self, config: Shape) -> dict[str, Any] | None:
        """Return LangGraph's dict of the checkpoint that *config* names."""
        found = self.get_tuple(config)
        return None if found is None else found.checkpoint

    def get_tuple(self, config: Shape) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, the newest if it names none."""
        saved = self.load(convert.address_of(config))
        return None if saved is None else _tuple_of(saved)

    def list(
        self, config: Shape | None, *, filter: Any = None, before: Any = None, limit: Any = None
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first.

        Args:
            config: Whose; None is every thread's; without a ``checkpoint_ns``
                those of every namespace.
            filter: Only those whose metadata has these values.
            before: Only those with a smaller id than this config's.
            limit: At most this many.
        """
        bound = convert.checkpoint_id_of(before)
        histories = [
            self.history(address, filter=filter, before=bound, limit=limit)
            for address in self._listed(config)
        ]
        newest_first = merge(*histories, key=lambda saved: saved.checkpoint.id, reverse=True)
        for saved in islice(newest_first, None if limit is None else max(limit, 0)):
            yield _tuple_of(saved)

    def put(self, config: Shape, checkpoint: Shape, metadata: Shape, new_versions: Shape) -> Any:
        """Keep *checkpoint* as a child of the one that *config* names.

        Only the values of the channels in *new_versions* are kept again.
        Returns the config that names the new checkpoint.
        """
        address = convert.address_of(config)
        values = checkpoint["channel_values"]
        # A version that the checkpoint does not name can never be read.
        changed = tuple(name for name in new_versions if name in checkpoint["channel_versions"])
        record = convert.checkpoint_of(
            checkpoint,
            metadata,
            parent_id=address.checkpoint_id,
            values={name: values[name] for name in changed if name in values},
            changed=changed,
        )
        place = Address(address.thread_id, address.namespace)
        self.commit([Batch(address=place, checkpoint=record)])
        return convert.config_of(place, record.id)

    def put_writes(
        self, config: Shape, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep pending writes of a task on the checkpoint that *config* names.

        A write is kept under its position, and a second one there is ignored;
        those of `WRITES_IDX_MAP` have places of their own and replace.
        """
        address = convert.address_of(config)
        if address.checkpoint_id is None:
            raise ConfigurationError(
                "pending writes belong to a checkpoint; pass its checkpoint_id in the config"
            )
        pairs = tuple((channel, value) for channel, value in writes)
        kept = TaskWrites(address.checkpoint_id, task_id, task_path, pairs)
        self.commit([Batch(Address(address.thread_id, address.namespace), (kept,))])

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        """Return a version after *current* (None: the first) that no other branch has."""
        return convert.next_version(current)

    aget = async_form(get)
    aget_tuple = async_form(get_tuple)
    aput = async_form(put)
    aput_writes = async_form(put_writes)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        for found in await self._alisted(config, **options):
            yield found

    def _all_listed(self, config: Any, **options: Any) -> Sequence[CheckpointTuple]:
        return [*self.list(config, **options)]

    _alisted = async_form(_all_listed)

    def _listed(self, config: Shape | None) -> Iterator[Address]:
        """Yield the addresses whose histories `list` merges."""
        if not config:
            yield from self.namespaces()
            return
        address = convert.address_of(config)
        if (config.get("configurable") or {}).get("checkpoint_ns") is not None:
            yield address
            return
        for each in self.namespaces(address.thread_id):
            yield Address(each.thread_id, each.namespace, address.checkpoint_id)


_METHODS = ("get_tuple", "list", "put", "put_writes", "aget_tuple", "alist", "aput", "aput_writes")


def is_overridden(saver: LangGraphMethods) -> bool:
    """Return whether the class of *saver* has methods of `LangGraphMethods` of its own."""
    return any(
        getattr(type(saver), name) is not getattr(LangGraphMethods, name) for name in _METHODS
    )


def _tuple_of(saved: Saved) -> CheckpointTuple:
    checkpoint, address = saved.checkpoint, saved.address
    parent = checkpoint.parent_id
    return CheckpointTuple(
        config=convert.config_of(address, checkpoint.id),
        checkpoint=convert.dict_of(checkpoint),
        metadata=convert.metadata_of(checkpoint),
        parent_config=convert.config_of(address, parent) if parent else None,
        pending_writes=[(write.task_id, write.channel, write.value) for write in saved.writes],
    )
