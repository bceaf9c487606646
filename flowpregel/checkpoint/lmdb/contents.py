"""Which of a superstep's values, deltas and writes its checkpoint's record holds itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.deltarecord import Added, DeltaRecord, Reference
from flowpregel.checkpoint.lmdb.plain import LARGEST, Kept, as_bytes, size_of
from flowpregel.checkpoint.lmdb.prepared import Prepared, PreparedDelta, Written
from flowpregel.checkpoint.lmdb.state import DELTA, HELD_DELTA, HELD_VALUE, VALUE, StepId
from flowpregel.checkpoint.lmdb.staterecord import ROOM, Parts
from flowpregel.checkpoint.lmdb.taskrecord import Packed

_REFERENCE_COSTS = 40
"""Bytes: a write that is not larger is kept twice rather than looked up."""

References: TypeAlias = Mapping[Written, Reference]
"""Where pending writes of a batch are, but for those whose place was taken."""


class Contents:
    """The parts of one superstep.

    Args:
        prepared: The batch.
        number: The checkpoint's.
        tasks: The writes on the checkpoint before that the record holds; None:
            they have records of their own.
        values: By channel, those that the record holds; all of them if they are small.
    """

    def __init__(
        self,
        prepared: Prepared,
        number: int,
        tasks: Sequence[Packed] | None,
        values: dict[int, Kept],
    ) -> None:
        self._prepared = prepared
        self._number = number
        self._has_tasks = tasks is not None
        self._room = ROOM - prepared.size if values else ROOM
        self._values = values
        self._deltas: dict[int, tuple[int, int, Added]] = {}
        self.own: list[tuple[bytes, bytes]] = []
        """The ends of the keys, and the payloads, of the records of their own."""
        self.parts: Parts = values, self._deltas, tuple(tasks or ())
        """What the record holds."""

    def add_values(self, numbers: Sequence[int], written: dict[str, StepId]) -> None:
        """Add the values of channels, which are not small.

        Args:
            numbers: The channels' numbers.
            written: Gets where each value will be.
        """
        names, values = self._prepared.names, self._prepared.values
        held = HELD_VALUE, self._number
        tasks = self._prepared.tasks if self._has_tasks else ()
        written_already = {id(kept) for task in tasks for kept in task.kept}
        for channel, name, kept in zip(numbers, names, values, strict=True):
            # What is one of the writes is held with it, and there once.
            size = 0 if id(kept) in written_already else size_of(kept)
            if size <= LARGEST and size <= self._room:
                self._room -= size
                self._values[channel] = kept
                written[name] = held
            else:
                self.own.append((keys.VALUE + channel.to_bytes(4, "big"), as_bytes(kept)))
                written[name] = VALUE, self._number

    def add_deltas(
        self,
        numbers: Sequence[int],
        previous: Sequence[StepId],
        references: References,
        written: dict[str, StepId],
    ) -> None:
        """Add what was added to channels.

        Args:
            numbers: The channels' numbers.
            previous: Where what each was added to is.
            references: Where the pending writes are that are not held.
            written: Gets where each delta will be.
        """
        for channel, place, delta in zip(numbers, previous, self._prepared.deltas, strict=True):
            kind, number = place
            body, size = self._body(delta, references)
            if not isinstance(body, list) and size <= LARGEST and size <= self._room:
                self._room -= size
                self._deltas[channel] = kind, number, body
                written[delta.channel] = HELD_DELTA, self._number
            else:
                record = _own_record(place, body)
                self.own.append((keys.DELTA + channel.to_bytes(4, "big"), record.to_bytes()))
                written[delta.channel] = DELTA, self._number

    def _body(
        self, delta: PreparedDelta, references: References
    ) -> tuple[Added | list[Reference], int]:
        """Return what a delta is made of, and what it costs to hold it; a list: references."""
        if not delta.written:
            return delta.encoded, len(delta.encoded)
        tasks = self._prepared.tasks
        parts = tuple([tasks[task].kept[index] for task, index in delta.written])
        if self._has_tasks:
            return parts, 0
        size = sum(map(size_of, parts))
        # A write whose place was taken by an earlier one was not kept: that one may differ.
        if size > _REFERENCE_COSTS * len(parts) and all(w in references for w in delta.written):
            return [references[each] for each in delta.written], size
        return parts, size


def _own_record(previous: StepId, body: Added | list[Reference]) -> DeltaRecord:
    if isinstance(body, list):
        return DeltaRecord(*previous, tuple([tuple(each) for each in body]))
    return DeltaRecord(*previous, body)
