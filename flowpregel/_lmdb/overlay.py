"""Transactions that see more than LMDB's file has: what is in the journal, and what is new.

`Overlaid` is for reading. `Draft` is what a small transaction is made on: LMDB is only
read, and what the work changes is noted, for a record of the journal. Both are used like
LMDB's own transactions; so is `Counted`, which is one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self, TypeAlias

from flowpregel._lmdb import engine
from flowpregel._lmdb.journal import packed

Layer: TypeAlias = "dict[bytes, bytes | None]"
"""What is on top of a database; None: there is nothing at that key."""


_LONGEST_KEY = 511


class TooMuchError(Exception):
    """What a transaction does is not for the journal: LMDB has to do it."""


def apply(transaction: Any, databases: Mapping[bytes, Any], layers: Mapping[int, Layer]) -> None:
    """Put *layers* into the databases of a write transaction of LMDB's."""
    for number, layer in layers.items():
        database = databases[engine.DATABASES[number]]
        with transaction.cursor(db=database) as cursor:
            last = cursor.key() if cursor.last() else b""
        for key in sorted(layer):
            value = layer[key]
            if value is None:
                transaction.delete(key, db=database)
            else:
                # LMDB fills a page to its end only where it is told that the last one is put.
                transaction.put(key, value, append=key > last, db=database)


def getter(transaction: Any, db: Any) -> Callable[[bytes], bytes | None]:
    """Return a function of the key that does what a transaction's `get` does, for many keys."""
    if isinstance(transaction, Overlaid):
        return transaction.getter(db)
    return partial(transaction.get, db=db)


class Overlaid:
    """A read transaction of LMDB with something on top.

    Args:
        transaction: LMDB's.
        numbers: The number of each database, by LMDB's handle.
        layers: What is on top, by the number of the database.
    """

    __slots__ = ("_get", "_numbers", "_transaction", "layers")

    def __init__(
        self, transaction: Any, numbers: Mapping[Any, int], layers: Mapping[int, Layer]
    ) -> None:
        self._transaction = transaction
        self._get = transaction.get
        self._numbers = numbers
        self.layers = layers

    def get(self, key: bytes, *, db: Any) -> bytes | None:
        """Do as LMDB's `get`."""
        layer = self.layers.get(self._numbers[db])
        if layer is not None and key in layer:
            return layer[key]
        found: bytes | None = self._get(key, db=db)
        return found

    def getter(self, db: Any) -> Callable[[bytes], bytes | None]:
        """Return a function that does what `get` does, sooner, for many keys."""
        below = partial(self._get, db=db)
        layer = self.layers.get(self._numbers[db])
        if not layer:
            return below
        return lambda key: layer[key] if key in layer else below(key)

    def id(self) -> int:
        """Return the number of LMDB's transaction."""
        number: int = self._transaction.id()
        return number

    def cursor(self, *, db: Any) -> Any:
        """Return a cursor for reading, used like LMDB's."""
        cursor = self._transaction.cursor(db=db)
        layer = self.layers.get(self._numbers[db])
        return Cursor(cursor, layer) if layer else cursor


class Draft(Overlaid):
    """A transaction that is to become a record of the journal.

    Args:
        transaction: A read transaction of LMDB's.
        numbers: The number of each database, by LMDB's handle.
        layers: What the journal has.
        lasts: The greatest key of each database, as far as is known.
        number: What `id` says.
        room: The bytes that its changes may take.
    """

    __slots__ = ("_lasts", "_number", "_room", "changes", "own")

    def __init__(
        self,
        transaction: Any,
        numbers: Mapping[Any, int],
        layers: Mapping[int, Layer],
        *,
        lasts: dict[int, bytes],
        number: int,
        room: int,
    ) -> None:
        super().__init__(transaction, numbers, layers)
        self._lasts = lasts
        self._number = number
        self._room = room
        self.own: dict[int, Layer] = {}
        """What it has changed, by the number of the database."""
        self.changes: list[bytes] = []
        """The same in order, as a record of the journal has it."""

    def id(self) -> int:
        """Return the number of the transaction."""
        return self._number

    def get(self, key: bytes, *, db: Any) -> bytes | None:
        """Do as LMDB's `get`."""
        own = self.own.get(self._numbers[db])
        if own is not None and key in own:
            return own[key]
        return Overlaid.get(self, key, db=db)

    def getter(self, db: Any) -> Callable[[bytes], bytes | None]:
        """Return a function that does what `get` does."""
        return partial(self.get, db=db)

    def put(
        self, key: bytes, value: bytes, *, db: Any, overwrite: bool = True, append: bool = False
    ) -> bool:
        """Do as LMDB's `put`."""
        if not 0 < len(key) <= _LONGEST_KEY:
            raise TooMuchError  # LMDB says what it has against that
        number = self._numbers[db]
        last = self._lasts.get(number)
        if append:
            if last is None:
                last = self._lasts[number] = self._last(db)
            if key <= last:
                return False
        elif not overwrite and self.get(key, db=db) is not None:
            return False
        if last is not None and key > last:
            self._lasts[number] = key
        self._note(number, key, value)
        return True

    def delete(self, key: bytes, *, db: Any) -> bool:
        """Do as LMDB's `delete`."""
        if self.get(key, db=db) is None:
            return False
        self._note(self._numbers[db], key, None)
        return True

    def cursor(self, *, db: Any) -> Any:
        """Return a cursor for reading: what is changed later it may not see."""
        number = self._numbers[db]
        both = {**self.layers.get(number, {}), **self.own.get(number, {})}
        return Cursor(self._transaction.cursor(db=db), both)

    def _last(self, db: Any) -> bytes:
        """Return the greatest key there is."""
        with self.cursor(db=db) as cursor:
            last: bytes = cursor.key() if cursor.last() else b""
            return last

    def _note(self, number: int, key: bytes, value: bytes | None) -> None:
        change = packed(number, key, value)
        self._room -= len(change)
        if self._room < 0:
            raise TooMuchError
        layer = self.own.get(number)
        if layer is None:
            self.own[number] = {key: value}
        else:
            layer[key] = value
        self.changes.append(change)


class Counted:
    """A write transaction of LMDB's that has another number.

    Args:
        transaction: LMDB's.
        number: What `id` says.
    """

    __slots__ = ("_number", "cursor", "delete", "get", "put")

    def __init__(self, transaction: Any, number: int) -> None:
        self._number = number
        self.get = transaction.get
        self.put = transaction.put
        self.delete = transaction.delete
        self.cursor = transaction.cursor

    def id(self) -> int:
        """Return the number of the transaction."""
        return self._number


class Cursor:
    """LMDB's cursor with a layer on top of its database; for reading only.

    Args:
        cursor: LMDB's.
        layer: What is on top, as it is now.
    """

    def __init__(self, cursor: Any, layer: Layer) -> None:
        self._cursor = cursor
        self._layer = layer
        self._keys = sorted(layer)
        self._at = b""

    def __enter__(self) -> Self:
        self._cursor.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cursor.__exit__(*exc_info)

    def set_range(self, key: bytes) -> bool:
        """Go to the first key that is not smaller; return whether there is one."""
        below = self._cursor.key() if self._cursor.set_range(key) else None
        return self._forward(below, bisect_left(self._keys, key))

    def next(self) -> bool:
        """Go to the next key; return whether there is one."""
        below = None
        if self._cursor.set_range(self._at):
            below = self._cursor.key()
            if below == self._at:
                below = self._cursor.key() if self._cursor.next() else None
        return self._forward(below, bisect_right(self._keys, self._at))

    def last(self) -> bool:
        """Go to the last key; return whether there is one."""
        below = self._cursor.key() if self._cursor.last() else None
        return self._backward(below, len(self._keys) - 1)

    def prev(self) -> bool:
        """Go to the key before; return whether there is one."""
        found = self._cursor.set_range(self._at)
        found = self._cursor.prev() if found else self._cursor.last()
        below = self._cursor.key() if found else None
        return self._backward(below, bisect_left(self._keys, self._at) - 1)

    def key(self) -> bytes:
        """Return the key it is at."""
        return self._at

    def item(self) -> tuple[bytes, bytes]:
        """Return the key it is at, and the value there."""
        value = self._layer.get(self._at)
        if value is None:
            self._cursor.set_key(self._at)
            value = self._cursor.value()
        return self._at, value

    def iternext(self, *, keys: bool, values: bool) -> Iterator[bytes]:
        """Yield the keys from the one it is at on.

        Only keys: neither LMDB's other forms nor values are needed anywhere.
        """
        assert keys
        assert not values
        found = True
        while found:
            yield self._at
            found = self.next()

    def delete(self) -> bool:
        """Leave it to LMDB."""
        raise TooMuchError

    def _forward(self, below: bytes | None, index: int) -> bool:
        """Go to the smaller of LMDB's key and the layer's, and further where nothing is."""
        while True:
            above = self._keys[index] if index < len(self._keys) else None
            if below is not None and (above is None or below < above):
                self._at = below
                return True
            if above is None:
                return False
            if below == above:
                below = self._cursor.key() if self._cursor.next() else None
            if self._layer[above] is not None:
                self._at = above
                return True
            index += 1

    def _backward(self, below: bytes | None, index: int) -> bool:
        """Go to the greater of LMDB's key and the layer's, and further where nothing is."""
        while True:
            above = self._keys[index] if index >= 0 else None
            if below is not None and (above is None or below > above):
                self._at = below
                return True
            if above is None:
                return False
            if below == above:
                below = self._cursor.key() if self._cursor.prev() else None
            if self._layer[above] is not None:
                self._at = above
                return True
            index -= 1
