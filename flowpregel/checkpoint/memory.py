"""A saver that keeps everything in this process: for tests, and for runs that need no disk.

What is kept, for each thread and namespace (a `Space`):

* a `Row` for each checkpoint: its versions, not its values;
* one value for each channel and version, or one delta that points to the version
  before; both belong to the version they made, so that any number of
  checkpoints, forks and copies share them;
* the pending writes of each checkpoint.

A commit is therefore as large as what changed. Reading a channel that is kept as
deltas goes back along the pointers to the nearest value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar, Literal

from flowpregel._core.copies import IMMUTABLE, keep
from flowpregel._core.records import Address, Batch, Saved, TaskWrites, Version, Write
from flowpregel.checkpoint import convert
from flowpregel.checkpoint.leases import Leases
from flowpregel.checkpoint.shapes import WRITES_IDX_MAP, Lease, OnConflict
from flowpregel.checkpoint.space import Row, Space, TaskRow, keep_delta
from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.errors import ConfigurationError

__all__ = ["InMemorySaver", "MemorySaver"]


class _Prepared:
    """A batch whose values are copied: putting it into its space cannot fail."""

    __slots__ = ("batch", "deltas", "row", "values", "writes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.writes = [
            (task.checkpoint_id, task.task_id, _row_of(task, kept))
            for task in batch.writes
            if (kept := task.kept)
        ]
        self.row: Row | None = None
        self.values: list[tuple[Version, Mapping[str, Any]]] = []
        self.deltas: list[tuple[Any, Any]] = []
        if batch.checkpoint is not None:
            self._prepare_checkpoint()

    def _prepare_checkpoint(self) -> None:
        checkpoint = self.batch.checkpoint
        assert checkpoint is not None
        versions = checkpoint.channel_versions
        values = dict(checkpoint.values)
        if not IMMUTABLE.issuperset(map(type, values.values())):
            values = {
                name: keep(value, f"the value of channel {name!r}")
                for name, value in values.items()
            }
        at = {*map(versions.__getitem__, values)}
        if len(at) == 1:
            self.values.append((at.pop(), values))
        else:
            self.values.extend((versions[name], {name: kept}) for name, kept in values.items())
        for name, delta in checkpoint.deltas.items():
            writes = keep_delta(delta.writes, name)
            self.deltas.append(((name, versions[name]), (delta.previous, writes)))
        self.row = Row(checkpoint)


def _row_of(task: TaskWrites, writes: Sequence[Write]) -> TaskRow:
    """Return *writes* of a task with their values copied; of two of one position, the last."""
    channels: tuple[str, ...]
    kept: Sequence[Any]
    channels, kept = zip(*writes, strict=True)
    if not IMMUTABLE.issuperset(map(type, kept)):
        what = f"the write of task {task.task_id} to"
        kept = [
            keep(value, f"{what} {channel!r}")
            for channel, value in zip(channels, kept, strict=True)
        ]
    positions, channels = _places(channels)
    if len({*positions}) < len(positions):
        rows = dict(zip(positions, zip(channels, kept, strict=True), strict=True))
        positions = tuple(rows)
        channels, kept = zip(*rows.values(), strict=True)
    return TaskRow(task.path, positions, channels, kept)


@lru_cache(maxsize=256)
def _places(channels: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions of writes to *channels*, and those, for all tasks that write alike."""
    return tuple(map(WRITES_IDX_MAP.get, channels, count())), channels


class InMemorySaver(TransactionalSaver):
    """Keeps checkpoints and pending writes in this process, until it ends.

    Values are copied when they are kept and when they are read, so a later change
    of an object changes no history. Any OS thread may use it.

    Example:
        >>> saver = InMemorySaver()
        >>> saver.get_tuple({"configurable": {"thread_id": "unknown"}}) is None
        True
    """

    commits_at_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads: dict[str, dict[str, Space]] = {}
        self._leases = Leases(self._lock)

    # -------------------------------------------------------- the transactional form

    def load(self, address: Address, *, before: str | None = None) -> Saved | None:
        with self._lock:
            space = self._space(address)
            found = None if space is None else space.find(address.checkpoint_id, before)
            if space is None or found is None:
                return None
            kept = space.collect(found)
        return kept.read(address)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        left = -1 if limit is None else max(limit, 0)
        for checkpoint_id in self._ids(address, before):
            if left == 0:
                return
            with self._lock:
                space = self._space(address)
                row = None if space is None else space.rows.get(checkpoint_id)
                if space is None or row is None:
                    continue
                if filter and not convert.matches(row.metadata(), filter):
                    continue
                kept = space.collect(checkpoint_id)
            left -= 1
            yield kept.read(address)

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield what `history` does, without what the channels held."""
        for checkpoint_id in self._ids(address, None):
            with self._lock:
                space = self._space(address)
                if space is None or checkpoint_id not in space.rows:
                    continue
                kept = space.collect(checkpoint_id, bare=True)
            yield kept.read(address)

    def commit(self, batches: Sequence[Batch]) -> None:
        # What may fail comes first: the copies, then the fences.
        prepared = [_Prepared(batch) for batch in batches]
        with self._lock:
            for each in prepared:
                if each.batch.fence is not None:
                    self._leases.check(each.batch.address, each.batch.fence)
            for each in prepared:
                address = each.batch.address
                space = self._space(address)
                if space is None:
                    space = self._threads.setdefault(address.thread_id, {}).setdefault(
                        address.namespace, Space()
                    )
                for write in each.writes:
                    space.add_writes(*write)
                if each.row is not None:
                    for values in each.values:
                        space.add_values(*values)
                    space.deltas.update(each.deltas)
                    space.add(each.row)

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        with self._lock:
            threads = [*self._threads] if thread_id is None else [thread_id]
            found = [
                Address(thread, namespace)
                for thread in threads
                for namespace, space in self._threads.get(thread, {}).items()
                if space.rows
            ]
        yield from found

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        return self._leases.hold(Address(thread_id, namespace), on_conflict)

    # -------------------------------------------------------- what is forgotten and copied

    def delete_thread(self, thread_id: str) -> None:
        name = convert.thread_name(thread_id)
        with self._lock:
            self._threads.pop(name, None)
            self._leases.forget(name)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = frozenset(run_ids)
        with self._lock:
            for spaces in self._threads.values():
                for space in spaces.values():
                    gone = [id for id, row in space.rows.items() if row.run_id() in wanted]
                    space.forget(gone)
            self._drop_empty()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        target = convert.thread_name(target_thread_id)
        with self._lock:
            spaces = self._threads.get(convert.thread_name(source_thread_id))
            if not spaces:
                return
            if target in self._threads:
                raise ConfigurationError(
                    f"thread {target!r} has checkpoints already; copy to a new "
                    "thread_id, or delete_thread it first"
                )
            self._threads[target] = {namespace: space.copy() for namespace, space in spaces.items()}

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] = "keep_latest",
    ) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ConfigurationError(f"strategy is {strategy!r}; use 'keep_latest' or 'delete'")
        with self._lock:
            for thread_id in map(convert.thread_name, thread_ids):
                if strategy == "delete":
                    self._threads.pop(thread_id, None)
                for space in self._threads.get(thread_id, {}).values():
                    space.forget(space.ids[:-1])

    # -------------------------------------------------------- inner

    def _space(self, address: Address) -> Space | None:
        spaces = self._threads.get(address.thread_id)
        return None if spaces is None else spaces.get(address.namespace)

    def _ids(self, address: Address, before: str | None) -> list[str]:
        """The ids that `history` goes through, newest first."""
        with self._lock:
            space = self._space(address)
            ids = [] if space is None else space.ids[::-1]
        return [
            each
            for each in ids
            if address.checkpoint_id in (None, each) and (before is None or each < before)
        ]

    def _drop_empty(self) -> None:
        for thread_id, spaces in [*self._threads.items()]:
            for namespace in [name for name, space in spaces.items() if space.is_empty()]:
                del spaces[namespace]
            if not spaces:
                del self._threads[thread_id]


MemorySaver = InMemorySaver
