"""Batches into records: the inside of a commit's transaction."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flowpregel.checkpoint.lmdb import forget, keys, staterecord
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.deltarecord import DeltaRecord
from flowpregel.checkpoint.lmdb.prepared import Prepared, PreparedDelta, write_record
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.state import (
    DELTA,
    EMPTY,
    LONGEST_CHAIN,
    VALUE,
    Change,
    Entry,
    Place,
    State,
    channels_that_differ,
    nodes_that_differ,
)
from flowpregel.errors import ConfigurationError, LeaseLostError

_MOST_HEADS = 1024
_REFERENCE_COSTS = 40
"""Bytes: a write that is not larger is kept twice rather than looked up."""

Kept: TypeAlias = dict[int, bytes]
"""Where pending writes of a batch are in ``log``, without the scope, by their index."""


@dataclass(slots=True)
class Head:
    """The newest checkpoint this process wrote to a scope, at hand for the next one."""

    id: str
    number: int
    generation: int
    chain: int
    state: State


class Writer:
    """Puts batches into the store; used by one OS thread at a time.

    Between `begin` and `publish` lies one transaction: what a transaction that
    was given up had changed in memory is forgotten by the next `begin`.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._heads: OrderedDict[int, Head] = OrderedDict()
        self._new_heads: dict[int, Head] = {}

    def begin(self) -> None:
        """Begin a transaction."""
        self._book.names.begin()
        self._new_heads = {}

    def publish(self) -> None:
        """Note that the transaction is committed."""
        self._book.names.publish()
        for number, head in self._new_heads.items():
            self._heads[number] = head
            self._heads.move_to_end(number)
        self._new_heads = {}
        while len(self._heads) > _MOST_HEADS:
            self._heads.popitem(last=False)

    def put(self, transaction: Any, prepared: Prepared) -> None:
        """Put one batch into the transaction.

        Raises:
            LeaseLostError: Its lease was taken over. Nothing was put.
        """
        batch = prepared.batch
        address = batch.address
        scopes = self._book.scopes
        scope = scopes.get(transaction, address.thread_id, address.namespace)
        if scope is None:
            scope = scopes.make(transaction, address.thread_id, address.namespace, time.time_ns())
        if batch.fence is not None and batch.fence != scope.fence:
            if batch.fence < scope.fence:
                raise LeaseLostError(address.thread_id, address.namespace, "a newer run")
            scope = replace(scope, fence=batch.fence)
            scopes.put(transaction, scope)
        kept = self._put_writes(transaction, scope, prepared)
        if batch.checkpoint is not None:
            self._put_checkpoint(transaction, scope, prepared, kept)

    # ------------------------------------------------------------ pending writes

    def _put_writes(self, transaction: Any, scope: Scope, prepared: Prepared) -> Kept:
        """Put pending writes; return where each is, but for those whose place was taken."""
        kept: Kept = {}
        log, names = self._book.log, self._book.names
        numbers: dict[str, int] = {}
        for index, write in enumerate(prepared.writes):
            number = numbers.get(write.checkpoint_id)
            if number is None:
                number = self._number(transaction, scope, write.checkpoint_id)
                numbers[write.checkpoint_id] = number
            tail = keys.write(write.task_id, write.position)
            key = keys.log(scope.number, number, keys.WRITE, tail)
            if write.position >= 0 and log.has(transaction, key):
                continue
            log.put(transaction, key, write_record(write, names.number(transaction, write.channel)))
            if write.position >= 0:
                kept[index] = key[8:]
        return kept

    def _number(self, transaction: Any, scope: Scope, checkpoint_id: str) -> int:
        """Return the number of a checkpoint id, giving it one if it has none yet."""
        head = self._head(scope)
        if head is not None and head.id == checkpoint_id:
            return head.number
        found = self._book.number(transaction, scope, checkpoint_id)
        return found or self._new_number(transaction, scope, checkpoint_id)

    def _new_number(self, transaction: Any, scope: Scope, checkpoint_id: str) -> int:
        number = self._book.last_number(transaction, scope) + 1
        key = keys.checkpoint_id(scope.number, checkpoint_id)
        self._book.ids.put(transaction, key, number.to_bytes(8, "big"))
        return number

    # ------------------------------------------------------------ checkpoints

    def _put_checkpoint(
        self, transaction: Any, scope: Scope, prepared: Prepared, kept: Kept
    ) -> None:
        checkpoint = prepared.batch.checkpoint
        assert checkpoint is not None
        if checkpoint.parent_id == checkpoint.id:
            raise ConfigurationError(f"checkpoint {checkpoint.id!r} cannot be its own parent")
        parent = self._parent(transaction, scope, checkpoint.parent_id)
        number = self._book.last_number(transaction, scope) + 1
        key = keys.checkpoint_id(scope.number, checkpoint.id)
        if not self._book.ids.add(transaction, key, number.to_bytes(8, "big")):
            known = self._book.number(transaction, scope, checkpoint.id)
            assert known is not None
            number = known
            if self._book.change(transaction, scope, number) is not None:
                # It is written anew: others may build on what it was.
                scope, number = forget.supersede(self._book, transaction, scope, checkpoint.id)
        old = State() if parent is None else parent.state
        places = self._previous(transaction, scope, prepared, old)
        head = keys.log(scope.number, number, b"")
        written, records = self._records(transaction, head, prepared, kept, places)
        change, state = self._change(transaction, scope, prepared, written, parent)
        record = staterecord.pack(change, self._book.names.numbers(transaction), number)
        key = keys.log(scope.number, number, keys.CHECKPOINT)
        self._book.log.put(transaction, key, record, fresh=True)
        for key, encoded in records:
            self._book.log.put(transaction, key, encoded, fresh=True)
        self._new_heads[scope.number] = Head(
            checkpoint.id, number, scope.generation, change.chain, state
        )

    def _head(self, scope: Scope) -> Head | None:
        head = self._new_heads.get(scope.number) or self._heads.get(scope.number)
        return head if head is not None and head.generation == scope.generation else None

    def _parent(self, transaction: Any, scope: Scope, parent_id: str | None) -> Head | None:
        """Return the parent, if it is there."""
        if parent_id is None:
            return None
        head = self._head(scope)
        if head is not None and head.id == parent_id:
            return head
        number = self._book.number(transaction, scope, parent_id)
        found = None if number is None else self._book.find(transaction, scope, number)
        if found is None:
            return None
        return Head(parent_id, found.number, scope.generation, found.change.chain, found.state)

    def _change(
        self,
        transaction: Any,
        scope: Scope,
        prepared: Prepared,
        written: dict[str, Place],
        parent: Head | None,
    ) -> tuple[Change, State]:
        """Return the checkpoint's record, and the state that it makes."""
        checkpoint = prepared.batch.checkpoint
        assert checkpoint is not None
        old = State() if parent is None else parent.state
        channels = channels_that_differ(old, checkpoint.channel_versions, written)
        seen = nodes_that_differ(old, checkpoint.versions_seen)
        complete = (
            parent is None or channels is None or seen is None or parent.chain + 1 >= LONGEST_CHAIN
        )
        if channels is None:
            old = State()
            channels = channels_that_differ(old, checkpoint.channel_versions, written) or {}
        self._find_places(transaction, scope, channels, written, old)
        change = Change(
            id=checkpoint.id,
            parent_id=checkpoint.parent_id,
            source=checkpoint.source,
            step=checkpoint.step,
            at=checkpoint.at,
            base=None if complete or parent is None else parent.number,
            chain=0 if complete or parent is None else parent.chain + 1,
            channels=channels,
            changed=checkpoint.changed,
            seen=checkpoint.versions_seen if complete or seen is None else seen,
            updated=checkpoint.updated_channels,
            metadata=prepared.metadata,
        )
        old_seen = {} if complete else old.seen
        state = State({**old.versions}, {**old.places}, {**old_seen}, prepared.metadata)
        state.add(change)
        if complete:
            change.channels = {
                name: Entry(state.versions.get(name), place) for name, place in state.places.items()
            }
        elif prepared.metadata == old.metadata:
            change.metadata = None
        return change, state

    def _previous(
        self, transaction: Any, scope: Scope, prepared: Prepared, old: State
    ) -> list[Place]:
        """Return where what each delta was added to is."""
        places: list[Place] = []
        for delta in prepared.deltas:
            place: Place = (EMPTY, 0)
            if delta.previous is not None:
                if old.versions.get(delta.channel) == delta.previous:
                    place = old.places[delta.channel]
                else:
                    wanted = {delta.channel: delta.previous}
                    found = self._book.places(transaction, scope, wanted)
                    place = found.get(delta.channel, place)
            places.append(place)
        return places

    def _records(
        self,
        transaction: Any,
        head: bytes,
        prepared: Prepared,
        kept: Kept,
        previous: list[Place],
    ) -> tuple[dict[str, Place], list[tuple[bytes, bytes]]]:
        """Return where each changed channel's value will be, and the records of those."""
        number_of, number = self._book.names.numbers(transaction), keys.number_of(head)
        checkpoint = prepared.batch.checkpoint
        assert checkpoint is not None
        written: dict[str, Place] = dict.fromkeys(checkpoint.changed, (EMPTY, number))
        records = []
        for delta, place in zip(prepared.deltas, previous, strict=True):
            tail = number_of(delta.channel).to_bytes(4, "big")
            record = _delta_record(prepared, delta, place, kept)
            records.append((head + keys.DELTA + tail, record.to_bytes()))
            written[delta.channel] = (DELTA, number)
        for channel, encoded in prepared.values:
            tail = number_of(channel).to_bytes(4, "big")
            records.append((head + keys.VALUE + tail, encoded))
            written[channel] = (VALUE, number)
        # In the order of the keys: pages that are filled from left to right get full.
        records.sort()
        return written, records

    def _find_places(
        self,
        transaction: Any,
        scope: Scope,
        channels: dict[str, Entry],
        written: dict[str, Place],
        old: State,
    ) -> None:
        """Fill in where values are that this checkpoint has and its parent has not."""
        wanted = {
            name: entry.version
            for name, entry in channels.items()
            if name not in written and entry.version is not None
        }
        if not wanted:
            return
        found = self._book.places(transaction, scope, wanted)
        for name, version in wanted.items():
            channels[name] = Entry(version, found.get(name, (EMPTY, 0)))


def _delta_record(
    prepared: Prepared, delta: PreparedDelta, previous: Place, kept: Kept
) -> DeltaRecord:
    if not delta.written:
        return DeltaRecord(previous, encoded=delta.encoded)
    parts = [prepared.writes[index].encoded for index in delta.written]
    large = sum(map(len, parts)) > _REFERENCE_COSTS * len(parts)
    # A write whose place was taken by an earlier one was not kept: that one may differ.
    if large and all(index in kept for index in delta.written):
        return DeltaRecord(previous, references=[kept[index] for index in delta.written])
    return DeltaRecord(previous, parts=parts)
