"""What one transaction sees of a scope: its checkpoints, values, deltas and pending writes.

Each checkpoint's record is read once, however many of its parts are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Version
from flowpregel.channels.base import MISSING, Missing
from flowpregel.checkpoint.lmdb import keys, staterecord, taskrecord
from flowpregel.checkpoint.lmdb.deltarecord import Added, DeltaRecord, Reference
from flowpregel.checkpoint.lmdb.plain import Kept
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.state import (
    DELTA,
    DELTAS,
    EMPTY,
    HELD_VALUE,
    Change,
    State,
    StepId,
)
from flowpregel.checkpoint.lmdb.staterecord import Held, Record
from flowpregel.checkpoint.lmdb.taskrecord import Packed

if TYPE_CHECKING:
    from flowpregel.checkpoint.lmdb.book import Book


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that is there: its number, its own record, and the state it makes."""

    number: int
    change: Change
    state: State


@dataclass(frozen=True)
class Chain:
    """The deltas of a channel, newest first, and the snapshot they start from, as kept."""

    seed: Kept | Missing
    newest_first: list[Added]
    positions: dict[int, int]
    """Where the delta of each checkpoint is, by its number."""

    @cached_property
    def oldest_first(self) -> list[Added]:
        """The same deltas in the order in which they are folded."""
        return self.newest_first[::-1]

    def end(self, number: int) -> int:
        """Return how many of them, from the oldest on, lead to a checkpoint in the chain."""
        return len(self.newest_first) - self.positions[number]


class View:
    """What *transaction* sees of *scope*.

    Args:
        book: The tables.
        transaction: Open as long as the view is used.
        scope: Which of its threads' namespaces.
    """

    def __init__(self, book: Book, transaction: Any, scope: Scope) -> None:
        self.scope = scope
        self._book = book
        self._log = book.log
        self._transaction = transaction
        self._records: dict[int, bytes | None] = {}
        self._fields: dict[int, Record] = {}
        self._changes: dict[int, Change] = {}
        self._held: dict[int, Held | None] = {}

    # ------------------------------------------------------------ checkpoints

    def change(self, number: int) -> Change | None:
        """Return a checkpoint's own record, or None if there is none."""
        if number not in self._changes:
            fields = self._fields_of(number)
            if fields is None:
                return None
            name_of = partial(self._book.names.name, self._transaction)
            change = staterecord.change_of(fields, name_of, self._base_id, number)
            self._changes[number] = change
        return self._changes[number]

    def held(self, number: int) -> Held | None:
        """Return what a checkpoint's record holds besides, or None if there is no record."""
        if number not in self._held:
            record = self._record(number)
            self._held[number] = None if record is None else staterecord.held_in(record)
        return self._held[number]

    def find(self, number: int) -> Found | None:
        """Return the checkpoint that has *number*, or None if there is none."""
        change = self.change(number)
        if change is None:
            return None
        chain = [change]
        while (base_number := chain[-1].base) is not None:
            base = self.change(base_number)
            if base is None:
                raise self._no_base(base_number)
            chain.append(base)
        state = State()
        for each in reversed(chain):
            state.apply(each)
        return Found(number, change, state)

    def places(self, wanted: Mapping[str, Version]) -> dict[str, StepId]:
        """Return where the values of channels at these versions are, wherever they are used.

        For the rare checkpoint that refers to a version its parent does not have.
        """
        found: dict[str, StepId] = {}
        prefix, bound = keys.of_scope(self.scope.number), b""
        while len(found) < len(wanted):
            key = self._log.last_key(self._transaction, prefix, bound)
            if key is None:
                break
            number = keys.number_of(key)
            bound = keys.log(self.scope.number, number, b"")
            change = self.change(number)
            for channel, version in change.versions.items() if change else ():
                if channel in wanted and channel not in found and wanted[channel] == version:
                    assert change is not None
                    found[channel] = change.places[channel]
        return found

    # ------------------------------------------------------------ values

    def value(self, channel: str, place: StepId) -> Kept:
        """Return a channel's value, as it is kept."""
        return self._value(self.channel(channel), place)

    def deltas(self, channel: str, number: int) -> Chain:
        """Return the snapshot that deltas start from, and them, newest first."""
        known = self.channel(channel)
        found: list[Added] = []
        numbers: list[int] = []
        kind, number = DELTA, number
        # Nothing is kept at hand: a long chain is read once, newest to oldest.
        fetch, key_of = self._log.fetcher(self._transaction, keys.LOG_HEAD), self._key
        while kind in DELTAS:
            record = fetch(key_of(number))
            added = None if record is None else staterecord.deltas_in(record).get(known)
            if added is None:
                delta = self.delta(known, number)
                added = *delta.previous, delta.added(self.referred)
            numbers.append(number)
            kind, number, body = added
            found.append(body)
        seed = MISSING if kind == EMPTY else self._value(known, (kind, number))
        return Chain(seed, found, dict(zip(numbers, count(), strict=False)))

    def delta(self, channel: int, number: int) -> DeltaRecord:
        """Return what a checkpoint added to the channel that has the number *channel*."""
        held = self.held(number)
        delta = None if held is None else held.deltas.get(channel)
        if delta is not None:
            return DeltaRecord(*delta)
        key = self._key(number, keys.DELTA, channel)
        data = self._log.get(self._transaction, key)
        if data is None:
            raise self._missing(key, "what was added to a channel")
        return DeltaRecord.from_bytes(data)

    def referred(self, reference: Reference) -> Kept:
        """Return the value of a pending write that a delta refers to, as it is kept."""
        key = self.task_key(reference.number, reference.tag)
        record = self._log.get(self._transaction, key)
        if record is None:
            raise self._missing(key, "a write that was added to a channel")
        return taskrecord.value_at(taskrecord.from_bytes(record), reference.position)

    # ------------------------------------------------------------ pending writes

    def tasks(
        self, number: int, leaves: Callable[[Packed], bool] | None = None
    ) -> dict[bytes, Packed]:
        """Return each task's pending writes on a checkpoint, by its tag.

        Args:
            number: The checkpoint's.
            leaves: Says which of those that have records of their own are left out.
        """
        found = self._held_tasks(number)
        for key, record in self._log.scan(self._transaction, self._key(number, keys.WRITE)):
            task = taskrecord.from_bytes(record)
            if leaves is None or not leaves(task):
                found[key[keys.LOG_HEAD :]] = task
        return found

    def task(self, number: int, tag: bytes) -> Packed | None:
        """Return one task's pending writes on a checkpoint, if it has any."""
        record = self._log.get(self._transaction, self.task_key(number, tag))
        if record is not None:
            return taskrecord.from_bytes(record)
        return self._held_tasks(number).get(tag)

    def _held_tasks(self, number: int) -> dict[bytes, Packed]:
        after = self.held(number + 1)
        return {} if after is None else {taskrecord.tag_of(each): each for each in after.tasks}

    def forget(self, number: int) -> None:
        """Read a checkpoint's record anew when it is next asked for: it was rewritten."""
        self._records.pop(number, None)
        self._fields.pop(number, None)
        self._changes.pop(number, None)
        self._held.pop(number, None)

    # ------------------------------------------------------------ inner

    def channel(self, name: str) -> int:
        """Return the number of a channel that a record refers to."""
        return self._book.names.known(self._transaction, name)

    def task_key(self, number: int, tag: bytes) -> bytes:
        """Return the key of a task's pending writes."""
        return keys.log(self.scope.number, number, keys.WRITE, tag)

    def _value(self, channel: int, place: StepId) -> Kept:
        """Return a value from where it is: held, or in a record of its own."""
        kind, number = place
        held = self.held(number) if kind == HELD_VALUE else None
        if held is not None and channel in held.values:
            return held.values[channel]
        key = self._key(number, keys.VALUE, channel)
        data = self._log.get(self._transaction, key)
        if data is None:
            name = self._book.names.name(self._transaction, channel)
            raise self._missing(key, f"the value of channel {name!r}")
        return data

    def _record(self, number: int) -> bytes | None:
        if number not in self._records:
            self._records[number] = self._log.get(self._transaction, self._key(number))
        return self._records[number]

    def _fields_of(self, number: int) -> Record | None:
        if number not in self._fields:
            record = self._record(number)
            if record is None:
                return None
            self._fields[number] = staterecord.fields_in(record)
        return self._fields[number]

    def _base_id(self, number: int) -> str:
        """Return the id of a checkpoint that another builds on."""
        fields = self._fields_of(number)
        if fields is None:
            raise self._no_base(number)
        return staterecord.id_of(fields)

    def _key(self, number: int, kind: bytes = keys.CHECKPOINT, channel: int | None = None) -> bytes:
        tail = b"" if channel is None else channel.to_bytes(4, "big")
        return keys.log(self.scope.number, number, kind, tail)

    def _no_base(self, number: int) -> Exception:
        return self._missing(self._key(number), "a checkpoint that later ones build on")

    def _missing(self, key: bytes, what: str) -> Exception:
        return self._log.corrupt(key, f"is missing: {what}")
