"""Gathers pending writes and checkpoints, and says what is committed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowpregel._core.program import Options, Program
from flowpregel._core.ran import Ran, line_of
from flowpregel._core.records import (
    ERROR,
    Batch,
    Checkpoint,
    Delta,
    Durability,
    Task,
    TaskWrites,
    Write,
)
from flowpregel._core.state import State
from flowpregel._core.update import Applied
from flowpregel.channels.base import MISSING


class Recorder:
    """What a run keeps; with ``durability="exit"`` it is kept when the run ends.

    Args:
        program: Says which channels are kept as deltas, and which not at all.
        options: The run's address, durability and fence.
    """

    def __init__(self, program: Program, options: Options) -> None:
        self._program = program
        self._options = options
        self.at_exit = options.durability is Durability.EXIT
        self.address = options.address
        """Where the run keeps checkpoints; None: nowhere."""
        self.gathered: list[TaskWrites] = []
        """The pending writes to keep."""

    def keep(self, checkpoint_id: str, task_id: str, path: str, writes: Sequence[Write]) -> None:
        """Keep pending writes of a task with the next batch."""
        if self.address is None:
            return
        if kept := self._tracked(writes):
            self.gathered.append(TaskWrites(checkpoint_id, task_id, path, kept))

    def keep_end(self, checkpoint_id: str, task: Task, writes: Sequence[Write]) -> None:
        """Keep the writes that *task* ended with, and how it ran, with the next batch."""
        if self.address is not None and (kept := self._tracked(writes)):
            ran = _ran(task, writes)
            self.gathered.append(TaskWrites(checkpoint_id, task.id, task.path, kept, ran))

    def _tracked(self, writes: Sequence[Write]) -> tuple[Write, ...]:
        untracked = self._program.untracked
        if not untracked:
            return tuple(writes)
        return tuple(write for write in writes if write[0] not in untracked)

    def pending(self) -> Batch | None:
        """Return the batch of pending writes to commit now, if there is one."""
        return None if self.at_exit or not self.gathered else self.batch(None)

    def batch(self, checkpoint: Checkpoint | None) -> Batch:
        """Return everything gathered, and *checkpoint*, as one batch."""
        assert self.address is not None
        writes, self.gathered = tuple(self.gathered), []
        return Batch(self.address, writes, checkpoint, self._options.fence)

    def forget_writes(self) -> None:
        """Drop pending writes that a barrier consumed before they were kept."""
        self.gathered.clear()

    def values_and_deltas(
        self, state: State, applied: Applied
    ) -> tuple[dict[str, Any], dict[str, Delta]]:
        """Return the values and the deltas that a checkpoint keeps of what changed."""
        values: dict[str, Any] = dict(applied.held)
        deltas = applied.deltas if self._options.keeps_deltas else {}
        for name in applied.changed:
            if name in values or name in deltas:
                continue
            channel = state.channels[name]
            saved = channel.get() if name in self._program.deltas else channel.checkpoint()
            if saved is not MISSING:
                values[name] = saved
        return values, deltas


def _ran(task: Task, writes: Sequence[Write]) -> Ran | None:
    """Return how *task* ran, which ended with *writes*; None: nobody saw it."""
    span = task.span
    if span is None:
        return None
    began, seconds, executor, pid = span
    attempts = 0 if executor == "cache" else task.attempt
    error = line_of(writes[0][1]) if writes[0][0] == ERROR else ""
    return Ran._make((task.node.name, began, seconds, attempts, executor, pid, error))
