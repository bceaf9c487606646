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

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

from flowpregel._core.records import Address, Batch, DeltaHistory, Saved, Version
from flowpregel.checkpoint import convert

WRITES_IDX_MAP: dict[str, int] = {
    "__error__": -1,
    "__scheduled__": -2,
    "__interrupt__": -3,
    "__resume__": -4,
}
"""Where control writes are kept: one place each, so a newer one replaces the older."""

Config = dict[str, Any]
OnConflict = Literal["raise", "wait", "takeover"]


class CheckpointDict(TypedDict):
    """A checkpoint in LangGraph's shape."""

    v: int
    id: str
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, Version]
    versions_seen: dict[str, dict[str, Version]]
    updated_channels: list[str] | None


class CheckpointTuple(NamedTuple):
    """A checkpoint with what belongs to it, in LangGraph's shape."""

    config: Config
    checkpoint: CheckpointDict
    metadata: dict[str, Any]
    parent_config: Config | None = None
    pending_writes: list[tuple[str, str, Any]] | None = None


class Lease:
    """The right to write a thread's namespace; *fence* goes with every batch."""

    __slots__ = ("fence",)

    def __init__(self, fence: int | None = None) -> None:
        self.fence = fence


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

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints whose metadata has one of these ``run_id``."""
        raise self._not_offered("delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to another, under the same checkpoint ids."""
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

    def close(self) -> None:
        """Release what the saver holds; may be called again."""

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

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        """Yield the checkpoints of one thread and namespace, newest first."""
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

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """`get_tuple`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        found = await asyncio.to_thread(
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
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, without blocking the event loop."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, without blocking the event loop."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, without blocking the event loop."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, without blocking the event loop."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] = "keep_latest",
    ) -> None:
        """`prune`, without blocking the event loop."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)


class TransactionalSaver(BaseCheckpointSaver):
    """A saver whose own form is `load`, `history` and `commit`, in one transaction each."""

    keeps_deltas: ClassVar[bool] = True
    owns_versions: ClassVar[bool] = False

    @abstractmethod
    def load(self, address: Address, *, before: str | None = None) -> Saved | None: ...

    @abstractmethod
    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]: ...

    @abstractmethod
    def commit(self, batches: Sequence[Batch]) -> None: ...

    @abstractmethod
    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        """Yield every (thread, namespace) that has a checkpoint, or those of one thread."""

    # `get_tuple`, `list`, `put`, `put_writes` and `get_delta_channel_history`
    # are given here in terms of the above, with the functions of `convert`.
