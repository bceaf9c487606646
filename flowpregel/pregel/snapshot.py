"""The output of a run (`GraphOutput`) and the state of a thread (`StateSnapshot`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from flowpregel._core import ids, records
from flowpregel._core.barrier import apply, barrier_of
from flowpregel._core.commands import Interrupt
from flowpregel._core.ids import next_version
from flowpregel._core.program import Program
from flowpregel._core.records import (
    Address,
    Checkpoint,
    DeltaHistory,
    Saved,
    Task,
    Write,
)
from flowpregel._core.stream_events import (
    StreamEvents,
    checkpoint_config,
    finished_writes,
    interrupts_of,
)
from flowpregel._inspection.open_checkpoint import OpenCheckpoint, open_checkpoint
from flowpregel._pickling import copies
from flowpregel._pickling.copies import ReplayedWrites
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import read
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.pregel.definition import GraphDefinition


class PregelTask(NamedTuple):
    """A task of a superstep, in a snapshot."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node."""
    path: str
    """The position of the task in the superstep."""
    error: Any = None
    """The exception of the task, or None."""
    interrupts: tuple[Interrupt, ...] = ()
    """The questions that the task has asked."""
    state: Any = None
    """The state of the graph that the task runs or calls, or a config with which this
    state can be read.
    """
    result: Any = None
    """The values that the task wrote, or None if it has not finished."""


class StateSnapshot(NamedTuple):
    """The state of a thread at a checkpoint."""

    values: Any
    """The values of the channels."""
    next: tuple[str, ...]
    """The nodes that run next."""
    config: dict[str, Any]
    """The config that addresses this checkpoint."""
    metadata: dict[str, Any] | None
    """The metadata of the checkpoint, or None if there is no checkpoint."""
    created_at: str | None
    """The time of the checkpoint, as an ISO 8601 string in UTC."""
    parent_config: dict[str, Any] | None
    """The config that addresses the previous checkpoint, or None."""
    tasks: tuple[PregelTask, ...]
    """The tasks of the superstep that follows the checkpoint."""
    interrupts: tuple[Interrupt, ...]
    """The interrupts that wait for an answer, or that happened in this superstep."""


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """The result of ``invoke(version="v2")``."""

    value: Any
    """The values of the output channels."""
    interrupts: tuple[Interrupt, ...] = ()
    """The interrupts that wait for an answer; empty if the run is finished."""

    def __iter__(self) -> Iterator[Any]:
        """Yield value and interrupts, for unpacking."""
        return iter((self.value, self.interrupts))

    def __getitem__(self, key: str) -> Any:
        """Return the value under *key*, for programs that expect an output dict."""
        if key == records.INTERRUPT:
            return self.interrupts
        value = self.value
        return value[key] if isinstance(value, Mapping) else getattr(value, key)

    def __contains__(self, key: object) -> bool:
        """Return whether the output as a dict would have *key*."""
        if key == records.INTERRUPT:
            return bool(self.interrupts)
        value = self.value
        if isinstance(value, Mapping):
            return key in value
        return hasattr(value, str(key))


def snapshot_of(
    definition: GraphDefinition,
    saver: BaseCheckpointSaver,
    saved: Saved,
    *,
    live: bool = False,
    deep: bool = False,
) -> StateSnapshot:
    """Return the state at a checkpoint.

    Args:
        definition: The parts of the thread's graph.
        saver: The saver of the thread.
        saved: The checkpoint.
        live: Whether to return the present state: values with the output of finished
            tasks, and only the questions that still wait. Otherwise the result is the
            state at the beginning of the superstep, with all tasks and questions.
        deep: Whether to include the states of nested graphs.
    """
    program = definition.program
    opened = open_checkpoint(program, saved)
    if live:
        for task in opened.tasks:
            pending = opened.pending.get(task.id, ())
            task.attempt.writes = tuple(finished_writes(pending))
    _apply_finished(program, opened)
    tasks: list[PregelTask] = []
    for task in opened.tasks:
        state = _nested_state(saver, saved.address.thread_id, task, deep=deep)
        pending = opened.pending.get(task.id, ())
        snapshot = _snapshot_task(program, task, pending, live=live, state=state)
        tasks.append(snapshot)
    checkpoint = saved.checkpoint
    metadata = _metadata_of(checkpoint)
    parents = metadata["parents"]
    address = replace(saved.address, checkpoint_id=checkpoint.id)
    parent_config = None
    if checkpoint.parent_id:
        parent = replace(saved.address, checkpoint_id=checkpoint.parent_id)
        parent_config = checkpoint_config(parent, parents)
    return StateSnapshot(
        values=read(opened.state.channels, program.stream_channels),
        next=tuple(task.name for task in opened.tasks if not task.attempt.writes),
        config=checkpoint_config(address, parents),
        metadata=metadata,
        created_at=ids.timestamp(checkpoint.at),
        parent_config=parent_config,
        tasks=tuple(tasks),
        interrupts=tuple(item for task in tasks for item in task.interrupts),
    )


def _apply_finished(program: Program, opened: OpenCheckpoint) -> None:
    """Apply the writes of finished tasks to the state."""
    finished = [task for task in opened.tasks if task.attempt.writes]
    if finished:
        version = next_version(opened.state.newest, 0)
        apply(program, opened.state, barrier_of(finished), version)


def _metadata_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata of a checkpoint, with its source and its step."""
    metadata = {
        "source": checkpoint.source,
        "step": checkpoint.step,
        "parents": {},
        **checkpoint.metadata,
    }
    metadata.pop(records.MADE_BY, None)
    metadata.pop(records.DURABILITY, None)
    metadata.pop(records.DRAWING, None)
    return metadata


def _snapshot_task(
    program: Program,
    task: Task,
    pending: Sequence[Write],
    *,
    live: bool,
    state: Any,
) -> PregelTask:
    """Return the form of a task in a snapshot.

    Args:
        program: The program of the thread.
        task: The task to show.
        pending: The saved writes of the task.
        live: Whether to leave out answered questions.
        state: The state of the graph that the task runs or calls, or a config with
            which this state can be read.
    """
    channels = program.stream_channels
    events = StreamEvents(frozenset(), program.output_channels, channels)
    writes = finished_writes(pending)
    errors = [value for channel, value in pending if channel == records.ERROR]
    error = errors[0] if errors and not writes else None
    result: Any = None
    if writes:
        values = [write for write in writes if write[0] != records.NO_WRITES]
        result = events.result_of(values)
        if isinstance(channels, str):
            result = result.get(channels)
    return PregelTask(
        id=task.id,
        name=task.name,
        path=task.path,
        error=error,
        interrupts=interrupts_of(pending, live=live),
        state=state,
        result=result,
    )


def _nested_state(
    saver: BaseCheckpointSaver,
    thread_id: str,
    task: Task,
    *,
    deep: bool,
) -> Any:
    """Return the state of the graph that *task* runs or calls, or a config with which
    this state can be read.

    Args:
        saver: The saver of the outer graph.
        thread_id: The id of the thread.
        task: The task of the outer graph.
        deep: True to return the state. False to return a config with which the state
            can be read.
    """
    graph = task.node.subgraph
    if graph is None:
        return None
    definition: GraphDefinition = graph.definition
    address = Address(thread_id, definition.namespace_at(task.namespace))
    configurable = {"thread_id": thread_id}
    if not deep:
        return {"configurable": {**configurable, "checkpoint_ns": address.namespace}}
    saver = definition.saver or saver
    saved = saver.load(address)
    if saved is None:
        return empty_snapshot({"configurable": configurable})
    return snapshot_of(
        definition,
        saver,
        saved,
        live=True,
        deep=True,
    )


def empty_snapshot(config: dict[str, Any]) -> StateSnapshot:
    """Return the state of a thread without checkpoints."""
    return StateSnapshot(
        values={},
        next=(),
        config=config,
        metadata=None,
        created_at=None,
        parent_config=None,
        tasks=(),
        interrupts=(),
    )


# ---------------------------------------------------------------- history

_STEP: Final = 64
"""The number of supersteps between two seeds. A seed is the value of a `DeltaChannel`
that is kept in memory, so that the values of later supersteps are computed from it.
"""
_FEWEST: Final = 4 * _STEP
"""The minimum number of deltas for which a seed is computed and copied. With fewer
deltas, it is cheaper to fold all of them again for each state.
"""


class _DeltaSeed(NamedTuple):
    """The value of a channel after some supersteps, from which later values are
    folded.
    """

    writes: ReplayedWrites
    """The deltas that the value contains."""
    snapshot: Any
    """A private copy of the value."""


def with_near_seeds(
    program: Program,
    history: Iterable[Saved],
) -> Iterator[Saved]:
    """Yield *history*, newest first, in which a seed replaces the earlier deltas of
    each `DeltaChannel` that has many.

    So deltas that several states share are folded once. Each state continues from a
    copy of the seed, so a change of one state does not affect another.
    """
    seeds: dict[str, _DeltaSeed] = {}
    for saved in history:
        deltas = dict(saved.deltas)
        for name, delta_history in saved.deltas.items():
            # If a user's reducer or class raises an error while a seed is computed, the
            # error is ignored, because it is raised again when a state is read.
            with suppress(Exception):
                declared = program.channels.get(name)
                deltas[name] = _nearer(
                    declared,
                    name,
                    delta_history,
                    seeds,
                )
        yield replace(saved, deltas=deltas) if deltas else saved


def _nearer(
    declared: Any,
    name: str,
    history: DeltaHistory,
    seeds: dict[str, _DeltaSeed],
) -> DeltaHistory:
    """Return *history*, or an equivalent history that starts from a seed with fewer
    later deltas.

    Args:
        declared: The channel, as its program declares it.
        name: The name of the channel.
        history: The stored history of the channel.
        seeds: The seeds so far, by channel.
    """
    writes = history.writes
    if not isinstance(writes, ReplayedWrites) or not isinstance(declared, DeltaChannel):
        return history
    label = f"channel {name!r}"
    seed = seeds.get(name)
    if seed is None or not _continues_seed(writes, seed):
        if len(writes) < _FEWEST:
            return history
        start = replace(writes, stop=len(writes) - _STEP)
        channel = declared.from_checkpoint(history.seed)
        channel.key = name
        channel.replay(start)
        seed = _DeltaSeed(start, copies.snapshot_value(channel.value, label))
    value = copies.restore_value(seed.snapshot, label)
    seeds[name] = seed
    return DeltaHistory(value, replace(writes, start=len(seed.writes)))


def _continues_seed(
    writes: ReplayedWrites,
    seed: _DeltaSeed,
) -> bool:
    """Return whether *writes* begin with the writes that a seed contains."""
    is_same = writes.stored is seed.writes.stored
    return is_same and len(writes) >= len(seed.writes)
