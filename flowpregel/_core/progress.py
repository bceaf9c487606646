"""A run between two effects: everything it knows."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flowpregel._core import ids
from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import Commit, Effect, Emit, StepContext, StepId
from flowpregel._core.narrator import Narrator
from flowpregel._core.program import Options, Program
from flowpregel._core.recorder import Recorder
from flowpregel._core.records import Checkpoint, Recall, Source, Write
from flowpregel._core.state import State, names, read
from flowpregel._core.update import Applied
from flowpregel.channels.base import MISSING, BaseChannel

Steps: TypeAlias = Generator[Effect, Any, Any]
"""Something that yields effects on its way."""


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
    """One run: its program, its state, and where it stands."""

    program: Program
    options: Options
    recorder: Recorder
    narrator: Narrator
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
    """Whether pending writes are handed back to their tasks, which so need not run."""
    resuming: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    """Answers that no task has taken yet, by interrupt id."""
    unsaved: Applied | None = None
    """What changed since the newest checkpoint that is kept."""
    output: Any = MISSING
    keeps_output: bool = False
    """Whether the output channels change only when they are written."""
    starts_plainly: bool = False
    """Whether nothing has to be asked or told when its tasks start, other than in what it keeps."""
    speaks_late: bool = False
    """Whether the output is to be read when the run ends."""
    previous: Any = None
    """What the thread's previous run saved (functional API)."""
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    after: list[Effect] = field(default_factory=list)
    """What to do once what caused it is kept."""

    def __post_init__(self) -> None:
        program, options = self.program, self.options
        self.starts_plainly = not (
            self.narrator.follows_tasks
            or program.caches
            or options.cache is not None
            or options.step_timeout is not None
        )
        shown = names(options.output_channels)
        self.keeps_output = program.plain.issuperset(shown) or not any(
            channel.reacts_to_silence or type(channel).consume is not BaseChannel.consume
            for channel in (program.channels[name] for name in shown)
        )

    @property
    def place(self) -> StepId:
        """Where tasks are planned now."""
        return StepId(self.checkpoint_id, self.options.namespace, self.step, self.stop)

    def setting(self) -> StepContext:
        """Return what the tasks of the superstep that is planned now have in common."""
        # By position: keywords would take three times as long, here and wherever it is so.
        return StepContext(
            self.checkpoint_id,
            self.options.namespace,
            self.step,
            self.stop,
            self.state.channels,
            self.program.managed,
            self.previous,
            self.resuming,
            self.answers,
        )

    def note_time(self, now: int) -> None:
        """Move the clock to *now*, and on in any case."""
        self.now = now if now > self.now else self.now + 1

    def tick(self) -> int:
        """Return a time that was not returned before."""
        self.now += 1
        return self.now

    def note(self, applied: Applied) -> None:
        """Remember what changed for the next checkpoint."""
        self.unsaved = applied if self.unsaved is None else self.unsaved.then(applied)

    def say(self, channels: dict[str, BaseChannel[Any, Any]] | None = None) -> None:
        """Show the output channels, now or, if nobody looks, at the end."""
        if channels is None and not self.narrator.wants_values and self.keeps_output:
            self.speaks_late = True
            return
        self.speaks_late = False
        self.output = read(channels or self.state.channels, self.options.output_channels)
        if self.narrator.wants_values:
            self.after.append(Emit("values", self.output))

    def result(self, *, paused: bool = False) -> Result:
        """Return what the run leaves its caller."""
        if self.speaks_late:
            self.output = read(self.state.channels, self.options.output_channels)
        values = None if self.output is MISSING else self.output
        return Result(values, tuple(self.interrupts.values()), paused)

    def flush(self, *, commit: bool = True) -> Steps:
        """Commit what is pending, then do what waited for it."""
        if commit and (batch := self.recorder.pending()) is not None:
            yield Commit(batch)
        if self.after:
            effects, self.after = self.after, []
            yield from effects

    def save(self, source: Source) -> Sequence[Effect]:
        """Make the state a checkpoint, and the next superstep its child.

        Returns:
            What keeps it, and then what waits for that.
        """
        commit = self._turn(source)
        self.step += 1
        waiting, self.after = self.after, []
        return waiting if commit is None else (commit, *waiting)

    def _turn(self, source: Source) -> Commit | None:
        """Make the state a checkpoint; return what keeps it."""
        self.source = source
        self.pending, self.left = {}, None
        recorder = self.recorder
        if recorder.address is None:
            self.unsaved = None
            return None
        self.parent_id = self.kept_id
        self.checkpoint_id = ids.checkpoint_id(self.tick(), self.step)
        if recorder.at_exit:
            recorder.forget_writes()
            return None
        return Commit(recorder.batch(self.make_checkpoint()))

    def make_checkpoint(self) -> Checkpoint:
        """Return the state as a checkpoint that is now going to be kept."""
        applied = self.unsaved or Applied(0)
        self.unsaved = None
        self.kept_id = self.checkpoint_id
        values, deltas = self.recorder.values_and_deltas(self.state, applied)
        return Checkpoint(
            self.checkpoint_id,
            self.parent_id,
            self.now,
            self.step,
            self.source,
            dict(self.state.versions),
            dict(self.state.seen),
            tuple(applied.changed),
            None if self.updated is None else tuple(sorted(self.updated)),
            values,
            deltas,
            self.options.metadata,
        )

    def leave(self) -> Steps:
        """Keep what is not kept yet: with ``durability="exit"`` that is everything."""
        if self.recorder.address is None:
            return
        checkpoint = None
        if self.recorder.at_exit and self.checkpoint_id != self.kept_id:
            self.step -= 1
            checkpoint = self.make_checkpoint()
            self.step += 1
        if checkpoint is not None or self.recorder.gathered:
            yield Commit(self.recorder.batch(checkpoint))
        yield from self.flush(commit=False)
