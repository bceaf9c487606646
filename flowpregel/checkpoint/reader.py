"""A reader that copies checkpoints in short transactions and decodes them afterwards.

Decoding runs code of the user's classes. A transaction must not stay open while that
code runs, because LMDB cannot reuse freed pages as long as an old reader is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from flowpregel._core.ids import AttemptRecord, CallKey, caller_of
from flowpregel._core.previews import OUTPUTS_MARK, outputs_in
from flowpregel._core.records import (
    ATTEMPT,
    CALLED,
    CONTROL_WRITES,
    MADE_BY,
    RETURN,
    UNKNOWN_CODE,
    Address,
    Checkpoint,
    DeltaHistory,
    MadeBy,
    PendingWrite,
    Saved,
    Version,
    Write,
    split_writes_and_attempts,
)
from flowpregel._core.unreadable import Unreadable
from flowpregel._pickling.copies import ReplayedWrites
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.call_files import CallFiles
from flowpregel.checkpoint.labels import METADATA, StoredValueLabel, StoredWriteLabel
from flowpregel.checkpoint.langgraph_methods import metadata_of
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    NamespaceRecord,
    WritesRecord,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import ValueEncodingError
from flowpregel.storage.codec import ValueCodec
from flowpregel.storage.stores import Transaction

_CALL_KEY_FIELDS = 4
"""The number of fields of a `CallKey` that determine its text."""
_PAGE = 8
"""The number of checkpoints of a history that are read in one transaction."""
_SMALL = 1024
"""The greatest size, in bytes, of a finished call's record that remains in memory, so
that it need not be read again.
"""
_MOST_HELD = 10_000
"""The greatest number of finished calls' records that remain in memory."""
_FINISHED_CALL = {RETURN, CALLED}
"""The channels of a finished call's writes. If a task has written only to these two
channels, the task's result may stay in the store until it is needed.
"""


@dataclass(frozen=True)
class DeltaChain:
    """The encoded deltas of a channel up to a version, and the encoded snapshot (full
    value) from which they start.
    """

    seed: bytes | None
    oldest_first: list[tuple[bytes, ...]]
    positions: dict[Version | None, int]
    """The number of deltas, from the start of the chain, that lead to each version."""


@dataclass(slots=True)
class CopiedCheckpoint:
    """A copy of the stored parts of one checkpoint, not yet decoded."""

    id: str
    record: CheckpointRecord
    namespace: NamespaceRecord
    values: dict[str, bytes] = field(default_factory=dict)
    deltas: dict[str, tuple[DeltaChain, int]] = field(default_factory=dict)
    """The chain of each channel that is stored as deltas, with the number of the
    chain's deltas to apply, oldest first.
    """
    tasks: list[WritesRecord] = field(default_factory=list)
    finished_calls: dict[int, str] = field(default_factory=dict)
    """The ids of the finished calls that are not in *tasks*, by the keys that
    `StoredCalls` uses.
    """
    held: dict[str, WritesRecord] = field(default_factory=dict)
    """The small records of finished calls, by id."""
    marks_unreadable: bool = False
    """True if a value that cannot be decoded is replaced by an `Unreadable`. False if
    such a value raises an error.
    """

    def add_finished_call(self, task: WritesRecord, size: int) -> None:
        """Add a finished call, with its record if that is small.

        Args:
            task: The record of the call.
            size: The size of the stored record, in bytes.
        """
        key = hash(task.path)
        if key in self.finished_calls:
            # Two calls can have the same path: bodies with different inputs may make
            # different calls at one position. So the key of the second call is the hash
            # of the call's id.
            key = hash(task.task_id)
        self.finished_calls[key] = task.task_id
        if size <= _SMALL and len(self.held) < _MOST_HELD:
            self.held[task.task_id] = task


class Glance(NamedTuple):
    """A thread's newest checkpoint, without the parts whose decoding needs the user's
    classes.
    """

    saved: Saved
    """The checkpoint with its metadata, without channel values and task writes."""
    is_begun: bool
    """True if a superstep has begun at the checkpoint, or if the checkpoint is the
    run's first.
    """


class _Ends(NamedTuple):
    """The data of one checkpoint that `Reader.node_results` needs."""

    attempts: list[AttemptRecord]
    """The attempts of the nodes that have writes on the checkpoint."""
    source: str
    """The ``source`` in the metadata of the checkpoint."""
    parent_id: str | None
    made_by: MadeBy
    """The code that made the checkpoint, or `UNKNOWN_CODE` if the metadata does not
    specify it.
    """


_UNKNOWN_ENDS = _Ends([], "input", None, UNKNOWN_CODE)
"""The data of a deleted checkpoint, whose tasks and parent are unknown. It ends the
search for attempts, as the input of a run does.
"""


class Reader:
    """The reader of the checkpoints of a store.

    Args:
        tables: The store's tables.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.read: Callable[[Callable[[Transaction], Any]], Any] = tables.read
        self.codec: ValueCodec = tables.codec

    def history(
        self,
        address: Address,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
        *,
        bare: bool = False,
    ) -> Iterator[Saved]:
        """Yield the checkpoints at *address*, newest first, reading each page in its
        own transaction.

        Args:
            address: The thread and namespace. If it has a ``checkpoint_id``, only that
                checkpoint is yielded.
            filter: Yield only checkpoints whose metadata has these values.
            before: Yield only checkpoints with a smaller id than this.
            limit: The greatest number of checkpoints to yield.
            bare: True to leave out the channel values.
        """
        if limit is not None:
            limit = max(limit, 0)
        checkpoints: Iterable[CopiedCheckpoint]
        if address.checkpoint_id is None:
            checkpoints = self._pages(address, before, limit, bare)
        else:
            copied = self.read(partial(self.find, address=address, before=before))
            checkpoints = [] if copied is None else [copied]
        if filter:
            checkpoints = self._matching(checkpoints, filter)
        for checkpoint in islice(checkpoints, limit):
            yield self.decoded(checkpoint)

    def _pages(
        self, address: Address, before: str | None, limit: int | None, bare: bool
    ) -> Iterator[CopiedCheckpoint]:
        size = _PAGE if limit is None else min(max(limit, 1), _PAGE)
        # All pages use the same chains of deltas, because neighbouring checkpoints have
        # most of their deltas in common.
        chains: dict[str, DeltaChain] = {}

        def page_of(transaction: Any) -> list[CopiedCheckpoint]:
            namespace = self.tables.namespace(transaction, address)
            if namespace is None:
                return []
            page: list[CopiedCheckpoint] = []
            checkpoints = self.tables.newest_first(transaction, namespace, before)
            for identifier, record in islice(checkpoints, size):
                if bare:
                    record = record._replace(places={})
                copied = self._copied(
                    transaction, namespace, identifier, record, chains
                )
                self.copy_tasks(transaction, copied)
                page.append(copied)
            return page

        is_whole = before is None
        while page := self.read(page_of):
            yield from page
            before = page[-1].id
        if is_whole:
            # The ids are read only because this raises an error if a checkpoint is
            # missing.
            self.read(partial(self.tables.ids, address=address))

    def glance(self, address: Address) -> Glance | None:
        """Return the part of the newest checkpoint at *address* that can be decoded
        without the user's classes, or None if there is no checkpoint.
        """

        def find(transaction: Any) -> tuple[CopiedCheckpoint, bool] | None:
            copied = self.find(transaction, address, tasks=False)
            if copied is None:
                return None
            key = layout.checkpoint_key(copied.namespace.prefix, copied.id)
            return copied, bool(self.tables.writes.keys(transaction, key, limit=1))

        newest = self.read(find)
        if newest is None:
            return None
        copied, has_begun = newest
        saved = self.decoded(replace(copied, values={}, deltas={}))
        return Glance(saved, has_begun or saved.checkpoint.source == "input")

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        """Yield the attempts of a run's nodes, as `BaseCheckpointSaver.node_results`
        does.

        Checkpoints are read backwards, from *address* to the run's input.
        """
        identifier = address.checkpoint_id
        is_edit = False
        while identifier is not None:
            ends: _Ends = self.read(partial(self._ends, address, identifier))
            # If the child of this checkpoint is an edit or a replay, it starts again
            # from this checkpoint, and does not contain the writes of the tasks that
            # had started from it. So these tasks are not yielded.
            for ran in () if is_edit else ends.attempts:
                yield identifier, ran
            is_edit = ends.source in ("update", "fork")
            for ran in ends.made_by.attempts():
                yield None, ran
            is_first = ends.source == "input" or ends.made_by.is_whole
            identifier = None if is_first else ends.parent_id

    def output_files(self, address: Address) -> Iterator[CallFiles]:
        """Yield the output files of a run, as `BaseCheckpointSaver.output_files` does.

        Checkpoints are read backwards, from *address* to the run's input.
        """
        next_address: Address | None = address
        is_edit = False
        while next_address is not None:
            find = partial(self._tasks_with_outputs, next_address)
            location, record, tasks = self.read(find)
            # If the child of this checkpoint is an edit or a replay, it starts again
            # from this checkpoint. So the output files of the tasks that had started
            # from it are not yielded.
            for task in () if is_edit else tasks:
                yield self._files_of(task, location)
            is_edit = record is not None and record.source in ("update", "fork")
            next_address = None
            if record is not None and record.source != "input" and record.parent_id:
                next_address = replace(address, checkpoint_id=record.parent_id)

    def _files_of(self, task: WritesRecord, location: Address) -> CallFiles:
        """Return the output files of a task that started from the checkpoint at
        *location*.
        """
        assert task.ran is not None
        ran = AttemptRecord(*task.ran)
        text = ran.call
        for channel, data in task.writes.values():
            if channel == CALLED:
                label = StoredWriteLabel(self.codec, task, channel)
                key = self.maybe_decoded(data, label)
                # Another program may have written the store, so a key of any form must
                # be expected.
                if isinstance(key, tuple) and len(key) >= _CALL_KEY_FIELDS:
                    call_key = CallKey(*key[:_CALL_KEY_FIELDS])
                    text = str(call_key.text)
        written = outputs_in(ran.preview)
        return CallFiles(
            address=location,
            task_id=task.task_id,
            name=text or ran.name,
            is_call=bool(text),
            files=written.files,
            unrecorded=written.unrecorded,
        )

    # ------------------------------------------------------------ in a transaction

    def _tasks_with_outputs(
        self, address: Address, transaction: Any
    ) -> tuple[Address, CheckpointRecord | None, list[WritesRecord]]:
        """Return the full address of a checkpoint, its record (None if it does not
        exist), and the tasks that started from it and have recorded output files.
        """
        namespace = self.tables.namespace(transaction, address)
        if namespace is None:
            return address, None, []
        identifier = address.checkpoint_id or namespace.newest or ""
        key = layout.checkpoint_key(namespace.prefix, identifier)
        data = self.tables.checkpoints.get(transaction, key)
        if data is None:
            return address, None, []
        tasks: list[WritesRecord] = []
        for _, task_data in self.tables.writes.scan(transaction, key):
            # Most tasks have no output files. Such a task is left out before its record
            # is unpickled. The records of an in-memory store are not pickled.
            is_packed = not isinstance(task_data, tuple)
            if is_packed and OUTPUTS_MARK not in bytes(task_data):
                continue
            task = WritesRecord(*self.tables.fields_of(task_data))
            if task.ran is None:
                continue
            if OUTPUTS_MARK in bytes(AttemptRecord(*task.ran).preview):
                tasks.append(task)
        record = CheckpointRecord(*self.tables.fields_of(data))
        record = self.tables.with_metadata(transaction, namespace.prefix, record)
        return replace(address, checkpoint_id=identifier), record, tasks

    def _ends(self, address: Address, identifier: str, transaction: Any) -> _Ends:
        """Return the data of one checkpoint that `node_results` needs."""
        namespace = self.tables.namespace(transaction, address)
        if namespace is None:
            return _UNKNOWN_ENDS
        key = layout.checkpoint_key(namespace.prefix, identifier)
        data = self.tables.checkpoints.get(transaction, key)
        if data is None:
            return _UNKNOWN_ENDS
        ends: list[AttemptRecord] = []
        for _, task_data in self.tables.writes.scan(transaction, key):
            task = WritesRecord(*self.tables.fields_of(task_data))
            channels = {channel for channel, _ in task.writes.values()}
            is_done = not CONTROL_WRITES.issuperset(channels)
            is_node = not caller_of(task.path)
            if task.ran is not None and is_done and is_node:
                ends.append(AttemptRecord(*task.ran))
        record = CheckpointRecord(*self.tables.fields_of(data))
        record = self.tables.with_metadata(transaction, namespace.prefix, record)
        made_by = UNKNOWN_CODE
        made_by_data = record.metadata.get(MADE_BY)
        if made_by_data is not None:
            made_by = MadeBy(*self.tables.codec.decode(made_by_data, METADATA))
        return _Ends(ends, record.source, record.parent_id, made_by)

    def find(
        self,
        transaction: Any,
        address: Address,
        before: str | None = None,
        lazy_results: bool = False,
        tasks: bool = True,
    ) -> CopiedCheckpoint | None:
        """Return a copy of the checkpoint at *address*, or None if it does not exist.

        Args:
            transaction: An open transaction.
            address: The checkpoint. Without a ``checkpoint_id``, it is the newest.
            before: Accept only a checkpoint with a smaller id than this.
            lazy_results: True to leave the results of finished calls in the store.
            tasks: True to copy the task writes on the checkpoint too.
        """
        namespace = self.tables.namespace(transaction, address)
        if namespace is None:
            return None
        identifier = address.checkpoint_id
        if identifier is None and before is None:
            identifier = namespace.newest
        elif identifier is None:
            checkpoints = self.tables.newest_first(transaction, namespace, before)
            identifier, _ = next(checkpoints, (None, None))
        if identifier is None or (before is not None and identifier >= before):
            return None
        record = self.tables.checkpoint(transaction, namespace, identifier)
        if record is None:
            return None
        copied = self._copied(transaction, namespace, identifier, record, {})
        copied.marks_unreadable = lazy_results
        if tasks:
            self.copy_tasks(transaction, copied, lazy_results=lazy_results)
        return copied

    def _copied(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        identifier: str,
        record: CheckpointRecord,
        chains: dict[str, DeltaChain],
    ) -> CopiedCheckpoint:
        """Return a copy of a checkpoint, without the task writes on it.

        Args:
            transaction: An open transaction.
            namespace: The namespace of the checkpoint.
            identifier: The id of the checkpoint.
            record: The record of the checkpoint.
            chains: The chains that were read before, by channel. New chains are added.
        """
        copied = CopiedCheckpoint(identifier, record, namespace)
        versions = record.channel_versions
        keys = [
            layout.value_key(namespace.prefix, versions.get(name), name)
            for name, location in record.places.items()
            if location == layout.STORED
        ]
        if keys:
            self.tables.values.expect(transaction, keys)
        for name, location in record.places.items():
            version = versions.get(name)
            if isinstance(location, bytes):
                # A small value is stored in the record itself: the location is the
                # encoded value.
                copied.values[name] = location
            elif location == layout.STORED:
                value = self.tables.value(transaction, namespace.prefix, name, version)
                copied.values[name] = value
            elif location == layout.DELTA:
                chain = self._chain(
                    transaction, namespace.prefix, name, version, chains
                )
                copied.deltas[name] = chain, chain.positions[version]
        return copied

    def copy_tasks(
        self, transaction: Any, copied: CopiedCheckpoint, *, lazy_results: bool = False
    ) -> None:
        """Add the task writes to *copied*.

        With *lazy_results*, only the ids of finished calls are added, and their records
        if they are small.
        """
        prefix = layout.checkpoint_key(copied.namespace.prefix, copied.id)
        for _, data in self.tables.writes.scan(transaction, prefix):
            task = WritesRecord(*self.tables.fields_of(data))
            channels = {channel for channel, _ in task.writes.values()}
            if lazy_results and channels == _FINISHED_CALL:
                copied.add_finished_call(task, len(data))
            else:
                copied.tasks.append(task)

    def _chain(
        self,
        transaction: Any,
        prefix: bytes,
        channel: str,
        version: Version | None,
        chains: dict[str, DeltaChain],
    ) -> DeltaChain:
        """Return the deltas of a channel up to *version*.

        If no chain in *chains* contains the version, the deltas are read from the store
        and added to *chains*.
        """
        chain = chains.get(channel)
        if chain is not None and version in chain.positions:
            return chain
        newest_first = [*self.tables.chain(transaction, prefix, channel, version)]
        _, oldest = newest_first[-1]
        seed = oldest.base if isinstance(oldest.base, bytes) else None
        if oldest.base == layout.STORED:
            seed = self.tables.value(transaction, prefix, channel, oldest.previous)
        positions: dict[Version | None, int] = {}
        writes = []
        for known_version, delta in reversed(newest_first):
            writes.append(delta.writes)
            positions[known_version] = len(writes)
        chains[channel] = DeltaChain(seed, writes, positions)
        return chains[channel]

    # ------------------------------------------------------------ after the transaction

    def decoded(self, copied: CopiedCheckpoint) -> Saved:
        """Decode a copied checkpoint, and return it in the form that `load` returns."""
        namespace = copied.namespace
        decode = self.codec.decode
        maybe = self.maybe_decoded if copied.marks_unreadable else decode
        values = {
            name: maybe(data, StoredValueLabel(namespace, name))
            for name, data in copied.values.items()
        }
        writes, ran = split_writes_and_attempts(self._pending_writes(copied, maybe))
        fields = copied.record._asdict()
        del fields["places"], fields["keyframe"], fields["shared_metadata"]
        # The caller may change the dicts, and an in-memory store returns its stored
        # record, so they are copied.
        fields["channel_versions"] = dict(fields["channel_versions"])
        fields["versions_seen"] = {
            node: {**seen} for node, seen in fields["versions_seen"].items()
        }
        fields["metadata"] = {
            name: decode(data, METADATA) for name, data in fields["metadata"].items()
        }
        lazy_results = None
        if copied.finished_calls:
            prefix = layout.checkpoint_key(namespace.prefix, copied.id)
            lazy_results = StoredCalls(self, prefix, copied.finished_calls, copied.held)
        return Saved(
            address=Address(namespace.thread_id, namespace.namespace, copied.id),
            checkpoint=Checkpoint(id=copied.id, values=values, **fields),
            writes=writes,
            ran=ran,
            deltas={
                name: self._deltas(chain, end, name)
                for name, (chain, end) in copied.deltas.items()
            },
            is_latest=copied.id == namespace.newest,
            newest_id=namespace.newest,
            lazy_results=lazy_results,
        )

    def _pending_writes(
        self, copied: CopiedCheckpoint, decode: Callable[[bytes, object], Any]
    ) -> list[tuple[str, PendingWrite]]:
        """Return the decoded writes on a checkpoint, with the paths of the tasks."""
        pending = []
        for task in sorted(copied.tasks, key=attrgetter("path", "task_id")):
            task_id, path, written, attempt = task
            if attempt is not None:
                pending.append((path, PendingWrite(task_id, ATTEMPT, attempt)))
            for _, (channel, data) in sorted(written.items()):
                value = decode(data, StoredWriteLabel(self.codec, task, channel))
                pending.append((path, PendingWrite(task_id, channel, value)))
        return pending

    def maybe_decoded(self, data: bytes, label: object) -> Any:
        """Return the decoded value, or an `Unreadable` if it cannot be decoded.

        Error messages name the value by *label*.
        """
        try:
            return self.codec.decode(data, label)
        except ValueEncodingError as error:
            return Unreadable(error)

    def _matching(
        self, checkpoints: Iterable[CopiedCheckpoint], filter: Mapping[str, Any]
    ) -> Iterator[CopiedCheckpoint]:
        """Yield the checkpoints whose metadata, ``source`` and ``step`` match
        *filter*.
        """
        for copied in checkpoints:
            bare = replace(copied, values={}, deltas={}, tasks=[], finished_calls={})
            metadata = metadata_of(self.decoded(bare).checkpoint)
            if all(metadata.get(key) == value for key, value in filter.items()):
                yield copied

    def _deltas(self, chain: DeltaChain, end: int, channel: str) -> DeltaHistory:
        """Return the deltas of a channel, which are decoded when they are needed.

        Args:
            chain: The encoded deltas of the channel.
            end: The number of deltas in the chain to apply.
            channel: The name of the channel.
        """
        decode = self.codec.decode
        label = f"what was added to channel {channel!r}"

        def decoded(deltas: Sequence[tuple[bytes, ...]]) -> tuple[tuple[Any, ...], ...]:
            """Return deltas with each write decoded."""
            decoded_deltas: list[tuple[Any, ...]] = []
            for delta in deltas:
                writes = [decode(data, label) for data in delta]
                decoded_deltas.append(tuple(writes))
            return tuple(decoded_deltas)

        seed = MISSING
        if chain.seed is not None:
            seed = decode(chain.seed, f"a value of channel {channel!r}")
        return DeltaHistory(seed, ReplayedWrites(chain.oldest_first, end, decoded))


@dataclass(frozen=True, slots=True, eq=False)
class StoredCalls:
    """The finished calls of one checkpoint, as `LazyResults`.

    A resumed run may have a hundred thousand finished calls, and its body needs one
    result at a time. So a result is read only when the run requests it.

    Args:
        reader: The reader of the store.
        prefix: The prefix of the keys of the calls' records.
        ids: The ids of the calls, by the hash of their paths (positions in the body
            that made them). Of several calls with one path, all but the first are under
            the hash of their ids.
        held: The records that were read before, by the id of the call.
    """

    reader: Reader
    prefix: bytes
    ids: Mapping[int, str]
    held: Mapping[str, WritesRecord]

    def record_at(self, path: str) -> Sequence[Write]:
        """Return the writes that record the call with this path, without its result.

        They are empty if there is no such call.
        """
        task_id = self.ids.get(hash(path))
        return () if task_id is None else self.result(task_id, CALLED)

    def count(self) -> int:
        """Return the number of finished calls."""
        return len(self.ids)

    def records(self) -> Iterator[Sequence[Write]]:
        """Yield the writes that record each of the calls, without the results."""
        for task_id in self.ids.values():
            yield self.result(task_id, CALLED)

    def result(self, task_id: str, only: str | None = None) -> Sequence[Write]:
        """Return the writes of a call, or nothing if the call has not finished.

        A value that cannot be decoded is replaced by an `Unreadable`.

        Args:
            task_id: The id of the call.
            only: Return only the write to this channel.

        Raises:
            StoreCorruptError: The record of the call is damaged.
        """
        record = self._record(task_id)
        if record is None:
            return ()
        encoded = dict(record.writes.values())
        if RETURN not in encoded:
            return ()
        writes: list[Write] = []
        for channel, data in encoded.items():
            if only in (None, channel):
                label = StoredWriteLabel(self.reader.codec, record, channel)
                writes.append((channel, self.reader.maybe_decoded(data, label)))
        return writes

    def _record(self, task_id: str) -> WritesRecord | None:
        """Return the record of a task, or None if nothing is stored about it."""
        record = self.held.get(task_id)
        has_all_calls = len(self.held) == len(self.ids)
        if record is not None or has_all_calls:
            return record
        tables = self.reader.tables
        key = self.prefix + layout.digest(task_id)
        data = self.reader.read(partial(tables.writes.get, key=key))
        return None if data is None else WritesRecord(*tables.fields_of(data))
