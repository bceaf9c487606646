"""The contract of a saver, in two forms.

The *transactional* form is what the engine uses, in our own records: `load`,
`history` and `commit`. The *classic* form has LangGraph's shapes: `get_tuple`,
`list`, `put`, `put_writes`. Each can be given in terms of the other:

* `BaseCheckpointSaver` has the transactional form in terms of the classic one,
  so that a saver written for LangGraph's interface works.
* `TransactionalSaver` has the classic form in terms of the transactional one;
  `InMemorySaver` and `LMDBSaver` derive from it.

The ``a...`` methods are given once, here: each runs its sync form in an OS thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, Self, TypeVar

from flowpregel._core.records import Address, Batch, DeltaHistory, Saved, Version
from flowpregel.checkpoint import convert
from flowpregel.checkpoint.shapes import (
    WRITES_IDX_MAP,
    CheckpointDict,
    CheckpointTuple,
    Config,
    Lease,
    OnConflict,
)

__all__ = [
    "WRITES_IDX_MAP",
    "BaseCheckpointSaver",
    "CheckpointDict",
    "CheckpointTuple",
    "Config",
    "Lease",
    "OnConflict",
]

Result = TypeVar("Result")


class BaseCheckpointSaver(ABC):
    """Keeps the checkpoints and pending writes of threads.

    A subclass gives the five classic methods; a `TransactionalSaver` the three
    of the transactional form instead.
    """

    keeps_deltas: ClassVar[bool] = False
    """Whether `commit` keeps deltas; where not, the engine gives full values."""
    commits_at_once: ClassVar[bool] = False
    """Whether a commit costs less than handing it to a writer's OS thread."""
    owns_versions: ClassVar[bool] = True
    """Whether versions come from `get_next_version` rather than from the engine."""

    # -------------------------------------------------------- classic, to be given

    @abstractmethod
    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, the newest if it names none."""

    @abstractmethod
    def list(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
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

    @abstractmethod
    def put(
        self,
        config: Config,
        checkpoint: CheckpointDict,
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Version],
    ) -> Config:
        """Keep *checkpoint* as a child of the one that *config* names.

        Only the values of the channels in *new_versions* are kept again.
        Returns the config that names the new checkpoint.
        """

    @abstractmethod
    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep pending writes of a task on the checkpoint that *config* names.

        A write is kept under its position, and a second one there is ignored;
        those of `WRITES_IDX_MAP` have places of their own and replace.
        """

    @abstractmethod
    def delete_thread(self, thread_id: str) -> None:
        """Forget everything of a thread, in every namespace."""

    # -------------------------------------------------------- classic, optional

    def get(self, config: Config) -> CheckpointDict | None:
        """Return just the checkpoint of `get_tuple`."""
        found = self.get_tuple(config)
        return None if found is None else found.checkpoint

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints whose metadata has one of these ``run_id``."""
        raise self._not_offered("delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to another, under the same checkpoint ids.

        Copying a thread that has nothing does nothing.

        Raises:
            ConfigurationError: The target has something already.
        """
        raise self._not_offered("copy_thread")

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] = "keep_latest",
    ) -> None:
        """Forget history: all but the newest checkpoint of each namespace, or all.

        What is kept reads as it did before.
        """
        raise self._not_offered("prune")

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaHistory]:
        """Return how to rebuild each of *channels* at the checkpoint of *config*."""
        return {}

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        """Return the version after *current* (None: the first)."""
        if isinstance(current, str):
            raise self._not_offered("get_next_version for text versions")
        return int(current or 0) + 1

    def close(self) -> None:  # noqa: B027 - most savers hold nothing to release
        """Release what the saver holds; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _not_offered(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not offer {what}")

    # -------------------------------------------------------- transactional

    def load(self, address: Address, *, before: str | None = None) -> Saved | None:
        """Return the checkpoint at *address*: the newest, if it names none.

        Args:
            address: Thread, namespace and perhaps checkpoint.
            before: Only a checkpoint with a smaller id than this.
        """
        return convert.load(self, address, before)

    def load_for_run(self, address: Address, *, before: str | None = None) -> Saved | None:
        """Return what `load` does, for a run that is to go on from it.

        A saver may leave results of calls that finished where they are, and give
        the run the means to read each when the call is replayed (`Saved.left`).
        """
        return self.load(address, before=before)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        """Yield the checkpoints of one thread and namespace, newest first.

        Args:
            address: Whose; with a ``checkpoint_id`` just that one.
            filter: Only those whose metadata, in the classic form, has these values.
            before: Only those with a smaller id than this.
            limit: At most this many.
        """
        return convert.history(self, address, filter, before, limit)

    def commit(self, batches: Sequence[Batch]) -> None:
        """Keep all of *batches*, in order, in one transaction.

        Savers of the classic form have no transaction; pending writes are put
        before the checkpoint that consumes them.
        """
        for batch in batches:
            convert.put_batch(self, batch)

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write a thread's namespace while the context is open.

        Raises:
            ThreadBusyError: Another run holds it, and *on_conflict* is ``"raise"``.
        """
        return nullcontext(Lease())

    # -------------------------------------------------------- async forms

    async def _off_loop(self, function: Callable[[], Result]) -> Result:
        """Run *function* where it does not block the event loop."""
        if self.commits_at_once:
            return function()
        import asyncio  # noqa: PLC0415 - 44 ms, for those who have it anyway

        return await asyncio.to_thread(function)

    async def aget(self, config: Config) -> CheckpointDict | None:
        """`get`, without blocking the event loop."""
        return await self._off_loop(lambda: self.get(config))

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """`get_tuple`, without blocking the event loop."""
        return await self._off_loop(lambda: self.get_tuple(config))

    async def alist(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        found = await self._off_loop(
            lambda: [*self.list(config, filter=filter, before=before, limit=limit)]
        )
        for item in found:
            yield item

    async def aput(
        self,
        config: Config,
        checkpoint: CheckpointDict,
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Version],
    ) -> Config:
        """`put`, without blocking the event loop."""
        return await self._off_loop(lambda: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, without blocking the event loop."""
        await self._off_loop(lambda: self.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, without blocking the event loop."""
        await self._off_loop(lambda: self.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, without blocking the event loop."""
        await self._off_loop(lambda: self.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, without blocking the event loop."""
        await self._off_loop(lambda: self.copy_thread(source_thread_id, target_thread_id))

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] = "keep_latest",
    ) -> None:
        """`prune`, without blocking the event loop."""
        await self._off_loop(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaHistory]:
        """`get_delta_channel_history`, without blocking the event loop."""
        return await self._off_loop(
            lambda: self.get_delta_channel_history(config=config, channels=channels)
        )
