"""A checkpoint's record: the checkpoint, and what is small of the superstep that made it.

Two pickles, the length (4) of the first before it:

* what the record *holds*: the values of channels that the superstep wrote, what
  it added to the others, and the pending writes of its tasks, which belong to the
  checkpoint *before* (its number is smaller by one);
* what differs from the checkpoint it builds on, in the order of `Record`.

Channels and nodes are there as their numbers. A value that is one of the writes
is there once: it is the same bytes object, and a pickle has that once. Pickling
in C is several times as fast as packing fields one by one, and nothing is
unpickled before the record's checksum holds.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from flowpregel._core.records import Version
from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.deltarecord import Added
from flowpregel.checkpoint.lmdb.state import Change
from flowpregel.checkpoint.lmdb.taskrecord import Packed

LARGEST = 4096
"""Bytes: a larger value or delta gets a record of its own."""
ROOM = 65_536
"""Bytes of values, deltas and writes that a checkpoint's record holds at most."""

_SOURCES = ("input", "loop", "update", "fork")
_SIZE = 4
_SAME = True
"""Stands for names that are those of `Record.channels`."""


class Held(NamedTuple):
    """What a record holds besides the checkpoint itself."""

    values: Mapping[int, bytes]
    """By channel."""
    deltas: Mapping[int, tuple[int, int, Added]]
    """By channel: the fields of a `DeltaRecord`."""
    tasks: Sequence[Packed]


class Record(NamedTuple):
    """The fields of a checkpoint's record, as they are pickled."""

    id: bytes | str
    parent_id: bytes | str | None
    source: int
    step: int
    at: int
    base: int | None
    chain: int
    channels: tuple[int, ...]
    versions: tuple[Version | None, ...]
    kinds: bytes
    places: tuple[int, ...] | None
    """None: all are the checkpoint itself."""
    changed: tuple[int, ...] | bool
    seen: dict[int, dict[int, Version]]
    updated: tuple[int, ...] | bool | None
    metadata: bytes | None


def pack(change: Change, number_of: Callable[[str], int], number: int, held: Held) -> bytes:
    """Return the record of *change*.

    Args:
        change: What differs from its base.
        number_of: Gives the number of a channel's or node's name.
        number: The checkpoint's own.
        held: What the record holds besides.
    """
    entries = change.channels
    names = (*entries,)
    versions = tuple([version for version, _ in entries.values()])
    kinds = bytes([place[0] for _, place in entries.values()])
    places = [place[1] for _, place in entries.values()]
    updated = change.updated
    if updated is not None and updated != names:
        updated = cast(Any, tuple(map(number_of, updated)))
    fields = (
        keys.short(change.id),
        None if change.parent_id is None else keys.short(change.parent_id),
        _SOURCES.index(change.source),
        change.step,
        change.at,
        change.base,
        change.chain,
        tuple(map(number_of, names)),
        versions,
        kinds,
        None if places.count(number) == len(places) else tuple(places),
        _SAME if change.changed == names else tuple(map(number_of, change.changed)),
        {
            number_of(node): {number_of(name): version for name, version in versions.items()}
            for node, versions in change.seen.items()
        },
        _SAME if updated == names else updated,
        change.metadata,
    )
    beside = pickle.dumps(tuple(held), 5)
    return b"".join((len(beside).to_bytes(_SIZE, "big"), beside, pickle.dumps(fields, 5)))


def held_in(record: bytes) -> Held:
    """Return what a record holds besides the checkpoint. Its checksum must have held."""
    return Held._make(pickle.loads(record[_SIZE:]))


def deltas_in(record: bytes) -> Mapping[int, tuple[int, int, Added]]:
    """Return the deltas that a record holds, as `held_in` does, sooner."""
    found: Mapping[int, tuple[int, int, Added]] = pickle.loads(record[_SIZE:])[1]
    return found


def change_of(data: bytes, name_of: Callable[[int], str], number: int) -> Change:
    """Return the change that `pack` was given. The record's checksum must have held."""
    record = Record._make(pickle.loads(data[_SIZE + int.from_bytes(data[:_SIZE], "big") :]))
    names = tuple(map(name_of, record.channels))
    places = record.places or (number,) * len(names)
    columns = zip(record.versions, zip(record.kinds, places, strict=True), strict=True)
    return Change(
        id=keys.long(record.id),
        parent_id=None if record.parent_id is None else keys.long(record.parent_id),
        source=_SOURCES[record.source],
        step=record.step,
        at=record.at,
        base=record.base,
        chain=record.chain,
        channels=dict(zip(names, columns, strict=True)),
        changed=_named(record.changed, names, name_of) or (),
        seen={
            name_of(node): {name_of(channel): version for channel, version in versions.items()}
            for node, versions in record.seen.items()
        },
        updated=_named(record.updated, names, name_of),
        metadata=record.metadata,
    )


def _named(
    numbers: tuple[int, ...] | bool | None, names: tuple[str, ...], name_of: Callable[[int], str]
) -> tuple[str, ...] | None:
    if numbers is _SAME:
        return names
    return None if numbers is None else tuple(map(name_of, cast("tuple[int, ...]", numbers)))
