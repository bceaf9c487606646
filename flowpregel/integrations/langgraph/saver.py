"""Our savers as LangGraph's: ``graph.compile(checkpointer=SaverAdapter(LMDBSaver(path)))``.

Importing this module imports LangGraph, which has to be installed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from heapq import merge
from itertools import islice
from typing import Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_metadata

from flowpregel._core.records import Address, Batch, Saved, TaskWrites
from flowpregel.checkpoint import lmdb
from flowpregel.checkpoint.base import BaseCheckpointSaver as OurSaver
from flowpregel.errors import ConfigurationError
from flowpregel.integrations.langgraph import convert


def _async_form(method: Callable[..., Any]) -> Any:
    """Return *method* as a coroutine function that does not block the event loop."""

    @wraps(method)
    async def call(self: SaverAdapter, *args: Any, **kwargs: Any) -> Any:
        done = partial(method, self, *args, **kwargs)
        return done() if self.saver.commits_at_once else await asyncio.to_thread(done)

    return call


class SaverAdapter(BaseCheckpointSaver[int]):
    """One of our savers as a LangGraph checkpointer, for its programs or to look into one.

    Values keep their exact types: they are pickled, not turned into JSON or
    msgpack. A `langgraph.channels.DeltaChannel` is rebuilt from its checkpoint's
    ancestors, as LangGraph does it; `prune` and `delete_for_runs` can take those
    away. (flowpregel's own DeltaChannel does not depend on ancestors.)

    Args:
        saver: The saver to use; closing it is left to its owner.

    Example:
        >>> from flowpregel.checkpoint.memory import InMemorySaver
        >>> adapter = SaverAdapter(InMemorySaver())
        >>> adapter.get_tuple({"configurable": {"thread_id": "unknown"}}) is None
        True
    """

    def __init__(self, saver: OurSaver) -> None:
        super().__init__()
        self.saver = saver

    def get_next_version(self, current: int | None, channel: None) -> int:
        """Return a version after *current* that no other branch of the thread has."""
        return convert.next_version(current)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, the newest if it names none."""
        saved = self.saver.load(convert.address_of(config))
        return None if saved is None else _tuple_of(saved)

    def list(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
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
            self.saver.history(address, filter=filter, before=bound, limit=limit)
            for address in self._listed(config)
        ]
        newest_first = merge(*histories, key=lambda saved: saved.checkpoint.id, reverse=True)
        for saved in islice(newest_first, None if limit is None else max(limit, 0)):
            yield _tuple_of(saved)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
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
            get_checkpoint_metadata(config, metadata),
            parent_id=address.checkpoint_id,
            values={name: values[name] for name in changed if name in values},
            changed=changed,
        )
        place = Address(address.thread_id, address.namespace)
        self.saver.commit([Batch(address=place, checkpoint=record)])
        return convert.config_of(place, record.id)

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
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
        self.saver.commit([Batch(Address(address.thread_id, address.namespace), (kept,))])

    def delete_thread(self, thread_id: str) -> None:
        """Forget everything of a thread, in every namespace."""
        self.saver.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints that these runs made."""
        self.saver.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to a new one."""
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Forget all but the newest checkpoint of each namespace, or all."""
        self.saver.prune(thread_ids, strategy=strategy)  # type: ignore[arg-type]

    # LangGraph looks for these on the class.

    aget_tuple = _async_form(get_tuple)
    aput = _async_form(put)
    aput_writes = _async_form(put_writes)
    adelete_thread = _async_form(delete_thread)
    adelete_for_runs = _async_form(delete_for_runs)
    acopy_thread = _async_form(copy_thread)
    aprune = _async_form(prune)
    _alisted = _async_form(lambda self, *args, **options: [*self.list(*args, **options)])

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        for found in await self._alisted(config, **options):
            yield found

    def _listed(self, config: Any) -> Iterator[Address]:
        """Yield the addresses whose histories `list` merges."""
        if not config:
            yield from self.saver.namespaces()
            return
        address = convert.address_of(config)
        if (config.get("configurable") or {}).get("checkpoint_ns") is not None:
            yield address
            return
        for each in self.saver.namespaces(address.thread_id):
            yield Address(each.thread_id, each.namespace, address.checkpoint_id)


class LMDBSaverAdapter(SaverAdapter):
    """Keeps the checkpoints of LangGraph's graphs in a folder on disk.

    Args:
        path: The folder; made if it is not there.
        **settings: What `flowpregel.checkpoint.lmdb.LMDBSaver` takes.

    Raises:
        StoreError: It cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder + "/runs.lmdb") as saver:
        ...     saver.get_tuple({"configurable": {"thread_id": "unknown"}}) is None
        True
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        super().__init__(lmdb.LMDBSaver(path, **settings))

    def close(self) -> None:
        """Close the store; may be called again."""
        self.saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


LMDBSaver = LMDBSaverAdapter


def _tuple_of(saved: Saved) -> CheckpointTuple:
    """Return *saved* in LangGraph's shape."""
    checkpoint, address = saved.checkpoint, saved.address
    parent = checkpoint.parent_id
    return CheckpointTuple(
        config=convert.config_of(address, checkpoint.id),  # type: ignore[arg-type]
        checkpoint=convert.dict_of(checkpoint),  # type: ignore[arg-type]
        metadata=convert.metadata_of(checkpoint),  # type: ignore[arg-type]
        parent_config=convert.config_of(address, parent) if parent else None,  # type: ignore[arg-type]
        pending_writes=[(write.task_id, write.channel, write.value) for write in saved.writes],
    )
