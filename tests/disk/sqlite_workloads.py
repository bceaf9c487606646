"""What the processes do whose SQLite database is watched: functions, found by name."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from flowpregel._core.records import Address
from flowpregel.errors import StoreError, StoreForeignError
from flowpregel.plugins.sqlite import SQLiteSaver, connections
from flowpregel.plugins.sqlite.database import SQLiteDatabase
from flowpregel.storage import StoreOptions
from tests.disk.nursery import mark
from tests.disk.workloads import acknowledge
from tests.runs.stores import commit, id_of

_LARGE = bytes(range(256)) * 1_200
DEAD = 7
"""The exit code of a process that ended in `encrypt_or_die`."""
ENCRYPTED = StoreOptions(encryption_key=b"k" * 32)


def values_of(number: int) -> dict[str, Any]:
    """Return what a superstep writes: sometimes many pages."""
    return {"n": number, "pad": _LARGE[: 300 + 100_000 * (number % 3)]}


def make(path: str) -> None:
    """Make an empty store."""
    SQLiteSaver(path).close()


def commit_and_mark(path: str, steps: int, synchronous: str = "") -> None:
    """Commit to a store, and mark in the record what was acknowledged.

    Args:
        path: The store.
        steps: The number of supersteps.
        synchronous: A weaker setting of SQLite's; empty: that of the store.
    """
    with SQLiteSaver(path) as saver:
        if synchronous:
            connection = weakened(saver)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
        for number in range(steps):
            commit(saver, number, values_of(number))
            mark(str(number))


def weakened(saver: SQLiteSaver) -> sqlite3.Connection:
    """Return the connection of a saver that writes."""
    store = saver._store  # noqa: SLF001 - no user can weaken it
    assert isinstance(store, SQLiteDatabase)
    return store._writing()  # noqa: SLF001 - as above


def create_and_mark(path: str) -> None:
    """Make a store, and commit to it."""
    mark("-1")
    commit_and_mark(path, 4)


def compact_and_mark(path: str) -> None:
    """Commit, write the file again, and commit again."""
    with SQLiteSaver(path) as saver:
        for number in range(4):
            commit(saver, number, values_of(number))
            mark(str(number))
            if number == 2:
                saver.compact()


def change_keys_and_mark(path: str) -> None:
    """Commit, seal all records again, and commit again."""
    for number in range(4):
        with SQLiteSaver(path) as saver:
            commit(saver, number, values_of(number))
            mark(str(number))
            if number == 2:
                saver.change_keys(encryption_key=None)
                mark(str(number))


def fill(path: str, steps: int) -> None:
    """Make a store with *steps* supersteps."""
    with SQLiteSaver(path) as saver:
        for number in range(steps):
            commit(saver, number, values_of(number))


def encrypt(path: str) -> str:
    """Encrypt a store; return the text of the error if that fails."""
    try:
        SQLiteSaver(path).change_keys(encryption_key=ENCRYPTED.encryption_key)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def encrypt_or_die(path: str) -> None:
    """Encrypt a store; end this process where the error of a failed copy is raised."""
    undo = connections.undo_commit

    def undo_and_die(*arguments: Any) -> None:
        undo(*arguments)
        os._exit(DEAD)

    connections.undo_commit = undo_and_die  # this process is a fork, which ends
    encrypt(path)


def is_encrypted(path: str, steps: int) -> bool:
    """Return whether a store with *steps* supersteps is encrypted; then its file has
    nothing of a plain one, not even in free pages.
    """
    encrypted = False
    try:
        saver = SQLiteSaver(path)
    except StoreForeignError:
        encrypted = True
        saver = SQLiteSaver(path, options=ENCRYPTED)
    with saver:
        verification = saver.verify()
        assert verification.ok, verification.problems
        history = [*saver.history(Address("t"))]
        values = [values_of(number) for number in range(steps - 1, -1, -1)]
        assert values == [saved.checkpoint.values for saved in history]
    with open(path, "rb") as file:
        assert (_LARGE[:300] in file.read()) is not encrypted
    return encrypted


def commit_and_log(path: str, log: str, steps: int) -> None:
    """Commit to a store, after its newest superstep, and log each acknowledged one."""
    with SQLiteSaver(path) as saver:
        saved = saver.load(Address("t"))
        first = 0 if saved is None else saved.checkpoint.step + 1
        for number in range(first, first + steps):
            commit(saver, number, values_of(number))
            acknowledge(log, number)


def go_on(path: str, log: str, steps: int) -> int:
    """Commit to a store whose disk may fail; return how many commits did."""
    saver = opened(path)
    number = 0
    failures = 0
    while number < steps:
        try:
            commit(saver, number, values_of(number))
        except StoreError:
            failures += 1
            if failures > 50:
                raise
            # What the error says must be so: nothing of it is there.
            saved = saver.load(Address("t"))
            assert (saved.checkpoint.step if saved else -1) == number - 1
            continue
        acknowledge(log, number)
        number += 1
    saver.close()
    return failures


def opened(path: str) -> SQLiteSaver:
    """Open a store; if a call fails meanwhile, again."""
    for _ in range(5):
        try:
            return SQLiteSaver(path)
        except StoreError:
            continue
    return SQLiteSaver(path)


def newest(path: str) -> int:
    """Return the newest superstep of a store that holds; -1: there is none."""
    with SQLiteSaver(path) as saver:
        verification = saver.verify()
        assert verification.ok, verification.problems
        saved = saver.load(Address("t"))
        if saved is None:
            return -1
        step = saved.checkpoint.step
        assert [each.checkpoint.id for each in saver.history(Address("t"))] == [
            id_of(number) for number in range(step, -1, -1)
        ]
        return step


def newest_of_each(paths: list[str]) -> list[Any]:
    """Return the newest superstep of each store, or how it failed."""
    outcomes: list[Any] = []
    for path in paths:
        try:
            outcomes.append(newest(path))
        except Exception as error:  # noqa: BLE001 - it is what the test wants to know
            text = f"{type(error).__name__}: {error}"
            outcomes.append(text.replace(path, "the store"))
    return outcomes
