"""The start of a run: from new input, from the point at which an earlier run stopped,
or from the result of a finished run.

===================  ======================  ==========================================
request              the thread's last run    effect
===================  ======================  ==========================================
input                any                     a new run starts
None, Command        unfinished              that run resumes
resume="auto"        unfinished              that run resumes, if the input is the same
resume="auto"        finished, or none       a new run starts
run_id=              has this id             that run resumes, or returns its result
run_id=              has another id          an earlier run's result, or a new run
===================  ======================  ==========================================

`Flow.run` ensures that the workflow *has been run once* with this input:

===================  ======================================  ==========================
stored under its id  the same input                          another input
===================  ======================================  ==========================
nothing              a new run starts                        a new run starts
an unfinished run    it resumes                              `InputMismatchError`; with
a failed run         it resumes: failed tasks run again      ``adopt`` it resumes with
a finished run       its result is returned                  the new input
a run of another     `FlowMismatchError`, unless ``adopts``  the same
flow                 names that flow
===================  ======================================  ==========================

The input None matches any stored input: the run that is stored under the id resumes. A
stored input that lacks only new parameters with defaults is treated as the same input.
With ``again`` a new run always starts, and the stored run stays in the history. The
module `stored_results` describes the treatment of results that different code computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flowpregel._core.commands import Command
from flowpregel._core.effects import Emit, Steps
from flowpregel._core.program import Options, Program
from flowpregel._core.records import Address, Node, Saved
from flowpregel._core.run import Result
from flowpregel._core.unreadable import check_policy, error_in, readable, with_input
from flowpregel._inspection.open_checkpoint import OpenCheckpoint, open_checkpoint
from flowpregel.channels.base import read
from flowpregel.checkpoint.base import FLOW, FOLDER, BaseCheckpointSaver
from flowpregel.errors import ConfigurationError, FlowMismatchError, InputMismatchError
from flowpregel.pregel.config import ParsedConfig
from flowpregel.pregel.naming import RunIdentity, flow_labels, node_of
from flowpregel.pregel.recorded_input import (
    DIGEST,
    FILES,
    has_new_parameters,
    input_difference,
    input_of_run,
    labels_of_input,
    matches_earlier_class,
    recorded_digest,
    without_end,
)
from flowpregel.pregel.stored_results import StoredResults, compare_stored_results

_STARTING_METADATA = (DIGEST, FILES, FLOW, FOLDER)
"""The keys of the metadata that a run records when it begins, and keeps when it
resumes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a run: input, program, and stored state."""

    input: Any
    """The input of the run, or None if the run resumes."""
    run_id: str | None = None
    """The id of the run, or None if the run gets a new id."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the run, in addition to the metadata that the user sets."""
    loaded: tuple[Saved | None] | None = None
    """The checkpoint from which the run starts, in a tuple. The tuple contains None if
    the run starts without a checkpoint. In place of the tuple there is None if no
    checkpoint was read.
    """
    finished: Saved | None = None
    """The last checkpoint of a finished run, whose result is returned."""
    replayed_before: str | None = None
    """The id of a checkpoint, if an earlier checkpoint is replayed: nested graphs then
    start from their states before that checkpoint.
    """
    program: Program
    """The program, with the name that the workflow had when the run began."""
    address: Address | None = None
    """The checkpoint to replay, if the run replays one that the user has not named."""
    after: str | None = None
    """The id of an earlier run's last checkpoint. The checkpoints of this run get
    greater ids.
    """
    stored: StoredResults | None = None
    """The stored results that the run uses, compared with the present code."""
    adopts_input: bool = False
    """True if the run may resume with files whose content has changed."""

    @property
    def last(self) -> Saved | None:
        """The checkpoint from which the run starts, if there is one."""
        return self.loaded[0] if self.loaded else None

    @property
    def used(self) -> Saved | None:
        """The checkpoint whose recorded results the run uses. None for a run with new
        input, and for a run that gets the answer to a question.
        """
        if self.finished is not None:
            return self.finished
        is_command = isinstance(self.input, Command) and self.input.resume is None
        return self.last if self.input is None or is_command else None


def start_of(
    program: Program,
    saver: BaseCheckpointSaver | None,
    run_input: Any,
    config: ParsedConfig,
    *,
    resume: Literal["auto"] | RunIdentity | None,
    options: Options,
) -> Start:
    """Return the start of a run. The thread is read only if the start depends on it.

    Raises:
        InputMismatchError: The run was started with different input.
        FlowMismatchError: The stored run belongs to another workflow.
        CodeChangedError: Different code computed a stored result, and the options do
            not allow that.
        ConfigurationError: ``resume="auto"`` has no input to start with, or a later run
            has replaced the unfinished run, or the graph has no checkpointer.
    """
    start = Start(input=run_input, run_id=config.run_id, program=program)
    is_new = not _resumes(run_input)
    if saver is None and resume is not None:
        raise _nothing_to_resume(program)
    reads_thread = resume is not None or config.run_id is not None or not is_new
    if saver is None or not reads_thread:
        return start
    if config.checkpoint_id is not None:
        return _branched(saver, start, config.address)
    if resume == "auto" and not is_new:
        raise ConfigurationError(
            'resume="auto" needs the input for a new run; to resume without an '
            "input, call invoke(None)"
        )
    saved = saver.load(config.address, lazy_results=True)
    start = replace(start, loaded=(saved,))
    if isinstance(resume, RunIdentity):
        return _RunOnce(saver, resume, options, config.address).start(start, saved)
    if is_new:
        start = _started_again(saver, start, config.address)
    if saved is None:
        return start
    if not is_new:
        start = _resumed(start, saved)
    return _compared(saver, start, config.address, options)


def _resumed(start: Start, saved: Saved) -> Start:
    """Return *start*. If the user has named no run, and the thread has an unfinished
    run, add the id and the metadata of that run, which resumes.
    """
    is_unnamed = start.run_id is None
    if is_unnamed and open_checkpoint(start.program, saved).tasks:
        return _as_before(start, saved)
    return start


def _resumes(run_input: Any) -> bool:
    """Return whether a run with this input resumes an earlier run."""
    return run_input is None or isinstance(run_input, Command)


def _nothing_to_resume(program: Program) -> ConfigurationError:
    return ConfigurationError(
        f"resume='auto': graph {program.name!r} has no checkpointer, so there is "
        "nothing to resume; pass checkpointer= where it is built"
    )


def _branched(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
) -> Start:
    """Return the start of a run from a checkpoint that the user named."""
    if start.input is None:
        return _replayed(saver, start, address)
    is_command = isinstance(start.input, Command)
    if is_command and start.input.resume is None:
        return _replayed(saver, start, address)
    return start


def _replayed(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
) -> Start:
    """Return the start of a run that replays the thread from the given checkpoint."""
    saved = saver.load(address, lazy_results=True)
    if saved is None:
        return replace(start, loaded=(None,))
    checkpoint = saved.checkpoint
    before = checkpoint.id
    # A checkpoint that an edit has made is newer than the checkpoints of nested graphs
    # that were made after its parent. Nested graphs must start from their states at the
    # parent, so the parent's id is the limit.
    if checkpoint.source in ("update", "fork") and checkpoint.parent_id:
        before = checkpoint.parent_id
    return replace(start, loaded=(saved,), replayed_before=before)


def _started_again(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
) -> Start:
    """Return the start of a run that has an input, and that may have been started
    before.
    """
    program = start.program
    saved = _earlier_run(saver, start, address)
    opened = None if saved is None else open_checkpoint(program, saved)
    labels = labels_of_input(start.input)
    if opened is None or not (opened.tasks or start.run_id):
        return replace(start, metadata=labels)
    is_last = start.loaded is not None and saved is start.loaded[0]
    if opened.tasks and not is_last:
        raise ConfigurationError(
            f"run {start.run_id!r} of thread {address.thread_id!r} was left "
            "unfinished, and a later run has replaced it: use another run_id"
        )
    recorded = recorded_digest(program, opened)
    is_same = recorded == labels[DIGEST]
    if not is_same and not matches_earlier_class(start.input, recorded):
        difference = input_difference(recorded, opened, labels)
        raise InputMismatchError(address.thread_id, difference)
    if not opened.tasks:
        return replace(start, finished=opened.saved)
    return replace(_as_before(start, opened.saved), input=None)


def _earlier_run(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
) -> Saved | None:
    """Return the last checkpoint of the run that *start* names, or of the thread if
    *start* names no run.
    """
    last = start.last
    if start.run_id is None:
        return last
    if last is not None and start.run_id == str(last.checkpoint.metadata.get("run_id")):
        return last
    earlier = saver.history(address, filter={"run_id": start.run_id}, limit=1)
    return next(iter(earlier), None)


def _as_before(
    start: Start,
    saved: Saved,
) -> Start:
    """Return *start* with the id and the metadata of a stored run."""
    recorded = saved.checkpoint.metadata
    metadata = {key: recorded[key] for key in _STARTING_METADATA if key in recorded}
    run_id = start.run_id
    if not run_id and recorded.get("run_id") is not None:
        run_id = str(recorded["run_id"])
    return replace(start, run_id=run_id, metadata=metadata)


# ---------------------------------------------------------------- changed code


def _compared(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
    options: Options,
) -> Start:
    """Return *start* with a comparison: the code that computed the stored results, and
    the present code.

    If code has changed and the options demand it, the returned start runs the affected
    nodes again.
    """
    saved = start.finished or start.last
    if saved is None or not (start.finished or _resumes(start.input)):
        return start
    opened = open_checkpoint(start.program, saved)
    if _has_body(task.node for task in opened.tasks):
        # The code of a body is not compared before the run: its calls are compared with
        # the recorded calls when the body makes them.
        return start
    if start.finished is not None and _has_body(start.program.nodes.values()):
        return _finished(
            saver,
            replace(start, finished=None),
            opened,
            options,
        )
    results = saver.node_results(saved.address)
    stored = compare_stored_results(start.program, saved, results)
    result_name = f"the results of thread {address.thread_id!r}"
    is_rerun = stored.is_rerun(options, result_name)
    # There are two cases in which nodes whose code has changed do not run again. A
    # `Command` answers a question of the stored state, so this state must not change.
    # And if the thread has checkpoints after *saved*, the run that made it is over.
    may_rerun = saved.is_latest and not isinstance(start.input, Command)
    if is_rerun and may_rerun and stored.first_checkpoint is not None:
        first = replace(address, checkpoint_id=stored.first_checkpoint)
        before = replace(_as_before(start, saved), finished=None)
        replayed = _replayed(saver, before, first)
        return replace(
            replayed,
            input=None,
            address=first,
            adopts_input=bool(stored.changed_files),
        )
    return replace(start, stored=stored)


def _has_body(nodes: Iterable[Node]) -> bool:
    """Return whether one of *nodes* is the body of a workflow."""
    return any(node.role == "body" for node in nodes)


def _finished(
    saver: BaseCheckpointSaver,
    start: Start,
    opened: OpenCheckpoint,
    options: Options,
) -> Start:
    """Return the start of a finished run, which returns its stored result or starts
    again from its input.

    The run restarts from its input if code or files have changed and the policy demands
    it.
    """
    program = start.program
    saved = opened.saved
    results = saver.node_results(saved.address)
    stored = compare_stored_results(program, saved, results)
    result_name = f"the result of run {saved.address.thread_id!r}"
    options = replace(options, adopts_input=start.adopts_input)
    is_rerun = stored.is_rerun(options, result_name)
    unreadable = error_in(saved.checkpoint.values.values())
    if unreadable is not None:
        check_policy(options.on_unreadable, unreadable)
        is_rerun = True
    # If the source of the body does not name a called task, the present code of the
    # task is unknown until the body calls it. So the body runs again, and each call
    # compares the digest of the present code with the recorded one.
    if options.on_code_change != "keep" and stored.unknown:
        is_rerun = True
    if saved.is_latest and is_rerun:
        first = input_of_run(program, saver, opened)
        if first.tasks:
            begun = with_input(
                without_end(first),
                program.input_channels,
                start.input,
                options.on_unreadable,
            )
            adopts_input = options.adopts_input or bool(stored.changed_files)
            return replace(
                start, input=None, loaded=(begun,), adopts_input=adopts_input
            )
        # If the run was made with durability="exit", only its end is stored. The
        # checkpoint with the input is missing, so the run starts from scratch.
        if start.input is not None:
            return _from_scratch(start, saved, start.metadata)
    return replace(start, input=None, finished=saved, stored=stored)


def _from_scratch(
    start: Start,
    saved: Saved,
    metadata: Mapping[str, Any],
) -> Start:
    """Return the start of a new run that ignores the stored run, which stays in the
    history.
    """
    if start.input is None:
        raise ConfigurationError(
            f"thread {saved.address.thread_id!r} cannot start again without input: "
            "pass it"
        )
    return replace(
        start,
        run_id=None,
        metadata=metadata,
        loaded=(None,),
        after=saved.newest_id,
    )


# ---------------------------------------------------------------- once


@dataclass(frozen=True, slots=True)
class _RunOnce:
    """The decision on how `Flow.run` starts, so that the workflow runs once under an
    id.

    Args:
        saver: The saver of the run.
        once: The identity of the workflow, and the options ``adopt`` and ``again``.
        options: The options of the run.
        address: The thread of the run.
    """

    saver: BaseCheckpointSaver
    once: RunIdentity
    options: Options
    address: Address

    def start(
        self,
        start: Start,
        saved: Saved | None,
    ) -> Start:
        """Return the start of the run.

        Args:
            start: The start so far, with the input of the run.
            saved: The thread's newest checkpoint, or None if the thread has none.
        """
        once = self.once
        metadata = flow_labels(once.flow, once.folder)
        if start.input is not None:
            metadata |= labels_of_input(start.input)
        if saved is None:
            return replace(start, metadata=metadata)
        recorded = str(saved.checkpoint.metadata.get(FLOW, once.flow))
        if not once.owns(recorded):
            raise FlowMismatchError(self.address.thread_id, recorded, once.flow)
        if once.again:
            return _from_scratch(start, saved, metadata)
        start = _as_before(start, saved)
        start = replace(
            start,
            metadata={**start.metadata, **metadata, FLOW: recorded},
            program=_program_named(start.program, node_of(recorded)),
            adopts_input=once.adopt,
        )
        return self._resumed(start, saved)

    def _resumed(
        self,
        start: Start,
        saved: Saved,
    ) -> Start:
        """Return the start of the run on a thread that already has a run of the
        workflow.
        """
        program = start.program
        with_present_input = with_input(
            saved,
            program.input_channels,
            start.input,
            self.options.on_unreadable,
        )
        is_replaced = with_present_input is not saved
        opened = open_checkpoint(program, with_present_input)
        start = replace(start, loaded=(with_present_input,))
        if start.input is not None and not is_replaced:
            difference = self._difference(start, opened)
            if difference is not None:
                if self.once.adopt:
                    return self._adopting(start, opened)
                thread_id = self.address.thread_id
                raise InputMismatchError(thread_id, difference, adopts=True)
        if self.once.replays:
            return self._replaying(start, opened)
        if opened.tasks:
            return replace(start, input=None)
        return _finished(
            self.saver,
            start,
            opened,
            self.options,
        )

    def _difference(
        self,
        start: Start,
        opened: OpenCheckpoint,
    ) -> str | None:
        """Return the difference between the input and the recorded input as text, or
        None if the inputs are the same.
        """
        program = start.program
        metadata = start.metadata
        digest = recorded_digest(program, opened)
        if digest is None and not opened.tasks:
            first = input_of_run(program, self.saver, opened)
            digest = recorded_digest(program, first)
        if digest == metadata[DIGEST]:
            return None
        if matches_earlier_class(start.input, digest):
            return None
        if has_new_parameters(
            program,
            self.saver,
            opened,
            self.once,
            metadata,
        ):
            return None
        return input_difference(digest, opened, metadata)

    def _replaying(
        self,
        start: Start,
        opened: OpenCheckpoint,
    ) -> Start:
        """Return the start of a stored run whose body runs again with the calls'
        recorded results, even if the body has ended.
        """
        first = opened
        if not opened.tasks:
            first = input_of_run(start.program, self.saver, opened)
        if not first.tasks:
            return _from_scratch(start, opened.saved, start.metadata)
        begun = with_input(
            without_end(first),
            start.program.input_channels,
            start.input,
            self.options.on_unreadable,
        )
        return replace(start, input=None, loaded=(begun,))

    def _adopting(
        self,
        start: Start,
        opened: OpenCheckpoint,
    ) -> Start:
        """Return the start of a stored run that resumes with a new input."""
        first = opened
        if not opened.tasks:
            first = input_of_run(start.program, self.saver, opened)
        if not first.tasks:
            # The stored run has no recorded calls from which to resume, so a new run
            # begins.
            return replace(start, run_id=None)
        # The resumed run writes the new input, as a command on the checkpoint from
        # which the stored run started. The ids of calls depend on that checkpoint, so
        # the recorded calls are found only if the run starts from it.
        channel = str(start.program.input_channels)
        begun = with_input(
            without_end(first),
            channel,
            start.input,
            "rerun",
        )
        command: Command[Any] = Command(update={channel: start.input})
        return replace(start, input=command, loaded=(begun,))


def _program_named(
    program: Program,
    name: str,
) -> Program:
    """Return the *program* of a workflow under another name.

    The ids of the workflow's calls depend on the name, so recorded calls are only found
    under the name that the workflow had when they were recorded.
    """
    if name in program.nodes:
        return program
    (node,) = program.nodes.values()
    triggers = dict.fromkeys(program.triggers, (name,))
    return replace(program, nodes={name: replace(node, name=name)}, triggers=triggers)


# ---------------------------------------------------------------- a finished run


def stored_result(
    program: Program,
    saved: Saved,
    options: Options,
) -> Steps:
    """Return a generator of the effects (requests to the engine) of a run that has
    already finished: they emit its stored result.
    """
    saved = readable(saved, options.on_unreadable)
    channels = open_checkpoint(program, saved).state.channels
    values = read(channels, options.output_channels)
    if "values" in options.modes:
        yield Emit("values", values)
    return Result(values)
