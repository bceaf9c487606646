"""Apply a superstep's writes to the channels: the barrier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from flowpregel._core.commands import Send
from flowpregel._core.program import Program
from flowpregel._core.records import (
    HANDLER,
    SILENT_WRITES,
    TASKS,
    Delta,
    Node,
    Task,
    Version,
    Write,
)
from flowpregel._core.state import State
from flowpregel.channels import DeltaChannel
from flowpregel.channels.overwrite import has_overwrite
from flowpregel.errors import InvalidUpdateError

TO_NODE = "branch:to:"
"""What the name of a channel begins with that makes a node of a `StateGraph` run."""


@dataclass(slots=True)
class Writes:
    """What one task brings to the barrier."""

    writes: Sequence[Write]
    reader: str = ""
    """The name under which its triggers count as seen; empty: it has none."""
    triggers: tuple[str, ...] = ()


@dataclass(slots=True)
class Applied:
    """What a barrier did."""

    version: Version
    """The version that every changed channel now has."""
    changed: list[str] = field(default_factory=list)
    """The channels whose version moved."""
    updated: set[str] = field(default_factory=set)
    """The changed channels that hold a value, and so may trigger nodes."""
    written: set[str] = field(default_factory=set)
    """The channels that were written, changed or not."""
    deltas: dict[str, Delta] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    """The values of changed channels that are plain."""

    def then(self, later: Applied) -> Applied:
        """Return what this barrier and *later* did, as if it were one.

        A DeltaChannel that changed in both and whose earlier change was kept in
        full is in no delta: its value is kept in full again.
        """
        deltas = {name: delta for name, delta in self.deltas.items() if name not in later.changed}
        for name, delta in later.deltas.items():
            if name not in self.changed:
                deltas[name] = delta
            elif before := self.deltas.get(name):
                deltas[name] = Delta(before.previous, (*before.writes, *delta.writes))
        return Applied(
            later.version,
            list(dict.fromkeys((*self.changed, *later.changed))),
            later.updated,
            later.written,
            deltas,
            {**self.held, **later.held},
        )


def check_writes(program: Program, author: str | Node, writes: Iterable[Write]) -> None:
    """Refuse writes that no barrier could apply.

    Args:
        program: Whose channels are written.
        author: Who wrote them, for the message.
        writes: What is to be written.

    Raises:
        InvalidUpdateError: A channel or the target of a `Send` does not exist.
    """
    plain, channels = program.plain, program.channels
    for channel, value in writes:
        if channel in plain:
            continue
        if channel in channels:
            if channel == TASKS:
                _check_send(program, author, value)
        elif channel not in SILENT_WRITES:
            raise InvalidUpdateError(f"{author} {_unknown(program, channel)}")


def _unknown(program: Program, channel: str) -> str:
    if str(channel).startswith(TO_NODE):
        nodes = ", ".join(sorted(name for name, node in program.nodes.items() if not node.hidden))
        target = channel.removeprefix(TO_NODE)
        return f"leads to node {target!r}, which does not exist; the nodes are: {nodes}"
    known = ", ".join(sorted(name for name in program.channels if name != TASKS))
    return f"wrote to channel {channel!r}, which does not exist; the channels are: {known}"


def _check_send(program: Program, author: str | Node, value: Any) -> None:
    for send in value if isinstance(value, list) else (value,):
        if not isinstance(send, Send):
            raise InvalidUpdateError(f"{author} sent {send!r}, which is not a Send")
        if send.node not in program.nodes:
            known = ", ".join(sorted(program.nodes))
            raise InvalidUpdateError(
                f"{author} sent to node {send.node!r}, which does not exist; the nodes are: {known}"
            )


def barrier_of(tasks: Iterable[Task]) -> list[Writes]:
    """Return what *tasks* bring, in the order in which it is applied."""
    ordered = list(tasks)
    if len(ordered) > 1:
        ordered.sort(key=_place)
    return [
        # A handler was not triggered: the task that failed was, and has seen what did it.
        Writes(task.writes, task.node.name, () if task.kind is HANDLER else task.triggers)
        for task in ordered
    ]


def _place(task: Task) -> tuple[int, str]:
    """Return where its writes come: those of a handler where the failed task's would have."""
    handled = task.parent if task.kind is HANDLER else None
    return (handled or task).kind.value, task.path


def apply(program: Program, state: State, brought: Sequence[Writes], version: Version) -> Applied:
    """Fold what tasks brought into the channels of *state*.

    A barrier where some task was triggered is a superstep: channels that were
    not written learn so, and if nothing could run next, all are told to finish.

    Raises:
        InvalidUpdateError: A channel cannot take its writes.
    """
    held, by_channel = _gathered(program, brought)
    applied = Applied(version, [], set(), set(), {}, held)
    is_superstep = _see(state, brought)
    if program.consumed:
        _consume(program, state, brought, applied)
    if held:
        _hold(state, applied)
    for name, values in by_channel.items():
        try:
            _update(program, state, name, values, applied)
        except Exception as error:
            error.add_note(f"channel {name!r} was written by {_writers_of(name, brought)}")
            raise
    if is_superstep:
        if state.restless:
            _pass_over(state, applied.written, applied)
        if program.finishing and not _anything_to_run(program, applied):
            _finish(program, state, applied)
    return applied


def _gathered(
    program: Program, brought: Sequence[Writes]
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the writes to plain channels, and each other channel's writes."""
    plain = program.plain
    writes = (
        brought[0].writes if len(brought) == 1 else [w for item in brought for w in item.writes]
    )
    held = {name: value for name, value in writes if name in plain}
    by_channel: dict[str, list[Any]] = {}
    if len(held) < len(writes):
        others = [write for write in writes if write[0] not in plain]
        if len(held) + len(others) < len(writes):
            # A plain channel was written twice: it says so itself.
            held, others = {}, [*writes]
        for name, value in others:
            if name not in SILENT_WRITES:
                by_channel.setdefault(name, []).append(value)
    return held, by_channel


def _hold(state: State, applied: Applied) -> None:
    """Give plain channels their writes, one each: what `_update` does, for all of them."""
    channels: dict[str, Any] = state.channels
    versions = state.versions
    held, version = applied.held, applied.version
    for name, value in held.items():
        channels[name].value = value
        versions[name] = version
    applied.changed.extend(held)
    applied.updated.update(held)
    applied.written.update(held)
    state.newest = version


def _pass_over(state: State, written: Set[str], applied: Applied) -> None:
    """Tell the channels that nobody wrote so."""
    for name in state.restless - written:
        if state.channels[name].update(()):
            _note_change(state, name, applied)


def _finish(program: Program, state: State, applied: Applied) -> None:
    """Tell the channels that wait for it that nothing else is left to do."""
    for name in program.finishing:
        if state.channels[name].finish():
            _note_change(state, name, applied)


def changing(program: Program, state: State, brought: Sequence[Writes]) -> set[str]:
    """Return the channels that `apply` may change."""
    names = {name for item in brought for name in item.triggers}
    names.update(name for item in brought for name, _ in item.writes)
    names.update(state.restless, program.finishing)
    return names & state.channels.keys()


def _writers_of(channel: str, brought: Sequence[Writes]) -> str:
    """Return who wrote to *channel*, for a message."""
    return ", ".join(
        repr(item.reader) if item.reader else "the run's own command"
        for item in brought
        if any(key == channel for key, _ in item.writes)
    )


def _see(state: State, brought: Sequence[Writes]) -> bool:
    """Note what tasks have seen; return whether any of them was triggered."""
    is_superstep = False
    versions = state.versions
    for item in brought:
        if not item.triggers:
            continue
        is_superstep = True
        before = state.seen.get(item.reader)
        # What held a value from the start has no version, and was seen all the same.
        seen = dict(before) if before else {}
        for name in item.triggers:
            if name in versions:
                seen[name] = versions[name]
        state.seen[item.reader] = seen
    return is_superstep


def _consume(program: Program, state: State, brought: Sequence[Writes], applied: Applied) -> None:
    """Tell the channels that wait for it that they triggered a task."""
    triggers = {name for item in brought for name in item.triggers}
    for name in triggers & program.consumed:
        if state.channels[name].consume():
            _note_change(state, name, applied)


def _update(program: Program, state: State, name: str, values: list[Any], applied: Applied) -> None:
    channel = state.channels[name]
    applied.written.add(name)
    previous = state.versions.get(name)
    if not channel.update(values):
        return
    _note_change(state, name, applied)
    # Not by its class: that is an abstract one's, which costs more than all the rest here.
    if name in program.deltas:
        _note_delta(
            state, cast("DeltaChannel[Any, Any]", channel), Delta(previous, tuple(values)), applied
        )


def _note_delta(
    state: State, channel: DeltaChannel[Any, Any], delta: Delta, applied: Applied
) -> None:
    """Record what was added, unless the channel's full value is to be kept instead."""
    name = channel.key
    updates = state.updates_since_snapshot.get(name, 0) + 1
    due = channel.snapshot_frequency is not None and updates >= channel.snapshot_frequency
    if due or has_overwrite(delta.writes):
        state.updates_since_snapshot[name] = 0
    else:
        state.updates_since_snapshot[name] = updates
        applied.deltas[name] = delta


def _note_change(state: State, name: str, applied: Applied) -> None:
    """Move a changed channel to the barrier's version."""
    channel = state.channels[name]
    if state.versions.get(name) != applied.version:
        applied.changed.append(name)
        state.versions[name] = state.newest = applied.version
    available = channel.is_available()
    if available:
        applied.updated.add(name)
    else:
        applied.updated.discard(name)
    if channel.reacts_to_silence:
        if available:
            state.restless.add(name)
        else:
            state.restless.discard(name)


def _anything_to_run(program: Program, applied: Applied) -> bool:
    return TASKS in applied.updated or not applied.updated.isdisjoint(program.triggers)
