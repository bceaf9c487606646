"""How much history is kept, and what may never be dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowpregel._core.records import INTERRUPT
from flowpregel.checkpoint.lmdb import forget, keys
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.prepared import each_of
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.errors import ConfigurationError

_PIN = b"pin"


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How much history each namespace of a thread keeps.

    A checkpoint is dropped if any of the bounds says so. Never dropped are the
    newest of a namespace, those that wait for an answer, and those that are
    pinned; what is kept reads as it did before.

    Example:
        >>> Retention(keep_last=100, max_age=7 * 86_400).keep_last
        100
    """

    keep_last: int | None = None
    """So many of the newest checkpoints."""
    max_age: float | None = None
    """Only those younger than so many seconds."""
    max_bytes: int | None = None
    """Of the newest, as many as have so many bytes of records together."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "max_age", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value!r}; use more than 0, or None")

    @property
    def interval(self) -> int:
        """After how many commits to a namespace it is swept.

        In proportion to what is kept, so that sweeping costs each commit the same.
        """
        return 32 if self.keep_last is None else max(32, self.keep_last // 2)


class Sweeper:
    """Drops what a `Retention` does not keep, now and then.

    Args:
        book: The store's records.
        retention: What to keep.
        clock: Returns wall-clock nanoseconds.
    """

    def __init__(
        self, book: Book, retention: Retention, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._book = book
        self._retention = retention
        self._clock = clock
        self._since: dict[tuple[str, str], int] = {}

    def is_due(self, thread_id: str, namespace: str) -> bool:
        """Count a commit; return whether its namespace is to be swept now."""
        place = (thread_id, namespace)
        count = self._since.get(place, 0) + 1
        due = count >= self._retention.interval
        if due:
            self._since.pop(place, None)
        else:
            self._since[place] = count
        return due

    def sweep(self, transaction: Any, thread_id: str, namespace: str) -> int:
        """Drop what is not to be kept of a namespace; return how many checkpoints."""
        scope = self._book.scopes.get(transaction, thread_id, namespace)
        if scope is None:
            return 0
        gone = self._beyond(transaction, scope)
        if gone:
            forget.checkpoints(self._book, transaction, scope, gone)
        return len(gone)

    def _beyond(self, transaction: Any, scope: Scope) -> set[str]:
        """Return the ids of the checkpoints that no bound keeps and that are no roots."""
        found = [*self._book.newest_first(transaction, scope)]
        gone: dict[str, int] = {}
        size = 0
        for position, (identifier, number) in enumerate(found):
            if self._retention.max_bytes is not None:
                size += self._bytes(transaction, scope, number)
            if position and self._is_beyond(transaction, scope, (position, number, size)):
                gone[identifier] = number
        parents = self._parents(transaction, scope, [n for i, n in found if i not in gone])
        return {
            identifier
            for identifier, number in gone.items()
            if not is_pinned(self._book, transaction, scope, identifier)
            and (identifier in parents or not self._waits(transaction, scope, number))
        }

    def _is_beyond(self, transaction: Any, scope: Scope, at: tuple[int, int, int]) -> bool:
        position, number, size = at
        bounds = self._retention
        if bounds.keep_last is not None and position >= bounds.keep_last:
            return True
        if bounds.max_bytes is not None and size > bounds.max_bytes:
            return True
        if bounds.max_age is None:
            return False
        change = self._book.view(transaction, scope).change(number)
        return change is not None and change.at < self._clock() - int(bounds.max_age * 1e9)

    def _bytes(self, transaction: Any, scope: Scope, number: int) -> int:
        prefix = keys.log(scope.number, number, b"")
        return sum(len(payload) for _, payload in self._book.log.scan(transaction, prefix))

    def _parents(self, transaction: Any, scope: Scope, kept: list[int]) -> set[str | None]:
        """Return the parents of those that are kept: their questions were answered."""
        view = self._book.view(transaction, scope)
        changes = map(view.change, kept)
        return {change.parent_id for change in changes if change is not None}

    def _waits(self, transaction: Any, scope: Scope, number: int) -> bool:
        """Return whether a task of the checkpoint waits for an answer."""
        asked = {
            channel
            for task in self._book.view(transaction, scope).tasks(number).values()
            for position, channel in zip(each_of(task[2]), task[3], strict=True)
            if position < 0
        }
        return any(self._book.names.name(transaction, each) == INTERRUPT for each in asked)


def pin(book: Book, transaction: Any, scope: Scope, checkpoint_id: str, *, pinned: bool) -> None:
    """Keep a checkpoint from being dropped by a `Retention`, or let go of it."""
    key = _PIN + keys.checkpoint_id(scope.number, checkpoint_id)
    if pinned:
        book.meta.put(transaction, key, b"")
    else:
        book.meta.delete(transaction, key)


def is_pinned(book: Book, transaction: Any, scope: Scope, checkpoint_id: str) -> bool:
    """Return whether a checkpoint is pinned."""
    key = _PIN + keys.checkpoint_id(scope.number, checkpoint_id)
    return book.meta.has(transaction, key)
