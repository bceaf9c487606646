"""A compiled program: nodes, channels, and the indexes that planning needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from flowpregel._core.ids import next_version
from flowpregel._core.records import Address, Durability, Node, Saved, Version
from flowpregel.channels import DeltaChannel, LastValue
from flowpregel.channels.base import BaseChannel
from flowpregel.managed import managed_value
from flowpregel.policies import CachePolicy, RetryPolicy

Keys: TypeAlias = str | tuple[str, ...]
"""One channel, whose bare value is meant, or several, which make a dict."""

Names: TypeAlias = frozenset[str] | Literal["*"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """What does not change from run to run."""

    name: str
    nodes: Mapping[str, Node]
    channels: Mapping[str, BaseChannel[Any, Any]]
    """Empty channels, as declared."""
    managed: Mapping[str, Any]
    """Values made up for each task from where the run is, such as `IsLastStep`."""
    input_channels: Keys
    output_channels: Keys
    stream_channels: Keys
    triggers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each channel, the nodes that it triggers, sorted."""
    finishing: tuple[str, ...] = ()
    """The channels to tell when nothing else is left to do."""
    consumed: frozenset[str] = frozenset()
    """The channels to tell when they triggered a task."""
    plain: frozenset[str] = frozenset()
    """The channels that take one write and hold it: there can be hundreds, so they are
    written and read in bulk, without a call for each."""
    deltas: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()
    """The channels that no checkpoint keeps, and that no `Send` may carry along."""
    caches: bool = False
    """Whether any node shares its results with other runs."""


def compile_program(
    *,
    name: str,
    nodes: Mapping[str, Node],
    channels: Mapping[str, Any],
    input_channels: Keys,
    output_channels: Keys,
    stream_channels: Keys,
) -> Program:
    """Return the program of *nodes* and *channels* (managed values among them)."""
    managed = {key: managed_value(item) for key, item in channels.items()}
    channels = {key: item for key, item in channels.items() if managed[key] is None}
    for key, channel in channels.items():
        channel.key = key
    triggers: dict[str, list[str]] = {}
    for node_name in sorted(nodes):
        for trigger in nodes[node_name].triggers:
            triggers.setdefault(trigger, []).append(node_name)
    return Program(
        name=name,
        nodes=nodes,
        channels=channels,
        managed={key: item for key, item in managed.items() if item is not None},
        input_channels=input_channels,
        output_channels=output_channels,
        stream_channels=stream_channels,
        triggers={channel: tuple(names) for channel, names in triggers.items()},
        finishing=tuple(
            key for key, item in channels.items() if type(item).finish is not BaseChannel.finish
        ),
        consumed=frozenset(
            key for key, item in channels.items() if type(item).consume is not BaseChannel.consume
        ),
        # Not by isinstance: what a subclass does with a write is its own.
        plain=frozenset(key for key, item in channels.items() if type(item) is LastValue),
        deltas=frozenset(key for key, item in channels.items() if isinstance(item, DeltaChannel)),
        untracked=frozenset(key for key, item in channels.items() if not item.is_tracked),
        caches=any(node.cache is not None for node in nodes.values()),
    )


@dataclass(frozen=True, slots=True)
class Nested:
    """What the graph around it tells a nested run."""

    resuming: bool = False
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Answers by interrupt id; some may be for other graphs."""
    before: str | None = None
    """Start from the newest checkpoint before this one: the parent is replayed."""
    addressed: bool = False
    """Whether the user addressed one of its own checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one run was asked for."""

    address: Address | None = None
    """Where it keeps checkpoints; None: nowhere."""
    namespace: str = ""
    durability: Durability = Durability.ASYNC
    recursion_limit: int = 10_000
    interrupt_before: Names = frozenset()
    interrupt_after: Names = frozenset()
    output_channels: Keys = ()
    modes: frozenset[str] = frozenset()
    """The stream modes somebody reads."""
    step_timeout: float | None = None
    retry: tuple[RetryPolicy, ...] = ()
    """For nodes that have none of their own."""
    cache: CachePolicy | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Kept with every checkpoint: the user's, ``run_id`` and ``parents``."""
    nested: Nested | None = None
    drain: Callable[[], str | None] = lambda: None
    """Why the run should stop at the next barrier, or None."""
    next_version: Callable[[Version | None, int], Version] = next_version
    keeps_deltas: bool = True
    fence: int | None = None
    on_mismatch: Literal["error", "rerun", "reuse"] = "error"
    loaded: tuple[Saved | None] | None = None
    """What is kept at *address*, if it was loaded before."""
    now: int = 0
    """Wall-clock nanoseconds at the start."""
