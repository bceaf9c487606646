"""A compiled program, and the options of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from flowpregel._core.ids import next_version
from flowpregel._core.records import Address, Durability, Node, Saved, Version
from flowpregel._core.unreadable import UnreadablePolicy
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import BaseChannel, PrepareWrite
from flowpregel.managed import managed_value

Keys: TypeAlias = str | tuple[str, ...]
"""The name of one channel, to get its value, or several names, to get a dict of
values.
"""

Names: TypeAlias = Collection[str] | Literal["*"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """The parts of a graph that do not change from run to run."""

    name: str
    nodes: Mapping[str, Node]
    channels: Mapping[str, BaseChannel[Any, Any]]
    """The declared channels of the program, by name and without values."""
    managed: Mapping[str, Any]
    """Values computed for each task from the number of the superstep, such as
    `IsLastStep`.
    """
    input_channels: Keys
    output_channels: Keys
    stream_channels: Keys
    triggers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the nodes that each channel triggers, sorted."""
    consuming: frozenset[str] = frozenset()
    """The channels whose `consume` is called when they have triggered a task."""
    ticking: frozenset[str] = frozenset()
    """The channels that may change at a barrier even if no task has written to them."""
    finishing: tuple[str, ...] = ()
    """The channels whose `finish` is called when no task is due."""
    silent: frozenset[str] = frozenset()
    """The channels in *consuming*, *ticking* and *finishing*, which may change without
    a write.
    """
    deltas: Mapping[str, DeltaChannel[Any, Any]] = field(default_factory=dict)
    """The channels whose writes are stored in checkpoints, instead of their values."""
    migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    """A function that migrates the channel values of a checkpoint that an older program
    may have made.
    """
    reducers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The users' functions (reducers) that fold the writes to a channel, by channel."""
    preparations: Mapping[str, PrepareWrite] = field(default_factory=dict)
    """The functions that prepare the writes to channels, by channel."""
    untracked: frozenset[str] = frozenset()
    """The channels that are in no checkpoint, and whose values are removed from a
    stored `Send`.
    """


def compile_program(
    *,
    name: str,
    nodes: Mapping[str, Node],
    channels: Mapping[str, Any],
    input_channels: Keys,
    output_channels: Keys,
    stream_channels: Keys,
) -> Program:
    """Return the program with these *nodes* and *channels*. *channels* also contains
    the managed values.
    """
    managed, plain_channels = _without_managed(channels)
    deltas = {
        key: channel
        for key, channel in plain_channels.items()
        if isinstance(channel, DeltaChannel)
    }
    consuming = frozenset(_names_where(plain_channels, _consumes))
    ticking = frozenset(_names_where(plain_channels, attrgetter("reacts_to_silence")))
    finishing = _names_where(plain_channels, _finishes)
    untracked = frozenset(_names_where(plain_channels, _is_untracked))
    return Program(
        name=name,
        nodes=nodes,
        channels=plain_channels,
        managed=managed,
        input_channels=input_channels,
        output_channels=output_channels,
        stream_channels=stream_channels,
        triggers=_nodes_by_trigger(nodes),
        consuming=consuming,
        ticking=ticking,
        finishing=finishing,
        silent=consuming.union(ticking, finishing),
        deltas=deltas,
        reducers=_functions_of(plain_channels, attrgetter("folds_with")),
        preparations=_functions_of(plain_channels, attrgetter("prepares_with")),
        untracked=untracked,
    )


def _without_managed(
    channels: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, BaseChannel[Any, Any]]]:
    """Return the managed values among *channels*, and the other channels, each of which
    gets its name as the key.
    """
    managed: dict[str, Any] = {}
    plain_channels: dict[str, BaseChannel[Any, Any]] = {}
    for name, channel in channels.items():
        value = managed_value(channel)
        if value is not None:
            managed[name] = value
        else:
            channel.key = name
            plain_channels[name] = channel
    return managed, plain_channels


def _nodes_by_trigger(nodes: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that each channel triggers, sorted."""
    triggers: dict[str, list[str]] = {}
    for name in sorted(nodes):
        for trigger in nodes[name].triggers:
            triggers.setdefault(trigger, []).append(name)
    return {channel: tuple(names) for channel, names in triggers.items()}


def _functions_of(
    channels: Mapping[str, BaseChannel[Any, Any]],
    function_of: Callable[[BaseChannel[Any, Any]], Callable[..., Any] | None],
) -> dict[str, Callable[..., Any]]:
    """Return the functions that *function_of* returns for the channels, by channel.
    Channels without such a function are not in the result.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for name, channel in channels.items():
        function = function_of(channel)
        if function is not None:
            functions[name] = function
    return functions


def _names_where(
    channels: Mapping[str, BaseChannel[Any, Any]],
    test: Callable[[BaseChannel[Any, Any]], bool],
) -> tuple[str, ...]:
    """Return the names of the channels for which *test* is true."""
    return tuple(name for name, channel in channels.items() if test(channel))


def _consumes(channel: BaseChannel[Any, Any]) -> bool:
    return type(channel).consume is not BaseChannel.consume


def _finishes(channel: BaseChannel[Any, Any]) -> bool:
    return type(channel).finish is not BaseChannel.finish


def _is_untracked(channel: BaseChannel[Any, Any]) -> bool:
    return not channel.is_tracked


@dataclass(frozen=True, slots=True)
class Nested:
    """The options that a nested run gets from the graph around it."""

    resuming: bool = False
    answers: Mapping[str, Any] = field(default_factory=dict)
    """The answers that the user gave, by interrupt id. Some of them may be for other
    nested graphs.
    """
    own_answers: tuple[Any, ...] = ()
    """The answers to the questions of the nested graph itself."""
    before: str | None = None
    """The id of a checkpoint, or None. If the outer graph replays its past, the nested
    run starts from the newest checkpoint before this one.
    """
    addressed: bool = False
    """True if the user named a checkpoint of the nested graph in the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run."""

    address: Address | None = None
    """The address of the run's checkpoints, or None if the run stores none."""
    namespace: str = ""
    durability: Durability = Durability.ASYNC
    recursion_limit: int = 10_000
    interrupt_before: Names = frozenset()
    interrupt_after: Names = frozenset()
    output_channels: Keys = ()
    modes: frozenset[str] = frozenset()
    """The stream modes in which the run emits items, because a reader needs them."""
    messages: Any = None
    """The object that observes models and tools, and makes the items of the mode
    ``messages``. None if neither that mode nor ``tools`` is read.
    """
    step_timeout: float | None = None
    task_labels: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of every task in the streams ``tasks`` and ``debug``: the metadata
    and tags that the user passed.
    """
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of every checkpoint: the metadata that the user passed, ``run_id``
    and ``parents``.
    """
    nested: Nested | None = None
    drain: Callable[[], str | None] = lambda: None
    """A function that returns the reason why the run should stop at the next barrier,
    or None.
    """
    next_version: Callable[[Version | None, int], Version] = next_version
    keeps_deltas: bool = True
    keeps_arguments: bool = False
    keeps_attempts: bool = True
    """True if the attempts of nodes are stored beside their writes."""
    fence: int | None = None
    on_code_change: Literal["keep", "rerun", "error"] = "keep"
    on_unreadable: UnreadablePolicy = "error"
    """The policy for a recorded value that cannot be read back: to compute it again, or
    to fail.
    """
    on_unmatched: Literal["run", "error"] | None = "run"
    """The policy for a task's first call that fits none of the task's recorded calls,
    or None if such calls are not detected.
    """
    adopts_input: bool = False
    """True if the run continues although the content of an input file has changed."""
    fail_fast: bool = False
    """True if waiting calls are not started once the workflow or task that made them
    has failed.
    """
    checks_mutations: bool = False
    """True to check whether tasks change their arguments in place, and to name these
    arguments in a notice to the user.
    """
    stop_grace: float = inf
    """Seconds until the running calls of a failed workflow or task are stopped."""
    loaded: tuple[Saved | None] | None = None
    """The checkpoint at *address*, if it was already loaded; otherwise None."""
    now: int = 0
    """The time at which the run started, in wall-clock nanoseconds."""


def names(keys: Keys | Sequence[str]) -> tuple[str, ...]:
    """Return *keys* as a tuple of names."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
