"""What a run and a thread's state look like to their user: `GraphOutput`,
`StateSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from flowpregel._core import copies, ids, records
from flowpregel._core.barrier import apply, barrier_of
from flowpregel._core.commands import Interrupt
from flowpregel._core.copies import ReplayedWrites
from flowpregel._core.ids import next_version
from flowpregel._core.program import Program
from flowpregel._core.records import Address, DeltaHistory, Saved, Task, Write
from flowpregel._core.stream_events import StreamEvents, finished_writes, interrupts_of
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import read
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.pregel.config import config_for
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.resume import open_checkpoint


class PregelTask(NamedTuple):
    """A task of a superstep, as a snapshot shows it."""

    id: str
    name: str
    path: str
    error: Any = None
    interrupts: tuple[Interrupt, ...] = ()
    state: Any = None
    """The state of the graph that it is or calls, or the config to ask for it with."""
    result: Any = None


class StateSnapshot(NamedTuple):
    """The state of a thread at one of its checkpoints."""

    values: Any
    """What the channels held."""
    next: tuple[str, ...]
    """The nodes that are to run next."""
    config: dict[str, Any]
    """Addresses this checkpoint."""
    metadata: dict[str, Any] | None
    created_at: str | None
    """When, as an ISO 8601 text in UTC."""
    parent_config: dict[str, Any] | None
    tasks: tuple[PregelTask, ...]
    interrupts: tuple[Interrupt, ...]
    """The questions that wait, or that were asked in this step."""


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What ``invoke(version="v2")`` returns."""

    value: Any
    """What the output channels hold."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; empty if the run is done."""

    def __iter__(self) -> Iterator[Any]:
        """Yield value and interrupts, for unpacking."""
        return iter((self.value, self.interrupts))

    def __getitem__(self, key: str) -> Any:
        """Return what a plain output has under *key*, for programs that were written
        for one.
        """
        if key == records.INTERRUPT:
            return self.interrupts
        value = self.value
        return value[key] if isinstance(value, Mapping) else getattr(value, key)

    def __contains__(self, key: object) -> bool:
        """Return whether a plain output would have *key*."""
        if key == records.INTERRUPT:
            return bool(self.interrupts)
        value = self.value
        return key in value if isinstance(value, Mapping) else hasattr(value, str(key))


def snapshot_of(
    graph: GraphDefinition,
    saver: BaseCheckpointSaver,
    saved: Saved,
    *,
    live: bool = False,
    deep: bool = False,
) -> StateSnapshot:
    """Return what *saved* holds.

    Args:
        graph: Whose thread it is.
        saver: Keeps its checkpoints.
        saved: One of them.
        live: Show how things stand: values with the output of tasks that are
            done, and only what is still to do. Otherwise: how the step began,
            with all its tasks and all that they asked.
        deep: Show the states of nested graphs too.
    """
    program = graph.program
    state_of = partial(_nested_state, saver, saved.address.thread_id, deep=deep)
    opened = open_checkpoint(program, saved)
    for task in opened.tasks:
        if live:
            task.attempt.writes = tuple(
                finished_writes(opened.pending.get(task.id, ()))
            )
    if done := [task for task in opened.tasks if task.attempt.writes]:
        apply(
            program,
            opened.state,
            barrier_of(done),
            next_version(opened.state.newest, 0),
        )
    tasks = tuple(
        _snapshot_task(
            program,
            task,
            opened.pending.get(task.id, ()),
            live=live,
            state=state_of(task),
        )
        for task in opened.tasks
    )
    checkpoint = saved.checkpoint
    metadata = {"parents": {}, **checkpoint.metadata}
    metadata.pop(records.MADE_BY, None)
    parents = metadata["parents"]
    own = replace(saved.address, checkpoint_id=checkpoint.id)
    before = replace(saved.address, checkpoint_id=checkpoint.parent_id)
    return StateSnapshot(
        values=read(opened.state.channels, program.stream_channels),
        next=tuple(task.name for task in opened.tasks if not task.attempt.writes),
        config=config_for(own, parents),
        metadata={"source": checkpoint.source, "step": checkpoint.step, **metadata},
        created_at=ids.timestamp(checkpoint.at),
        parent_config=config_for(before, parents) if checkpoint.parent_id else None,
        tasks=tasks,
        interrupts=tuple(item for task in tasks for item in task.interrupts),
    )


def _snapshot_task(
    program: Program, task: Task, pending: Sequence[Write], *, live: bool, state: Any
) -> PregelTask:
    channels = program.stream_channels
    events = StreamEvents(frozenset(), program.output_channels, channels)
    done = finished_writes(pending)
    error = next(
        (value for channel, value in pending if channel == records.ERROR), None
    )
    result: Any = None
    if done:
        written = events.result_of(
            [write for write in done if write[0] != records.NO_WRITES]
        )
        result = written.get(channels) if isinstance(channels, str) else written
    return PregelTask(
        id=task.id,
        name=task.name,
        path=task.path,
        error=None if done else error,
        interrupts=interrupts_of(pending, live=live),
        state=state,
        result=result,
    )


def _nested_state(
    saver: BaseCheckpointSaver, thread_id: str, task: Task, *, deep: bool
) -> Any:
    """Return the state of the graph that *task* is or calls, or the config to ask for
    it with.
    """
    inner = task.node.subgraph
    if inner is None:
        return None
    address = Address(thread_id, inner.namespace_at(task.namespace))
    configurable = {"thread_id": thread_id}
    if not deep:
        return {"configurable": {**configurable, "checkpoint_ns": address.namespace}}
    saver = inner.saver or saver
    saved = saver.load(address)
    if saved is None:
        return empty_snapshot({"configurable": configurable})
    return snapshot_of(inner, saver, saved, live=True, deep=True)


def empty_snapshot(config: dict[str, Any]) -> StateSnapshot:
    """Return what a thread looks like that nothing happened on."""
    return StateSnapshot({}, (), config, None, None, None, (), ())


# ---------------------------------------------------------------- history

_STEP: Final = 64
"""Supersteps between two values that states start from."""
_FEWEST: Final = 4 * _STEP
"""Folding fewer deltas costs less than to make a value and copy it."""


class _DeltaSeed(NamedTuple):
    """The value that a channel had after some of its supersteps, to be copied."""

    writes: ReplayedWrites
    """Those that are in it."""
    kept: Any


def with_near_seeds(program: Program, history: Iterable[Saved]) -> Iterator[Saved]:
    """Yield *history*, newest first, as if there were snapshots of its DeltaChannels.

    The deltas that a state has in common with older ones are folded once, and
    each state gets a copy of the result to go on from: what is done to it, no
    other state sees.
    """
    seeds: dict[str, _DeltaSeed] = {}
    for saved in history:
        deltas = dict(saved.deltas)
        for name, found in saved.deltas.items():
            # What a user's reducer or class raises here, it raises again for each
            # state.
            with suppress(Exception):
                deltas[name] = _nearer(program.channels.get(name), name, found, seeds)
        yield replace(saved, deltas=deltas) if deltas else saved


def _nearer(
    declared: Any, name: str, found: DeltaHistory, seeds: dict[str, _DeltaSeed]
) -> DeltaHistory:
    """Return *found*, or what leads to the same value from a nearer seed.

    Args:
        declared: The channel, as its program declares it.
        name: Its name.
        found: What is kept of it.
        seeds: By channel: what is at hand.
    """
    writes = found.writes
    if not isinstance(writes, ReplayedWrites) or not isinstance(declared, DeltaChannel):
        return found
    seed = seeds.get(name)
    if (
        seed is None
        or writes.kept is not seed.writes.kept
        or len(writes) < len(seed.writes)
    ):
        if len(writes) < _FEWEST:
            return found
        start = replace(writes, stop=len(writes) - _STEP)
        channel = declared.from_checkpoint(found.seed)
        channel.key = name
        channel.replay(start)
        seed = _DeltaSeed(
            start, copies.snapshot_value(channel.value, f"channel {name!r}")
        )
    value = copies.restore_value(seed.kept, f"channel {name!r}")
    seeds[name] = seed
    return DeltaHistory(value, replace(writes, start=len(seed.writes)))
