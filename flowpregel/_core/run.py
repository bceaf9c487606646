"""The state of a run between two effects, composed of five parts.

======================  ==============================================================
part                    holds
======================  ==============================================================
`RunState`              the channels and their versions
`StepCursor`            the superstep that the run is at, and its checkpoints
`Replay`                the writes stored earlier, which answer calls and tasks
`Answers`               the open questions, and the answers that no task has taken
`Outbox`                the writes to store, and the effects that follow the commit
======================  ==============================================================

The methods of `Run` are the steps that need several parts: apply a barrier, store the
writes of a task, make a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flowpregel import errors
from flowpregel._code.sources import UNSEEN
from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TaskOutput,
    apply,
    breaks_before,
    sent_nodes,
    triggered_nodes,
)
from flowpregel._core.body_calls import BodyCalls
from flowpregel._core.code_around import CodeAround
from flowpregel._core.commands import Interrupt, Send
from flowpregel._core.effects import Commit, Effect, Emit, StepContext, Stopped
from flowpregel._core.files import NOT_A_TASK
from flowpregel._core.ids import AttemptRecord, FailedCall, QuestionRecord
from flowpregel._core.outbox import Outbox
from flowpregel._core.program import Options, Program
from flowpregel._core.provenance import add_failed_attempt, attempt_record_of
from flowpregel._core.questions import Answers
from flowpregel._core.records import (
    Batch,
    Checkpoint,
    Kind,
    Node,
    Task,
    TaskWrites,
    Write,
)
from flowpregel._core.replay import Replay
from flowpregel._core.run_state import RunState, Update
from flowpregel._core.stream_events import StreamEvents
from flowpregel._pickling.copies import private_copy
from flowpregel.channels.base import MISSING
from flowpregel.errors import INVALID_RESUME

UNREAD: Final = object()
"""A placeholder for the output of a run: the values that were last shown are still in
the run's state, and are read from it when they are needed.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run for its caller."""

    values: Any
    """The values of the output channels that were last added to the stream, or None if
    nothing was written to them.
    """
    interrupts: tuple[Interrupt, ...] = ()
    """The questions that wait for answers. The run resumes with the answers."""
    paused: bool = False
    """True if the run stopped at a breakpoint or an interrupt."""
    questions: tuple[QuestionRecord, ...] = ()
    """The records of all questions without answers, whether this run or an earlier run
    asked them.
    """


@dataclass(slots=True, eq=False)
class StepCursor:
    """The present superstep of a run, and the checkpoint from which it started."""

    checkpoint_id: str = ""
    parent_id: str | None = None
    """The id of the previous checkpoint, if it is stored."""
    stored_id: str | None = None
    """The id of the newest checkpoint that is stored or is about to be stored."""
    step: int = -1
    stop: int = 0  # no mutant: The start of a run sets this field.
    """The superstep at which the recursion limit ends the run."""
    source: records.Source = "input"
    triggered: list[Node] | None = None
    """The nodes that channels trigger in the superstep, or None if they were not
    computed for the checkpoint from which the superstep starts.
    """


@dataclass(slots=True, eq=False)
class Run:
    """One run: the program, the options, and the five parts that the table above
    lists.
    """

    program: Program
    options: Options
    stream_events: StreamEvents
    state: RunState
    now: int
    """The present time in wall-clock nanoseconds. It grows with each id that is made
    from it, and never decreases.
    """
    cursor: StepCursor = field(default_factory=StepCursor)
    replay: Replay = field(default_factory=Replay)
    answers: Answers = field(default_factory=Answers)
    outbox: Outbox = field(default_factory=Outbox)
    code_around: CodeAround = field(init=False)
    """The digests of the code that runs beside the nodes, such as reducers."""
    output: Any = None
    """The values of the output channels that were last shown, or `UNREAD`."""
    stopped: Stopped | None = None
    """The request to end the run, if there is one."""

    def __post_init__(self) -> None:
        self.code_around = CodeAround(self.program)
        self.outbox.holds_attempts = not self.options.keeps_attempts

    def step_context(self) -> StepContext:
        """Return the context of the tasks of the present superstep."""
        cursor = self.cursor
        return StepContext(
            checkpoint_id=cursor.checkpoint_id,
            namespace=self.options.namespace,
            step=cursor.step,
            stop=cursor.stop,
            channels=self.state.channels,
            managed=self.program.managed,
            previous=self.state.previous,
            resuming=self.replay.is_resuming,
            answers=self.answers.by_id,
        )

    def apply(self, outputs: Sequence[TaskOutput]) -> Update:
        """Apply the outputs of tasks to the channels, and return the changes. The
        changed channels get a new version, and are stored with the next checkpoint.
        """
        self.now += 1
        state = self.state
        version = self.options.next_version(state.newest, self.now)
        update = apply(self.program, state, outputs, version)
        state.unsaved = update if state.unsaved is None else state.unsaved.then(update)
        return update

    def show(self, update: Update | None = None) -> None:
        """Make the values of the output channels the output of the run, and add them to
        the stream.

        Args:
            update: The changes of a barrier. If it is given, the output changes only
                if the barrier wrote to an output channel, and an output channel has a
                new value.
        """
        outputs = self.stream_events.outputs
        if update is not None and (
            update.written.isdisjoint(outputs) or update.updated.isdisjoint(outputs)
        ):
            return
        self.output = UNREAD
        if "values" in self.options.modes:
            self.outbox.effects.append(Emit("values", self.read_output()))
        elif not self.program.silent.isdisjoint(outputs):
            # The values are read now, because a later barrier may change such a channel
            # without a write.
            self.read_output()

    def read_output(self) -> Any:
        """Return the values of the output channels that `show` has shown last. They are
        read only once, because an output may have hundreds of channels.
        """
        if self.output is UNREAD:
            self.output = self.state.read(self.options.output_channels)
        return self.output

    # ------------------------------------------------------------ writes of tasks

    def store_writes(
        self,
        task_id: str,
        path: str,
        writes: Sequence[Write],
    ) -> None:
        """Store, with the next batch, writes of a task that has not ended.

        Args:
            task_id: The id of the task that made the writes.
            path: The path of that task, which orders its writes among others.
            writes: The writes, of which those to untracked channels are left out.
        """
        tracked = self._tracked_writes(writes)
        if self.options.address is not None and tracked:
            checkpoint_id = self.cursor.checkpoint_id
            self.outbox.writes.append(TaskWrites(checkpoint_id, task_id, path, tracked))

    def store_return(self, task: Task, writes: Sequence[Write]) -> None:
        """Store the writes of a task that returned, and add them to the stream."""
        task.attempt.writes = writes or ((records.NO_WRITES, None),)
        self.store_end(task, task.attempt.writes)
        events = self.stream_events
        if events.shows_tasks:
            items = events.returned(task, self.cursor.step, self.now)
            self.outbox.effects.extend(items)

    def store_end(self, task: Task, writes: Sequence[Write]) -> None:
        """Store the last writes of *task*, which has ended. The task may be a planned
        task or a call.
        """
        channel, value = writes[0]
        is_failure = channel == records.ERROR
        if task.attempt.saved is not None and not is_failure:
            self.drop_saved_value(task)
        record = None if task.origin is None else task.origin.record
        if record is not None:
            # The record of the call is appended last, so that the positions of the
            # other writes do not depend on it.
            writes = (*writes, (records.CALLED, tuple(record)))
        if task.kind is Kind.CALL:
            assert task.parent is not None
            body: BodyCalls = task.parent.attempt.body
            if body.may_repeat or self.outbox.is_deferred:
                writes = self._private_writes(task, writes, body)
        failed: FailedCall | None = None
        if is_failure:
            if task.attempt.span is not None:
                add_failed_attempt(task, value)
            failed = self._failed_call(task, value)
        if self.options.address is not None:
            self._store_attempt(task, writes, failed)

    def _store_attempt(
        self,
        task: Task,
        writes: Sequence[Write],
        failed: FailedCall | None,
    ) -> None:
        """Store the last writes of *task* with the next batch, beside the record of the
        attempt.

        Args:
            task: The task, which has ended.
            writes: The writes, of which those to untracked channels are left out.
            failed: The call, if it failed and its arguments are stored.
        """
        outbox = self.outbox
        attempt = attempt_record_of(task, writes, self.code_around)
        if attempt is not None:
            if UNSEEN:
                self._report_unseen_values(attempt)
            if outbox.holds_attempts:
                outbox.add_attempt(attempt)
        tracked = self._tracked_writes(writes)
        if not tracked:
            return
        span = task.attempt.span
        media = b"" if span is None else span.preview.media
        task_writes = TaskWrites(
            checkpoint_id=self.cursor.checkpoint_id,
            task_id=task.id,
            path=task.path,
            writes=tracked,
            ran=attempt,
            failed=failed,
            media=media,
        )
        outbox.writes.append(task_writes)

    def _private_writes(
        self,
        task: Task,
        writes: Sequence[Write],
        body: BodyCalls,
    ) -> Sequence[Write]:
        """Return the writes of a call of *body*, as copies that the body cannot
        change.
        """
        if self.outbox.is_deferred:
            # The writes are copied here, because the body may change the result before
            # the batch is encoded.
            writes = private_copy(tuple(writes))
        if body.may_repeat:
            body.recorded[task.id] = private_copy(tuple(writes))
        return writes

    def _failed_call(self, task: Task, error: BaseException) -> FailedCall | None:
        """Return the call that failed with *error* and its arguments, or None if the
        arguments are not stored.
        """
        node = task.node
        if not (node.is_task and self.options.keeps_arguments):
            return None
        if isinstance(error, errors.TaskCancelled):
            return None
        return FailedCall(node.home, task.input, node.redacted)

    def _report_unseen_values(self, attempt: AttemptRecord) -> None:
        """Add values to the replay's report: those to which the code behind a result
        refers, but whose content is not in the digest of that code.
        """
        codes = {name: code for name, code, _ in attempt.used}
        codes[attempt.name] = attempt.code
        for name, code in codes.items():
            values = UNSEEN.get(code)
            if values is not None:
                self.replay.report.unseen[name.removeprefix(NOT_A_TASK)] = values

    def _tracked_writes(self, writes: Sequence[Write]) -> tuple[Write, ...]:
        """Return *writes* without the values that no checkpoint may contain."""
        if not self.program.untracked:
            return tuple(writes)
        tracked = []
        for name, value in writes:
            if name not in self.program.untracked:
                tracked.append((name, self._without_untracked(value)))
        return tuple(tracked)

    def _without_untracked(self, value: Any) -> Any:
        """Return *value*. If it is a `Send`, leave out the values that no checkpoint
        may contain.
        """
        untracked = self.program.untracked
        if not isinstance(value, Send) or not isinstance(value.arg, dict):
            return value
        if not untracked & value.arg.keys():
            return value
        tracked = {key: item for key, item in value.arg.items() if key not in untracked}
        return replace(value, arg=tracked)

    def drop_saved_value(self, task: Task) -> None:
        """Drop the value that *task* has saved, which is no longer needed."""
        pending = self.replay.pending
        before = pending.get(task.id, ())
        pending[task.id] = [write for write in before if write[0] != records.SAVED]

    # ------------------------------------------------------------ answers

    def refuse_answer(self, error: BaseException) -> bool:
        """Drop the answer that *error* refuses. Its question then waits for another
        answer.

        Returns:
            True if *error* refuses an answer, in this run or in a nested run.
        """
        question = getattr(error, INVALID_RESUME, None)
        if question is None:
            return False
        self.drop_answer(question)
        return True

    def drop_answer(self, question: str) -> None:
        """Drop the answer that a command gave to *question*, an interrupt's id."""
        other_writes: list[Write] = []
        answers: dict[str, Any] | None = None
        for channel, value in self.replay.pending.get(records.RUN_TASK_ID, ()):
            if channel == records.RESUME:
                answers = {key: item for key, item in value.items() if key != question}
            else:
                other_writes.append((channel, value))
        if answers is not None:
            # The answers are always put last, even if they were stored earlier in the
            # list, so that the positions of the other writes do not depend on them.
            writes = [*other_writes, (records.RESUME, answers)]
            self.replay.pending[records.RUN_TASK_ID] = writes
            self.store_writes(records.RUN_TASK_ID, "", writes)

    # ------------------------------------------------------------ checkpoints

    def flush(
        self, checkpoint: Checkpoint | None = None, *, is_last: bool = False
    ) -> list[Effect]:
        """Return the commit of the pending writes and of *checkpoint*, and the effects
        that follow it.

        With ``durability="exit"`` only the last flush of the run commits.
        """
        outbox = self.outbox
        effects = outbox.effects
        outbox.effects = []
        is_due = is_last or not outbox.is_deferred
        if is_due and (outbox.writes or checkpoint is not None):
            options = self.options
            assert options.address is not None
            writes = tuple(outbox.writes)
            batch = Batch(options.address, writes, checkpoint, options.fence)
            outbox.writes = []
            effects.insert(0, Commit(batch))
        return effects

    def _continuation(self, ended: Iterable[Node], *, is_edit: bool) -> int:
        """Return the value of `Checkpoint.follows` for a checkpoint of the present
        state. The arguments are those of `save_checkpoint`.
        """
        state = self.state
        self.cursor.triggered = triggered_nodes(self.program, state, state.updated)
        nodes = [*self.cursor.triggered, *sent_nodes(self.program, state)]
        if not nodes:
            return records.NOTHING_DUE
        if is_edit:
            return records.PAUSED
        if self.cursor.step >= self.cursor.stop:
            return records.LIMIT_REACHED
        before = self.options.interrupt_before
        after = self.options.interrupt_after
        if before and breaks_before(state, nodes, before):
            return records.PAUSED
        if after and breaks_before(state, ended, after):
            return records.PAUSED
        return records.TASKS_DUE

    def save_checkpoint(
        self,
        source: records.Source,
        ended: Iterable[Node] = (),
        *,
        is_edit: bool = False,
    ) -> list[Effect]:
        """Make a checkpoint of the state, from which the next superstep starts.

        Args:
            source: The cause of the state, such as a superstep.
            ended: The nodes that ran in the superstep before this state.
            is_edit: Whether the user has edited the thread, and so decides when it
                resumes: its due tasks do not start by themselves.

        Returns:
            The commit of the checkpoint, and the effects that follow it.
        """
        checkpoint = None
        cursor = self.cursor
        outbox = self.outbox
        cursor.source = source
        self.replay.clear()
        if outbox.step_attempts:
            outbox.unstored_attempts += outbox.step_attempts
            outbox.step_attempts = []
        if self.options.address is None:
            self.state.unsaved = None
        else:
            cursor.parent_id = cursor.stored_id
            self.now += 1
            cursor.checkpoint_id = ids.checkpoint_id(self.now, cursor.step)
            if outbox.is_deferred:
                # The outbox drops the pending writes, because the barrier has applied
                # them to the channels. They could only be stored with the checkpoint
                # from which their superstep started, and no such checkpoint will be
                # stored.
                if source == "input":
                    outbox.has_unstored_input = True
                outbox.writes.clear()
            else:
                follows = self._continuation(ended, is_edit=is_edit)
                checkpoint = self._make_checkpoint(cursor.step, follows)
        cursor.step += 1
        return self.flush(checkpoint)

    def store_rest(self, follows: int) -> list[Effect]:
        """Return the commit of everything that is not stored yet, and the effects that
        follow it.

        With ``durability="exit"``, nothing of the run is stored before this commit.

        Args:
            follows: The `Checkpoint.follows` of the checkpoint, if one is made here.
        """
        if self.options.address is None:
            return []
        checkpoint = None
        cursor = self.cursor
        if self.outbox.is_deferred and cursor.checkpoint_id != cursor.stored_id:
            checkpoint = self._make_checkpoint(cursor.step - 1, follows)
        return self.flush(checkpoint, is_last=True)

    def _make_checkpoint(self, step: int, follows: int) -> Checkpoint:
        """Return the state as the checkpoint of *step*, which will be stored next."""
        cursor = self.cursor
        state = self.state
        update = state.unsaved or Update(0)
        state.unsaved = None
        cursor.stored_id = cursor.checkpoint_id
        deltas = update.deltas if self.options.keeps_deltas else {}
        updated = None if state.updated is None else tuple(sorted(state.updated))
        metadata = self.options.metadata
        if self.outbox.holds_attempts:
            metadata = self._metadata_with_code()
        return Checkpoint(
            id=cursor.checkpoint_id,
            parent_id=cursor.parent_id,
            at=self.now,
            step=step,
            source=cursor.source,
            # The dicts are copied, because a saver may write the checkpoint only after
            # the next barrier, which changes the versions of the state.
            channel_versions=dict(state.versions),
            versions_seen=dict(state.seen),
            changed=tuple(update.changed),
            updated_channels=updated,
            values=self._changed_values(update.changed, deltas),
            deltas=deltas,
            metadata=metadata,
            follows=follows,
        )

    def _changed_values(
        self, changed: Sequence[str], deltas: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the values of the *changed* channels that are stored in full."""
        values: dict[str, Any] = {}
        for name in changed:
            if name in deltas:
                continue
            channel = self.state.channels[name]
            is_delta = name in self.program.deltas
            value = channel.get() if is_delta else channel.checkpoint()
            if value is MISSING:
                continue
            values[name] = value
        sends = values.get(records.TASKS)
        if sends is not None and self.program.untracked:
            tracked = [self._without_untracked(send) for send in sends]
            values[records.TASKS] = type(sends)(tracked)
        return values

    def _metadata_with_code(self) -> Mapping[str, Any]:
        """Return the metadata of a checkpoint with the code that made it."""
        outbox = self.outbox
        nodes = [
            (attempt.name, attempt.code, attempt.used)
            for attempt in outbox.unstored_attempts
        ]
        made_by = records.MadeBy(
            at_exit=outbox.is_deferred,
            is_whole=outbox.has_unstored_input,
            nodes=tuple(nodes),
        )
        outbox.unstored_attempts = []
        outbox.has_unstored_input = False
        return {**self.options.metadata, records.MADE_BY: tuple(made_by)}
