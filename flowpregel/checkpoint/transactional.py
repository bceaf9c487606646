"""Savers that commit in transactions: ours, `InMemorySaver` and `LMDBSaver`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, ClassVar

from flowpregel._core.records import Address, Batch, DeltaHistory, Saved, Version
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint import convert
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.shapes import (
    CheckpointDict,
    CheckpointTuple,
    Config,
)

__all__ = ["TransactionalSaver"]


class TransactionalSaver(BaseCheckpointSaver):
    """A saver whose own form is `load`, `history` and `commit`, in one transaction each.

    A subclass gives those, `namespaces`, and what it offers of the rest.
    """

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

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        saved = self.load(convert.address_of(config))
        return None if saved is None else convert.tuple_of(saved)

    def list(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        bound = convert.id_of(before)
        histories = [
            self.history(address, filter=filter, before=bound, limit=limit)
            for address in self._listed(config)
        ]
        newest_first = merge(*histories, key=lambda saved: saved.checkpoint.id, reverse=True)
        for saved in islice(newest_first, None if limit is None else max(limit, 0)):
            yield convert.tuple_of(saved)

    def put(
        self,
        config: Config,
        checkpoint: CheckpointDict,
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Version],
    ) -> Config:
        batch = convert.batch_of_put(config, checkpoint, metadata, new_versions)
        self.commit([batch])
        address = batch.address
        return convert.config_of(Address(address.thread_id, address.namespace, checkpoint["id"]))

    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.commit([convert.batch_of_writes(config, writes, task_id, task_path)])

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaHistory]:
        saved = self.load(convert.address_of(config))
        if saved is None:
            return {}
        values = saved.checkpoint.values
        return {
            name: saved.deltas.get(name) or DeltaHistory(values.get(name, MISSING), ())
            for name in channels
        }

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        """Return a version after *current* that no other branch of the thread has."""
        return convert.next_version(current)

    def _listed(self, config: Config | None) -> Iterator[Address]:
        """Yield what `list` looks at for *config*."""
        if not config:
            yield from self.namespaces()
            return
        address = convert.address_of(config)
        if (config.get("configurable") or {}).get("checkpoint_ns") is not None:
            yield address
            return
        for each in self.namespaces(address.thread_id):
            yield Address(each.thread_id, each.namespace, address.checkpoint_id)
