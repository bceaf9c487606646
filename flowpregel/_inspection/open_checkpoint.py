"""The state in a saved checkpoint, and the tasks that are due next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowpregel._core import records
from flowpregel._core.barrier import TaskOutput, apply, plan
from flowpregel._core.effects import StepContext
from flowpregel._core.ids import next_version
from flowpregel._core.program import Program
from flowpregel._core.records import RUN_TASK_ID, Saved, Task, Version, Write
from flowpregel._core.run_state import RunState, Update, load_state


@dataclass(frozen=True, slots=True)
class OpenCheckpoint:
    """A saved checkpoint with its state and the tasks that are due next."""

    saved: Saved
    state: RunState
    tasks: list[Task]
    pending: Mapping[str, list[Write]]
    """The saved writes of each task, by the task's id."""
    applied: Update | None
    """The changes that pending writes of the run itself (not of a task) made to
    *state*, or None if there are no such writes. No checkpoint contains these changes
    yet.
    """


def open_checkpoint(
    program: Program,
    saved: Saved,
    next_version: Callable[[Version | None, int], Version] = next_version,
    now: int = 0,
) -> OpenCheckpoint:
    """Return the state and the due tasks of a checkpoint.

    The run's own pending writes, which a command has made, are applied to the state.

    Args:
        program: The program of the thread.
        saved: The checkpoint.
        next_version: A function that returns the new version of the channels that
            these writes change.
        now: The present time, in wall-clock nanoseconds.
    """
    state = load_state(program, saved)
    checkpoint = saved.checkpoint
    number = checkpoint.step + 1
    pending: dict[str, list[Write]] = {}
    for item in saved.writes:
        pending.setdefault(item.task_id, []).append((item.channel, item.value))
    step = StepContext(checkpoint.id, saved.address.namespace, number, number + 2)
    run_writes = [
        write
        for write in pending.get(RUN_TASK_ID, ())
        if write[0] not in records.SILENT_WRITES
    ]
    sends = any(channel == records.TASKS for channel, _ in run_writes)
    tasks = [] if sends else plan(program, state, None, step)
    applied = None
    if run_writes:
        version = next_version(state.newest, now)
        applied = apply(program, state, [TaskOutput(run_writes)], version)
    if sends:
        # If a command has sent tasks, they replace the tasks that the last superstep
        # had sent. The replaced tasks are no longer due, and their interrupts no longer
        # wait for answers. Other writes of a command do not make tasks due, as in
        # LangGraph's snapshots.
        tasks = plan(program, state, None, step)
    return OpenCheckpoint(saved, state, tasks, pending, applied)
