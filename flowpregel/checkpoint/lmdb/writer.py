"""Batches into records: the inside of a commit's transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any

from flowpregel._core.records import Checkpoint, Version
from flowpregel.checkpoint.lmdb import changes, forget, keys, staterecord, taskrecord
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.changes import Head
from flowpregel.checkpoint.lmdb.contents import Contents, References
from flowpregel.checkpoint.lmdb.deltarecord import Reference
from flowpregel.checkpoint.lmdb.plain import LARGEST, Kept
from flowpregel.checkpoint.lmdb.prepared import Prepared, PreparedTask, Written, each_of
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.state import EMPTY, HELD_VALUE, State, StepId
from flowpregel.checkpoint.lmdb.staterecord import Parts
from flowpregel.checkpoint.lmdb.taskrecord import Packed
from flowpregel.checkpoint.lmdb.view import View
from flowpregel.errors import ConfigurationError, LeaseLostError

_MOST_HEADS = 1024


@dataclass(slots=True)
class Tip:
    """The end of a scope's records."""

    scope: Scope
    number: int
    """The greatest that is in use (0: none)."""
    has_writes: bool
    """Whether there are records of pending writes under it."""
    is_last: bool = True
    """Whether its records may be the last of all, as far as is known."""
    newest: str | None = None
    """The greatest checkpoint id that has a number; None: it is not known."""


class Writer:
    """Puts batches into the store; used by one OS thread at a time.

    Between `begin` and `publish` lies one transaction: what a transaction that
    was given up had changed in memory is forgotten by the next `begin`. What is
    known of the store is used again as long as nobody else has written to it,
    which LMDB's number of the transaction tells.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._heads: dict[int, Head] = {}
        """Of each scope; the last is the one that was put there last."""
        self._new_heads: dict[int, Head] = {}
        self._tips: dict[tuple[str, str], Tip] = {}
        self._transaction = 0
        """The number of the last transaction that left `_tips` as they are."""

    def begin(self, transaction: Any) -> int:
        """Begin a transaction; return its number."""
        self._book.names.begin(transaction)
        self._new_heads = {}
        number: int = transaction.id()
        if number != self._transaction + 1 or len(self._tips) > _MOST_HEADS:
            self._tips.clear()
        # Until it is published, what is written down in `_tips` is not to be trusted.
        self._transaction = 0
        return number

    def publish(self, number: int) -> None:
        """Note that the transaction that had *number* is committed."""
        self._book.names.publish()
        for scope, head in self._new_heads.items():
            self._heads.pop(scope, None)
            self._heads[scope] = head
        if len(self._heads) > _MOST_HEADS:
            for oldest in [*islice(self._heads, len(self._heads) - _MOST_HEADS // 2)]:
                del self._heads[oldest]
        self._transaction = number

    def unsettle(self) -> None:
        """Forget the ends of scopes: the transaction is about to change more than ends."""
        self._tips.clear()

    def put(self, transaction: Any, prepared: Prepared) -> None:
        """Put one batch into the transaction.

        Raises:
            LeaseLostError: Its lease was taken over. Nothing was put.
        """
        batch = prepared.batch
        place = batch.address.thread_id, batch.address.namespace
        tip = self._tips.get(place)
        if tip is None:
            tip = self._tips[place] = self._tip(transaction, *place)
        if batch.fence is not None and batch.fence != tip.scope.fence:
            if batch.fence < tip.scope.fence:
                raise LeaseLostError(*place, "a newer run")
            tip.scope = replace(tip.scope, fence=batch.fence)
            self._book.scopes.put(transaction, tip.scope)
        put = Put(self._book, transaction, tip, self)
        if batch.checkpoint is None:
            put.tasks(prepared)
        else:
            put.checkpoint(prepared, batch.checkpoint)

    def _tip(self, transaction: Any, thread_id: str, namespace: str) -> Tip:
        """Return the end of a scope as the store has it."""
        scopes = self._book.scopes
        scope = scopes.get(transaction, thread_id, namespace)
        if scope is None:
            scope = scopes.make(transaction, thread_id, namespace, time.time_ns())
            return Tip(scope, 0, has_writes=False, newest="")
        last = self._book.log.last_key(transaction, keys.of_scope(scope.number))
        if last is None:
            return Tip(scope, 0, has_writes=False)
        return Tip(scope, keys.number_of(last), last[16:17] == keys.WRITE)

    def head(self, scope: Scope) -> Head | None:
        """Return the newest checkpoint that this process wrote to *scope*, if it still holds.

        It does not where its state was taken, and the transaction was given up: it is read
        from the store again.
        """
        number = scope.number
        head = self._new_heads.get(number) or self._heads.get(number)
        return head if head is not None and head.generation == scope.generation else None

    def note(self, scope: Scope, head: Head) -> None:
        """Keep *head* at hand."""
        self._new_heads[scope.number] = head


class Put:
    """One batch on its way into a transaction."""

    def __init__(self, book: Book, transaction: Any, tip: Tip, writer: Writer) -> None:
        self._book = book
        self._transaction = transaction
        self._tip = tip
        self._writer = writer
        self._seen: View | None = None
        self._number_of = book.names.numbers

    @property
    def _view(self) -> View:
        """What the transaction sees of the scope; seldom needed."""
        if self._seen is None:
            self._seen = self._book.view(self._transaction, self._tip.scope)
        return self._seen

    def _places(self, wanted: Mapping[str, Version]) -> Mapping[str, StepId]:
        return self._view.places(wanted)

    # ------------------------------------------------------------ pending writes

    def tasks(self, prepared: Prepared) -> References:
        """Put pending writes, each task's in a record of its own; return where, for deltas."""
        references: dict[Written, Reference] = {}
        numbers: dict[str, int] = {}
        tip, refers = self._tip, bool(prepared.deltas)
        for index, task in enumerate(prepared.tasks):
            number = numbers.get(task.checkpoint_id)
            if number is None:
                number = numbers[task.checkpoint_id] = self._number(task.checkpoint_id)
            tag = keys.task(task.task_id)
            taken = self._put_task(number, tag, task)
            for own, at in enumerate(taken) if refers else ():
                if at >= 0:
                    references[index, own] = Reference(number, tag, at)
            if number >= tip.number:
                tip.number, tip.has_writes = number, True
        return references

    def _put_task(self, number: int, tag: bytes, task: PreparedTask) -> Sequence[int]:
        """Put one task's writes; return which of its record's each is (-1: it was there)."""
        log, transaction = self._book.log, self._transaction
        key = keys.log(self._tip.scope.number, number, keys.WRITE, tag)
        packed = taskrecord.pack(task, self._number_of)
        # Only of what is under the greatest number does no later record hold any.
        old = self._view.task(number, tag) if number < self._tip.number else None
        if old is None:
            if log.add(transaction, key, taskrecord.to_bytes(packed)):
                return range(len(task.kept))
            old = self._view.task(number, tag)
            assert old is not None
        both = taskrecord.merged(old, packed)
        log.put(transaction, key, taskrecord.to_bytes(both))
        positions, values = each_of(both[2]), both[4]
        places = [positions.index(position) for position in each_of(task.positions)]
        return [
            place if values[place] is kept else -1
            for place, kept in zip(places, task.kept, strict=True)
        ]

    def _number(self, checkpoint_id: str) -> int:
        """Return the number of a checkpoint id, giving it one if it has none yet."""
        head = self._writer.head(self._tip.scope)
        if head is not None and head.id == checkpoint_id:
            return head.number
        scope = self._tip.scope
        found = self._book.number(self._transaction, scope, checkpoint_id)
        if found is None:
            found = self._tip.number + 1
            key = keys.checkpoint_id(scope.number, checkpoint_id)
            self._book.ids.put(self._transaction, key, keys.numbered(found, is_there=False))
            newest = self._tip.newest
            if newest is not None and checkpoint_id > newest:
                self._tip.newest = checkpoint_id
        return found

    # ------------------------------------------------------------ checkpoints

    def checkpoint(self, prepared: Prepared, checkpoint: Checkpoint) -> None:
        """Put a checkpoint, with the pending writes that come along with it."""
        if checkpoint.parent_id == checkpoint.id:
            raise ConfigurationError(f"checkpoint {checkpoint.id!r} cannot be its own parent")
        parent = self._parent(checkpoint.parent_id)
        held = self._held_tasks(prepared, parent)
        references = {} if held is not None else self.tasks(prepared)
        number = self._take_number(checkpoint.id)
        if held is not None and (parent is None or number != parent.number + 1):
            references, held = self.tasks(prepared), None
        number_of, tip = self._number_of, self._tip
        written: dict[str, StepId] = dict.fromkeys(checkpoint.changed, (EMPTY, number))
        values: dict[int, Kept] = {}
        if prepared.size <= LARGEST:
            # What is usual, for all of them: there can be hundreds.
            values = dict(zip(map(number_of, prepared.names), prepared.values, strict=True))
            written.update(dict.fromkeys(prepared.names, (HELD_VALUE, number)))
        parts: Parts = values, {}, tuple(held or ())
        own: Sequence[tuple[bytes, bytes]] = ()
        if prepared.deltas or prepared.size > LARGEST:
            contents = Contents(prepared, number, held, values)
            if prepared.size > LARGEST:
                contents.add_values([*map(number_of, prepared.names)], written)
            channels = [number_of(delta.channel) for delta in prepared.deltas]
            contents.add_deltas(channels, self._previous(prepared, parent), references, written)
            parts, own = contents.parts, contents.own
        change, state = changes.between(prepared, checkpoint, written, parent, self._places)
        self._put_records(number, staterecord.pack(change, number_of, number, parts), own)
        if number >= tip.number:
            tip.has_writes = tip.has_writes and number == tip.number
            tip.number = number
        head = Head(checkpoint.id, number, tip.scope.generation, change.chain, state)
        self._writer.note(tip.scope, head)

    def _put_records(self, number: int, record: bytes, own: Sequence[tuple[bytes, bytes]]) -> None:
        """Put a checkpoint's record, and those of what that does not hold."""
        tip, log = self._tip, self._book.log
        key = keys.log(tip.scope.number, number, keys.CHECKPOINT)
        if tip.is_last:
            tip.is_last = log.append(self._transaction, key, record)
        else:
            log.put(self._transaction, key, record, fresh=True)
        # In the order of the keys: pages that are filled from left to right get full.
        for tail, payload in sorted(own) if own else ():
            log.put(self._transaction, key[:-1] + tail, payload, fresh=True)

    def _held_tasks(self, prepared: Prepared, parent: Head | None) -> list[Packed] | None:
        """Return the records of the batch's pending writes, if the checkpoint's is to hold them.

        It is where they are the first and all of the writes on its parent, and the
        parent is the last checkpoint there is.
        """
        if parent is None or self._tip.has_writes or self._tip.number != parent.number:
            return None
        size = 0
        for task in prepared.tasks:
            size += task.size + len(task.path) + 64
            if size > staterecord.ROOM or task.checkpoint_id != parent.id:
                return None
        return [*map(taskrecord.pack, prepared.tasks, repeat(self._number_of))]

    def _take_number(self, checkpoint_id: str) -> int:
        """Return the number of a checkpoint that is about to be written."""
        tip = self._tip
        number = tip.number + 1
        key = keys.checkpoint_id(tip.scope.number, checkpoint_id)
        if tip.newest is not None and checkpoint_id > tip.newest:
            tip.newest = checkpoint_id
            there = keys.numbered(number, is_there=True)
            self._book.ids.put(self._transaction, key, there, fresh=True)
            return number
        if self._book.ids.add(self._transaction, key, keys.numbered(number, is_there=True)):
            return number
        known = self._book.number(self._transaction, tip.scope, checkpoint_id)
        assert known is not None
        if self._view.change(known) is not None:
            # It is written anew: others may build on what it was.
            self._writer.unsettle()
            tip.scope, known = forget.supersede(
                self._book, self._transaction, tip.scope, checkpoint_id
            )
            self._seen = None
            tip.number, tip.has_writes = known, bool(self._view.tasks(known))
        else:
            self._book.ids.put(self._transaction, key, keys.numbered(known, is_there=True))
        return known

    def _parent(self, parent_id: str | None) -> Head | None:
        """Return the parent, if it is there."""
        if parent_id is None:
            return None
        scope = self._tip.scope
        head = self._writer.head(scope)
        if head is not None and head.id == parent_id:
            return head
        number = self._book.number(self._transaction, scope, parent_id)
        found = None if number is None else self._view.find(number)
        if found is None:
            return None
        return Head(parent_id, found.number, scope.generation, found.change.chain, found.state)

    def _previous(self, prepared: Prepared, parent: Head | None) -> list[StepId]:
        """Return where what each delta was added to is."""
        old = State() if parent is None else parent.state
        places: list[StepId] = []
        for delta in prepared.deltas:
            place: StepId = (EMPTY, 0)
            if delta.previous is not None:
                if old.versions.get(delta.channel) == delta.previous:
                    place = old.places[delta.channel]
                else:
                    wanted = {delta.channel: delta.previous}
                    place = self._view.places(wanted).get(delta.channel, place)
            places.append(place)
        return places
