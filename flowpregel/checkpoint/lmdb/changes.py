"""What a new checkpoint's record says: the difference to its parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowpregel._core.records import Checkpoint, Version
from flowpregel.checkpoint.lmdb.prepared import Prepared
from flowpregel.checkpoint.lmdb.state import (
    EMPTY,
    LONGEST_CHAIN,
    Change,
    State,
    StepId,
    nodes_that_differ,
    versions_that_differ,
)

Places = Callable[[Mapping[str, Version]], Mapping[str, StepId]]
"""Finds where the values of channels at given versions are."""


@dataclass(slots=True)
class Head:
    """The newest checkpoint this process wrote to a scope, at hand for the next one."""

    id: str
    number: int
    generation: int
    chain: int
    state: State

    def take(self) -> State:
        """Return the state, to be made another's: what is at hand holds no more."""
        self.generation = -1
        return self.state


def between(
    prepared: Prepared,
    checkpoint: Checkpoint,
    written: dict[str, StepId],
    parent: Head | None,
    places: Places,
) -> tuple[Change, State]:
    """Return a checkpoint's record, and the state that it makes.

    The parent's state is made the checkpoint's: a copy would cost as much as there
    are channels.

    Args:
        prepared: The batch with the checkpoint.
        checkpoint: It.
        written: Where the values of the channels it changed will be.
        parent: Its parent, if that is there; nobody may use it any more.
        places: Looks up what the parent does not know.
    """
    old = State() if parent is None else parent.take()
    versions = versions_that_differ(old, checkpoint.channel_versions, written)
    seen = nodes_that_differ(old, checkpoint.versions_seen)
    complete = (
        parent is None or versions is None or seen is None or parent.chain + 1 >= LONGEST_CHAIN
    )
    if versions is None:
        old = State()
        versions = versions_that_differ(old, checkpoint.channel_versions, written) or {}
    if len(versions) > len(written):
        _look_up(versions, written, places)
    if complete or seen is None:
        seen, old.seen = checkpoint.versions_seen, {}
        old.see(seen)
    keeps_metadata = prepared.metadata == old.metadata and not complete
    # By position: keywords would take three times as long.
    change = Change(
        checkpoint.id,
        checkpoint.parent_id,
        checkpoint.source,
        checkpoint.step,
        checkpoint.at,
        None if parent is None else parent.number,
        0 if parent is None else parent.chain + 1,
        versions,
        written,
        checkpoint.changed,
        seen,
        checkpoint.updated_channels,
        None if keeps_metadata else prepared.metadata,
    )
    old.places.update(written)
    old.metadata = prepared.metadata
    if complete:
        old.complete(change)
    return change, old


def _look_up(
    versions: Mapping[str, Version | None], written: dict[str, StepId], places: Places
) -> None:
    """Fill in where values are that this checkpoint has and its parent has not."""
    wanted = {
        name: version
        for name, version in versions.items()
        if name not in written and version is not None
    }
    found = places(wanted)
    for name in wanted:
        written[name] = found.get(name, (EMPTY, 0))
