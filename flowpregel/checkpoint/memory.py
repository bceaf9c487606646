"""A saver that keeps everything in this process: for tests, and for runs that need no disk.

What is kept, for each thread and namespace (a `ThreadData`):

* each checkpoint: its versions, not its values;
* one value for each channel and version, or one delta that points to the version
  before; both belong to the version they made, so that any number of
  checkpoints, forks and copies share them;
* the pending writes of each checkpoint.

A commit is therefore as large as what changed. Reading a channel that is kept as
deltas goes back along the pointers to the nearest value.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from flowpregel._core.copies import bring_back, keep
from flowpregel._core.records import (
    Address,
    Batch,
    Checkpoint,
    Delta,
    DeltaHistory,
    PendingWrite,
    Saved,
    Version,
    Write,
    parted,
)
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import (
    BaseCheckpointSaver,
    EncodedBatch,
    Lease,
    OnConflict,
    Strategy,
    add_writes,
    check_strategy,
    encode_batch,
    matches,
    thread_name,
)
from flowpregel.checkpoint.within_process import MemoryLeases, MemorySignals
from flowpregel.errors import ConfigurationError

__all__ = ["InMemorySaver", "MemorySaver"]

ValueKey: TypeAlias = tuple[str, Version | None]
"""(channel, version); None is the version of a channel before it had any."""


class InMemorySaver(BaseCheckpointSaver):
    """Keeps checkpoints and pending writes in this process, until it ends.

    Values are copied when they are kept and when they are read, so a later change
    of an object changes no history. Any OS thread may use it.

    Example:
        >>> [*InMemorySaver().namespaces()]
        []
    """

    commits_at_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads: dict[str, dict[str, ThreadData]] = {}
        self._leases = MemoryLeases(self._lock)
        self._signals = MemorySignals()

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        with self._lock:
            data = self._data(address)
            found = data.find(address.checkpoint_id, before)
            return None if found is None else data.read(address, found)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        return self._states(address, filter, before, limit)

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield what `history` does, without what the channels held."""
        return self._states(address, with_channels=False)

    def _states(
        self,
        address: Address,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
        *,
        with_channels: bool = True,
    ) -> Iterator[Saved]:
        with self._lock:
            newest_first = self._data(address).ids[::-1]
        left = len(newest_first) if limit is None else limit
        for each in newest_first:
            if left <= 0:
                return
            if address.checkpoint_id not in (None, each) or (before is not None and each >= before):
                continue
            with self._lock:
                data = self._data(address)
                if each not in data.checkpoints:  # any more
                    continue
                saved = data.read(address, each, with_channels=with_channels)
            if matches(saved.checkpoint, filter):
                left -= 1
                yield saved

    def commit(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            # What can fail comes first.
            for batch in batches:
                if batch.fence is not None:
                    self._leases.check(batch.address, batch.fence)
            copies = [encode_batch(batch, keep) for batch in batches]
            for batch in copies:
                namespaces = self._threads.setdefault(batch.address.thread_id, {})
                namespaces.setdefault(batch.address.namespace, ThreadData()).add(batch)

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        with self._lock:
            threads = [*self._threads] if thread_id is None else [thread_id]
            found = [
                Address(thread, namespace)
                for thread in threads
                for namespace, data in self._threads.get(thread, {}).items()
                if data.checkpoints
            ]
        yield from found

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        return self._leases.hold(Address(thread_id, namespace), on_conflict)

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        self._signals.send(thread_name(thread_id), name, value)

    def receive_signal(self, thread_id: str, name: str, receiver: str) -> tuple[Any] | None:
        return self._signals.receive(thread_id, name, receiver)

    def delete_thread(self, thread_id: str) -> None:
        name = thread_name(thread_id)
        with self._lock:
            self._threads.pop(name, None)
            self._leases.forget(name)
            self._signals.forget(name)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = frozenset(run_ids)
        with self._lock:
            for namespaces in self._threads.values():
                for data in namespaces.values():
                    data.forget(
                        {
                            checkpoint.id
                            for checkpoint in data.checkpoints.values()
                            if bring_back(checkpoint.metadata.get("run_id"), "a run_id") in wanted
                        }
                    )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        target = thread_name(target_thread_id)
        with self._lock:
            source = self._used(thread_name(source_thread_id))
            if not source:
                return
            if self._used(target):
                raise ConfigurationError(
                    f"thread {target!r} has checkpoints already; copy to a new "
                    "thread_id, or delete_thread it first"
                )
            self._threads[target] = {namespace: data.copy() for namespace, data in source.items()}

    def prune(self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest") -> None:
        check_strategy(strategy)
        with self._lock:
            for thread_id in map(thread_name, thread_ids):
                if strategy == "delete":
                    self._threads.pop(thread_id, None)
                for data in self._threads.get(thread_id, {}).values():
                    data.forget(data.ids[:-1])

    # -------------------------------------------------------- inner

    def _data(self, address: Address) -> ThreadData:
        """Return what is kept of a thread and namespace, which may be nothing."""
        return self._threads.get(address.thread_id, {}).get(address.namespace) or ThreadData()

    def _used(self, thread_id: str) -> dict[str, ThreadData]:
        """Return the namespaces of a thread that have anything, by name."""
        namespaces = self._threads.get(thread_id, {})
        return {name: data for name, data in namespaces.items() if data.ids or data.writes}


MemorySaver = InMemorySaver


@dataclass(slots=True)
class TaskData:
    """A task's pending writes."""

    path: str
    writes: dict[int, Write] = field(default_factory=dict)
    """By position."""


@dataclass(slots=True, eq=False)
class ThreadData:
    """The checkpoints, values, deltas and pending writes of one thread and namespace.

    Its values are those that `keep` returned, and its records are never changed, so
    that a copy may share them.
    """

    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    """By id, without their values and deltas."""
    ids: list[str] = field(default_factory=list)
    """Of the checkpoints, sorted: the newest is the last."""
    values: dict[ValueKey, Any] = field(default_factory=dict)
    deltas: dict[ValueKey, Delta] = field(default_factory=dict)
    writes: dict[str, dict[str, TaskData]] = field(default_factory=dict)
    """By checkpoint id and task id."""

    def add(self, batch: EncodedBatch) -> None:
        """Keep *batch*."""
        for task in batch.writes:
            tasks = self.writes.setdefault(task.checkpoint_id, {})
            add_writes(tasks.setdefault(task.task_id, TaskData(task.path)).writes, task.kept)
        checkpoint = batch.checkpoint
        if checkpoint is None:
            return
        versions = checkpoint.channel_versions
        self.values.update(((name, versions[name]), v) for name, v in checkpoint.values.items())
        self.deltas.update(((name, versions[name]), d) for name, d in checkpoint.deltas.items())
        if checkpoint.id not in self.checkpoints:
            insort(self.ids, checkpoint.id)
        self.checkpoints[checkpoint.id] = replace(checkpoint, values={}, deltas={})

    def find(self, checkpoint_id: str | None, before: str | None) -> str | None:
        """Return the id that is named, or else the newest, if it is smaller than *before*."""
        if checkpoint_id is not None:
            is_there = checkpoint_id in self.checkpoints
            return checkpoint_id if is_there and (not before or checkpoint_id < before) else None
        end = len(self.ids) if before is None else bisect_left(self.ids, before)
        return self.ids[end - 1] if end else None

    def read(self, address: Address, checkpoint_id: str, *, with_channels: bool = True) -> Saved:
        """Return a checkpoint that is there, with every value decoded."""
        checkpoint = self.checkpoints[checkpoint_id]
        values: dict[str, Any] = {}
        deltas: dict[str, DeltaHistory] = {}
        for name, version in checkpoint.channel_versions.items() if with_channels else ():
            if (name, version) in self.values:
                values[name] = self._value((name, version))
            elif (name, version) in self.deltas:
                deltas[name] = self._delta_history(name, version)
        writes, ran = parted(self._pending(checkpoint_id))
        return Saved(
            address=replace(address, checkpoint_id=checkpoint_id),
            checkpoint=replace(
                checkpoint,
                channel_versions=dict(checkpoint.channel_versions),
                versions_seen={node: dict(seen) for node, seen in checkpoint.versions_seen.items()},
                values=values,
                metadata={
                    name: bring_back(value, "the metadata of a checkpoint")
                    for name, value in checkpoint.metadata.items()
                },
            ),
            writes=writes,
            ran=ran,
            deltas=deltas,
            is_latest=checkpoint_id == self.ids[-1],
            newest_id=self.ids[-1],
        )

    def forget(self, checkpoint_ids: Collection[str]) -> None:
        """Drop these checkpoints, and what no other one can reach."""
        if not checkpoint_ids:
            return
        for checkpoint_id in checkpoint_ids:
            del self.checkpoints[checkpoint_id]
            self.writes.pop(checkpoint_id, None)
        self.ids = sorted(self.checkpoints)
        reached: set[ValueKey] = set()
        for checkpoint in self.checkpoints.values():
            key: ValueKey
            for key in checkpoint.channel_versions.items():
                # With the versions that its deltas start from.
                while key not in reached:
                    reached.add(key)
                    if key not in self.values and key in self.deltas:
                        key = key[0], self.deltas[key].previous
        self.values = {key: value for key, value in self.values.items() if key in reached}
        self.deltas = {key: delta for key, delta in self.deltas.items() if key in reached}

    def copy(self) -> ThreadData:
        """Return the same contents, which change apart from now on."""
        writes = {
            checkpoint_id: {
                task_id: TaskData(task.path, dict(task.writes)) for task_id, task in tasks.items()
            }
            for checkpoint_id, tasks in self.writes.items()
        }
        return ThreadData(
            dict(self.checkpoints), [*self.ids], dict(self.values), dict(self.deltas), writes
        )

    def _delta_history(self, name: str, version: Version) -> DeltaHistory:
        newest_first = []
        key: ValueKey = name, version
        while key not in self.values and (delta := self.deltas.get(key)) is not None:
            what = f"a delta of {name!r}"
            newest_first.append(tuple(bring_back(value, what) for value in delta.writes))
            key = name, delta.previous
        seed = self._value(key) if key in self.values else MISSING
        return DeltaHistory(seed, tuple(reversed(newest_first)))

    def _value(self, key: ValueKey) -> Any:
        return bring_back(self.values[key], f"a value of {key[0]!r}")

    def _pending(self, checkpoint_id: str) -> Iterator[tuple[str, PendingWrite]]:
        """Yield the pending writes by (path, task id, position), each with its path."""
        tasks = self.writes.get(checkpoint_id, {})
        for task_id, task in sorted(tasks.items(), key=lambda each: (each[1].path, each[0])):
            for _, (channel, kept) in sorted(task.writes.items(), key=lambda each: each[0]):
                value = bring_back(kept, f"a value of {channel!r}")
                yield task.path, PendingWrite(task_id, channel, value)
