"""Savers of flowpregel as LangGraph's checkpointers.

Write ``graph.compile(checkpointer=SaverAdapter(LMDBSaver(path)))``. This module imports
LangGraph, which has to be installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver, get_checkpoint_metadata

from flowpregel.checkpoint.base import Address, Batch, Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver as OurSaver
from flowpregel.checkpoint.langgraph_methods import (
    LangGraphMethods,
    async_form,
)


class SaverAdapter(LangGraphMethods, BaseCheckpointSaver[int]):  # type: ignore[misc]
    """A saver of flowpregel as a LangGraph checkpointer.

    Values keep their exact types: they are pickled, not turned into JSON or
    msgpack. A `langgraph.channels.DeltaChannel` is rebuilt from its checkpoint's
    ancestors, in LangGraph's way; `prune` and `delete_for_runs` can delete those
    ancestors. (flowpregel's own DeltaChannel does not depend on ancestors.)

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
        self.load: Callable[[Address], Saved | None] = saver.load
        self.history: Callable[..., Iterator[Saved]] = saver.history
        self.commit: Callable[[Sequence[Batch]], None] = saver.commit
        self.namespaces: Callable[..., Iterator[Address]] = saver.namespaces

    @property
    def commits_at_once(self) -> bool:  # type: ignore[override]
        """True if a commit takes less time than passing it to another OS thread."""
        return self.saver.commits_at_once

    def put(
        self,
        config: Any,
        checkpoint: Any,
        metadata: Any,
        new_versions: Any,
    ) -> Any:
        """Store *checkpoint* as a child of the checkpoint that *config* addresses."""
        metadata = get_checkpoint_metadata(config, metadata)
        return super().put(
            config,
            checkpoint,
            metadata,
            new_versions,
        )

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces.

        Args:
            thread_id: The id of the thread.
        """
        self.saver.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made.

        Args:
            run_ids: The ids of the runs.
        """
        self.saver.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces to a new one.

        Args:
            source_thread_id: The thread to copy.
            target_thread_id: The thread that gets the copies.
        """
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
    ) -> None:
        """Delete checkpoints of threads.

        Args:
            thread_ids: The threads.
            strategy: ``"keep_latest"`` deletes all but the newest checkpoint of each
                namespace, ``"delete"`` deletes the threads.
        """
        self.saver.prune(thread_ids, strategy=strategy)  # type: ignore[arg-type]

    # LangGraph looks the async methods up in the class, not in the instance, so they
    # are defined in the class.

    @async_form(delete_thread)
    async def adelete_thread(self, *args: Any, **kwargs: Any) -> Any:
        """`delete_thread`, without blocking the event loop."""
        return await self._off_loop(self.delete_thread, *args, **kwargs)

    @async_form(delete_for_runs)
    async def adelete_for_runs(self, *args: Any, **kwargs: Any) -> Any:
        """`delete_for_runs`, without blocking the event loop."""
        return await self._off_loop(self.delete_for_runs, *args, **kwargs)

    @async_form(copy_thread)
    async def acopy_thread(self, *args: Any, **kwargs: Any) -> Any:
        """`copy_thread`, without blocking the event loop."""
        return await self._off_loop(self.copy_thread, *args, **kwargs)

    @async_form(prune)
    async def aprune(self, *args: Any, **kwargs: Any) -> Any:
        """`prune`, without blocking the event loop."""
        return await self._off_loop(self.prune, *args, **kwargs)


class LMDBSaverAdapter(SaverAdapter):
    """A LangGraph checkpointer that keeps checkpoints in a folder on disk.

    Args:
        path: The folder; it is created if it does not exist.
        **settings: Options of `flowpregel.checkpoint.lmdb.LMDBSaver`.

    Raises:
        StoreError: The folder cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> config = {"configurable": {"thread_id": "unknown"}}
        >>> with TemporaryDirectory() as folder:
        ...     with LMDBSaver(folder + "/runs.lmdb") as saver:
        ...         saver.get_tuple(config) is None
        True
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        from flowpregel.checkpoint.lmdb import (  # noqa: PLC0415 - needs lmdb
            LMDBSaver,
        )

        super().__init__(LMDBSaver(path, **settings))

    def close(self) -> None:
        """Close the store. It is safe to call this more than once."""
        self.saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


LMDBSaver = LMDBSaverAdapter
