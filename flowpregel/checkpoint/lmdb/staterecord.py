"""A checkpoint's record: the checkpoint, and what is small of the superstep that made it.

Two pickles, and the length (3) of the second after it:

* what the record *holds*: the values of channels that the superstep wrote, what
  it added to the others, and the pending writes of its tasks, which belong to the
  checkpoint *before* (its number is smaller by one);
* what differs from the checkpoint it builds on, in the order of `Record`.

Channels and nodes are there as their numbers. A value that is one of the writes
is there once: it is the same object, and a pickle has that once. Pickling in C
is several times as fast as packing fields one by one, and nothing is unpickled
before the record's checksum holds. What can be told from other fields is left
out: see `pack`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from flowpregel._core import ids
from flowpregel._core.records import Version
from flowpregel.checkpoint.lmdb import formats, keys
from flowpregel.checkpoint.lmdb.deltarecord import Added
from flowpregel.checkpoint.lmdb.plain import Kept
from flowpregel.checkpoint.lmdb.state import HELD_DELTA, Change, Seen, StepId
from flowpregel.checkpoint.lmdb.taskrecord import Packed

ROOM = 65_536
"""Bytes of values, deltas and writes that a checkpoint's record holds at most."""

_SOURCES = ("input", "loop", "update", "fork")
_SIZE = 3
_NUMBER = frozenset((int,))
_KINDS = tuple([bytes((kind,)) for kind in range(HELD_DELTA + 1)])
_SAME = True
"""Stands for names that are those of `Record.channels`, and for a parent that is the base."""


class Held(NamedTuple):
    """What a record holds besides the checkpoint itself."""

    values: Mapping[int, Kept]
    """By channel."""
    deltas: Mapping[int, tuple[int, int, Added]]
    """By channel: the fields of a `DeltaRecord`."""
    tasks: Sequence[Packed]


Parts: TypeAlias = tuple[Mapping[int, Kept], Mapping[int, tuple[int, int, Added]], Sequence[Packed]]
"""The fields of a `Held`, to be pickled."""


class Record(NamedTuple):
    """The fields of a checkpoint's record, as they are pickled."""

    id: bytes | str | None
    """None: `ids.checkpoint_id` makes it of time and step."""
    parent_id: bytes | str | bool | None
    source: int
    step: int
    at: int
    """Wall-clock nanoseconds after `versions`, if that is a number."""
    base: int | None
    chain: int
    channels: tuple[int, ...]
    versions: tuple[Version | None, ...] | int
    """A number: all channels have it, and what nodes have seen is counted from it."""
    kinds: bytes
    """One byte: all are of that kind, and all of `places` is one number."""
    places: tuple[int, ...] | None
    """None: all are the checkpoint itself."""
    changed: tuple[int, ...] | bool
    seen: dict[int, dict[int, Version]]
    updated: tuple[int, ...] | bool | None
    metadata: bytes | None


def pack(change: Change, number_of: Callable[[str], int], number: int, held: Parts) -> bytes:
    """Return the record of *change*.

    Args:
        change: What differs from its base.
        number_of: Gives the number of a channel's or node's name.
        number: The checkpoint's own.
        held: What the record holds besides.
    """
    names, versions = (*change.versions,), (*change.versions.values(),)
    kinds, places = _columns((*change.places.values(),), number)
    anchor = _anchor(versions, change.seen)
    # Loops: for the few there are, comprehensions take twice as long.
    seen: dict[int, dict[int, Version]] = {}
    for node, versions_seen in change.seen.items():
        entries = seen[number_of(node)] = {}
        for name, version in versions_seen.items():
            entries[number_of(name)] = version - anchor if anchor else version  # type: ignore[operator]
    made = ids.checkpoint_id(change.at, change.step)
    parent, updated = change.parent_id, change.updated
    fields = (
        None if change.id == made else keys.short(change.id),
        # What builds on another is its child; it is written out before that one is dropped.
        _SAME if change.base is not None else parent and keys.short(parent),
        _SOURCES.index(change.source),
        change.step,
        change.at - anchor,
        change.base,
        change.chain,
        tuple(map(number_of, names)),
        anchor or versions,
        kinds,
        places,
        _SAME if change.changed == names else tuple(map(number_of, change.changed)),
        seen,
        None if updated is None else _SAME if updated == names else tuple(map(number_of, updated)),
        change.metadata,
    )
    beside, own = formats.pickled(held), formats.pickled(fields)
    return b"".join((beside, own, len(own).to_bytes(_SIZE, "big")))


def _columns(places: tuple[StepId, ...], number: int) -> tuple[bytes, tuple[int, ...] | None]:
    """Return `Record.kinds` and `Record.places`; *number* is the checkpoint's own."""
    if not places:
        return b"", None
    kind, at = places[0]
    if places.count(places[0]) == len(places):
        return _KINDS[kind], None if at == number else (at,)
    kinds, numbers = zip(*places, strict=True)
    return bytes(kinds), None if numbers.count(number) == len(numbers) else numbers


def _anchor(versions: tuple[Version | None, ...], seen: Seen) -> int:
    """Return the one version that all channels have, if all versions are numbers; else 0."""
    first = versions[0] if versions else None
    if type(first) is not int or versions.count(first) < len(versions):
        return 0
    for entries in seen.values():
        if not _NUMBER.issuperset(map(type, entries.values())):
            return 0
    return first


# ---------------------------------------------------------------- reading


def held_in(record: bytes) -> Held:
    """Return what a record holds besides the checkpoint. Its checksum must have held."""
    return Held._make(pickle.loads(formats.held_part(record)))


def deltas_in(record: bytes) -> Mapping[int, tuple[int, int, Added]]:
    """Return the deltas that a record holds, as `held_in` does, sooner."""
    # As `formats.held_part` says, without a call: there can be thousands.
    found: Mapping[int, tuple[int, int, Added]] = pickle.loads(record if record[0] else record[4:])[
        1
    ]
    return found


def fields_in(data: bytes) -> Record:
    """Return the fields of a record. Its checksum must have held."""
    if formats.is_second(data):
        return Record._make(pickle.loads(formats.second_fields(data)))
    size = int.from_bytes(data[-_SIZE:], "big")
    return Record._make(pickle.loads(data[-_SIZE - size :]))


def id_of(record: Record) -> str:
    """Return the id of the checkpoint."""
    if record.id is not None:
        return keys.long(record.id)
    return ids.checkpoint_id(_at(record), record.step)


def change_of(
    record: Record, name_of: Callable[[int], str], id_at: Callable[[int], str], number: int
) -> Change:
    """Return the change that `pack` was given.

    Args:
        record: The fields.
        name_of: Gives the name that has a number.
        id_at: Gives the id of the checkpoint that has a number.
        number: The checkpoint's own.
    """
    names = tuple(map(name_of, record.channels))
    count = len(names)
    anchor = record.versions if isinstance(record.versions, int) else 0
    versions = (anchor,) * count if isinstance(record.versions, int) else record.versions
    kinds = record.kinds * count if len(record.kinds) == 1 else record.kinds
    numbers = record.places or (number,)
    places = zip(kinds, numbers * count if len(numbers) == 1 else numbers, strict=True)
    return Change(
        id=id_of(record),
        parent_id=_parent_of(record, id_at),
        source=_SOURCES[record.source],
        step=record.step,
        at=_at(record),
        base=record.base,
        chain=record.chain,
        versions=dict(zip(names, versions, strict=True)),
        places=dict(zip(names, places, strict=True)),
        changed=_named(record.changed, names, name_of) or (),
        seen={
            name_of(node): {
                name_of(channel): version + anchor if anchor else version  # type: ignore[operator]
                for channel, version in versions_seen.items()
            }
            for node, versions_seen in record.seen.items()
        },
        updated=_named(record.updated, names, name_of),
        metadata=record.metadata,
    )


def _at(record: Record) -> int:
    return record.at + record.versions if isinstance(record.versions, int) else record.at


def _parent_of(record: Record, id_at: Callable[[int], str]) -> str | None:
    parent = record.parent_id
    if parent is _SAME:
        assert record.base is not None
        return id_at(record.base)
    return None if parent is None else keys.long(cast("bytes | str", parent))


def _named(
    numbers: tuple[int, ...] | bool | None, names: tuple[str, ...], name_of: Callable[[int], str]
) -> tuple[str, ...] | None:
    if numbers is _SAME:
        return names
    return None if numbers is None else tuple(map(name_of, cast("tuple[int, ...]", numbers)))
