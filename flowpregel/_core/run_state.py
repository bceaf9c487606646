"""A run between two effects: its state, and what is to be kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowpregel import errors
from flowpregel._code.sources import UNSEEN
from flowpregel._core import ids, records
from flowpregel._core.barrier import TaskOutput, Update, apply, breaks_before, due_nodes
from flowpregel._core.code_around import CodeAround
from flowpregel._core.commands import Interrupt, Send
from flowpregel._core.copies import private_copy
from flowpregel._core.effects import (
    CacheKey,
    Commit,
    Effect,
    Emit,
    StepContext,
    Stopped,
)
from flowpregel._core.ids import (
    AttemptRecord,
    CallRecord,
    FailedCall,
    LazyResults,
    QuestionRecord,
)
from flowpregel._core.program import Options, Program, State
from flowpregel._core.provenance import (
    OtherCodeNotice,
    attempt_record_of,
    note_failed,
    unseen_notice,
)
from flowpregel._core.records import (
    Batch,
    Checkpoint,
    Kind,
    Node,
    Task,
    TaskWrites,
    Write,
)
from flowpregel._core.stream_events import StreamEvents
from flowpregel.channels import DeltaChannel
from flowpregel.channels.base import MISSING, read
from flowpregel.errors import INVALID_RESUME, UnmatchedCallsError

ANY_QUESTION = ""
"""Among answers by id: one for whichever question is asked first."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run leaves its caller."""

    values: Any
    """What the output channels last showed; None: nothing was written to them."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; the run goes on when it is given."""
    paused: bool = False
    """Whether it stopped at a breakpoint or an interrupt."""
    questions: tuple[QuestionRecord, ...] = ()
    """Those that wait for answers, whether they are asked now or not."""


@dataclass(slots=True)
class ReplayReport:
    """What a run that goes on found of its calls, for the notices at its end."""

    is_changed: bool = False
    """Whether a body that calls has other code or other input than when they were
    recorded.
    """
    answered: int = 0
    """How many calls were answered by their records."""
    executed: int = 0
    """How many calls ran."""
    asked: int = 0
    """How many recorded calls of planned tasks were asked for again in this
    superstep.
    """
    unreplayed: int = 0
    """How many recorded calls no body asked for again."""
    known_files: set[tuple[Any, ...]] | None = None
    """The files of recorded calls, as they were then: read when one of them has
    changed.
    """
    of_other_code: Counter[str] = field(default_factory=Counter)
    """How many results that other code made were used, by the name of the task."""
    fitted: set[str] = field(default_factory=set)
    """The tasks of which a recorded call was asked for again."""
    unmatched: dict[str, UnmatchedCallsError | None] = field(default_factory=dict)
    """By task, what its first call that is not recorded shows: that none of the
    recorded ones fits, or nothing.
    """
    vain_lookups: Counter[str] = field(default_factory=Counter)
    """By task, how many calls were looked up in vain without fields that classes may
    have gained, since one of them was found.
    """
    unseen: dict[str, str] = field(default_factory=dict)
    """The values that no digest of code sees, by the name of the task or node."""
    noted: set[str] = field(default_factory=set)
    """The notices that were given already."""
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of these tasks, and of bodies that have changed, the digests of the code that was
    recorded with one of them, and of the code now.
    """

    used: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many results were used, by the task's name and the digest of the code that
    made them.
    """

    def notices(self) -> list[Emit]:
        """Return what the user is to be told, each an item of the stream of notices."""
        lines: list[str | OtherCodeNotice] = []
        for name, count in self.of_other_code.items():
            recorded, now = self.codes[name]
            lines.append(
                OtherCodeNotice(name, recorded, now, count, self.used[name, now])
            )
        if self.is_changed and (self.answered or self.executed or self.unreplayed):
            lines.append(
                f"code or input has changed; calls: {self.answered:,} answered from "
                "the record, "
                f"{self.executed:,} run anew, {self.unreplayed:,} not asked for"
            )
        for name, values in self.unseen.items():
            lines.append(unseen_notice(name, values))
        return [Emit("notices", line) for line in lines]


@dataclass(slots=True, eq=False)
class Run:
    """One run: its program, its state, and the superstep that it is at."""

    program: Program
    options: Options
    stream_events: StreamEvents
    state: State
    now: int
    """Wall-clock nanoseconds; moves with every wake-up and every id that is made of
    it.
    """
    checkpoint_id: str = ""
    parent_id: str | None = None
    """The checkpoint before this one, if it is kept."""
    kept_id: str | None = None
    """The newest checkpoint that is, or is about to be, kept."""
    step: int = -1
    stop: int = 0
    source: records.Source = "input"
    updated: set[str] | None = None
    """The channels that may trigger tasks; None: any."""
    pending: dict[str, list[Write]] = field(default_factory=dict)
    """Writes kept on the checkpoint before this run, by task id."""
    lazy_results: LazyResults | None = None
    """Reads the results of calls that *pending* leaves out, each when it is asked
    for.
    """
    placed: dict[tuple[str, int], CallRecord] | None = None
    """The calls recorded in *pending* by caller and place: made when first needed."""
    hand_back: bool = True
    """Whether pending writes are handed back to their tasks, which then need not
    run.
    """
    resuming: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    """Answers that no task has taken yet, by interrupt id."""
    moved_answers: list[Any] = field(default_factory=list)
    """Answers to what was asked before the graph was moved: for whatever it asks
    now.
    """
    gathered: list[TaskWrites] = field(default_factory=list)
    """The pending writes to keep with the next batch."""
    unkept: list[AttemptRecord] = field(default_factory=list)
    """The attempts of nodes since the newest checkpoint that no writes keep."""
    ended: list[AttemptRecord] = field(default_factory=list)
    """The same of this superstep."""
    has_unkept_input: bool = False
    """Whether the input of this run is not kept either."""
    unsaved: Update | None = None
    """What changed since the newest checkpoint that is kept."""
    output: Any = None
    """What the output channels last showed."""
    previous: Any = None
    """What the thread's previous run saved (functional API)."""
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    questions: dict[str, QuestionRecord] = field(default_factory=dict)
    """Those that wait for answers, whether they are asked now or not, by interrupt
    id.
    """
    replay_report: ReplayReport = field(default_factory=ReplayReport)
    code_around: CodeAround = field(init=False)
    """The code that works beside the nodes."""
    claimed: set[CacheKey] = field(default_factory=set)
    """The shared results that were this run's to compute."""
    after: list[Effect] = field(default_factory=list)
    """What to do once its cause is kept."""
    at_exit: bool = False
    """Whether nothing is kept before the run ends."""
    stopped: Stopped | None = None
    """Whether it was asked to end, and how."""

    def __post_init__(self) -> None:
        self.code_around = CodeAround(self.program)

    @property
    def has_free_answer(self) -> bool:
        """Whether there is an answer for what is asked first, whichever question that
        is.
        """
        return bool(self.moved_answers) or ANY_QUESTION in self.answers

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

    def apply(self, outputs: Sequence[TaskOutput]) -> Update:
        """Apply the outputs of tasks as a new version, and remember it for the next
        checkpoint.
        """
        self.now += 1
        version = self.options.next_version(self.state.newest, self.now)
        applied = apply(self.program, self.state, outputs, version)
        self.unsaved = applied if self.unsaved is None else self.unsaved.then(applied)
        return applied

    def show(self, applied: Update | None = None) -> None:
        """Show what the output channels hold, unless *applied* neither wrote nor
        changed any.
        """
        outputs = self.stream_events.outputs
        if applied is not None and (
            applied.written.isdisjoint(outputs) or applied.updated.isdisjoint(outputs)
        ):
            return
        self.output = read(self.state.channels, self.options.output_channels)
        if "values" in self.options.modes:
            self.after.append(Emit("values", self.output))

    # ------------------------------------------------------------ what is kept

    def keep(
        self,
        task_id: str,
        path: str,
        writes: Sequence[Write],
        ran: AttemptRecord | None = None,
        failed: FailedCall | None = None,
    ) -> None:
        """Keep pending writes of a task, and how it ran if they end it, with the next
        batch.
        """
        kept, untracked = tuple(writes), self.program.untracked
        if untracked:
            kept = tuple(
                (name, self.tracked(value))
                for name, value in writes
                if name not in untracked
            )
        if (
            ran is not None
            and (ran.code or ran.used)
            and (self.at_exit or not self.options.keeps_attempts)
        ):
            self.ended.append(ran)
        if self.options.address is not None and kept:
            self.gathered.append(
                TaskWrites(self.checkpoint_id, task_id, path, kept, ran, failed)
            )

    def keep_end(self, task: Task, writes: Sequence[Write]) -> None:
        """Keep the writes that *task*, a call or a planned one, ended with."""
        is_failure = writes[0][0] == records.ERROR
        if task.saved is not None and not is_failure:
            self.drop_saved(task)
        if task.record is not None:
            # Last: the places of the other writes do not depend on it.
            writes = (*writes, (records.CALLED, tuple(task.record)))
        if task.kind is Kind.CALL:
            assert task.parent is not None
            if self.at_exit:
                # It is recorded after its body got it.
                writes = private_copy(tuple(writes))
            if task.parent.body.may_repeat:
                task.parent.body.recorded[task.id] = private_copy(tuple(writes))
        if is_failure and task.span is not None:
            note_failed(task, writes[0][1])
        ran = None
        if self.options.address is not None:
            ran = attempt_record_of(task, writes, self.code_around)
        if ran is not None and UNSEEN:
            self._note_unseen(ran)
        failed = None
        is_failure &= not isinstance(writes[0][1], errors.TaskCancelled)
        if is_failure and task.node.is_task and self.options.keeps_arguments:
            failed = FailedCall(task.node.home, task.input, task.node.redacted)
        self.keep(task.id, task.path, writes, ran, failed)

    def _note_unseen(self, ran: AttemptRecord) -> None:
        """Note the values that the digests of the code behind a result do not see."""
        codes = {name: code for name, code, _ in ran.used}
        codes[ran.name] = ran.code
        for name, code in codes.items():
            values = UNSEEN.get(code)
            if values is not None:
                self.replay_report.unseen[name] = values

    def drop_saved(self, task: Task) -> None:
        """Forget what *task* has saved, which is not needed any more."""
        before = self.pending.get(task.id, ())
        self.pending[task.id] = [each for each in before if each[0] != records.SAVED]

    def refuse_answer(self, error: BaseException) -> bool:
        """Forget the answer, if any, that *error* says did not fit: its question waits
        for another.

        Returns:
            Whether it says so, of a question of this run or of one nested in it.
        """
        question = getattr(error, INVALID_RESUME, None)
        if question is not None:
            self.drop_answer(question)
        return question is not None

    def drop_answer(self, question: str) -> None:
        """Forget the answer that a command gave to *question*, an interrupt's id."""
        own, answers = list[Write](), None
        for channel, value in self.pending.get(records.RUN_TASK_ID, ()):
            if channel == records.RESUME:
                answers = {key: each for key, each in value.items() if key != question}
            else:
                own.append((channel, value))
        if answers is not None:
            # Last, wherever it was read: the places of the other writes do not change.
            own.append((records.RESUME, answers))
            self.pending[records.RUN_TASK_ID] = own
            self.keep(records.RUN_TASK_ID, "", own)

    def note(self, text: str) -> None:
        """Give the user a notice, once what it is about is kept; the same one only
        once.
        """
        if text not in self.replay_report.noted:
            self.replay_report.noted.add(text)
            self.after.append(Emit("notices", text))

    def tracked(self, value: Any) -> Any:
        """Return *value*; a `Send` without what no checkpoint keeps: its task alone has
        that.
        """
        untracked = self.program.untracked
        if (
            isinstance(value, Send)
            and isinstance(value.arg, dict)
            and untracked & value.arg.keys()
        ):
            kept = {
                key: item for key, item in value.arg.items() if key not in untracked
            }
            return replace(value, arg=kept)
        return value

    def flush(
        self, checkpoint: Checkpoint | None = None, *, last: bool = False
    ) -> list[Effect]:
        """Return the commit of what is pending and of *checkpoint*, and what is to
        follow it.

        With ``durability="exit"`` nothing is committed but the *last*.
        """
        effects, self.after = self.after, []
        if (self.gathered or checkpoint is not None) and (last or not self.at_exit):
            assert self.options.address is not None
            writes, self.gathered = tuple(self.gathered), []
            batch = Batch(self.options.address, writes, checkpoint, self.options.fence)
            effects.insert(0, Commit(batch))
        return effects

    def follows(self, ended: Iterable[Node] = ()) -> int:
        """Return what follows the state, for its checkpoint: see `Checkpoint.follows`.

        Args:
            ended: The nodes whose superstep has made the state.
        """
        due = due_nodes(self.program, self.state, self.updated)
        first = next(due, None)
        if first is None:
            return records.NOTHING_DUE
        if self.step >= self.stop:
            return records.LIMIT_REACHED
        before, after = self.options.interrupt_before, self.options.interrupt_after
        is_paused = (before and breaks_before(self.state, (first, *due), before)) or (
            after and breaks_before(self.state, ended, after)
        )
        return records.PAUSED if is_paused else records.TASKS_DUE

    def save(self, source: records.Source, follows: int) -> list[Effect]:
        """Make the state a checkpoint, and the next superstep its child.

        Args:
            source: The cause of the state.
            follows: What follows the checkpoint.

        Returns:
            The commit of the checkpoint, and what is to be done after it.
        """
        checkpoint = None
        self.source = source
        self.pending, self.lazy_results, self.placed, self.replay_report.asked = (
            {},
            None,
            None,
            0,
        )
        self.unkept += self.ended
        self.ended = []
        if self.options.address is None:
            self.unsaved = None
        else:
            self.parent_id = self.kept_id
            self.now += 1
            self.checkpoint_id = ids.checkpoint_id(self.now, self.step)
            if self.at_exit:
                # The barrier consumed them before they were kept.
                self.has_unkept_input |= source == "input"
                self.gathered.clear()
            else:
                checkpoint = self.make_checkpoint(self.step, follows)
        self.step += 1
        return self.flush(checkpoint)

    def make_checkpoint(self, step: int, follows: int) -> Checkpoint:
        """Return the state as the checkpoint of *step*, which is now going to be
        kept.
        """
        applied = self.unsaved or Update(0)
        self.unsaved = None
        self.kept_id = self.checkpoint_id
        values: dict[str, Any] = {}
        deltas = applied.deltas if self.options.keeps_deltas else {}
        for name in applied.changed:
            if name not in deltas:
                channel = self.state.channels[name]
                is_delta = isinstance(channel, DeltaChannel)
                saved = channel.get() if is_delta else channel.checkpoint()
                if (
                    name == records.TASKS
                    and self.program.untracked
                    and saved is not MISSING
                ):
                    saved = type(saved)(map(self.tracked, saved))
                if saved is not MISSING:
                    values[name] = saved
        keeps_code = self.at_exit or not self.options.keeps_attempts
        return Checkpoint(
            id=self.checkpoint_id,
            parent_id=self.parent_id,
            at=self.now,
            step=step,
            source=self.source,
            channel_versions=dict(self.state.versions),
            versions_seen=dict(self.state.seen),
            changed=tuple(applied.changed),
            updated_channels=None
            if self.updated is None
            else tuple(sorted(self.updated)),
            values=values,
            deltas=deltas,
            metadata=self._with_code() if keeps_code else self.options.metadata,
            follows=follows,
        )

    def _with_code(self) -> Mapping[str, Any]:
        """Return the metadata of a checkpoint with the code that made it."""
        nodes = [(ran.name, ran.code, ran.used) for ran in self.unkept]
        made_by = records.MadeBy(
            self.at_exit,
            self.has_unkept_input,
            tuple(nodes),
        )
        self.unkept = []
        self.has_unkept_input = False
        return {
            **self.options.metadata,
            records.MADE_BY: tuple(made_by),
        }

    def leave(self, follows: int) -> list[Effect]:
        """Return what keeps what is not kept yet: with ``durability="exit"`` that is
        everything.

        Args:
            follows: What follows the checkpoint that this may make.
        """
        if self.options.address is None:
            return []
        checkpoint = None
        if self.at_exit and self.checkpoint_id != self.kept_id:
            checkpoint = self.make_checkpoint(self.step - 1, follows)
        return self.flush(checkpoint, last=True)
