"""The state of a thread between two barriers: channels and their versions.

Theory of operation. Each channel has a version, which changes when the channel changes.
Versions are times (see `ids.next_version`), so two branches of a thread never have
equal versions for different values. For each node the state records the versions that
its triggers had when it last ran. A node is due if a trigger has a newer version than
the version that the node has seen.

A barrier (`barrier.apply`) is the only place where channels change. It gives one new
version to all channels that changed, and returns an `Update`: which channels changed,
which of them may trigger nodes, and the deltas of delta channels. The state keeps two
of these facts:

=============  =================================================================
``updated``    the channels that may trigger a node of the next superstep
``unsaved``    all changes since the newest checkpoint: what the next one stores
=============  =================================================================

A checkpoint is made from `RunState` alone. It stores the values of the channels in
``unsaved``, and the versions of all channels. While tasks run, channels do not change,
so the state of a running superstep is that of the checkpoint.

A barrier that may fail is applied to a copy of the state. `RunState.copy` copies the
channels that may change, and shares the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flowpregel._core.program import Keys, Program
from flowpregel._core.records import Delta, DeltaHistory, Saved, Version
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import MISSING, BaseChannel


@dataclass(slots=True)
class Update:
    """The changes that a barrier made."""

    version: Version
    """The version that all changed channels have got, one and the same."""
    changed: list[str] = field(default_factory=list)
    """The channels that got the new version."""
    updated: set[str] = field(default_factory=set)
    """The changed channels that have a value, and so may trigger nodes."""
    written: set[str] = field(default_factory=set)
    """The channels that were written to, whether they changed or not."""
    deltas: dict[str, Delta] = field(default_factory=dict)

    def then(self, later: Update) -> Update:
        """Return the changes of this barrier and of *later* as the changes of one
        barrier.

        If both barriers changed a DeltaChannel, and the first change is not a delta but
        a full value, the result has no delta for the channel: its full value is stored.
        """
        deltas = {
            name: delta
            for name, delta in self.deltas.items()
            if name not in later.changed
        }
        for name, delta in later.deltas.items():
            before = self.deltas.get(name)
            if name not in self.changed:
                deltas[name] = delta
            elif before is not None:
                writes = (*before.writes, *delta.writes)
                deltas[name] = Delta(before.previous, writes)
        changed = list(dict.fromkeys((*self.changed, *later.changed)))
        return Update(later.version, changed, later.updated, later.written, deltas)


@dataclass(slots=True, eq=False)
class RunState:
    """The channels of a run, their versions, and the versions that nodes have seen."""

    channels: dict[str, BaseChannel[Any, Any]]
    versions: dict[str, Version] = field(default_factory=dict)
    seen: dict[str, Mapping[str, Version]] = field(default_factory=dict)
    """The versions that each node has seen, by the node's name. The inner mappings are
    replaced and never changed, so a copy may be shallow.
    """
    newest: Version | None = None
    """The newest version that any channel has had."""
    available: set[str] = field(default_factory=set)
    """The channels that have a value."""
    updates_since_snapshot: dict[str, int] = field(default_factory=dict)
    """The number of deltas from which each DeltaChannel's value is rebuilt."""
    updated: set[str] | None = None
    """The channels that may trigger tasks, or None if any channel may."""
    unsaved: Update | None = None
    """The changes since the newest stored checkpoint."""
    previous: Any = None
    """The value that the thread's previous run saved (functional API)."""

    def read(self, keys: Keys) -> Any:
        """Return the value of one channel (None if it has none), or a dict of the
        values of several channels that have one.
        """
        if isinstance(keys, str):
            return self.channels[keys].get() if keys in self.available else None
        values: dict[str, Any] = {}
        for key in keys:
            if key in self.available:
                values[key] = self.channels[key].get()
        return values

    def copy(self, changing: Iterable[str]) -> RunState:
        """Return a copy that later changes of the channels in *changing* do not
        affect.
        """
        channels = dict(self.channels)
        for name in changing:
            channels[name] = channels[name].copy()
            channels[name].key = name
        return replace(
            self,
            channels=channels,
            versions=dict(self.versions),
            seen=dict(self.seen),
            available=set(self.available),
            updates_since_snapshot=dict(self.updates_since_snapshot),
        )


def new_state(program: Program) -> RunState:
    """Return the state of a new thread."""
    state = RunState({})
    for name, declared in program.channels.items():
        channel = declared.from_checkpoint(MISSING)
        channel.key = name
        state.channels[name] = channel
        if channel.is_available():
            state.available.add(name)
    return state


def load_state(program: Program, saved: Saved) -> RunState:
    """Return the state that *saved* describes."""
    checkpoint = saved.checkpoint
    values = checkpoint.values
    if program.migrate is not None:
        values = program.migrate(dict(values))
    versions = dict(checkpoint.channel_versions)
    known: Any = (*versions.values(), *saved.newest_versions)
    state = RunState(
        channels={},
        versions=versions,
        seen=dict(checkpoint.versions_seen),
        newest=max(known, default=None),
    )
    for name, declared in program.channels.items():
        history: DeltaHistory | None = None
        stored = values.get(name, MISSING)
        if name not in values:
            history = saved.deltas.get(name)
        if history is not None:
            stored = history.seed
        channel = declared.from_checkpoint(stored)
        channel.key = name
        if history is not None:
            _replay(state, channel, history)
        state.channels[name] = channel
        if channel.is_available():
            state.available.add(name)
    return state


def _replay(
    state: RunState,
    channel: BaseChannel[Any, Any],
    history: DeltaHistory,
) -> None:
    """Apply the writes since a snapshot to *channel*, which contains the snapshot.

    The type of the channel may have changed since the writes were made.
    """
    if not history.is_stored:
        unsaved = state.unsaved or Update(0)
        state.unsaved = replace(unsaved, changed=[*unsaved.changed, channel.key])
    if isinstance(channel, DeltaChannel):
        channel.replay(history.writes)
        state.updates_since_snapshot[channel.key] = len(history.writes)
        return
    for writes in history.writes:
        channel.update(writes)
