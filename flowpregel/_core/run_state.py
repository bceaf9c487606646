"""A run between two effects: its state, and what is to be kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowpregel._core import ids
from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import Commit, Effect, StepContext
from flowpregel._core.program import Options, Program, State, read
from flowpregel._core.records import (
    ERROR,
    Batch,
    Checkpoint,
    Delta,
    Durability,
    Ran,
    Recall,
    Source,
    Task,
    TaskWrites,
    Write,
)
from flowpregel._core.stream_events import StreamEvents
from flowpregel._core.update import Applied, Writes, apply
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import MISSING

_LONGEST_LINE = 200


class Recorder:
    """Gathers what a run keeps; with ``durability="exit"`` it is kept when the run ends.

    Args:
        program: Its channels decide how they are kept, or that they are not.
        options: The run's address, durability and fence.
    """

    def __init__(self, program: Program, options: Options) -> None:
        self._untracked = program.untracked
        self._options = options
        self.at_exit = options.durability is Durability.EXIT
        self.address = options.address
        """Where the run keeps checkpoints; None: nowhere."""
        self.gathered: list[TaskWrites] = []
        """The pending writes to keep."""

    def keep(
        self,
        checkpoint_id: str,
        task_id: str,
        path: str,
        writes: Sequence[Write],
        ran: Ran | None = None,
    ) -> None:
        """Keep pending writes of a task, and how it ran if they end it, with the next batch."""
        kept = tuple(write for write in writes if write[0] not in self._untracked)
        if self.address is not None and kept:
            self.gathered.append(TaskWrites(checkpoint_id, task_id, path, kept, ran))

    def pending(self) -> Batch | None:
        """Return the batch of pending writes to commit now, if there is one."""
        return None if self.at_exit or not self.gathered else self.batch(None)

    def batch(self, checkpoint: Checkpoint | None) -> Batch:
        """Return everything gathered, and *checkpoint*, as one batch."""
        assert self.address is not None
        writes, self.gathered = tuple(self.gathered), []
        return Batch(self.address, writes, checkpoint, self._options.fence)

    def values_and_deltas(
        self, state: State, applied: Applied
    ) -> tuple[dict[str, Any], dict[str, Delta]]:
        """Return the values and the deltas that a checkpoint keeps of what changed."""
        values: dict[str, Any] = {}
        deltas = applied.deltas if self._options.keeps_deltas else {}
        for name in applied.changed:
            if name not in deltas:
                channel = state.channels[name]
                is_delta = isinstance(channel, DeltaChannel)
                saved = channel.get() if is_delta else channel.checkpoint()
                if saved is not MISSING:
                    values[name] = saved
        return values, deltas


def ran_of(task: Task, writes: Sequence[Write]) -> Ran | None:
    """Return how *task* ran, which ended with *writes*; None: its executor did not report it."""
    if task.span is None:
        return None
    began, seconds, executor, pid = task.span
    attempts = 0 if executor == "cache" else task.attempt
    error = line_of(writes[0][1]) if writes[0][0] == ERROR else ""
    return Ran(task.name, began, seconds, attempts, executor, pid, error)


def line_of(error: Any) -> str:
    """Return *error* in one line of bounded length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"(its text cannot be had: {type(problem).__name__})"
    first = text.strip().partition("\n")[0]
    return (f"{name}: {first}" if first else name)[:_LONGEST_LINE]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run leaves its caller."""

    values: Any
    """What the output channels last showed; None: nothing was written to them."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; the run goes on when it is given."""
    paused: bool = False
    """Whether it stopped at a breakpoint or an interrupt."""


@dataclass(slots=True, eq=False)
class Run:
    """One run: its program, its state, and the superstep that it is at."""

    program: Program
    options: Options
    recorder: Recorder
    stream_events: StreamEvents
    state: State
    now: int
    """Wall-clock nanoseconds; moves with every wake-up and every id that is made of it."""
    checkpoint_id: str = ""
    parent_id: str | None = None
    """The checkpoint before this one, if it is kept."""
    kept_id: str | None = None
    """The newest checkpoint that is, or is about to be, kept."""
    step: int = -1
    stop: int = 0
    source: Source = "input"
    updated: set[str] | None = None
    """The channels that may trigger tasks; None: any."""
    pending: dict[str, list[Write]] = field(default_factory=dict)
    """Writes kept on the checkpoint before this run, by task id."""
    left: Recall | None = None
    """Reads the results of calls that *pending* leaves out, each when it is asked for."""
    hand_back: bool = True
    """Whether pending writes are handed back to their tasks, which then need not run."""
    resuming: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    """Answers that no task has taken yet, by interrupt id."""
    unsaved: Applied | None = None
    """What changed since the newest checkpoint that is kept."""
    output: Any = None
    """What the output channels last showed."""
    previous: Any = None
    """What the thread's previous run saved (functional API)."""
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    after: list[Effect] = field(default_factory=list)
    """What to do once its cause is kept."""

    def setting(self) -> StepContext:
        """Return what the tasks of the superstep that is planned now have in common."""
        return StepContext(
            checkpoint_id=self.checkpoint_id,
            namespace=self.options.namespace,
            step=self.step,
            stop=self.stop,
            channels=self.state.channels,
            managed=self.program.managed,
            previous=self.previous,
            resuming=self.resuming,
            answers=self.answers,
        )

    def note_time(self, now: int) -> None:
        """Move the clock to *now*, and on in any case."""
        self.now = max(now, self.now + 1)

    def tick(self) -> int:
        """Return a time that was not returned before."""
        self.now += 1
        return self.now

    def apply(self, brought: Sequence[Writes]) -> Applied:
        """Apply what tasks brought, as a new version."""
        version = self.options.next_version(self.state.newest, self.tick())
        return apply(self.program, self.state, brought, version)

    def note(self, applied: Applied) -> None:
        """Remember what changed for the next checkpoint."""
        self.unsaved = applied if self.unsaved is None else self.unsaved.then(applied)

    def show(self) -> None:
        """Show what the output channels hold now."""
        self.output = read(self.state.channels, self.options.output_channels)
        self.after.extend(self.stream_events.values(self.output))

    def result(self, *, paused: bool = False) -> Result:
        """Return what the run leaves its caller."""
        return Result(self.output, tuple(self.interrupts.values()), paused)

    def flush(self) -> list[Effect]:
        """Return the commit of what is pending, and what is to be done after it."""
        batch = self.recorder.pending()
        return self._after(None if batch is None else Commit(batch))

    def _after(self, commit: Commit | None) -> list[Effect]:
        effects, self.after = self.after, []
        return effects if commit is None else [commit, *effects]

    def save(self, source: Source) -> list[Effect]:
        """Make the state a checkpoint, and the next superstep its child.

        Returns:
            The commit of the checkpoint, and what is to be done after it.
        """
        commit = None
        self.source = source
        self.pending, self.left = {}, None
        if self.recorder.address is None:
            self.unsaved = None
        else:
            self.parent_id = self.kept_id
            self.checkpoint_id = ids.checkpoint_id(self.tick(), self.step)
            if self.recorder.at_exit:
                # The barrier consumed them before they were kept.
                self.recorder.gathered.clear()
            else:
                commit = Commit(self.recorder.batch(self.make_checkpoint()))
        self.step += 1
        return self._after(commit)

    def make_checkpoint(self) -> Checkpoint:
        """Return the state as a checkpoint that is now going to be kept."""
        applied = self.unsaved or Applied(0)
        self.unsaved = None
        self.kept_id = self.checkpoint_id
        values, deltas = self.recorder.values_and_deltas(self.state, applied)
        return Checkpoint(
            id=self.checkpoint_id,
            parent_id=self.parent_id,
            at=self.now,
            step=self.step,
            source=self.source,
            channel_versions=dict(self.state.versions),
            versions_seen=dict(self.state.seen),
            changed=tuple(applied.changed),
            updated_channels=None if self.updated is None else tuple(sorted(self.updated)),
            values=values,
            deltas=deltas,
            metadata=self.options.metadata,
        )

    def leave(self) -> list[Effect]:
        """Return what keeps what is not kept yet: with ``durability="exit"`` that is everything."""
        if self.recorder.address is None:
            return []
        checkpoint = None
        if self.recorder.at_exit and self.checkpoint_id != self.kept_id:
            self.step -= 1
            checkpoint = self.make_checkpoint()
            self.step += 1
        if checkpoint is None and not self.recorder.gathered:
            return self._after(None)
        return self._after(Commit(self.recorder.batch(checkpoint)))
