"""What a checkpoint knows of all channels and nodes, and how little of it is written.

A `State` is complete: every channel's version and where its value is, and what
each node has seen. Its record holds just what differs from the parent's, so a
superstep that writes one of a thousand channels costs as much as one of ten.
Every `LONGEST_CHAIN` checkpoints the whole is written, which bounds what a
reader goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from flowpregel._core.records import Version

LONGEST_CHAIN = 32
EMPTY, VALUE, DELTA, HELD_VALUE, HELD_DELTA = 0, 1, 2, 3, 4
"""What a channel's place has: nothing, its value, or what was added to it.

Values and deltas have records of their own, or are held by the checkpoint's
record. When that is dropped, those that are needed get their own: so a held one
is looked for there next.
"""
VALUES, DELTAS = (VALUE, HELD_VALUE), (DELTA, HELD_DELTA)

StepId = tuple[int, int]
"""Which of these, and the number of the checkpoint that wrote it."""
Seen = Mapping[str, Mapping[str, Version]]


@dataclass(slots=True)
class State:
    """Every channel and node as of one checkpoint."""

    versions: dict[str, Version] = field(default_factory=dict)
    places: dict[str, StepId] = field(default_factory=dict)
    seen: dict[str, dict[str, Version]] = field(default_factory=dict)
    metadata: bytes = b""

    def apply(self, change: Change) -> None:
        """Make this the state after *change*."""
        if change.base is None:
            self.versions, self.places, self.seen = {}, {}, {}
        self.versions.update(_without_none(change.versions))
        self.places.update(change.places)
        self.see(change.seen)
        if change.metadata is not None:
            self.metadata = change.metadata

    def see(self, seen: Seen) -> None:
        """Add what nodes have seen."""
        for node, versions in seen.items():
            self.seen[node] = dict(versions)

    def complete(self, change: Change) -> None:
        """Make *change*, which led here, one that says everything and builds on no other."""
        change.base, change.chain = None, 0
        change.versions = dict(zip(self.places, map(self.versions.get, self.places), strict=True))
        change.places = dict(self.places)
        change.seen = self.seen
        change.metadata = self.metadata


@dataclass(slots=True)
class Change:
    """One checkpoint's record: what it is, and what differs from its base."""

    id: str
    parent_id: str | None
    source: str
    step: int
    at: int
    base: int | None
    """The number of the checkpoint this builds on; None: this one is complete."""
    chain: int
    """How many records have to be read to get the state before this one."""
    versions: dict[str, Version | None]
    """None: the channel has no version."""
    places: dict[str, StepId]
    """Of the same channels, in the same order."""
    changed: tuple[str, ...]
    seen: Seen
    updated: tuple[str, ...] | None
    metadata: bytes | None
    """Encoded; None: as its base has it."""


# ---------------------------------------------------------------- differences


def versions_that_differ(
    state: State, versions: Mapping[str, Version], changed: Collection[str]
) -> dict[str, Version | None] | None:
    """Return the versions that differ from *state*, or None if some of its are gone.

    Args:
        state: The parent's. It gets the versions that are returned.
        versions: The new checkpoint's: complete.
        changed: The channels to return in any case; None: they have no version.
    """
    old = state.versions
    # Made of functions in C: there can be hundreds, and this is done for every superstep.
    found = dict(zip(changed, map(versions.get, changed), strict=True))
    old.update(_without_none(found))
    if old == versions:
        return found
    if old.keys() - versions.keys():
        return None
    for name, version in versions.items():
        if name not in found and (name not in old or old[name] != version):
            found[name] = old[name] = version
    return found


def _without_none(versions: dict[str, Version | None]) -> dict[str, Version]:
    if None in versions.values():
        return {name: version for name, version in versions.items() if version is not None}
    return cast("dict[str, Version]", versions)


def nodes_that_differ(state: State, seen: Seen) -> Seen | None:
    """Return the nodes that have seen more than in *state*, or None if some are gone.

    Args:
        state: The parent's. It gets what is returned.
        seen: The new checkpoint's: complete.
    """
    old = state.seen
    if not old.keys() <= seen.keys():
        return None
    found = {}
    for node, versions in seen.items():
        if old.get(node) != versions:
            old[node] = dict(versions)
            found[node] = versions
    return found
