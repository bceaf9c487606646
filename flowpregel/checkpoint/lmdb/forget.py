"""Checkpoints dropped, and only what no kept one needs dropped with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowpregel.checkpoint.lmdb import keys, staterecord
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.state import DELTA, EMPTY, VALUE, Change, Entry, Place

_KIND_OF = {keys.VALUE: VALUE, keys.DELTA: DELTA}
_Needed = tuple[int, bytes, int]  # kind, channel, number


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
    needed = _needed_by(book, transaction, scope, kept, numbers)
    for number, identifier in numbers.items():
        book.log.drop(transaction, keys.log(scope.number, number, keys.CHECKPOINT))
        book.log.drop(transaction, keys.log(scope.number, number, keys.WRITE))
        book.ids.delete(transaction, keys.checkpoint_id(scope.number, identifier))
    _sweep(book, transaction, scope, needed)
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
    writes = []
    old = book.number(transaction, scope, checkpoint_id)
    if old is not None:
        writes = book.writes(transaction, scope, old)
    number = book.last_number(transaction, scope) + 1
    scope = checkpoints(book, transaction, scope, {checkpoint_id})
    key = keys.checkpoint_id(scope.number, checkpoint_id)
    book.ids.put(transaction, key, number.to_bytes(8, "big"))
    for place, record in writes:
        tail = place[keys.LOG_HEAD :]
        book.log.put(transaction, keys.log(scope.number, number, keys.WRITE, tail), record)
    return scope, number


def _needed_by(
    book: Book, transaction: Any, scope: Scope, kept: list[int], gone: Collection[int]
) -> set[_Needed]:
    """Return the values and deltas that kept checkpoints need.

    The records of the kept that build on one that goes are written out first,
    so that all that is needed stands in the kept records themselves.
    """
    needed: set[_Needed] = set()
    for number in kept:
        change = book.change(transaction, scope, number)
        assert change is not None
        if change.base is not None and change.base in gone:
            change = _write_out(book, transaction, scope, number)
        for channel, (_, place) in change.channels.items():
            tail = book.names.known(transaction, channel).to_bytes(4, "big")
            _need(book, transaction, scope, (tail, place), needed)
    for kind, tail, number in needed:
        if kind == DELTA:
            delta = book.delta(transaction, scope, tail, number)
            if any(int.from_bytes(each[:8], "big") in gone for each in delta.references):
                book.inline(transaction, scope, tail, number)
    return needed


def _need(
    book: Book,
    transaction: Any,
    scope: Scope,
    start: tuple[bytes, Place],
    needed: set[_Needed],
) -> None:
    channel, place = start
    while place[0] != EMPTY and (place[0], channel, place[1]) not in needed:
        needed.add((place[0], channel, place[1]))
        if place[0] != DELTA:
            return
        place = book.delta(transaction, scope, channel, place[1]).previous


def _write_out(book: Book, transaction: Any, scope: Scope, number: int) -> Change:
    """Rewrite a checkpoint's record so that it builds on no other; return it."""
    found = book.find(transaction, scope, number)
    assert found is not None
    change, state = found.change, found.state
    change.base, change.chain = None, 0
    change.channels = {
        name: Entry(state.versions.get(name), place) for name, place in state.places.items()
    }
    change.seen = state.seen
    change.metadata = state.metadata
    record = staterecord.pack(change, lambda name: book.names.number(transaction, name), number)
    book.log.put(transaction, keys.log(scope.number, number, keys.CHECKPOINT), record)
    return change


def _sweep(book: Book, transaction: Any, scope: Scope, needed: set[_Needed]) -> None:
    """Drop the values and deltas of *scope* that are not needed."""
    for key in book.log.keys(transaction, keys.of_scope(scope.number)):
        kind = _KIND_OF.get(key[16:17])
        if kind is None:
            continue
        channel = key[keys.LOG_HEAD : keys.LOG_HEAD + 4]
        if (kind, channel, keys.number_of(key)) not in needed:
            transaction.delete(key, db=book.log.handle)
