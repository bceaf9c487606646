"""What `InMemorySaver` keeps of one thread and namespace."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from flowpregel._core.copies import IMMUTABLE, bring_back, keep
from flowpregel._core.records import (
    Address,
    Checkpoint,
    DeltaHistory,
    PendingWrite,
    Saved,
    Version,
    parted,
)
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint import convert

ValueKey: TypeAlias = tuple[str, Version]
"""(channel, version)."""


class TaskRow(NamedTuple):
    """A task's pending writes in columns: there can be hundreds. Nothing changes it."""

    path: str
    positions: Sequence[int]
    """Negative for control writes. Those of one row differ."""
    channels: Sequence[str]
    kept: Sequence[Any]
    """The values, as `keep` returns them."""

    def then(self, later: TaskRow) -> TaskRow:
        """Return both rows: the first in a position stays, but control writes replace."""
        own = dict(zip(self.positions, zip(self.channels, self.kept, strict=True), strict=True))
        new = zip(later.positions, zip(later.channels, later.kept, strict=True), strict=True)
        own.update((at, write) for at, write in new if at < 0 or at not in own)
        channels, kept = zip(*own.values(), strict=True)
        return TaskRow(self.path, tuple(own), channels, kept)


class Row:
    """A checkpoint without its values. Nothing changes it, so copies share it."""

    __slots__ = (
        "at", "changed", "channel_versions", "id", "kept_metadata", "parent_id", "source",
        "step", "updated_channels", "versions_seen",
    )  # fmt: skip

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.id = checkpoint.id
        self.parent_id = checkpoint.parent_id
        self.at = checkpoint.at
        self.step = checkpoint.step
        self.source = checkpoint.source
        self.channel_versions = dict(checkpoint.channel_versions)
        # The run puts a new mapping in a node's place and changes none, so the
        # outer copy is enough.
        self.versions_seen = dict(checkpoint.versions_seen)
        self.changed = checkpoint.changed
        self.updated_channels = checkpoint.updated_channels
        self.kept_metadata: Any = dict(checkpoint.metadata)
        if not IMMUTABLE.issuperset(map(type, self.kept_metadata.values())):
            self.kept_metadata = keep(self.kept_metadata, "the metadata of a checkpoint")

    def run_id(self) -> Any:
        """Return the id of the run that made it, if it is known."""
        return self._user_metadata().get("run_id")

    def metadata(self) -> dict[str, Any]:
        """Return the metadata in the classic form."""
        return convert.metadata_of(self.checkpoint({}))

    def checkpoint(self, values: Mapping[str, Any]) -> Checkpoint:
        """Return it as a record of its own, with *values*."""
        return Checkpoint(
            id=self.id,
            parent_id=self.parent_id,
            at=self.at,
            step=self.step,
            source=self.source,
            channel_versions=dict(self.channel_versions),
            versions_seen={node: dict(seen) for node, seen in self.versions_seen.items()},
            changed=self.changed,
            updated_channels=self.updated_channels,
            values=values,
            metadata=self._user_metadata(),
        )

    def _user_metadata(self) -> dict[str, Any]:
        return dict(bring_back(self.kept_metadata, "the metadata of a checkpoint"))


class Collected:
    """All that is kept of one checkpoint, taken under the lock and decoded outside it."""

    __slots__ = ("deltas", "newest_id", "row", "tasks", "values")

    def __init__(self, row: Row, newest_id: str) -> None:
        self.row = row
        self.newest_id = newest_id
        self.values: dict[str, Any] = {}
        self.deltas: dict[str, tuple[Any, list[Any]]] = {}
        self.tasks: dict[str, TaskRow] = {}

    def read(self, address: Address) -> Saved:
        """Return it with every value decoded, in writes ordered by (path, task id, index)."""
        ordered = sorted(self.tasks.items(), key=lambda task: (task[1].path, task[0]))
        writes, ran = parted(
            (task.path, PendingWrite(task_id, channel, _read(kept, channel)))
            for task_id, task in ordered
            for _, channel, kept in sorted(zip(*task[1:], strict=True), key=itemgetter(0))
        )
        return Saved(
            address=Address(address.thread_id, address.namespace, self.row.id),
            checkpoint=self.row.checkpoint(
                {name: _read(kept, name) for name, kept in self.values.items()}
            ),
            writes=writes,
            ran=ran,
            deltas={
                name: DeltaHistory(
                    seed if seed is MISSING else _read(seed, name),
                    tuple(_read_delta(kept, name) for kept in reversed(newest_first)),
                )
                for name, (seed, newest_first) in self.deltas.items()
            },
            is_latest=self.row.id == self.newest_id,
            newest_id=self.newest_id,
        )


class Space:
    """The checkpoints, values, deltas and pending writes of one thread and namespace."""

    __slots__ = ("deltas", "ids", "rows", "values", "writes")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.ids: list[str] = []
        """Sorted: the newest is the last."""
        self.values: dict[Version, Mapping[str, Any]] = {}
        """By version and channel: those of one superstep, which have one version, together.
        The inner mappings are never changed, only replaced, so a copy may be shallow."""
        self.deltas: dict[ValueKey, tuple[Version | None, Any]] = {}
        self.writes: dict[str, dict[str, TaskRow]] = {}
        """By checkpoint id and task id."""

    def add(self, row: Row) -> None:
        """Keep *row*, in the place of one with its id."""
        ids = self.ids
        if row.id not in self.rows:
            if not ids or ids[-1] < row.id:
                ids.append(row.id)
            else:
                insort(ids, row.id)
        self.rows[row.id] = row

    def add_writes(self, checkpoint_id: str, task_id: str, row: TaskRow) -> None:
        """Keep a task's pending writes, with those that are there."""
        tasks = self.writes.get(checkpoint_id)
        if tasks is None:
            self.writes[checkpoint_id] = {task_id: row}
            return
        known = tasks.get(task_id)
        tasks[task_id] = row if known is None else known.then(row)

    def add_values(self, version: Version, values: Mapping[str, Any]) -> None:
        """Keep the values that channels have at one version."""
        known = self.values.get(version)
        self.values[version] = values if known is None else {**known, **values}

    def find(self, checkpoint_id: str | None, before: str | None) -> str | None:
        """Return the id that is named, or else the newest, if it is smaller than *before*."""
        if checkpoint_id is not None:
            known = checkpoint_id in self.rows
            return checkpoint_id if known and (before is None or checkpoint_id < before) else None
        if before is None:
            return self.ids[-1] if self.ids else None
        index = bisect_left(self.ids, before)
        return self.ids[index - 1] if index else None

    def collect(self, checkpoint_id: str, *, bare: bool = False) -> Collected:
        """Return what is kept of a checkpoint that is there; *bare*: not of its channels."""
        row = self.rows[checkpoint_id]
        found = Collected(row, self.ids[-1])
        nothing: Mapping[str, Any] = {}
        for name, version in () if bare else row.channel_versions.items():
            block = self.values.get(version, nothing)
            if name in block:
                found.values[name] = block[name]
            elif (name, version) in self.deltas:
                found.deltas[name] = self._walk((name, version))
        found.tasks.update(self.writes.get(checkpoint_id, nothing))
        return found

    def forget(self, checkpoint_ids: Iterable[str]) -> None:
        """Drop these checkpoints, and what no other one can reach."""
        gone = {id for id in checkpoint_ids if self.rows.pop(id, None) is not None}
        if not gone:
            return
        self.ids = [id for id in self.ids if id not in gone]
        for checkpoint_id in gone:
            self.writes.pop(checkpoint_id, None)
        reached: set[ValueKey] = set()
        for row in self.rows.values():
            for key in row.channel_versions.items():
                self._reach(key, reached)
        values = {
            version: {name: kept for name, kept in block.items() if (name, version) in reached}
            for version, block in self.values.items()
        }
        self.values = {version: block for version, block in values.items() if block}
        self.deltas = {key: self.deltas[key] for key in self.deltas.keys() & reached}

    def copy(self) -> Space:
        """Return a space with the same contents, which change apart from now on."""
        twin = Space()
        twin.rows = self.rows.copy()
        twin.ids = self.ids.copy()
        twin.values = self.values.copy()
        twin.deltas = self.deltas.copy()
        twin.writes = {id: tasks.copy() for id, tasks in self.writes.items()}
        return twin

    def is_empty(self) -> bool:
        """Return whether nothing at all is kept here."""
        return not self.rows and not self.writes

    def _walk(self, key: ValueKey) -> tuple[Any, list[Any]]:
        """Return the value that the deltas of *key* start from, and them, newest first."""
        name, version = key
        newest_first: list[Any] = []
        while (delta := self.deltas.get((name, version))) is not None:
            previous, writes = delta
            newest_first.append(writes)
            if previous is None:
                return MISSING, newest_first
            version = previous
            block = self.values.get(version)
            if block is not None and name in block:
                return block[name], newest_first
        return MISSING, newest_first

    def _reach(self, key: ValueKey, reached: set[ValueKey]) -> None:
        """Add *key*, and the versions that its deltas start from, to *reached*."""
        name: str = key[0]
        version: Version | None = key[1]
        while version is not None and (name, version) not in reached:
            reached.add((name, version))
            if (name, version) not in self.deltas or name in self.values.get(version, ()):
                return
            version = self.deltas[name, version][0]


def _read(kept: Any, name: str) -> Any:
    return kept if type(kept) in IMMUTABLE else bring_back(kept, f"a value of {name!r}")


def keep_delta(writes: tuple[Any, ...], name: str) -> Any:
    """Return a copy of a delta's writes: a tuple if nothing in it can change, else bytes.

    A history reads each delta many times, so those that need no decoding are worth it.
    """
    if IMMUTABLE.issuperset(map(type, writes)):
        return tuple(writes)
    return keep(tuple(writes), f"the delta of channel {name!r}")[0]


def _read_delta(kept: Any, name: str) -> tuple[Any, ...]:
    if type(kept) is tuple:
        return kept
    writes: tuple[Any, ...] = bring_back((kept,), f"a delta of {name!r}")
    return writes
