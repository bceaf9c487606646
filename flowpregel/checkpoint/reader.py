"""Checkpoints out of the store: copied in a short transaction, decoded after it.

Decoding runs code of the user's classes, which must not keep a transaction
open: a reader that stands still keeps every freed page from being used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from flowpregel._core.copies import ReplayedWrites
from flowpregel._core.ids import AttemptRecord, caller_of
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
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.langgraph_methods import metadata_of
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    NamespaceRecord,
    Tables,
    WritesRecord,
)
from flowpregel.errors import ValueEncodingError
from flowpregel.storage.codec import ValueCodec

_PAGE = 8
"""How many checkpoints of a history are read in one transaction."""
_SMALL = 1024
"""Bytes of a finished call's record up to which it is held, and need not be read
again.
"""
_MOST_HELD = 10_000
"""How many of them."""
RESULT, INPUT = "__end__", "__start__"
"""The channel with what a workflow returned."""
_FINISHED_CALL = {RETURN, CALLED}
"""What a task has left that is a finished call and nothing else: its result may stay
there.
"""


@dataclass(frozen=True)
class DeltaChain:
    """The deltas of a channel up to a version, and the snapshot they start from,
    encoded.
    """

    seed: bytes | None
    oldest_first: list[tuple[bytes, ...]]
    positions: dict[Version | None, int]
    """How many deltas lead to each version."""


@dataclass(slots=True)
class CopiedCheckpoint:
    """All that is kept of one checkpoint, nothing decoded."""

    id: str
    record: CheckpointRecord
    namespace: NamespaceRecord
    values: dict[str, bytes] = field(default_factory=dict)
    deltas: dict[str, tuple[DeltaChain, int]] = field(default_factory=dict)
    """By channel: how many deltas of a chain, from the oldest on."""
    tasks: list[WritesRecord] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """The ids of the calls that finished, by the hash of their paths: *tasks* leaves
    them out.
    """
    held: dict[str, WritesRecord] = field(default_factory=dict)
    """Small ones of these, by id."""
    marks_unreadable: bool = False
    """Whether a value that cannot be read back is marked; otherwise it is an error."""


class Glance(NamedTuple):
    """A thread's newest checkpoint, without what needs the user's classes to be
    decoded.
    """

    saved: Saved
    """Its metadata; no values of channels, and nothing that tasks have left on it."""
    is_begun: bool
    """Whether a superstep has begun there, or is the first of its run."""


class Reader:
    """Reads checkpoints.

    Args:
        tables: The store's.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.read, self.codec = tables.read, tables.codec

    def history(
        self,
        address: Address,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
        *,
        bare: bool = False,
    ) -> Iterator[Saved]:
        """Yield the checkpoints at *address*, newest first, in a transaction for each
        page.

        Args:
            address: Whose; with a ``checkpoint_id`` just that one.
            filter: Only those whose metadata has these values.
            before: Only those with a smaller id than this.
            limit: At most this many.
            bare: Leave out what the channels hold.
        """
        found = self._pages(address, before, limit, bare)
        if address.checkpoint_id is not None:
            copied = self.read(partial(self.find, address=address, before=before))
            found = iter(() if copied is None else (copied,))
        if filter:
            found = (each for each in found if self._has(each, filter))
        for each in islice(found, None if limit is None else max(limit, 0)):
            yield self.decoded(each)

    def _pages(
        self, address: Address, before: str | None, limit: int | None, bare: bool
    ) -> Iterator[CopiedCheckpoint]:
        size = _PAGE if limit is None else min(max(limit, 1), _PAGE)
        # Neighbours in a history have most of their deltas in common.
        chains: dict[str, DeltaChain] = {}

        def page_of(transaction: Any) -> list[CopiedCheckpoint]:
            namespace = self.tables.namespace(transaction, address)
            if namespace is None:
                return []
            page = []
            found = self.tables.newest_first(transaction, namespace, before)
            for identifier, record in islice(found, size):
                kept = record._replace(places={}) if bare else record
                page.append(
                    self._copied(transaction, namespace, identifier, kept, chains)
                )
                self._copy_tasks(transaction, page[-1])
            return page

        is_whole = before is None
        while page := self.read(page_of):
            yield from page
            before = page[-1].id
        if is_whole:
            # if one is missing, it raises
            self.read(partial(self.tables.ids, address=address))

    def glance(self, address: Address) -> Glance | None:
        """Return what is known of the newest checkpoint at *address* without the user's
        classes.
        """

        def look(transaction: Any) -> tuple[CopiedCheckpoint, bool] | None:
            copied = self.find(transaction, address, tasks=False)
            if copied is None:
                return None
            key = layout.checkpoint_key(copied.namespace.prefix, copied.id)
            return copied, bool(self.tables.writes.keys(transaction, key, limit=1))

        if (found := self.read(look)) is None:
            return None
        copied, has_begun = found
        saved = self.decoded(replace(copied, values={}, deltas={}))
        return Glance(saved, has_begun or saved.checkpoint.source == "input")

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        """Yield how the nodes of a run ran, back from one of its checkpoints to its
        input.
        """
        identifier, is_edit = address.checkpoint_id, False
        while identifier is not None:
            ends, source, parent, made_by = self.read(
                partial(self._ends, address, identifier)
            )
            # An edit or a replay began anew where its parent's nodes had begun: it has
            # not what these wrote.
            for ran in () if is_edit else ends:
                yield identifier, ran
            is_edit = source in ("update", "fork")
            for ran in made_by.attempts():
                yield None, ran
            is_first = source == "input" or made_by.is_whole
            identifier = None if is_first else parent

    # ------------------------------------------------------------ in a transaction

    def _ends(
        self, address: Address, identifier: str, transaction: Any
    ) -> tuple[list[AttemptRecord], str, str | None, MadeBy]:
        """Return how nodes ran that wrote something on a checkpoint, its source and its
        parent.

        And which code made it, if nothing is kept before it.
        """
        namespace = self.tables.namespace(transaction, address)
        key = (
            b""
            if namespace is None
            else layout.checkpoint_key(namespace.prefix, identifier)
        )
        data = self.tables.checkpoints.get(transaction, key) if key else None
        if data is None:
            return [], "input", None, UNKNOWN_CODE  # it was dropped
        ends = []
        for _, each in self.tables.writes.scan(transaction, key):
            task = WritesRecord(*self.tables.fields_of(each))
            is_done = not CONTROL_WRITES.issuperset(
                name for name, _ in task.writes.values()
            )
            if task.ran is not None and is_done and not caller_of(task.path):
                ends.append(AttemptRecord(*task.ran))
        record = CheckpointRecord(*self.tables.fields_of(data))
        made_by = UNKNOWN_CODE
        data = record.metadata.get(MADE_BY)
        if data is not None:
            fields = self.tables.codec.decode(
                data,
                "the metadata of a checkpoint",
            )
            made_by = MadeBy(*fields)
        return ends, record.source, record.parent_id, made_by

    def find(
        self,
        transaction: Any,
        address: Address,
        before: str | None = None,
        lazy_results: bool = False,
        tasks: bool = True,
    ) -> CopiedCheckpoint | None:
        """Copy the checkpoint at *address*, if it is there.

        Args:
            transaction: Open.
            address: Its own; without a ``checkpoint_id`` the newest.
            before: Only one with a smaller id than this.
            lazy_results: Leave the results of finished calls where they are.
            tasks: With what tasks have left on it.
        """
        namespace = self.tables.namespace(transaction, address)
        if namespace is None:
            return None
        wanted = address.checkpoint_id
        if wanted is None and before is None:
            wanted = namespace.newest
        elif wanted is None:
            found = self.tables.newest_first(transaction, namespace, before)
            wanted = next((identifier for identifier, _ in found), None)
        if wanted is None or (before is not None and wanted >= before):
            return None
        record = self.tables.checkpoint(transaction, namespace, wanted)
        if record is None:
            return None
        copied = self._copied(transaction, namespace, wanted, record, {})
        copied.marks_unreadable = lazy_results
        if tasks:
            self._copy_tasks(transaction, copied, lazy_results=lazy_results)
        return copied

    def _copied(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        identifier: str,
        record: CheckpointRecord,
        chains: dict[str, DeltaChain],
    ) -> CopiedCheckpoint:
        """Return what is kept of a checkpoint, without what tasks have left on it.

        Args:
            transaction: Open.
            namespace: The checkpoint's.
            identifier: Its id.
            record: What is kept in it.
            chains: By channel, the deltas that were read before.
        """
        copied = CopiedCheckpoint(identifier, record, namespace)
        stored = [
            name for name, place in record.places.items() if place == layout.STORED
        ]
        versions = record.channel_versions
        keys = [
            layout.value_key(namespace.prefix, versions.get(name), name)
            for name in stored
        ]
        if keys:
            self.tables.values.expect(transaction, keys)
        for name, place in record.places.items():
            version = versions.get(name)
            if isinstance(place, bytes):
                copied.values[name] = place
            elif place == layout.STORED:
                value = self.tables.value(transaction, namespace.prefix, name, version)
                copied.values[name] = value
            elif place == layout.DELTA:
                chain = chains.get(name)
                if chain is None or version not in chain.positions:
                    chain = chains[name] = self._chain(
                        transaction, namespace.prefix, name, version
                    )
                copied.deltas[name] = chain, chain.positions[version]
        return copied

    def _copy_tasks(
        self, transaction: Any, copied: CopiedCheckpoint, *, lazy_results: bool = False
    ) -> None:
        """Add what tasks have left; of those that are finished calls, if
        *lazy_results*, little.
        """
        prefix = layout.checkpoint_key(copied.namespace.prefix, copied.id)
        for _, data in self.tables.writes.scan(transaction, prefix):
            task = WritesRecord(*self.tables.fields_of(data))
            if not (
                lazy_results and dict(task.writes.values()).keys() == _FINISHED_CALL
            ):
                copied.tasks.append(task)
                continue
            copied.left[hash(task.path)] = task.task_id
            if len(data) <= _SMALL and len(copied.held) < _MOST_HELD:
                copied.held[task.task_id] = task

    def _chain(
        self, transaction: Any, prefix: bytes, channel: str, version: Version | None
    ) -> DeltaChain:
        found = [*self.tables.chain(transaction, prefix, channel, version)]
        _, oldest = found[-1]
        seed = oldest.base if isinstance(oldest.base, bytes) else None
        if oldest.base == layout.STORED:
            seed = self.tables.value(transaction, prefix, channel, oldest.previous)
        positions = {each: len(found) - at for at, (each, _) in enumerate(found)}
        return DeltaChain(
            seed, [delta.writes for _, delta in reversed(found)], positions
        )

    # ------------------------------------------------------------ after the transaction

    def decoded(self, copied: CopiedCheckpoint) -> Saved:
        """Return a checkpoint that was copied, as who loads it is given it."""
        namespace, decode = copied.namespace, self.codec.decode
        maybe = self.maybe_decoded if copied.marks_unreadable else decode
        values = {
            name: maybe(data, _channel_label(namespace, name))
            for name, data in copied.values.items()
        }
        pending = []
        for task in sorted(copied.tasks, key=attrgetter("path", "task_id")):
            task_id, path, written, how = task
            if how is not None:
                pending.append((path, PendingWrite(task_id, ATTEMPT, how)))
            for _, (channel, data) in sorted(written.items()):
                value = maybe(data, _WriteText(self.codec, task, channel))
                pending.append((path, PendingWrite(task_id, channel, value)))
        writes, ran = split_writes_and_attempts(pending)
        kept = copied.record._asdict()
        del kept["places"]
        # Copies: in memory the record is what is kept.
        kept["channel_versions"] = dict(kept["channel_versions"])
        kept["versions_seen"] = {
            node: {**seen} for node, seen in kept["versions_seen"].items()
        }
        kept["metadata"] = {
            name: decode(data, "the metadata of a checkpoint")
            for name, data in kept["metadata"].items()
        }
        prefix = layout.checkpoint_key(namespace.prefix, copied.id)
        return Saved(
            address=Address(namespace.thread_id, namespace.namespace, copied.id),
            checkpoint=Checkpoint(id=copied.id, values=values, **kept),
            writes=writes,
            ran=ran,
            deltas={
                name: self._deltas(chain, end, name)
                for name, (chain, end) in copied.deltas.items()
            },
            is_latest=copied.id == namespace.newest,
            newest_id=namespace.newest,
            lazy_results=LeftCalls(self, prefix, copied.left, copied.held)
            if copied.left
            else None,
        )

    def maybe_decoded(self, data: bytes, what: object) -> Any:
        """Return the value that was encoded, or an `Unreadable`."""
        try:
            return self.codec.decode(data, what)
        except ValueEncodingError as error:
            return Unreadable(error)

    def _has(self, copied: CopiedCheckpoint, filter: Mapping[str, Any]) -> bool:
        """Return whether the metadata, ``source`` and ``step`` of a checkpoint are
        these.
        """
        bare = replace(copied, values={}, deltas={}, tasks=[], left={})
        found = metadata_of(self.decoded(bare).checkpoint)
        return all(found.get(key) == value for key, value in filter.items())

    def _deltas(self, chain: DeltaChain, end: int, channel: str) -> DeltaHistory:
        decode, what = self.codec.decode, f"what was added to channel {channel!r}"

        def decoded(many: Sequence[tuple[bytes, ...]]) -> tuple[tuple[Any, ...], ...]:
            return tuple(tuple(decode(data, what) for data in each) for each in many)

        seed = MISSING
        if chain.seed is not None:
            seed = decode(chain.seed, f"a value of channel {channel!r}")
        return DeltaHistory(seed, ReplayedWrites(chain.oldest_first, end, decoded))


@dataclass(frozen=True, slots=True, eq=False)
class LeftCalls:
    """The calls of one checkpoint that finished, as `LazyResults`.

    A run that goes on may have a hundred thousand of them. Its body asks for one
    after the other, and drops it again.

    Args:
        reader: Reads the store.
        prefix: What the keys of their records begin with.
        ids: Their ids, by the hash of their paths.
        held: Records that were read before, by id.
    """

    reader: Reader
    prefix: bytes
    ids: Mapping[int, str]
    held: Mapping[str, WritesRecord]

    def record_at(self, path: str) -> Sequence[Write]:
        """Return which call has this path, without its result; empty: there is no
        such.
        """
        task_id = self.ids.get(hash(path))
        return () if task_id is None else self.result(task_id, CALLED)

    def count(self) -> int:
        """Return how many there are."""
        return len(self.ids)

    def records(self) -> Iterator[Sequence[Write]]:
        """Yield which calls they are, one after the other and without their results."""
        for task_id in self.ids.values():
            yield self.result(task_id, CALLED)

    def result(self, task_id: str, only: str | None = None) -> Sequence[Write]:
        """Return what is kept of a call, empty if it has not finished.

        Args:
            task_id: The call's.
            only: Just the write to this name.

        A result that cannot be read back is an `Unreadable`.

        Raises:
            StoreCorruptError: Its record is damaged.
        """
        reader, record = self.reader, self.held.get(task_id)
        if record is None and len(self.held) < len(self.ids):
            key = self.prefix + layout.digest(task_id)
            if (
                data := reader.read(partial(reader.tables.writes.get, key=key))
            ) is not None:
                record = WritesRecord(*reader.tables.fields_of(data))
        writes = {} if record is None else dict(record.writes.values())
        if record is None or RETURN not in writes:
            return ()
        return [
            (
                channel,
                reader.maybe_decoded(value, _WriteText(reader.codec, record, channel)),
            )
            for channel, value in writes.items()
            if only in (None, channel)
        ]


# ---------------------------------------------------------------- what a value is


class _WriteText:
    """The text that names a write in a message, by the call or the node that made it.

    It is made when it is asked for.

    Args:
        codec: Decodes which call it is.
        record: The task's.
        channel: Where the write goes.
    """

    __slots__ = ("_channel", "_codec", "_record")

    def __init__(self, codec: ValueCodec, record: WritesRecord, channel: str) -> None:
        self._codec, self._record, self._channel = codec, record, channel

    def __str__(self) -> str:
        record = self._record
        data = dict(record.writes.values()).get(CALLED)
        called = None if data is None else self._codec.decode(data, "a call")
        if called is not None and self._channel == RETURN:
            return f"the result of {called[3]}"
        name = f"task {record.task_id!r}"
        if called is not None:
            name = called[3]
        elif record.ran is not None:
            name = f"node {AttemptRecord(*record.ran).name!r}"
        return f"the write of {name} to {self._channel!r}"


def _channel_label(namespace: NamespaceRecord, channel: str) -> str:
    """Return the text that names the value of a channel in a message."""
    if channel == RESULT:
        return f"the result of thread {namespace.thread_id!r}"
    if channel == INPUT:
        return f"the input of thread {namespace.thread_id!r}"
    return f"a value of channel {channel!r} of thread {namespace.thread_id!r}"
