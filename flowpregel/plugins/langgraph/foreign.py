"""LangGraph's checkpointers as savers of flowpregel: ``as_saver(SqliteSaver(...))``.

This module imports LangGraph only when one of LangGraph's savers is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint import base
from flowpregel.checkpoint import langgraph_methods as shapes
from flowpregel.checkpoint.base import (
    Address,
    AttemptRecord,
    BaseCheckpointSaver,
    Batch,
    Checkpoint,
    PendingWrite,
    Saved,
    TaskWrites,
    Version,
    greatest_version,
    node_results_by_parents,
    split_writes_and_attempts,
)
from flowpregel.checkpoint.durable import EncodedBatch, encode_batch
from flowpregel.checkpoint.langgraph_methods import (
    COUNTERS,
    is_overridden,
    with_langgraphs_deltas,
)
from flowpregel.errors import ConfigurationError, ValueEncodingError
from flowpregel.plugins.langgraph.caches import ForeignCache, is_foreign_cache
from flowpregel.plugins.langgraph.conversion import from_foreign, to_foreign

_REQUIRED = ("get_tuple", "list", "put", "put_writes")


def as_saver(candidate: Any) -> BaseCheckpointSaver:
    """Return *candidate* as a saver that flowpregel can use.

    Args:
        candidate: A saver of flowpregel, which is returned unchanged, unless its class
            overrides methods of LangGraph's savers; or an object with the methods
            ``get_tuple``, ``list``, ``put`` and ``put_writes`` of a LangGraph saver.

    Raises:
        ConfigurationError: It is neither.

    Example:
        >>> from flowpregel.checkpoint.memory import InMemorySaver
        >>> type(as_saver(InMemorySaver())).__name__
        'InMemorySaver'
    """
    if isinstance(candidate, BaseCheckpointSaver) and not is_overridden(candidate):
        return candidate
    methods = {name: getattr(candidate, name, None) for name in _REQUIRED}
    missing = [name for name, method in methods.items() if not callable(method)]
    if missing:
        raise ConfigurationError(
            f"Invalid checkpointer {candidate!r}: give a saver, a path, True, False "
            f"or None (a LangGraph saver also has {', '.join(missing)})"
        )
    return ForeignSaver(candidate)


def adapt(candidate: Any) -> BaseCheckpointSaver | BaseCache | None:
    """Return a saver or a cache of flowpregel that uses one of LangGraph, or None if
    *candidate* is neither.

    Raises:
        ConfigurationError: *candidate* has some methods of a LangGraph saver, but not
            all of them.
    """
    if is_foreign_cache(candidate):
        return ForeignCache(candidate)
    if not any(callable(getattr(candidate, name, None)) for name in _REQUIRED):
        return None
    return as_saver(candidate)


class ForeignSaver(BaseCheckpointSaver):
    """A LangGraph saver as a saver of flowpregel.

    The saver's own serializer decides in which form values come back: LangGraph's turns
    a tuple into a list and an exception into a string. A `Send`, an `Interrupt` and an
    `Overwrite` are stored as LangGraph's, so that programs of LangGraph can read them,
    and come back as flowpregel's. There are no transactions: pending writes are stored
    before the checkpoint that consumes them.

    If a subclass of a saver overrides only the async form of a method, the async form
    is called.

    Args:
        saver: The saver to use, or one of flowpregel's whose class overrides methods
            that LangGraph's programs call; closing it is left to its owner.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> class PrintingSaver(InMemorySaver):
        ...     def put(self, config, checkpoint, metadata, new_versions):
        ...         print("step", metadata["step"])
        ...         return super().put(config, checkpoint, metadata, new_versions)
        >>> @entrypoint(checkpointer=ForeignSaver(PrintingSaver()))
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.invoke(4, thread_id="1", durability="sync")
        step -1
        step 0
        8
    """

    keeps_deltas: ClassVar[bool] = False
    owns_versions: ClassVar[bool] = True
    needs_loop: ClassVar[bool] = True

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        if isinstance(saver, BaseCheckpointSaver):
            self._convert: Callable[[Any], Any] = _unchanged
        else:
            self._convert = to_foreign
            # The import may take seconds, so it is done here, when the saver is
            # adapted. Otherwise the first `Send` of a run would be stored that much
            # later.
            with suppress(ImportError):
                import_module("langgraph.types")

    @property
    def _loop(self) -> Any:
        """The event loop on which an async saver runs, or None for a sync saver."""
        return getattr(self.saver, "loop", None)

    @property
    def is_on_its_loop(self) -> bool:
        """True if the caller runs on the event loop of an async saver."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _call(
        self,
        name: str,
        *args: Any,
    ) -> Any:
        """Call a method of the saver in its sync or async form, and return the
        result.
        """
        if self._is_async(name):
            coroutine = getattr(self.saver, f"a{name}")(*args)
            return _wait_for(coroutine, self._loop)
        return getattr(self.saver, name)(*args)

    def _is_async(self, name: str) -> bool:
        """Return whether to call the async form of a method.

        If both forms exist, the one that the most derived class defines is called.
        """
        namespaces: list[Any] = [getattr(self.saver, "__dict__", {})]
        namespaces.extend(map(vars, type(self.saver).__mro__))
        for attributes in namespaces:
            if name in attributes:
                return False
            if f"a{name}" in attributes:
                return True
        return False

    def _list(
        self,
        config: Any,
        **options: Any,
    ) -> list[Any]:
        """Return the checkpoints that the saver lists for *config*, as LangGraph's
        tuples.
        """
        items: list[Any]
        if self._is_async("list"):
            items = _wait_for(_all_of(self.saver.alist(config, **options)), self._loop)
            return items
        # The iterator is read to its end at once. Until then a saver may hold a lock
        # that its other methods need, and the iterator of an async saver can only be
        # closed on an event loop.
        return list(self.saver.list(config, **options))

    def lease(
        self,
        thread_id: str,
        namespace: str = "",
        *,
        on_conflict: base.OnConflict = "raise",
    ) -> AbstractContextManager[base.Lease]:
        if isinstance(self.saver, BaseCheckpointSaver):
            return self.saver.lease(
                thread_id,
                namespace,
                on_conflict=on_conflict,
            )
        return super().lease(
            thread_id,
            namespace,
            on_conflict=on_conflict,
        )

    def load(
        self,
        address: Address,
        *,
        before: str | None = None,
        lazy_results: bool = False,
    ) -> Saved | None:
        if before is not None:
            history = self.history(
                address,
                before=before,
                limit=1,
            )
            return next(history, None)
        item = self._call("get_tuple", shapes.langgraph_config(address))
        if item is None:
            return None
        newest = item
        if address.checkpoint_id is not None:
            newest = self._newest(address)
        saved = _saved_of(item, newest.checkpoint["id"])
        version = greatest_version(self._newest_first(newest))
        saved = replace(saved, newest_versions=version)
        return with_langgraphs_deltas(self._stored, saved)

    def _newest_first(self, item: Any) -> Iterator[Saved]:
        """Yield the checkpoint *item* and the checkpoints before it, each read only
        when it is needed.

        Args:
            item: LangGraph's tuple of the newest checkpoint.
        """
        while True:
            saved = _saved_of(item, None)
            yield saved
            address = saved.address
            thread = Address(address.thread_id, address.namespace)
            config = shapes.langgraph_config(thread)
            items = self._list(config, before=shapes.langgraph_config(address), limit=1)
            if not items:
                return
            item = items[0]

    def _stored(self, address: Address) -> Saved | None:
        """Return the checkpoint at *address* as the saver stores it. The values of
        delta channels that must be read from its ancestors are missing.
        """
        item = self._call("get_tuple", shapes.langgraph_config(address))
        return None if item is None else _saved_of(item, None)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        newest = self._newest(address)
        if newest is None:
            return
        newest_id = newest.checkpoint["id"]
        options: dict[str, Any] = {"filter": None, "before": None, "limit": limit}
        if filter is not None:
            options["filter"] = dict(filter)
        if before is not None:
            options["before"] = shapes.langgraph_config(address, before)
        for item in self._list(shapes.langgraph_config(address), **options):
            yield with_langgraphs_deltas(self._stored, _saved_of(item, newest_id))

    def prepare(self, batch: Batch) -> Batch:
        if isinstance(batch, EncodedBatch):
            return batch
        return encode_batch(batch, self._copy)

    def commit(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            for task_writes in batch.writes:
                self._put_writes(batch.address, task_writes)
            if batch.checkpoint is not None:
                self._put(batch.address, batch.checkpoint)

    def _put_writes(
        self,
        address: Address,
        task: TaskWrites,
    ) -> None:
        writes = []
        for channel, value in task.writes:
            if channel == base.SAVED:
                # The saver stores only one write for each position of a task, and the
                # position of a saved state is needed for the task's result. So a state
                # that a task saves is not stored.
                return
            # The saver has no position for the record of a task's questions. So this
            # record is not stored, and answers are matched to questions by their order.
            if channel != base.ASKED:
                writes.append((channel, self._convert(value)))
        ran = task.ran
        has_code = ran is not None and bool(ran.code or ran.used)
        if ran is not None and has_code and self._convert is to_foreign:
            # The record of the attempt (its time, place and cost) is stored as one more
            # write of the task, at a separate position, and comes back with the other
            # writes.
            writes.append((base.ATTEMPT, tuple(ran._replace(failed=()))))
        config = shapes.langgraph_config(address, task.checkpoint_id)
        self._call(
            "put_writes",
            config,
            writes,
            task.task_id,
            task.path,
        )

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        return node_results_by_parents(self.load, address)

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        config = None
        if thread_id is not None:
            config = {"configurable": {"thread_id": thread_id}}
        addresses = set()
        for item in self._list(config):
            address = shapes.address_of(item.config)
            addresses.add(Address(address.thread_id, address.namespace))
        yield from addresses

    def delete_thread(self, thread_id: str) -> None:
        self._call("delete_thread", thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.saver.delete_for_runs(run_ids)

    def copy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
    ) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: base.Strategy = "keep_latest",
    ) -> None:
        self.saver.prune(thread_ids, strategy=strategy)

    def get_next_version(
        self,
        current: Version | None,
        channel: Any = None,
    ) -> Version:
        version: Version = self.saver.get_next_version(current, channel)
        return version

    def _copy(
        self,
        value: Any,
        description: object,
    ) -> Any:
        """Return a copy of *value*, in the form in which the saver will return it."""
        value = self._convert(value)
        serializer = getattr(self.saver, "serde", None)
        try:
            if serializer is None:
                return deepcopy(value)
            return serializer.loads_typed(serializer.dumps_typed(value))
        except Exception as error:
            raise ValueEncodingError(
                f"{description} cannot be stored by {self.saver!r}: {error}"
            ) from error

    def _newest(self, address: Address) -> Any:
        """Return LangGraph's tuple of the newest checkpoint, or None."""
        newest = Address(address.thread_id, address.namespace)
        return self._call("get_tuple", shapes.langgraph_config(newest))

    def _put(
        self,
        address: Address,
        checkpoint: Checkpoint,
    ) -> None:
        parent = shapes.langgraph_config(address, checkpoint.parent_id)
        metadata = shapes.metadata_of(checkpoint)
        values = dict(checkpoint.values)
        versions = checkpoint.channel_versions
        unchanged = versions.keys() - set(checkpoint.changed)
        item = None
        if unchanged and checkpoint.parent_id is not None:
            item = self._call("get_tuple", parent)
        if item is not None:
            # The saver may store the values of all channels as one blob. So the values
            # that did not change are read from the parent checkpoint, and stored again.
            earlier = item.checkpoint["channel_values"]
            for name in unchanged & earlier.keys():
                values[name] = earlier[name]
            counters = _valid_counters(item, versions)
            if counters:
                metadata[COUNTERS] = counters
        shape = shapes.dict_of(checkpoint)
        shape["channel_values"] = {
            name: self._convert(value) for name, value in values.items()
        }
        self._call(
            "put",
            parent,
            shape,
            metadata,
            {name: versions[name] for name in checkpoint.changed},
        )


def _valid_counters(
    parent: Any,
    versions: Mapping[str, Version],
) -> dict[str, Any]:
    """Return those of LangGraph's counters of delta channels (`COUNTERS`) in a parent
    checkpoint that are valid for its child too.

    If a delta channel has the same version in both, its value may be stored in neither.
    A counter marks such a channel.

    Args:
        parent: LangGraph's tuple of the parent.
        versions: The versions of the child's channels.
    """
    earlier = parent.checkpoint["channel_versions"]
    counters = (parent.metadata or {}).get(COUNTERS) or {}
    return {
        name: counts
        for name, counts in counters.items()
        if name in versions and versions[name] == earlier.get(name)
    }


def _saved_of(
    item: Any,
    newest_id: str | None,
) -> Saved:
    """Return a checkpoint tuple of LangGraph as a `Saved` record.

    Args:
        item: LangGraph's tuple.
        newest_id: The id of the newest checkpoint of the thread and namespace.
    """
    address = shapes.address_of(item.config)
    values = item.checkpoint.get("channel_values") or {}
    checkpoint_id = item.checkpoint["id"]
    checkpoint = shapes.checkpoint_of(
        item.checkpoint,
        item.metadata or {},
        parent_id=shapes.checkpoint_id_of(item.parent_config),
        values={name: from_foreign(value) for name, value in values.items()},
    )
    pending_writes = []
    for task_id, channel, value in item.pending_writes or ():
        write = PendingWrite(
            task_id,
            channel,
            from_foreign(value),
        )
        pending_writes.append(("", write))
    writes, ran = split_writes_and_attempts(pending_writes)
    return Saved(
        address=Address(
            address.thread_id,
            address.namespace,
            checkpoint_id,
        ),
        checkpoint=checkpoint,
        writes=writes,
        ran=ran,
        is_latest=checkpoint_id == newest_id,
        newest_id=newest_id,
    )


def _wait_for(
    coroutine: Coroutine[Any, Any, Any],
    loop: Any,
) -> Any:
    """Wait for an async method of a saver, and return the result. This must not be
    called on the saver's own event loop.
    """
    if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_running():
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    return asyncio.run(coroutine)


async def _all_of(items: AsyncIterator[Any]) -> list[Any]:
    """Return all items of the async iterator *items* as a list."""
    return [item async for item in items]


def _unchanged(value: Any) -> Any:
    return value
