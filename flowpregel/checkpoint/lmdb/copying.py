"""A thread copied to another name, under the same checkpoint ids."""

from __future__ import annotations

from typing import Any

from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.errors import ConfigurationError


def copy_scopes(book: Book, transaction: Any, source: str, target: str) -> None:
    """Copy all records of the thread *source* to *target*, sealed for their new place.

    Raises:
        ConfigurationError: *target* has checkpoints already.
    """

    def scopes_of(thread_id: str) -> list[Scope]:
        found = [*book.scopes.of_thread(transaction, thread_id)]
        return [scope for scope in found if book.last_number(transaction, scope)]

    scopes = scopes_of(source)
    if not scopes:
        return
    if scopes_of(target):
        raise ConfigurationError(
            f"thread {target!r} has checkpoints already; copy to a new thread_id, "
            "or delete_thread it first"
        )
    for scope in scopes:
        twin = book.scopes.make(transaction, target, scope.namespace, scope.created)
        for table in (book.ids, book.log):
            prefix = keys.of_scope(scope.number)
            start = prefix
            # In parts: a cursor must not be open while its tree is written.
            while part := _part(table.scan(transaction, prefix, start)):
                for key, payload in part:
                    place = keys.of_scope(twin.number) + key[8:]
                    table.put(transaction, place, payload, fresh=True)
                start = part[-1][0] + b"\0"


def _part(records: Any) -> list[tuple[bytes, bytes]]:
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for key, payload in records:
        part.append((key, payload))
        size += len(payload)
        if len(part) == 1000 or size > 64 << 20:
            break
    return part
