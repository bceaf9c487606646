"""Checkpoints out of the store: copied in a short transaction, decoded after it.

Decoding runs code of the user's classes, which must not keep a transaction
open: a reader that stands still keeps every freed page from being used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, cast

from flowpregel._core.copies import Replayed
from flowpregel._core.records import (
    CALLED,
    RAN,
    RETURN,
    Address,
    Checkpoint,
    DeltaHistory,
    PendingWrite,
    Saved,
    Source,
    Version,
    Write,
    parted,
)
from flowpregel._lmdb.codec import Codec, decode
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import matches
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.tables import (
    EMPTY,
    INLINE,
    CheckpointRecord,
    NamespaceRecord,
    Read,
    Tables,
    WritesRecord,
    from_bytes,
)

_PAGE = 8
"""How many checkpoints of a history are read in one transaction."""


@dataclass(frozen=True)
class DeltaChain:
    """The deltas of a channel up to a version, and the snapshot they start from, encoded."""

    seed: bytes | None
    oldest_first: list[bytes]
    positions: dict[Version | None, int]
    """How many deltas lead to each version."""


@dataclass(frozen=True, slots=True)
class CopiedCheckpoint:
    """All that is kept of one checkpoint, nothing decoded."""

    id: str
    record: CheckpointRecord
    namespace: NamespaceRecord
    values: dict[str, bytes]
    deltas: dict[str, tuple[DeltaChain, int]]
    """By channel: how many deltas of a chain, from the oldest on."""
    tasks: list[WritesRecord]
    results: LazyResults | None = None
    """Reads the results of calls that *tasks* leaves out, if there are any."""


class Reader:
    """Reads checkpoints.

    Args:
        tables: The store's records.
        read: Runs a function in a read transaction.
        codec: Decodes values.
    """

    def __init__(self, tables: Tables, read: Read, codec: Codec) -> None:
        self.tables = tables
        self.read = read
        self.codec = codec

    def load(
        self, address: Address, before: str | None, *, lazy_results: bool = False
    ) -> Saved | None:
        """Return the checkpoint at *address*, or None."""

        def work(transaction: Any) -> CopiedCheckpoint | None:
            return self._load(transaction, address, before, lazy_results)

        copied: CopiedCheckpoint | None = self.read(work)
        return None if copied is None else self._decoded(copied)

    def touch(self, address: Address) -> None:
        """Read all that `load` would, and decode nothing of it."""
        self.read(lambda t: self._load(t, address, None, lazy_results=False))

    def history(
        self,
        address: Address,
        filter: Mapping[str, Any] | None,
        before: str | None,
        limit: int | None,
        *,
        bare: bool = False,
    ) -> Iterator[Saved]:
        """Yield the checkpoints at *address*, newest first, in a transaction for each page.

        Args:
            address: Whose; with a ``checkpoint_id`` just that one.
            filter: Only those whose metadata has these values.
            before: Only those with a smaller id than this.
            limit: At most this many.
            bare: Leave out what the channels hold.
        """
        found: Iterator[CopiedCheckpoint] = self._pages(address, before, limit, bare)
        if address.checkpoint_id is not None:
            copied = self.read(lambda t: self._load(t, address, before, lazy_results=False))
            found = iter(() if copied is None else (copied,))
        if filter:
            found = (each for each in found if matches(self._checkpoint(each, {}), filter))
        for each in islice(found, None if limit is None else max(limit, 0)):
            yield self._decoded(each)

    def _pages(
        self, address: Address, before: str | None, limit: int | None, bare: bool
    ) -> Iterator[CopiedCheckpoint]:
        size = _PAGE if limit is None else min(max(limit, 1), _PAGE)
        # Neighbours in a history have most of their deltas in common.
        chains: dict[str, DeltaChain] = {}
        is_whole = before is None
        while True:
            page = self.read(
                partial(
                    self._page, chains=chains, address=address, before=before, size=size, bare=bare
                )
            )
            yield from page
            if len(page) < size:
                break
            before = page[-1].id
        if is_whole:
            self.read(partial(self._check_count, address=address))

    # ------------------------------------------------------------ inside a transaction

    def _namespace(self, transaction: Any, address: Address) -> NamespaceRecord | None:
        return self.tables.namespace(transaction, address.thread_id, address.namespace)

    def _check_count(self, transaction: Any, address: Address) -> None:
        namespace = self._namespace(transaction, address)
        if namespace is not None:
            self.tables.check_count(transaction, namespace)

    def _load(
        self, transaction: Any, address: Address, before: str | None, lazy_results: bool
    ) -> CopiedCheckpoint | None:
        namespace = self._namespace(transaction, address)
        wanted = address.checkpoint_id
        if namespace is None or not namespace.checkpoints:
            return None
        if wanted is None and before is not None:
            found = self.tables.newest_first(transaction, namespace, before)
            wanted = next((identifier for identifier, _ in found), None)
        elif wanted is None:
            wanted = namespace.newest
        if wanted is None or (before is not None and wanted >= before):
            return None
        record = self.tables.checkpoint(transaction, namespace, wanted)
        if record is None:
            return None
        copying = _Copying(self.tables, transaction, namespace, {})
        results = LazyResults(self, namespace, wanted) if lazy_results else None
        return copying.copy(wanted, record, results=results)

    def _page(
        self,
        transaction: Any,
        chains: dict[str, DeltaChain],
        address: Address,
        before: str | None,
        size: int,
        bare: bool,
    ) -> list[CopiedCheckpoint]:
        namespace = self._namespace(transaction, address)
        if namespace is None:
            return []
        copying = _Copying(self.tables, transaction, namespace, chains)
        found = self.tables.newest_first(transaction, namespace, before)
        return [copying.copy(*each, bare=bare) for each in islice(found, size)]

    # ------------------------------------------------------------ after it

    def _decoded(self, copied: CopiedCheckpoint) -> Saved:
        namespace = copied.namespace
        writes, ran = parted(self._writes(copied))
        results = copied.results
        return Saved(
            address=Address(namespace.thread_id, namespace.namespace, copied.id),
            checkpoint=self._checkpoint(
                copied, {name: self._value(data, name) for name, data in copied.values.items()}
            ),
            writes=writes,
            ran=ran,
            deltas={
                name: self._deltas(chain, end, name) for name, (chain, end) in copied.deltas.items()
            },
            is_latest=copied.id == namespace.newest,
            newest_id=namespace.newest,
            left=results if results is not None and results.count else None,
        )

    def _checkpoint(self, copied: CopiedCheckpoint, values: Mapping[str, Any]) -> Checkpoint:
        record, metadata = copied.record, {}
        if record.metadata:
            metadata = decode(self.codec, record.metadata, "the metadata of a checkpoint")
        return Checkpoint(
            id=copied.id,
            parent_id=record.parent_id,
            at=record.at,
            step=record.step,
            source=cast(Source, record.source),
            channel_versions=record.versions,
            versions_seen=record.seen,
            changed=record.changed,
            updated_channels=record.updated,
            values=values,
            metadata=metadata,
        )

    def _writes(self, copied: CopiedCheckpoint) -> Iterator[tuple[str, PendingWrite]]:
        """Yield the pending writes by path, task and position, each with its path."""
        tasks = sorted(copied.tasks, key=lambda each: (each.path, each.task_id))
        for task_id, path, writes, ran in tasks:
            if ran is not None:
                yield path, PendingWrite(task_id, RAN, ran)
            for _, channel, data in sorted(writes, key=itemgetter(0)):
                what = f"the write of task {task_id!r} to {channel!r}"
                yield path, PendingWrite(task_id, channel, decode(self.codec, data, what))

    def _deltas(self, chain: DeltaChain, end: int, channel: str) -> DeltaHistory:
        codec, what = self.codec, f"what was added to channel {channel!r}"

        def decoded(many: Sequence[bytes]) -> tuple[tuple[Any, ...], ...]:
            return tuple(decode(codec, each, what) for each in many)

        seed = MISSING if chain.seed is None else self._value(chain.seed, channel)
        return DeltaHistory(seed, Replayed(chain.oldest_first, end, decoded))

    def _value(self, data: bytes, channel: str) -> Any:
        return decode(self.codec, data, f"a value of channel {channel!r}")


@dataclass(frozen=True, slots=True)
class _Copying:
    """Copies checkpoints of one namespace out of a transaction."""

    tables: Tables
    transaction: Any
    namespace: NamespaceRecord
    chains: dict[str, DeltaChain]

    def copy(
        self,
        identifier: str,
        record: CheckpointRecord,
        *,
        bare: bool = False,
        results: LazyResults | None = None,
    ) -> CopiedCheckpoint:
        """Return all that is kept of a checkpoint; *results* stay in the store."""
        values: dict[str, bytes] = {}
        deltas: dict[str, tuple[DeltaChain, int]] = {}
        if not bare:
            values.update(record.inline)
            for name in record.stored:
                values[name] = self._stored(name, record.versions.get(name))
            for name in record.deltas:
                version = record.versions.get(name)
                chain = self.chains.get(name)
                if chain is None or version not in chain.positions:
                    chain = self.chains[name] = self._chain(name, version)
                deltas[name] = chain, chain.positions[version]
        prefix = keys.checkpoint(self.namespace.number, identifier)
        tasks = [
            task
            for _, data in self.tables.writes.scan(self.transaction, prefix)
            for task in (from_bytes(WritesRecord, data),)
            if results is None or not results.leaves(task)
        ]
        return CopiedCheckpoint(identifier, record, self.namespace, values, deltas, tasks, results)

    def _stored(self, channel: str, version: Version | None) -> bytes:
        key = keys.value(self.namespace.number, version, channel)
        data = self.tables.values.get(self.transaction, key)
        if data is None:
            raise self.tables.values.corrupt(key, f"is missing: the value of channel {channel!r}")
        return data

    def _chain(self, channel: str, version: Version | None) -> DeltaChain:
        newest_first, seed, versions = [], None, []
        for each, delta in self.tables.chain(self.transaction, self.namespace, channel, version):
            versions.append(each)
            newest_first.append(delta.writes)
        if delta.kind == INLINE:
            seed = delta.seed
        elif delta.kind != EMPTY:
            seed = self._stored(channel, delta.previous)
        positions = {each: len(versions) - at for at, each in enumerate(versions)}
        return DeltaChain(seed, newest_first[::-1], positions)


class LazyResults:
    """The results of calls that finished: left in the store, and read when a call is replayed.

    A run that goes on may have a hundred thousand of them. Its body asks for one after
    the other, and drops it again.

    Args:
        reader: Reads the store.
        namespace: What they belong to.
        checkpoint_id: The checkpoint that they were made on.
    """

    def __init__(self, reader: Reader, namespace: NamespaceRecord, checkpoint_id: str) -> None:
        self._reader = reader
        self._prefix = keys.checkpoint(namespace.number, checkpoint_id)
        self.count = 0
        """How many were left."""

    def leaves(self, task: WritesRecord) -> bool:
        """Return whether *task* is left in the store: it is a finished call and nothing else."""
        is_left = {channel for _, channel, _ in task.writes} == {RETURN, CALLED}
        self.count += is_left
        return is_left

    def __call__(self, task_id: str) -> Sequence[Write]:
        """Return what is kept of the call, empty if it has not finished.

        Raises:
            StoreCorruptError: Its record is damaged.
            ValueEncodingError: Its result cannot be read back.
        """
        key = self._prefix + keys.digest(task_id)
        reader = self._reader
        data = reader.read(lambda transaction: reader.tables.writes.get(transaction, key))
        writes = () if data is None else from_bytes(WritesRecord, data).writes
        if RETURN not in {channel for _, channel, _ in writes}:
            return ()
        what = f"the write of task {task_id!r} to"
        return [
            (channel, decode(reader.codec, value, f"{what} {channel!r}"))
            for _, channel, value in writes
        ]
