"""The writes from which the value of a `DeltaChannel` is rebuilt.

LangGraph and flowpregel store these writes in different places::

    LangGraph     on the checkpoint from which the tasks started
    flowpregel    with the version of the channel that the writes made

So LangGraph rebuilds a value from the pending writes on all ancestors of a checkpoint.
In flowpregel these writes include those of branches that the checkpoint does not belong
to, so only the stored deltas are used. A thread may have checkpoints of both kinds,
because LangGraph can use a saver of flowpregel, and flowpregel a saver of LangGraph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

from flowpregel._core.records import Address, DeltaHistory, Saved
from flowpregel.channels.base import MISSING

__all__ = ["DeltaChannelHistory"]

COUNTERS = "counters_since_delta_snapshot"
"""The key in the metadata under which LangGraph counts, for each delta channel, the
supersteps since the last checkpoint that has the channel's value.
"""


class DeltaChannelHistory(TypedDict):
    """The history of a `DeltaChannel`, in the form that LangGraph programs read."""

    writes: list[tuple[str, str, Any]]
    """The writes that lead from the seed to the checkpoint, oldest first. The first
    item of each, which is the id of a task in LangGraph, is an empty string.
    """
    seed: NotRequired[Any]
    """The value to which the writes are applied. Without a seed, the value is empty."""


def in_langgraphs_form(
    channel: str,
    history: DeltaHistory,
) -> DeltaChannelHistory:
    """Return the history of *channel* as LangGraph's dict."""
    writes: list[tuple[str, str, Any]] = []
    for batch in history.writes:
        writes.extend(("", channel, value) for value in batch)
    if history.seed is MISSING:
        return {"writes": writes}
    return {"writes": writes, "seed": history.seed}


def walk_back(
    load: Callable[[Address], Saved | None],
    saved: Saved | None,
    channels: Collection[str],
) -> dict[str, DeltaHistory]:
    """Return the histories of channels up to the checkpoint *saved*, from the writes on
    its ancestors.

    The history of a channel begins at the nearest checkpoint that has the channel's
    value or its stored deltas, or before which the channel was never written.

    Args:
        load: A function that returns a checkpoint.
        saved: The checkpoint, or None if there is none.
        channels: The names of the channels.
    """
    walks = {name: _Walk(name) for name in channels}
    remaining = list(walks.values())
    while saved is not None:
        for walk in remaining:
            walk.visit(saved)
        remaining = [walk for walk in remaining if not walk.is_over]
        parent_id = saved.checkpoint.parent_id
        if not remaining or parent_id is None:
            break
        saved = load(replace(saved.address, checkpoint_id=parent_id))
        for walk in remaining:
            walk.add_writes(saved)
    return {name: walk.history() for name, walk in walks.items()}


@dataclass(slots=True)
class _Walk:
    """The history of one channel, as far as it has been read on the way back through
    the ancestors of a checkpoint.
    """

    channel: str
    seed: Any = MISSING
    newest_first: list[tuple[Any, ...]] = field(default_factory=list)
    is_over: bool = False
    """True if the beginning of the history was found."""

    def visit(self, saved: Saved) -> None:
        """Add the history of the channel that *saved* has stored, if it has any."""
        history = _history_at(saved, self.channel)
        if history is not None:
            self.is_over = True
            self.seed = history.seed
            self.newest_first += reversed(history.writes)

    def add_writes(self, saved: Saved | None) -> None:
        """Add the channel's pending writes on the checkpoint *saved*, or no writes if
        *saved* is None.
        """
        pending = () if saved is None else saved.writes
        values = [write.value for write in pending if write.channel == self.channel]
        self.newest_first.append(tuple(values))

    def history(self) -> DeltaHistory:
        """Return the history of the channel that was read."""
        oldest_first = tuple(reversed(self.newest_first))
        return DeltaHistory(
            self.seed,
            oldest_first,
            is_stored=False,
        )


def _history_at(
    saved: Saved,
    channel: str,
) -> DeltaHistory | None:
    """Return the history of a channel that is stored in the checkpoint *saved*, or None
    if the history is on the ancestors of the checkpoint.
    """
    checkpoint = saved.checkpoint
    if channel in checkpoint.values:
        return DeltaHistory(checkpoint.values[channel], ())
    if channel not in checkpoint.channel_versions:
        return DeltaHistory(MISSING, ())
    return saved.deltas.get(channel)


class AncestorDeltas(Mapping[str, DeltaHistory]):
    """The histories of a checkpoint's delta channels, some of which are read from the
    ancestors of the checkpoint. They are read when they are first needed.

    Args:
        load: A function that returns a checkpoint.
        saved: The checkpoint.
        missing: The names of the channels whose histories are read.
    """

    def __init__(
        self,
        load: Callable[[Address], Saved | None],
        saved: Saved,
        missing: Collection[str],
    ) -> None:
        self._load = load
        self._saved = saved
        self._missing = missing

    @cached_property
    def _histories(self) -> dict[str, DeltaHistory]:
        walked = walk_back(
            self._load,
            self._saved,
            self._missing,
        )
        return {**self._saved.deltas, **walked}

    def __getitem__(self, channel: str) -> DeltaHistory:
        return self._histories[channel]

    def __iter__(self) -> Iterator[str]:
        return iter(self._histories)

    def __len__(self) -> int:
        return len(self._saved.deltas) + len(self._missing)


def with_langgraphs_deltas(
    load: Callable[[Address], Saved | None],
    saved: Saved,
) -> Saved:
    """Return the checkpoint *saved* with the histories of the delta channels whose
    values LangGraph left out of it.

    Args:
        load: A function that returns a checkpoint without such histories.
        saved: The checkpoint. If flowpregel made it, it is returned unchanged.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.checkpoint.base import Address
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> saved = saver.load(Address("1"))
        >>> with_langgraphs_deltas(saver.load, saved) is saved
        True
    """
    checkpoint = saved.checkpoint
    missing = []
    for name in checkpoint.metadata.get(COUNTERS) or ():
        is_known = name in checkpoint.values or name in saved.deltas
        if name in checkpoint.channel_versions and not is_known:
            missing.append(name)
    if not missing:
        return saved
    return replace(saved, deltas=AncestorDeltas(load, saved, missing))
