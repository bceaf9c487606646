"""Names of channels and nodes, and small numbers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowpregel._lmdb import naming
from flowpregel._lmdb.seal import Seal
from flowpregel._lmdb.table import Table
from flowpregel.checkpoint.lmdb import keys


class Numbers(dict[str, int]):
    """The numbers of names that are committed; looks up, or adds, those it does not have.

    Looking up what is there is done in C.
    """

    look_up: Callable[[str], int]

    def __missing__(self, name: str) -> int:
        return self.look_up(name)


class Names:
    """The ``names`` database, with what was read of it kept at hand.

    A name keeps its number for as long as the store exists, so what is at hand
    stays right whatever other processes do. What a transaction adds is at hand
    once it is committed: see `publish`.

    Args:
        table: The database.
        seal: What hides names where they are encrypted.
    """

    def __init__(self, table: Table, seal: Seal) -> None:
        self._table = table
        self._seal = seal
        self._numbers = Numbers()
        self._numbers.look_up = self._number
        self._transaction: Any = None
        """The one that was begun last."""
        self._names: dict[int, str] = {}
        self._added: dict[str, int] = {}

    def begin(self, transaction: Any) -> None:
        """Begin a write transaction: what another added that was not committed is forgotten."""
        self._added = {}
        self._transaction = transaction

    def publish(self) -> None:
        """Keep at hand what the transaction added that has been committed."""
        if self._added:
            for name, number in self._added.items():
                self._numbers[name] = number
                self._names[number] = name
            self._added = {}

    @property
    def numbers(self) -> Callable[[str], int]:
        """A function that does what `number` does, in the transaction that was begun."""
        return self._numbers.__getitem__

    def number(self, transaction: Any, name: str) -> int:
        """Return the number of *name*, giving it one if it has none yet."""
        found = self._numbers.get(name)
        if found is None:
            found = self._added.get(name)
        if found is None:
            found = self._look_up(transaction, name) or self._add(transaction, name)
        return found

    def _number(self, name: str) -> int:
        return self.number(self._transaction, name)

    def known(self, transaction: Any, name: str) -> int:
        """Return the number of *name*, which a record that was read refers to."""
        found = self._numbers.get(name) or self._added.get(name)
        found = found or self._look_up(transaction, name)
        if found is None:
            key, _ = naming.keys_of(keys.text(name), self._seal)
            raise self._table.corrupt(key, f"is missing: the number of {name!r}")
        return found

    def name(self, transaction: Any, number: int) -> str:
        """Return the name that has *number*."""
        found = self._names.get(number)
        if found is None:
            key = naming.BY_NUMBER + number.to_bytes(4, "big")
            encoded = self._table.get(transaction, key)
            if encoded is None:
                raise self._table.corrupt(key, "is missing: the name of a channel or node")
            found = keys.untext(encoded)
            self._names[number] = found
            self._numbers[found] = number
        return found

    def _look_up(self, transaction: Any, name: str) -> int | None:
        usual, other = naming.keys_of(keys.text(name), self._seal)
        record = self._table.get(transaction, usual) or self._table.get(transaction, other)
        if record is None:
            return None
        number = int.from_bytes(record, "big")
        # Only what this transaction added is not committed, and that is not looked up.
        self._numbers[name] = number
        return number

    def _add(self, transaction: Any, name: str) -> int:
        encoded = keys.text(name)
        last = self._table.last_key(transaction, naming.BY_NUMBER)
        number = 1 + (int.from_bytes(last[1:5], "big") if last else 0)
        place = number.to_bytes(4, "big")
        key, _ = naming.keys_of(encoded, self._seal)
        self._table.put(transaction, key, place)
        self._table.put(transaction, naming.BY_NUMBER + place, encoded)
        self._added[name] = number
        return number
