"""The live state of a run between two barriers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowpregel._core.program import Keys, Program
from flowpregel._core.records import Saved, Version
from flowpregel.channels import DeltaChannel, LastValue
from flowpregel.channels.base import MISSING, BaseChannel


@dataclass(slots=True, eq=False)
class State:
    """Channels, their versions, and who has seen which."""

    channels: dict[str, BaseChannel[Any, Any]]
    versions: dict[str, Version] = field(default_factory=dict)
    seen: dict[str, Mapping[str, Version]] = field(default_factory=dict)
    """Its inner mappings are never changed, only replaced, so a copy may be shallow."""
    newest: Version | None = None
    """The newest of all versions."""
    restless: set[str] = field(default_factory=set)
    """The available channels that change when a superstep does not write them."""
    updates_since_snapshot: dict[str, int] = field(default_factory=dict)
    """For each DeltaChannel: how many deltas its value takes to rebuild."""

    def copy(self, changing: Iterable[str]) -> State:
        """Return the state as it is, if no channels but *changing* change from now on."""
        channels = dict(self.channels)
        for name in changing:
            channels[name] = channels[name].copy()
            channels[name].key = name
        return State(
            channels,
            dict(self.versions),
            dict(self.seen),
            self.newest,
            set(self.restless),
            dict(self.updates_since_snapshot),
        )


def new_state(program: Program) -> State:
    """Return the state of a thread that nothing happened on."""
    return State(
        {name: _live(program, item, name, MISSING) for name, item in program.channels.items()}
    )


def _live(
    program: Program, declared: BaseChannel[Any, Any], name: str, saved: Any
) -> BaseChannel[Any, Any]:
    """Return what `restored` does, sooner for a plain channel."""
    if name not in program.plain:
        return restored(declared, name, saved)
    channel: LastValue[Any] = LastValue(declared.typ, name)
    channel.value = saved
    return channel


def restored(declared: BaseChannel[Any, Any], name: str, saved: Any) -> BaseChannel[Any, Any]:
    """Return a live channel of the declared kind."""
    channel = declared.from_checkpoint(saved)
    channel.key = name
    return channel


def load_state(program: Program, saved: Saved) -> State:
    """Return the state that *saved* describes."""
    checkpoint = saved.checkpoint
    state = State(
        channels={},
        versions=dict(checkpoint.channel_versions),
        seen=dict(checkpoint.versions_seen),
        newest=max(checkpoint.channel_versions.values(), default=None, key=_order),
    )
    for name, declared in program.channels.items():
        channel = _live(program, declared, name, checkpoint.values.get(name, MISSING))
        history = saved.deltas.get(name)
        if history is not None and name not in checkpoint.values:
            channel = restored(declared, name, history.seed)
            if isinstance(channel, DeltaChannel):
                channel.replay(history.writes)
                state.updates_since_snapshot[name] = len(history.writes)
            else:
                for writes in history.writes:
                    channel.update(writes)
        state.channels[name] = channel
        if channel.reacts_to_silence and channel.is_available():
            state.restless.add(name)
    return state


def _order(version: Version) -> Any:
    return version


def read(channels: Mapping[str, BaseChannel[Any, Any]], keys: Keys) -> Any:
    """Return the bare value of one channel (None: it is empty), or a dict of several."""
    if isinstance(keys, str):
        channel = channels[keys]
        return channel.get() if channel.is_available() else None
    return {key: channel.get() for key in keys if (channel := channels[key]).is_available()}


def names(keys: Keys | Sequence[str]) -> tuple[str, ...]:
    """Return *keys* as a tuple of names."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
