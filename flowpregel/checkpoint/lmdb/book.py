"""The tables of a store, and how its checkpoints are found in them: by id, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flowpregel._lmdb.engine import DATABASES
from flowpregel._lmdb.environment import Environment
from flowpregel._lmdb.seal import Seal
from flowpregel._lmdb.table import Table
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.names import Names
from flowpregel.checkpoint.lmdb.scopes import Scope, Scopes
from flowpregel.checkpoint.lmdb.view import View

Read = Callable[[Callable[[Any], Any]], Any]
"""Calls a function with a read transaction."""

_SCOPES_AT_ONCE = 100


class Book:
    """The tables of a store, and how its checkpoints are found in them.

    Args:
        environment: The store.
        seal: Its checksums.
    """

    def __init__(self, environment: Environment, seal: Seal) -> None:
        def table(name: bytes) -> Table:
            return Table(name, environment, seal)

        self.ids = table(b"ids")
        self.log = table(b"log")
        self.meta = table(b"meta")
        self.tables = [table(name) for name in DATABASES if name != b"meta"]
        self.names: Names = environment.share(
            ("names", seal.kind), lambda: Names(table(b"names"), seal)
        )
        self.scopes = Scopes(table(b"scopes"), self.meta)

    # ------------------------------------------------------------ checkpoints

    def number(self, transaction: Any, scope: Scope, checkpoint_id: str) -> int | None:
        """Return the number of a checkpoint id, or None if it was never mentioned."""
        found = self.ids.get(transaction, keys.checkpoint_id(scope.number, checkpoint_id))
        return None if found is None else int.from_bytes(found[:8], "big")

    def view(self, transaction: Any, scope: Scope) -> View:
        """Return what *transaction* sees of *scope*."""
        return View(self, transaction, scope)

    def newest(
        self, transaction: Any, scope: Scope, before: str | None = None
    ) -> tuple[str, int] | None:
        """Return the id and number of the newest checkpoint (smaller than *before*)."""
        for identifier, number in self.newest_first(transaction, scope, before):
            if before is None:
                self._compare_indexes(transaction, scope, identifier, number)
            return identifier, number
        if before is None:
            for key in self.log.keys(transaction, keys.of_scope(scope.number)):
                if key[16:] == keys.CHECKPOINT:
                    raise self.log.corrupt(key, "is a checkpoint whose id is missing")
        return None

    def newest_first(
        self, transaction: Any, scope: Scope, before: str | None = None
    ) -> Iterator[tuple[str, int]]:
        """Yield the id and number of each checkpoint, the newest first."""
        prefix = keys.of_scope(scope.number)
        bound = prefix + keys.text(before) if before is not None else b""
        while (key := self.ids.last_key(transaction, prefix, bound)) is not None:
            found = self.ids.get(transaction, key)
            if found is None:  # its page is damaged: a walk finds what a search does not
                raise self.ids.corrupt(key, "is there and cannot be found")
            number = int.from_bytes(found[:8], "big")
            bound = key
            # An id may be known only from pending writes that came before it.
            if found[8:]:
                place = keys.log(scope.number, number, keys.CHECKPOINT)
                if not self.log.has(transaction, place):
                    raise self.log.corrupt(place, "is missing: a checkpoint that its id names")
                yield keys.untext(key[8:]), number

    def used_scopes(self, read: Read, thread_id: str | None) -> Iterator[Scope]:
        """Yield the scopes (of a thread) that have a checkpoint; a transaction for each hundred."""
        if thread_id is not None:
            yield from read(
                lambda t: [
                    scope
                    for scope in self.scopes.of_thread(t, thread_id)
                    if self.newest(t, scope) is not None
                ]
            )
            return
        start = b""
        while True:
            page = read(partial(self._some_scopes, start=start))
            yield from (scope for _, scope in page if scope is not None)
            if len(page) < _SCOPES_AT_ONCE:
                return
            start = page[-1][0] + b"\0"

    def _some_scopes(self, transaction: Any, start: bytes) -> list[tuple[bytes, Scope | None]]:
        page: list[tuple[bytes, Scope | None]] = []
        for key, scope in self.scopes.all(transaction, start):
            has_one = self.newest(transaction, scope) is not None
            page.append((key, scope if has_one else None))
            if len(page) == _SCOPES_AT_ONCE:
                break
        return page

    def last_number(self, transaction: Any, scope: Scope) -> int:
        """Return the greatest number that is in use in *scope* (0: none)."""
        key = self.log.last_key(transaction, keys.of_scope(scope.number))
        return 0 if key is None else keys.number_of(key)

    def _compare_indexes(
        self, transaction: Any, scope: Scope, identifier: str, number: int
    ) -> None:
        """Refuse a store whose newest checkpoint is in one of ``ids`` and ``log`` alone."""
        last = self.last_number(transaction, scope)
        if last == number:
            return
        change = self.view(transaction, scope).change(last)
        if change is None:
            # Values without their checkpoint are kept for later ones: the last has none.
            parts = self.log.keys(transaction, keys.log(scope.number, last, b""))
            if any(key[16:17] in (keys.VALUE, keys.DELTA) for key in parts):
                key = keys.log(scope.number, last, keys.CHECKPOINT)
                raise self.log.corrupt(key, "is missing: the newest checkpoint of a thread")
        elif change.id > identifier:
            key = keys.checkpoint_id(scope.number, change.id)
            raise self.ids.corrupt(key, "is missing: the newest checkpoint of a thread")
