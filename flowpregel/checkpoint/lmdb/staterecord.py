"""A checkpoint's record as bytes.

::

    0, head, id, parent id,
       channels: numbers, kinds [, places], versions
       changed: numbers;  seen: nodes, counts, channels, versions;  updated: numbers
       metadata, if it is not its base's
    1, a pickle of the same fields             where versions are no ints of 64 bits
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import astuple, fields
from itertools import islice

from flowpregel.checkpoint.lmdb import keys
from flowpregel.checkpoint.lmdb.keys import text, untext
from flowpregel.checkpoint.lmdb.state import Change, Entry

_SOURCES = ("input", "loop", "update", "fork")
_FULL, _HAS_UPDATED, _HAS_METADATA, _HAS_PARENT = 1, 2, 4, 8
_OWN_PLACES, _SAME_CHANGED, _SAME_UPDATED, _SHORT_IDS = 16, 32, 64, 128
_HEAD = struct.Struct(">BBBBiqI7H")
_PLAIN, _ODD = 0, 1
_FIELDS = tuple(field.name for field in fields(Change))


def pack(change: Change, number_of: Callable[[str], int], number: int) -> bytes:
    """Return the record of *change*.

    Args:
        change: What to write.
        number_of: Gives the number of a channel's or node's name.
        number: The checkpoint's own.
    """
    try:
        return _pack_plain(change, number_of, number)
    except (struct.error, TypeError, ValueError):
        return bytes((_ODD,)) + pickle.dumps(astuple(change), 5)


def unpack(record: bytes, name_of: Callable[[int], str], number: int) -> Change:
    """Return the change that `pack` was given."""
    if record[0] == _ODD:
        given = dict(zip(_FIELDS, pickle.loads(record[1:]), strict=True))
        given["channels"] = {name: Entry(*entry) for name, entry in given["channels"].items()}
        return Change(**given)
    return _unpack_plain(record, name_of, number)


def _pack_plain(change: Change, number_of: Callable[[str], int], number: int) -> bytes:
    entries = change.channels.values()
    own = all(entry.place[1] == number for entry in entries)
    same = (*change.channels,) == change.changed
    same_updated = change.updated == change.changed
    identifier, parent = text(change.id), text(change.parent_id or "")
    short = keys.task(change.id), keys.task(change.parent_id or change.id)
    is_short = short[0][:1] == short[1][:1] == b"u"
    if is_short:
        identifier, parent = short[0][1:], short[1][1:] if parent else b""
    flags = (
        (_FULL if change.base is None else 0)
        | (_HAS_UPDATED if change.updated is not None else 0)
        | (_HAS_METADATA if change.metadata is not None else 0)
        | (_HAS_PARENT if change.parent_id is not None else 0)
        | (_OWN_PLACES if own else 0)
        | (_SAME_CHANGED if same else 0)
        | (_SAME_UPDATED if same_updated else 0)
        | (_SHORT_IDS if is_short else 0)
    )
    changed = () if same else change.changed
    updated = () if same_updated else change.updated or ()
    counts = [len(versions) for versions in change.seen.values()]
    pairs = [pair for versions in change.seen.values() for pair in versions.items()]
    sizes = (len(entries), len(changed), len(counts), len(pairs), len(updated))
    head = _HEAD.pack(
        _PLAIN, flags, _SOURCES.index(change.source), change.chain, change.step, change.at,
        0 if change.base is None else number - change.base, len(identifier), len(parent), *sizes,
    )  # fmt: skip
    body = struct.pack(
        _layout(sizes, own=own),
        *map(number_of, change.channels),
        *[entry.place[0] for entry in entries],
        *([] if own else [entry.place[1] for entry in entries]),
        *[entry.version for entry in entries],
        *map(number_of, changed),
        *map(number_of, change.seen),
        *counts,
        *[number_of(channel) for channel, _ in pairs],
        *[version for _, version in pairs],
        *map(number_of, updated),
    )
    return b"".join((head, identifier, parent, body, change.metadata or b""))


def _layout(sizes: tuple[int, ...], *, own: bool) -> str:
    channels, changed, nodes, pairs, updated = sizes
    places = 0 if own else channels
    return (
        f">{channels}I{channels}B{places}Q{channels}q{changed}I"
        f"{nodes}I{nodes}H{pairs}I{pairs}q{updated}I"
    )


def _unpack_plain(record: bytes, name_of: Callable[[int], str], number: int) -> Change:
    (_, flags, source, chain, step, at, back, id_size, parent_size, *rest) = _HEAD.unpack_from(
        record
    )
    read_id = _short_id if flags & _SHORT_IDS else untext
    channels, changed, nodes, pairs, updated = rest
    own = bool(flags & _OWN_PLACES)
    layout = _layout((channels, changed, nodes, pairs, updated), own=own)
    at_parent = _HEAD.size + id_size
    at_body = at_parent + parent_size
    packed = iter(struct.unpack_from(layout, record, at_body))

    def take(count: int) -> list[int]:
        return list(islice(packed, count))

    names = [name_of(found) for found in take(channels)]
    kinds = take(channels)
    places = [number] * channels if own else take(channels)
    versions = take(channels)
    entries = {
        name: Entry(version, (kind, place))
        for name, version, kind, place in zip(names, versions, kinds, places, strict=True)
    }
    changed_names = tuple(map(name_of, take(changed)))
    if flags & _SAME_CHANGED:
        changed_names = tuple(names)
    seen_nodes, counts = take(nodes), take(nodes)
    pair_names, pair_versions = take(pairs), take(pairs)
    flat = iter(zip(map(name_of, pair_names), pair_versions, strict=True))
    seen = {
        name_of(node): dict(islice(flat, count))
        for node, count in zip(seen_nodes, counts, strict=True)
    }
    return Change(
        id=read_id(record[_HEAD.size : at_parent]),
        parent_id=read_id(record[at_parent:at_body]) if flags & _HAS_PARENT else None,
        source=_SOURCES[source],
        step=step,
        at=at,
        base=None if flags & _FULL else number - back,
        chain=chain,
        channels=entries,
        changed=changed_names,
        seen=seen,
        updated=_updated(flags, changed_names, tuple(map(name_of, take(updated)))),
        metadata=(record[at_body + struct.calcsize(layout) :] if flags & _HAS_METADATA else None),
    )


def _updated(
    flags: int, changed: tuple[str, ...], written: tuple[str, ...]
) -> tuple[str, ...] | None:
    if flags & _SAME_UPDATED:
        return changed
    return written if flags & _HAS_UPDATED else None


def _short_id(data: bytes) -> str:
    found = keys.task_id_of(b"u" + data)
    assert found is not None
    return found
