"""Which of a superstep's values, deltas and writes its checkpoint's record holds itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from flowpregel.checkpoint.lmdb import heldrecord, keys
from flowpregel.checkpoint.lmdb.deltarecord import DeltaRecord, Reference, head_of_pieces
from flowpregel.checkpoint.lmdb.heldrecord import Item, Piece
from flowpregel.checkpoint.lmdb.prepared import Prepared, PreparedDelta, PreparedTask, Written
from flowpregel.checkpoint.lmdb.state import (
    DELTA,
    EMPTY,
    HELD_DELTA,
    HELD_VALUE,
    VALUE,
    Place,
)

_REFERENCE_COSTS = 40
"""Bytes: a write that is not larger is kept twice rather than looked up."""
_KEY_OF = {VALUE: keys.VALUE, DELTA: keys.DELTA}

PackedTask: TypeAlias = tuple[PreparedTask, bytes, list[int]]
"""A task, the record of its writes, and where in that each encoded value begins."""
References: TypeAlias = Mapping[Written, Reference]
"""Where pending writes of a batch are, but for those whose place was taken."""


class Contents:
    """The parts of one superstep.

    Args:
        number: The checkpoint's.
        tasks: The writes on the checkpoint before that the record holds; None:
            they have records of their own.
    """

    def __init__(self, number: int, tasks: Sequence[PackedTask] | None) -> None:
        self._number = number
        self._packed = tasks
        self._room = heldrecord.ROOM
        self._items: list[Item] = []
        self._own: list[Item] = []

    def add(
        self,
        prepared: Prepared,
        numbers: Sequence[int],
        previous: Sequence[Place],
        references: References,
    ) -> dict[str, Place]:
        """Add what the batch says of channels; return where each will be.

        Args:
            prepared: The batch.
            numbers: The numbers of the channels that have values, then of those
                that have deltas.
            previous: Where what each delta was added to is.
            references: Where the pending writes are that are not held.
        """
        checkpoint = prepared.batch.checkpoint
        assert checkpoint is not None
        place = EMPTY, self._number
        written: dict[str, Place] = dict.fromkeys(checkpoint.changed, place)
        channels = iter(numbers)
        for value in prepared.values:
            pieces = self._pieces([value.written]) if value.written is not None else ()
            item = Item(VALUE, next(channels), value.encoded, pieces)
            written[value.channel] = (self._put(item, HELD_VALUE), self._number)
        for delta, before in zip(prepared.deltas, previous, strict=True):
            added = self._delta(next(channels), delta, before, prepared, references)
            kind = DELTA if added is None else self._put(added, HELD_DELTA)
            written[delta.channel] = (kind, self._number)
        return written

    def held(self) -> bytes:
        """Return the part of the checkpoint's record that holds them."""
        tasks = [(keys.task(task.task_id), record) for task, record, _ in self._packed or ()]
        return heldrecord.pack(self._items, tasks)

    def records(self, scope_number: int) -> list[tuple[bytes, bytes]]:
        """Return the keys and payloads of the records of their own.

        In the order of the keys: pages that are filled from left to right get full.
        """
        return sorted(
            (
                keys.log(scope_number, self._number, _KEY_OF[kind], channel.to_bytes(4, "big")),
                data,
            )
            for kind, channel, data, _ in self._own
        )

    def _put(self, item: Item, held: int) -> int:
        """Put *item* where it belongs; return the kind of its place."""
        size = 0 if item.pieces else len(item.data)
        if size > min(heldrecord.LARGEST, self._room) or len(self._items) >= heldrecord.MOST:
            self._own.append(item)
            return item.kind
        self._room -= size
        self._items.append(item)
        return held

    def _pieces(self, written: Sequence[Written]) -> list[Piece]:
        """Return where writes are in the records that are held; empty: those are not."""
        if self._packed is None:
            return []
        pieces = []
        for number, index in written:
            task, _, starts = self._packed[number]
            pieces.append(Piece(number, starts[index], len(task.encoded[index])))
        return pieces

    def _delta(
        self,
        channel: int,
        delta: PreparedDelta,
        previous: Place,
        prepared: Prepared,
        references: References,
    ) -> Item | None:
        """Return the delta as it may be held; None: it refers to records, and has its own."""
        if not delta.written:
            data = DeltaRecord(previous, encoded=delta.encoded).to_bytes()
            return Item(DELTA, channel, data)
        pieces = self._pieces(delta.written)
        if pieces:
            return Item(DELTA, channel, head_of_pieces(previous), pieces)
        parts = [prepared.tasks[task].encoded[index] for task, index in delta.written]
        found = [references[each] for each in delta.written if each in references]
        large = sum(map(len, parts)) > _REFERENCE_COSTS * len(parts)
        # A write whose place was taken by an earlier one was not kept: that one may differ.
        if large and len(found) == len(parts):
            self._own.append(
                Item(DELTA, channel, DeltaRecord(previous, references=found).to_bytes())
            )
            return None
        return Item(DELTA, channel, DeltaRecord(previous, parts=parts).to_bytes())
