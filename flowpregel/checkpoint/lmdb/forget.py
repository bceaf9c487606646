"""Checkpoints dropped, and only what no kept one needs dropped with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowpregel.checkpoint.lmdb import keys, staterecord, taskrecord
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.plain import as_bytes
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.state import DELTA, DELTAS, EMPTY, VALUE, Change, StepId
from flowpregel.checkpoint.lmdb.view import View

_KIND_OF = {keys.VALUE: VALUE, keys.DELTA: DELTA}
_Needed = tuple[int, int, int]  # kind, channel, number


def checkpoints(book: Book, transaction: Any, scope: Scope, gone: Collection[str]) -> Scope:
    """Drop the checkpoints that have these ids; return the scope as it is now.

    What a kept checkpoint shows stays as it is: values and deltas it refers to
    are kept, and records that built on a dropped one are written out complete.
    """
    numbers = {}
    kept = []
    for identifier, number in [*book.newest_first(transaction, scope)]:
        if identifier in gone:
            numbers[number] = identifier
        else:
            kept.append(number)
    if not numbers:
        return scope
    sweep = _Sweep(book, transaction, scope, numbers)
    sweep.look_at(kept)
    sweep.move_out(kept)
    for number, identifier in numbers.items():
        book.log.drop(transaction, keys.log(scope.number, number, keys.CHECKPOINT))
        book.log.drop(transaction, keys.log(scope.number, number, keys.WRITE))
        book.ids.delete(transaction, keys.checkpoint_id(scope.number, identifier))
    sweep.drop_the_rest()
    return book.scopes.changed(transaction, scope)


def thread(book: Book, transaction: Any, thread_id: str) -> None:
    """Drop everything of a thread."""
    for scope in [*book.scopes.of_thread(transaction, thread_id)]:
        book.log.drop(transaction, keys.of_scope(scope.number))
        book.ids.drop(transaction, keys.of_scope(scope.number))
        book.scopes.drop(transaction, scope)


def supersede(book: Book, transaction: Any, scope: Scope, checkpoint_id: str) -> tuple[Scope, int]:
    """Make room for a checkpoint whose id is taken; return the scope, and a new number.

    Its pending writes stay with the id. Values of the old one stay as long as
    others refer to them.
    """
    tasks = {}
    old = book.number(transaction, scope, checkpoint_id)
    if old is not None:
        tasks = book.view(transaction, scope).tasks(old)
    number = book.last_number(transaction, scope) + 1
    scope = checkpoints(book, transaction, scope, {checkpoint_id})
    key = keys.checkpoint_id(scope.number, checkpoint_id)
    book.ids.put(transaction, key, keys.numbered(number, is_there=True))
    for tag, task in tasks.items():
        key = keys.log(scope.number, number, keys.WRITE, tag)
        book.log.put(transaction, key, taskrecord.to_bytes(task))
    return scope, number


class _Sweep:
    """What has to be done before the checkpoints *gone* can be dropped."""

    def __init__(self, book: Book, transaction: Any, scope: Scope, gone: Collection[int]) -> None:
        self._book = book
        self._transaction = transaction
        self._scope = scope
        self._gone = gone
        self._view: View = book.view(transaction, scope)
        self._needed: set[_Needed] = set()

    def look_at(self, kept: Collection[int]) -> None:
        """Find the values and deltas that kept checkpoints need.

        The records of the kept that build on one that goes are written out first,
        so that all that is needed stands in the kept records themselves.
        """
        for number in kept:
            change = self._view.change(number)
            assert change is not None
            if change.base is not None and change.base in self._gone:
                change = self._write_out(number)
            for channel, place in change.places.items():
                self._need(self._view.channel(channel), place)

    def move_out(self, kept: Collection[int]) -> None:
        """Give what is needed of records that go a record of its own."""
        for kind, channel, number in self._needed:
            if kind == DELTA:
                self._move_delta_out(channel, number)
            elif number in self._gone:
                held = self._view.held(number)
                if held is not None and channel in held.values:
                    self._put(keys.VALUE, channel, number, as_bytes(held.values[channel]))
        after_kept = {number + 1 for number in kept}
        for number in after_kept.intersection(self._gone):
            self._move_tasks_out(number)

    def drop_the_rest(self) -> None:
        """Drop the values and deltas that are not needed and have records of their own."""
        for key in self._book.log.keys(self._transaction, keys.of_scope(self._scope.number)):
            kind = _KIND_OF.get(key[16:17])
            if kind is None:
                continue
            channel = int.from_bytes(key[keys.LOG_HEAD : keys.LOG_HEAD + 4], "big")
            if (kind, channel, keys.number_of(key)) not in self._needed:
                self._transaction.delete(key, db=self._book.log.handle)

    def _need(self, channel: int, place: StepId) -> None:
        while place[0] != EMPTY:
            kind = DELTA if place[0] in DELTAS else VALUE
            if (kind, channel, place[1]) in self._needed:
                return
            self._needed.add((kind, channel, place[1]))
            if kind == VALUE:
                return
            place = self._view.delta(channel, place[1]).previous

    def _write_out(self, number: int) -> Change:
        """Rewrite a checkpoint's record so that it builds on no other; return it."""
        found, held = self._view.find(number), self._view.held(number)
        assert found is not None
        assert held is not None
        change, state = found.change, found.state
        state.complete(change)
        numbers = self._book.names.numbers
        key = keys.log(self._scope.number, number, keys.CHECKPOINT)
        packed = staterecord.pack(change, numbers, number, (held.values, held.deltas, held.tasks))
        self._book.log.put(self._transaction, key, packed)
        self._view.forget(number)
        return change

    def _move_delta_out(self, channel: int, number: int) -> None:
        """Give a delta a record of its own, if it is in one that goes or refers to one."""
        delta = self._view.delta(channel, number)
        refers = any(each.number in self._gone for each in delta.references())
        if refers:
            delta = delta._replace(body=delta.added(self._view.referred))
        held = self._view.held(number) if number in self._gone else None
        if refers or (held is not None and channel in held.deltas):
            self._put(keys.DELTA, channel, number, delta.to_bytes())

    def _put(self, kind: bytes, channel: int, number: int, data: bytes) -> None:
        key = keys.log(self._scope.number, number, kind, channel.to_bytes(4, "big"))
        self._book.log.put(self._transaction, key, data)

    def _move_tasks_out(self, number: int) -> None:
        """Give the writes that a checkpoint's record holds for the one before their own."""
        held = self._view.held(number)
        for task in held.tasks if held is not None else ():
            tail = taskrecord.tag_of(task)
            key = keys.log(self._scope.number, number - 1, keys.WRITE, tail)
            if not self._book.log.has(self._transaction, key):
                self._book.log.put(self._transaction, key, taskrecord.to_bytes(task))
