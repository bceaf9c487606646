"""What a thread's state looks like to its user: `StateSnapshot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowpregel._core import ids
from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import StepId
from flowpregel._core.plan import plan
from flowpregel._core.program import Program, State, load_state, read
from flowpregel._core.records import (
    ERROR,
    NO_WRITES,
    RUN_TASK_ID,
    SILENT_WRITES,
    Saved,
    Task,
    Version,
    Write,
)
from flowpregel._core.stream_events import StreamEvents, interrupts_of, outputs
from flowpregel._core.update import Applied, Writes, apply, barrier_of

Config = dict[str, Any]


class PregelTask(NamedTuple):
    """A task of a superstep, as a snapshot shows it."""

    id: str
    name: str
    path: str
    error: Any = None
    interrupts: tuple[Interrupt, ...] = ()
    state: Any = None
    """The state of the graph that it is, or the config to ask for it with."""
    result: Any = None


class StateSnapshot(NamedTuple):
    """The state of a thread at one of its checkpoints."""

    values: Any
    """What the channels held."""
    next: tuple[str, ...]
    """The nodes that are to run next."""
    config: Config
    """Addresses this checkpoint."""
    metadata: dict[str, Any] | None
    created_at: str | None
    """When, as an ISO 8601 text in UTC."""
    parent_config: Config | None
    tasks: tuple[PregelTask, ...]
    interrupts: tuple[Interrupt, ...]
    """The questions that wait, or that were asked in this step."""


@dataclass(frozen=True, slots=True)
class Open:
    """A saved checkpoint with its state, and the tasks that are due on it."""

    saved: Saved
    state: State
    tasks: list[Task]
    pending: Mapping[str, list[Write]]
    applied: Applied | None
    """What the run's own writes changed in the state; no checkpoint holds it yet."""


def open_checkpoint(
    program: Program,
    saved: Saved,
    next_version: Callable[[Version | None, int], Version] = ids.next_version,
    now: int = 0,
) -> Open:
    """Return a saved checkpoint's state and due tasks, the run's own writes applied.

    Args:
        program: Whose thread it is.
        saved: The checkpoint.
        next_version: Makes the version of what those writes change, if it is to be kept.
        now: Wall-clock nanoseconds.
    """
    state = load_state(program, saved)
    checkpoint = saved.checkpoint
    step = checkpoint.step + 1
    pending: dict[str, list[Write]] = {}
    for item in saved.writes:
        pending.setdefault(item.task_id, []).append((item.channel, item.value))
    place = StepId(checkpoint.id, saved.address.namespace, step, step + 2)
    tasks = plan(program, state, None, place)
    own = [write for write in pending.get(RUN_TASK_ID, ()) if write[0] not in SILENT_WRITES]
    applied = None
    if own:
        applied = apply(program, state, [Writes(own)], next_version(state.newest, now))
    return Open(saved, state, tasks, pending, applied)


def snapshot(
    program: Program,
    saved: Saved,
    *,
    live: bool,
    task_state: Callable[[Task], Any] = lambda _: None,
) -> StateSnapshot:
    """Return what *saved* holds.

    Args:
        program: Whose thread it is.
        saved: One of its checkpoints.
        live: Show how things stand: values with the output of tasks that are
            done, and only what is still to do. Otherwise: how the step began,
            with all its tasks and all that they asked.
        task_state: Says what to show as the state of a task that is a graph.
    """
    opened = open_checkpoint(program, saved)
    for task in opened.tasks:
        if live:
            task.writes = tuple(outputs(opened.pending.get(task.id, ())))
    done = [task for task in opened.tasks if task.writes]
    if done:
        version = ids.next_version(opened.state.newest, 0)
        apply(program, opened.state, barrier_of(done), version)
    tasks = tuple(
        _shown(task, opened.pending.get(task.id, ()), program, live=live, state=task_state(task))
        for task in opened.tasks
    )
    checkpoint = saved.checkpoint
    parent = checkpoint.parent_id
    return StateSnapshot(
        values=read(opened.state.channels, program.stream_channels),
        next=tuple(task.name for task in opened.tasks if not task.writes),
        config=config_of(saved, checkpoint.id),
        metadata={"source": checkpoint.source, "step": checkpoint.step, **checkpoint.metadata},
        created_at=ids.timestamp(checkpoint.at),
        parent_config=None if parent is None else config_of(saved, parent),
        tasks=tasks,
        interrupts=tuple(item for task in tasks for item in task.interrupts),
    )


def _shown(task: Task, pending: Any, program: Program, *, live: bool, state: Any) -> PregelTask:
    channels = program.stream_channels
    events = StreamEvents(frozenset(), program.output_channels, channels)
    done = outputs(pending)
    error = next((value for channel, value in pending if channel == ERROR), None)
    result: Any = None
    if done:
        written = events.result_of([write for write in done if write[0] != NO_WRITES])
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


def config_of(saved: Saved, checkpoint_id: str) -> Config:
    """Return the config that addresses a checkpoint of the thread of *saved*."""
    namespace = saved.address.namespace
    configurable: dict[str, Any] = {
        "thread_id": saved.address.thread_id,
        "checkpoint_ns": namespace,
        "checkpoint_id": checkpoint_id,
    }
    if parents := saved.checkpoint.metadata.get("parents"):
        configurable["checkpoint_map"] = {**parents, namespace: checkpoint_id}
    return {"configurable": configurable}


def empty_snapshot(config: Config) -> StateSnapshot:
    """Return what a thread looks like that nothing happened on."""
    return StateSnapshot({}, (), config, None, None, None, (), ())
