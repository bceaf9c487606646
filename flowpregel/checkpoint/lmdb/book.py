"""The records of checkpoints, read inside a transaction: by id, by number, with their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowpregel._core.records import Version
from flowpregel._lmdb.engine import DATABASES
from flowpregel._lmdb.environment import Environment
from flowpregel._lmdb.seal import Seal
from flowpregel._lmdb.table import Table, after
from flowpregel.checkpoint.lmdb import keys, staterecord
from flowpregel.checkpoint.lmdb.deltarecord import Added, DeltaRecord
from flowpregel.checkpoint.lmdb.names import Names
from flowpregel.checkpoint.lmdb.prepared import read_write
from flowpregel.checkpoint.lmdb.scopes import Scope, Scopes
from flowpregel.checkpoint.lmdb.state import DELTA, EMPTY, VALUE, Change, Place, State

_KINDS = {VALUE: keys.VALUE, DELTA: keys.DELTA}


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that is there: its number, its own record, and the state it makes."""

    number: int
    change: Change
    state: State


@dataclass(frozen=True, slots=True)
class Chain:
    """The deltas of a channel, newest first, and the encoded snapshot they start from."""

    seed: bytes | None
    newest_first: list[Added]
    positions: dict[int, int]
    """Where the delta of each checkpoint is, by its number."""

    def since(self, number: int) -> tuple[bytes | None, list[Added]]:
        """Return the snapshot, and the deltas up to that of a checkpoint in the chain."""
        return self.seed, self.newest_first[self.positions[number] :]


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
        self.names: Names = environment.share(("names", seal.id), lambda: Names(table(b"names")))
        self.scopes = Scopes(table(b"scopes"), self.meta)

    # ------------------------------------------------------------ checkpoints

    def number(self, transaction: Any, scope: Scope, checkpoint_id: str) -> int | None:
        """Return the number of a checkpoint id, or None if it was never mentioned."""
        found = self.ids.get(transaction, keys.checkpoint_id(scope.number, checkpoint_id))
        return None if found is None else int.from_bytes(found, "big")

    def change(self, transaction: Any, scope: Scope, number: int) -> Change | None:
        """Return a checkpoint's own record, or None if there is none."""
        record = self.log.get(transaction, keys.log(scope.number, number, keys.CHECKPOINT))
        if record is None:
            return None
        return staterecord.unpack(record, lambda n: self.names.name(transaction, n), number)

    def find(self, transaction: Any, scope: Scope, number: int) -> Found | None:
        """Return the checkpoint that has *number*, or None if there is none."""
        change = self.change(transaction, scope, number)
        if change is None:
            return None
        chain = [change]
        while chain[-1].base is not None:
            base = self.change(transaction, scope, chain[-1].base)
            if base is None:
                key = keys.log(scope.number, chain[-1].base, keys.CHECKPOINT)
                raise self.log.corrupt(key, "is missing: a checkpoint that later ones build on")
            chain.append(base)
        state = State()
        for each in reversed(chain):
            state.apply(each)
        return Found(number, change, state)

    def newest(
        self, transaction: Any, scope: Scope, before: str | None = None
    ) -> tuple[str, int] | None:
        """Return the id and number of the newest checkpoint (smaller than *before*)."""
        for identifier, number in self.newest_first(transaction, scope, before):
            if before is None:
                self._compare_indexes(transaction, scope, identifier, number)
            return identifier, number
        return None

    def newest_first(
        self, transaction: Any, scope: Scope, before: str | None = None
    ) -> Iterator[tuple[str, int]]:
        """Yield the id and number of each checkpoint, the newest first."""
        prefix = keys.of_scope(scope.number)
        bound = prefix + keys.text(before) if before is not None else b""
        while (key := self.ids.last_key(transaction, prefix, bound)) is not None:
            found = self.ids.get(transaction, key)
            assert found is not None
            number = int.from_bytes(found, "big")
            # An id may be known only from pending writes that came before it.
            if self.log.has(transaction, keys.log(scope.number, number, keys.CHECKPOINT)):
                yield keys.untext(key[8:]), number
            bound = key

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
        change = self.change(transaction, scope, last)
        if change is None:
            # Values without their checkpoint are kept for later ones: the last has none.
            parts = self.log.keys(transaction, keys.log(scope.number, last, b""))
            if any(key[16:17] in (keys.VALUE, keys.DELTA) for key in parts):
                key = keys.log(scope.number, last, keys.CHECKPOINT)
                raise self.log.corrupt(key, "is missing: the newest checkpoint of a thread")
        elif change.id > identifier:
            key = keys.checkpoint_id(scope.number, change.id)
            raise self.ids.corrupt(key, "is missing: the newest checkpoint of a thread")

    # ------------------------------------------------------------ values

    def value(self, transaction: Any, scope: Scope, channel: str, number: int) -> bytes:
        """Return a channel's encoded value, written by the checkpoint that has *number*."""
        return self._record(transaction, scope, channel, (VALUE, number))

    def deltas(self, transaction: Any, scope: Scope, channel: str, number: int) -> Chain:
        """Return the encoded snapshot that deltas start from, and them, newest first."""
        tail = self.names.known(transaction, channel).to_bytes(4, "big")
        found: list[Added] = []
        numbers: list[int] = []
        place: Place = (DELTA, number)
        while place[0] == DELTA:
            delta = self.delta(transaction, scope, tail, place[1])
            numbers.append(place[1])
            place = delta.previous
            found.append(delta.added(lambda key: self._write(transaction, scope, key)))
        seed = None
        if place[0] != EMPTY:
            seed = self._record(transaction, scope, channel, place)
        return Chain(seed, found, {each: at for at, each in enumerate(numbers)})

    def delta(self, transaction: Any, scope: Scope, channel: bytes, number: int) -> DeltaRecord:
        """Return what a checkpoint added to the channel whose number is *channel*."""
        key = keys.log(scope.number, number, keys.DELTA, channel)
        record = self.log.get(transaction, key)
        if record is None:
            raise self.log.corrupt(key, "is missing: what was added to a channel")
        return DeltaRecord.from_bytes(record)

    def inline(self, transaction: Any, scope: Scope, channel: bytes, number: int) -> None:
        """Make a delta independent of the pending writes that it refers to."""
        delta = self.delta(transaction, scope, channel, number)
        parts = delta.added(lambda key: self._write(transaction, scope, key))
        assert isinstance(parts, list)
        key = keys.log(scope.number, number, keys.DELTA, channel)
        self.log.put(transaction, key, DeltaRecord(delta.previous, parts=parts).to_bytes())

    def _write(self, transaction: Any, scope: Scope, tail: bytes) -> bytes:
        """Return the encoded value of a pending write that a delta refers to."""
        key = keys.of_scope(scope.number) + tail
        record = self.log.get(transaction, key)
        if record is None:
            raise self.log.corrupt(key, "is missing: a write that was added to a channel")
        return read_write(key, record).encoded

    def places(
        self, transaction: Any, scope: Scope, wanted: Mapping[str, Version]
    ) -> dict[str, Place]:
        """Return where the values of channels at these versions are, wherever they are used.

        For the rare checkpoint that refers to a version its parent does not have.
        """
        found: dict[str, Place] = {}
        for _, number in self.newest_first(transaction, scope):
            if len(found) == len(wanted):
                break
            change = self.change(transaction, scope, number)
            for channel, (version, place) in change.channels.items() if change else ():
                if channel in wanted and channel not in found and wanted[channel] == version:
                    found[channel] = place
        return found

    def writes(self, transaction: Any, scope: Scope, number: int) -> list[tuple[bytes, bytes]]:
        """Return (key, record) of each pending write of a checkpoint."""
        return [*self.log.scan(transaction, keys.log(scope.number, number, keys.WRITE))]

    def end_of_scope(self, scope: Scope) -> bytes:
        """Return the smallest key after all keys of *scope*."""
        return after(keys.of_scope(scope.number))

    def _record(self, transaction: Any, scope: Scope, channel: str, place: Place) -> bytes:
        tail = self.names.known(transaction, channel).to_bytes(4, "big")
        key = keys.log(scope.number, place[1], _KINDS[place[0]], tail)
        record = self.log.get(transaction, key)
        if record is None:
            raise self.log.corrupt(key, f"is missing: the value of channel {channel!r}")
        return record
