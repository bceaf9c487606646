"""Our savers as LangGraph's: ``graph.compile(checkpointer=SaverAdapter(LMDBSaver(path)))``.

Importing this module imports LangGraph, which has to be installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from flowpregel.checkpoint.transactional import TransactionalSaver


class SaverAdapter(BaseCheckpointSaver[int]):
    """One of our savers as a LangGraph checkpointer.

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

    def __init__(self, saver: TransactionalSaver) -> None:
        super().__init__()
        self.saver = saver

    def get_next_version(self, current: int | None, channel: None) -> int:
        """Return a version after *current* that no other branch has."""
        return self.saver.get_next_version(current, channel)  # type: ignore[return-value]

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, the newest if it names none."""
        found = self.saver.get_tuple(config)
        return None if found is None else _theirs(found)

    def list(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first, of all threads together for None."""
        for found in self.saver.list(config, filter=filter, before=before, limit=limit):
            yield _theirs(found)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep *checkpoint* as a child of the one that *config* names."""
        full = get_checkpoint_metadata(config, metadata)
        return self.saver.put(config, checkpoint, full, new_versions)

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep pending writes of a task on the checkpoint that *config* names."""
        self.saver.put_writes(config, writes, task_id, task_path)

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

    # LangGraph looks for these on the class; each is our own async form.

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        """`get_tuple`, without blocking the event loop."""
        found = await self.saver.aget_tuple(config)
        return None if found is None else _theirs(found)

    async def alist(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        async for found in self.saver.alist(config, filter=filter, before=before, limit=limit):
            yield _theirs(found)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """`put`, without blocking the event loop."""
        full = get_checkpoint_metadata(config, metadata)
        return await self.saver.aput(config, checkpoint, full, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, without blocking the event loop."""
        await self.saver.aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, without blocking the event loop."""
        await self.saver.adelete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, without blocking the event loop."""
        await self.saver.adelete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, without blocking the event loop."""
        await self.saver.acopy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, without blocking the event loop."""
        await self.saver.aprune(thread_ids, strategy=strategy)  # type: ignore[arg-type]


def _theirs(found: Any) -> CheckpointTuple:
    """Return our tuple as LangGraph's: the same fields under another class."""
    return CheckpointTuple(*found)
