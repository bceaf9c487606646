"""Our savers as LangGraph's: ``graph.compile(checkpointer=SaverAdapter(LMDBSaver(path)))``.

Importing this module imports LangGraph, which has to be installed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_metadata

from flowpregel.checkpoint import convert, lmdb
from flowpregel.checkpoint.base import BaseCheckpointSaver as OurSaver
from flowpregel.checkpoint.langgraph_methods import async_form


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

    @property
    def commits_at_once(self) -> bool:
        """Whether a commit costs less than handing it to another OS thread."""
        return self.saver.commits_at_once

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, the newest if it names none."""
        found = self.saver.get_tuple(config)
        return None if found is None else CheckpointTuple(*found)  # type: ignore[arg-type]

    def list(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first, as `LangGraphMethods.list` does."""
        for found in self.saver.list(config, filter=filter, before=before, limit=limit):
            yield CheckpointTuple(*found)  # type: ignore[arg-type]

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep *checkpoint* as a child of the one that *config* names."""
        metadata = get_checkpoint_metadata(config, metadata)
        return self.saver.put(config, checkpoint, metadata, new_versions)

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

    # LangGraph looks for these on the class.

    aget_tuple = async_form(get_tuple)
    aput = async_form(put)
    aput_writes = async_form(put_writes)
    adelete_thread = async_form(delete_thread)
    adelete_for_runs = async_form(delete_for_runs)
    acopy_thread = async_form(copy_thread)
    aprune = async_form(prune)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        async for found in self.saver.alist(config, **options):
            yield CheckpointTuple(*found)  # type: ignore[arg-type]


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
