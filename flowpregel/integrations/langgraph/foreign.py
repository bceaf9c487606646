"""LangGraph's checkpointers as our savers: ``as_saver(SqliteSaver(...))``.

Nothing here imports LangGraph before one of its savers is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from itertools import repeat
from typing import Any, ClassVar

from flowpregel._core import records
from flowpregel._core.commands import Interrupt, Send
from flowpregel._core.ids import Ran
from flowpregel._core.records import (
    UNKNOWN_CODE,
    Address,
    Batch,
    Checkpoint,
    MadeBy,
    PendingWrite,
    Saved,
    Version,
    parted,
)
from flowpregel.channels.folding import Overwrite
from flowpregel.checkpoint import base
from flowpregel.checkpoint import langgraph_methods as shapes
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.langgraph_methods import is_overridden
from flowpregel.checkpoint.records import EncodedBatch, encode_batch
from flowpregel.errors import ConfigurationError, ValueEncodingError
from flowpregel.policies import TimeoutPolicy

_REQUIRED = ("get_tuple", "list", "put", "put_writes")


def as_saver(candidate: Any) -> BaseCheckpointSaver:
    """Return *candidate* as a saver that flowpregel can use.

    Args:
        candidate: One of our savers, which is returned as it is, unless its class has
            methods of LangGraph's savers of its own, or an object with the methods
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
    missing = [
        name for name in _REQUIRED if not callable(getattr(candidate, name, None))
    ]
    if missing:
        raise ConfigurationError(
            f"Invalid checkpointer {candidate!r}: give a saver, a path, True, False or "
            "None "
            f"(a LangGraph saver has {', '.join(missing)} too)"
        )
    return ForeignSaver(candidate)


class ForeignSaver(BaseCheckpointSaver):
    """A LangGraph saver as ours.

    It keeps what its own serializer keeps: LangGraph's turns a tuple into a list and
    an exception into a text. A `Send`, an `Interrupt` and an `Overwrite` are kept as
    LangGraph's, so that its programs can read them, and come back as ours. It has no
    transaction: pending writes are put before the checkpoint that consumes them.

    Where a subclass of a saver overrides the async form of a method alone, that is
    called.

    Args:
        saver: The saver to use, or one of ours whose class overrides what LangGraph's
            programs call; closing it is left to its owner.
    """

    keeps_deltas: ClassVar[bool] = False
    owns_versions: ClassVar[bool] = True
    needs_loop: ClassVar[bool] = True

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self._given = _same if isinstance(saver, BaseCheckpointSaver) else _to_foreign
        if self._given is _to_foreign:
            # Now: it may take seconds, for which the first Send of a run would wait to
            # be kept.
            with suppress(ImportError):
                import_module("langgraph.types")

    @property
    def _loop(self) -> Any:
        """The event loop that calls of an async saver wait for; None: they wait for
        none.
        """
        return getattr(self.saver, "loop", None)

    @property
    def is_on_its_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _call(self, name: str, *args: Any) -> Any:
        for owner in type(self.saver).__mro__:
            if name in vars(owner):
                break
            if f"a{name}" in vars(owner):
                return _awaited(getattr(self.saver, f"a{name}")(*args), self._loop)
        return getattr(self.saver, name)(*args)

    def lease(
        self,
        thread_id: str,
        namespace: str = "",
        *,
        on_conflict: base.OnConflict = "raise",
    ) -> AbstractContextManager[base.Lease]:
        if isinstance(self.saver, BaseCheckpointSaver):
            return self.saver.lease(thread_id, namespace, on_conflict=on_conflict)
        return super().lease(thread_id, namespace, on_conflict=on_conflict)

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        if before is not None:
            return next(self.history(address, before=before, limit=1), None)
        found = self._call("get_tuple", shapes.config_of(address))
        if found is None:
            return None
        newest = (
            found.checkpoint["id"]
            if address.checkpoint_id is None
            else self._newest(address)
        )
        return _saved_of(found, newest)

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
        found = self.saver.list(
            shapes.config_of(address),
            filter=None if filter is None else dict(filter),
            before=None if before is None else shapes.config_of(address, before),
            limit=limit,
        )
        # What an async saver yields has to be read to the end: left half way, it would
        # be closed where there is no event loop.
        for item in [*found] if self._loop is not None else found:
            yield _saved_of(item, newest)

    def prepare(self, batch: Batch) -> Batch:
        return (
            batch
            if isinstance(batch, EncodedBatch)
            else encode_batch(batch, self._copy)
        )

    def commit(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            for task in batch.writes:
                if any(channel == records.SAVED for channel, _ in task.writes):
                    # It has one place for each position: this one is the result's.
                    continue
                # It has no place of its own for questions either: theirs are known by
                # order.
                writes = [
                    (channel, self._given(value))
                    for channel, value in task.writes
                    if channel != records.ASKED
                ]
                ran = task.ran
                if (
                    ran is not None
                    and (ran.code or ran.used)
                    and self._given is _to_foreign
                ):
                    # Behind the others: it takes the place of none, and comes back
                    # beside them.
                    writes.append((records.RAN, tuple(ran._replace(failed=()))))
                config = shapes.config_of(batch.address, task.checkpoint_id)
                self._call("put_writes", config, writes, task.task_id, task.path)
            if batch.checkpoint is not None:
                self._put(batch.address, batch.checkpoint)

    def node_results(self, address: Address) -> Iterator[tuple[str | None, Ran]]:
        saved = self.load(address)
        made_by = UNKNOWN_CODE
        is_edit = False
        while saved is not None:
            checkpoint = saved.checkpoint
            # An edit started again where the nodes of the parent had started.
            if not is_edit:
                yield from _ends_on(saved, made_by)
            made_by = _made_by(checkpoint)
            is_first = checkpoint.source == "input" or made_by.is_whole
            if made_by.at_exit:
                yield from zip(repeat(None), made_by.attempts())
                made_by = UNKNOWN_CODE
            is_edit = checkpoint.source in ("update", "fork")
            saved = None if is_first else self._parent_of(saved)

    def _parent_of(self, saved: Saved) -> Saved | None:
        parent = saved.checkpoint.parent_id
        if parent is None:
            return None
        address = replace(
            saved.address,
            checkpoint_id=parent,
        )
        return self.load(address)

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        config = (
            None if thread_id is None else {"configurable": {"thread_id": thread_id}}
        )
        known = set()
        for found in self.saver.list(config):
            address = shapes.address_of(found.config)
            known.add(Address(address.thread_id, address.namespace))
        yield from known

    def delete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.saver.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(
        self, thread_ids: Sequence[str], *, strategy: base.Strategy = "keep_latest"
    ) -> None:
        self.saver.prune(thread_ids, strategy=strategy)

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        version: Version = self.saver.get_next_version(current, channel)
        return version

    def _copy(self, value: Any, what: str) -> Any:
        """Return *value* as it is now: as the saver's serializer will give it back."""
        value = self._given(value)
        serializer = getattr(self.saver, "serde", None)
        try:
            if serializer is None:
                return deepcopy(value)
            return serializer.loads_typed(serializer.dumps_typed(value))
        except Exception as error:
            raise ValueEncodingError(
                f"{what} cannot be kept by {self.saver!r}: {error}"
            ) from error

    def _newest(self, address: Address) -> str | None:
        newest = Address(address.thread_id, address.namespace)
        found = self._call("get_tuple", shapes.config_of(newest))
        return None if found is None else found.checkpoint["id"]

    def _put(self, address: Address, checkpoint: Checkpoint) -> None:
        parent = shapes.config_of(address, checkpoint.parent_id)
        values = dict(checkpoint.values)
        # The saver may keep the values of all channels in one piece.
        same = checkpoint.channel_versions.keys() - set(checkpoint.changed)
        if same and checkpoint.parent_id is not None:
            found = self._call("get_tuple", parent)
            before = found.checkpoint["channel_values"] if found is not None else {}
            values.update((name, before[name]) for name in same if name in before)
        given = {
            **shapes.dict_of(checkpoint),
            "channel_values": {
                name: self._given(value) for name, value in values.items()
            },
        }
        versions = {
            name: checkpoint.channel_versions[name] for name in checkpoint.changed
        }
        self._call("put", parent, given, shapes.metadata_of(checkpoint), versions)


def _made_by(checkpoint: Checkpoint) -> MadeBy:
    """Return the code that made a checkpoint, if that is known."""
    fields = checkpoint.metadata.get(
        records.MADE_BY,
        UNKNOWN_CODE,
    )
    return MadeBy(*fields)


def _ends_on(
    saved: Saved,
    made_by: MadeBy,
) -> Iterator[tuple[str, Ran]]:
    """Yield how the nodes ran that started from a checkpoint, each with its id.

    Args:
        saved: The checkpoint. For a node that ran again it has the first attempt.
        made_by: The nodes that made the next checkpoint.
    """
    attempts = made_by.attempts()
    names = {ran.name for ran in attempts}
    for _, _, ran in saved.ran:
        if ran.name not in names:
            attempts.append(ran)
    checkpoint_id = saved.checkpoint.id
    for ran in attempts:
        yield checkpoint_id, ran


def _saved_of(found: Any, newest_id: str | None) -> Saved:
    """Return LangGraph's tuple as our record; *newest_id*: of the newest checkpoint
    there.
    """
    address = shapes.address_of(found.config)
    values = found.checkpoint.get("channel_values") or {}
    checkpoint_id = found.checkpoint["id"]
    writes, ran = parted(
        ("", PendingWrite(task_id, channel, _from_foreign(value)))
        for task_id, channel, value in found.pending_writes or ()
    )
    return Saved(
        address=Address(address.thread_id, address.namespace, checkpoint_id),
        checkpoint=shapes.checkpoint_of(
            found.checkpoint,
            found.metadata or {},
            parent_id=shapes.checkpoint_id_of(found.parent_config),
            values={name: _from_foreign(value) for name, value in values.items()},
        ),
        writes=writes,
        ran=ran,
        is_latest=checkpoint_id == newest_id,
        newest_id=newest_id,
    )


def _awaited(call: Coroutine[Any, Any, Any], loop: Any) -> Any:
    """Return what *call*, of a saver's async form, returns; not to be used on its
    *loop*.
    """
    if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_running():
        return asyncio.run_coroutine_threadsafe(call, loop).result()
    return asyncio.run(call)


def _same(value: Any) -> Any:
    return value


def _to_foreign(value: Any) -> Any:
    """Return *value* with our records, also in a sequence, as LangGraph's."""
    if not isinstance(value, Interrupt | Overwrite | Send):
        return _of_items(value, _to_foreign)
    from langgraph import types  # noqa: PLC0415 - installed wherever its savers are

    if isinstance(value, Interrupt):
        return types.Interrupt(value=value.value, id=value.id)
    if isinstance(value, Overwrite):
        return types.Overwrite(value.value)
    limit = value.timeout and types.TimeoutPolicy(**vars(value.timeout))
    return types.Send(value.node, value.arg, timeout=limit)


def _from_foreign(value: Any) -> Any:
    """Return *value* with LangGraph's records, also in a sequence, as ours."""
    kind = type(value)
    # By name: a saver of LangGraph does without the module that defines them.
    if kind.__module__ != "langgraph.types":
        return _of_items(value, _from_foreign)
    if kind.__name__ == "Interrupt":
        return Interrupt(value.value, value.id)
    if kind.__name__ == "Overwrite":
        return Overwrite(value.value)
    if kind.__name__ == "Send":
        limit, names = (
            getattr(value, "timeout", None),
            TimeoutPolicy.__dataclass_fields__,
        )
        limits = limit and TimeoutPolicy(
            **{name: getattr(limit, name) for name in names}
        )
        return Send(value.node, value.arg, timeout=limits)
    return value


def _of_items(value: Any, converted: Callable[[Any], Any]) -> Any:
    """Return *value* with its items *converted*: a sequence, or what a graph that asks
    returned.
    """
    kind = type(value)
    if kind in (list, tuple):
        return kind(converted(item) for item in value)
    if kind is dict and records.INTERRUPT in value:
        return {**value, records.INTERRUPT: converted(value[records.INTERRUPT])}
    return value
