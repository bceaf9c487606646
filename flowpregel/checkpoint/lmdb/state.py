"""What a checkpoint knows of all channels and nodes, and how little of it is written.

A `State` is complete: every channel's version and where its value is, and what
each node has seen. Its record holds just what differs from the parent's, so a
superstep that writes one of a thousand channels costs as much as one of ten.
Every `LONGEST_CHAIN` checkpoints the whole is written, which bounds what a
reader goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flowpregel._core.records import Version

LONGEST_CHAIN = 32
EMPTY, VALUE, DELTA, HELD_VALUE, HELD_DELTA = 0, 1, 2, 3, 4
"""What a channel's place has: nothing, its value, or what was added to it.

Values and deltas have records of their own, or are held by the checkpoint's
record. When that is dropped, those that are needed get their own: so a held one
is looked for there next.
"""
VALUES, DELTAS = (VALUE, HELD_VALUE), (DELTA, HELD_DELTA)

Place = tuple[int, int]
"""Which of these, and the number of the checkpoint that wrote it."""
Entry: TypeAlias = tuple[Version | None, Place]
"""One channel: its version (None: it has none) and its place."""
Seen = Mapping[str, Mapping[str, Version]]


@dataclass(slots=True)
class State:
    """Every channel and node as of one checkpoint."""

    versions: dict[str, Version] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    seen: dict[str, dict[str, Version]] = field(default_factory=dict)
    metadata: bytes = b""

    def apply(self, change: Change) -> None:
        """Make this the state after *change*."""
        if change.base is None:
            self.versions, self.places, self.seen = {}, {}, {}
        self.add(change)

    def add(self, change: Change) -> None:
        """Add what *change* says to what is known."""
        for channel, (version, place) in change.channels.items():
            if version is not None:
                self.versions[channel] = version
            self.places[channel] = place
        for node, versions in change.seen.items():
            self.seen[node] = dict(versions)
        if change.metadata is not None:
            self.metadata = change.metadata

    def entries(self) -> dict[str, Entry]:
        """Return all channels as a complete record has them."""
        return {name: (self.versions.get(name), place) for name, place in self.places.items()}


@dataclass(slots=True, kw_only=True)
class Change:
    """One checkpoint's record: what it is, and what differs from its base."""

    id: str
    parent_id: str | None
    source: str
    step: int
    at: int
    base: int | None
    """The number of the checkpoint this builds on; None: this one is complete."""
    chain: int = 0
    """How many records have to be read to get the state before this one."""
    channels: dict[str, Entry]
    changed: tuple[str, ...]
    seen: Seen
    updated: tuple[str, ...] | None
    metadata: bytes | None
    """Encoded; None: as its base has it."""


# ---------------------------------------------------------------- differences


def channels_that_differ(
    state: State, versions: Mapping[str, Version], written: Mapping[str, Place]
) -> dict[str, Entry] | None:
    """Return the channels that differ from *state*, or None if some of its are gone.

    Args:
        state: The parent's.
        versions: The new checkpoint's: complete.
        written: Where the changed channels' values are now.
    """
    old = state.versions
    # Made of functions in C: there can be hundreds, and this is done for every superstep.
    new = dict(zip(written, map(versions.get, written), strict=True))
    entries = dict(zip(written, zip(new.values(), written.values(), strict=True), strict=True))
    if None in new.values():
        new = {name: version for name, version in new.items() if version is not None}
    if {**old, **new} == versions:
        return entries
    if old.keys() - versions.keys():
        return None
    for name, version in versions.items():
        if name not in entries and (name not in old or old[name] != version):
            entries[name] = version, state.places.get(name, (EMPTY, 0))
    return entries


def nodes_that_differ(state: State, seen: Seen) -> Seen | None:
    """Return the nodes that have seen more than in *state*, or None if some are gone."""
    old = state.seen
    if len(old) > len(seen) or old.keys() - seen.keys():
        return None
    return {node: versions for node, versions in seen.items() if old.get(node) != versions}
