"""What a new checkpoint's record says: the difference to its parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowpregel._core.records import Version
from flowpregel.checkpoint.lmdb.prepared import Prepared
from flowpregel.checkpoint.lmdb.state import (
    EMPTY,
    LONGEST_CHAIN,
    Change,
    Entry,
    Place,
    State,
    channels_that_differ,
    nodes_that_differ,
)

Places = Callable[[Mapping[str, Version]], Mapping[str, Place]]
"""Finds where the values of channels at given versions are."""


@dataclass(slots=True)
class Head:
    """The newest checkpoint this process wrote to a scope, at hand for the next one."""

    id: str
    number: int
    generation: int
    chain: int
    state: State


def between(
    prepared: Prepared, written: dict[str, Place], parent: Head | None, places: Places
) -> tuple[Change, State]:
    """Return a checkpoint's record, and the state that it makes.

    Args:
        prepared: The batch with the checkpoint.
        written: Where the values of the channels it changed will be.
        parent: Its parent, if that is there.
        places: Looks up what the parent does not know.
    """
    checkpoint = prepared.batch.checkpoint
    assert checkpoint is not None
    old = State() if parent is None else parent.state
    channels = channels_that_differ(old, checkpoint.channel_versions, written)
    seen = nodes_that_differ(old, checkpoint.versions_seen)
    complete = (
        parent is None or channels is None or seen is None or parent.chain + 1 >= LONGEST_CHAIN
    )
    if channels is None:
        old = State()
        channels = channels_that_differ(old, checkpoint.channel_versions, written) or {}
    _look_up(channels, written, places)
    change = Change(
        id=checkpoint.id,
        parent_id=checkpoint.parent_id,
        source=checkpoint.source,
        step=checkpoint.step,
        at=checkpoint.at,
        base=None if complete or parent is None else parent.number,
        chain=0 if complete or parent is None else parent.chain + 1,
        channels=channels,
        changed=checkpoint.changed,
        seen=checkpoint.versions_seen if complete or seen is None else seen,
        updated=checkpoint.updated_channels,
        metadata=prepared.metadata,
    )
    old_seen = {} if complete else old.seen
    state = State({**old.versions}, {**old.places}, {**old_seen}, prepared.metadata)
    state.add(change)
    if complete:
        change.channels = state.entries()
    elif prepared.metadata == old.metadata:
        change.metadata = None
    return change, state


def _look_up(channels: dict[str, Entry], written: Mapping[str, Place], places: Places) -> None:
    """Fill in where values are that this checkpoint has and its parent has not."""
    wanted = {
        name: version
        for name, (version, _) in channels.items()
        if name not in written and version is not None
    }
    if not wanted:
        return
    found = places(wanted)
    for name, version in wanted.items():
        channels[name] = version, found.get(name, (EMPTY, 0))
