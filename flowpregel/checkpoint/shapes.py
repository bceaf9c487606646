"""What the classic form of a saver takes and gives: LangGraph's shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from flowpregel._core.records import Version

WRITES_IDX_MAP: dict[str, int] = {
    "__error__": -1,
    "__scheduled__": -2,
    "__interrupt__": -3,
    "__resume__": -4,
    "__error_source_node__": -5,
    "__call__": -6,
    "__ran__": -7,
}
"""Where control writes are kept: one place each, so a newer one replaces the older.

The last three are ours: under positions of their own they would take the places of
writes that the task makes when it is tried again.
"""

Config: TypeAlias = dict[str, Any]
OnConflict: TypeAlias = Literal["raise", "wait", "takeover"]


class CheckpointDict(TypedDict):
    """A checkpoint in LangGraph's shape."""

    v: int
    id: str
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, Version]
    versions_seen: dict[str, dict[str, Version]]
    updated_channels: list[str] | None


class CheckpointTuple(NamedTuple):
    """A checkpoint with what belongs to it, in LangGraph's shape."""

    config: Config
    checkpoint: CheckpointDict
    metadata: dict[str, Any]
    parent_config: Config | None = None
    pending_writes: list[tuple[str, str, Any]] | None = None


class Lease:
    """The right to write a thread's namespace; *fence* goes with every batch."""

    __slots__ = ("fence", "stop")

    def __init__(self, fence: int | None = None) -> None:
        self.fence = fence
        self.stop: Callable[[str], None] | None = None
        """Told, from any OS thread, why the owner is to stop; set by an owner that can."""
