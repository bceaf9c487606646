"""What a run is: a new one, one that goes on, or one that is over and has its result.

===================  ======================  ==========================================
asked for            the thread's last run    then
===================  ======================  ==========================================
input                any                     a new run
None, Command        unfinished              that run goes on
resume="auto"        unfinished              it goes on, if the input is the same
resume="auto"        finished, or none       a new run
run_id=              has this id             it goes on, or its result is returned
run_id=              has another id          an earlier run's result, or a new run
===================  ======================  ==========================================

What `Flow.run` asks for is that a run of this input *has been run once*:

===================  ======================================  ==========================
kept under its id    the same input                          another input
===================  ======================================  ==========================
nothing              a new run                               a new run
an unfinished run    it goes on                              `InputMismatchError`; with
a failed run         it goes on: what failed is tried again  ``adopt`` it goes on with
a finished run       its result is returned                  the new input
work of another      `FlowMismatchError`, unless ``adopts``  the same
flow                 names it
===================  ======================================  ==========================

Without input (None) any is the same: what is kept under the id goes on. So is an input
that only lacks parameters with defaults which the workflow did not have yet. With
``again`` a new run starts in any case, beside what is kept. Results that other code
made: see `kept_results`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flowpregel._core import records
from flowpregel._core.barrier import TaskOutput, apply, plan
from flowpregel._core.commands import Command
from flowpregel._core.digest import digest_of, earlier_digests
from flowpregel._core.effects import Emit, StepContext, Steps
from flowpregel._core.files import changed_files, with_files
from flowpregel._core.ids import next_version
from flowpregel._core.program import Options, Program
from flowpregel._core.records import RUN_TASK_ID, Address, Saved, Task, Version, Write
from flowpregel._core.run import Result
from flowpregel._core.run_state import RunState, Update, load_state
from flowpregel._core.unreadable import check_policy, error_in, readable, with_input
from flowpregel.channels.base import BaseChannel, read
from flowpregel.checkpoint.base import FLOW, FOLDER, BaseCheckpointSaver
from flowpregel.errors import ConfigurationError, FlowMismatchError, InputMismatchError
from flowpregel.pregel.config import ParsedConfig
from flowpregel.pregel.kept_results import KeptResults, kept_results
from flowpregel.pregel.naming import RunIdentity, flow_labels, node_of

FILES = "input_files"
"""Under this name they keep the path, digest and size of each file in it, if there are
any.
"""
DIGEST = "input_digest"
"""Under this name metadata keep what a run's input was, for runs that may be asked for
again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run starts."""

    given: Any
    run_id: str | None = None
    """None: a new one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What is kept beside what the user gave."""
    loaded: tuple[Saved | None] | None = None
    """The checkpoint it starts from, if it was read."""
    over: Saved | None = None
    """The last checkpoint of a run that is over, whose result is asked for."""
    replayed_before: str | None = None
    """Graphs nested in it start from their newest checkpoints before this one: it is a
    replay.
    """
    program: Program
    """What is run: with the names that the workflow had when it started."""
    address: Address | None = None
    """The checkpoint that it replays, if that is not what the user addressed."""
    after: str | None = None
    """The id of a checkpoint of an earlier run: those of this one are greater."""
    kept: KeptResults | None = None
    """The recorded results of nodes that it uses, compared with the code of now."""
    adopts_input: bool = False
    """True if the run may continue with files whose content has changed."""


def start_of(
    program: Program,
    saver: BaseCheckpointSaver | None,
    given: Any,
    config: ParsedConfig,
    *,
    resume: Literal["auto"] | RunIdentity | None,
    options: Options,
) -> Start:
    """Return how the run starts that a user asked for; its thread is read only if that
    matters.

    Raises:
        InputMismatchError: The run to go on with was started with other input.
        FlowMismatchError: What is kept is the work of another workflow.
        CodeChangedError: What is kept is of other code, and that is not wanted.
        ConfigurationError: ``resume="auto"`` without input to start with, or a
            run that was left unfinished and replaced by a later one.
    """
    start = Start(given=given, run_id=config.run_id, program=program)
    is_new = given is not None and not isinstance(given, Command)
    if saver is None and resume is not None:
        raise ConfigurationError(
            f"resume='auto': graph {program.name!r} has no checkpointer, so there is "
            "nothing "
            "to go on with; pass checkpointer= where it is built"
        )
    depends = resume is not None or config.run_id is not None or not is_new
    if saver is None or not depends:
        return start
    if config.checkpoint_id is not None:
        is_answer = isinstance(given, Command) and given.resume is not None
        return start if is_new or is_answer else _replayed(saver, start, config.address)
    if resume == "auto" and not is_new:
        raise ConfigurationError(
            'resume="auto" needs the input that a new run would start with; '
            "invoke(None) goes on without"
        )
    saved = saver.load(config.address, lazy_results=True)
    start = replace(start, loaded=(saved,))
    if isinstance(resume, RunIdentity):
        return _once(saver, start, config.address, resume, options)
    if is_new:
        start = _started_again(program, saver, config.address, start)
    elif (
        config.run_id is None
        and saved is not None
        and open_checkpoint(program, saved).tasks
    ):
        start = _as_before(start, saved)
    return start if saved is None else _compared(saver, start, config.address, options)


def _compared(
    saver: BaseCheckpointSaver, start: Start, address: Address, options: Options
) -> Start:
    """Return *start*, or what becomes of it where the code of nodes that have finished
    changed.
    """
    saved = start.over or (start.loaded[0] if start.loaded else None)
    goes_on = start.given is None or isinstance(start.given, Command)
    if saved is None or not (start.over or goes_on):
        return start
    opened = open_checkpoint(start.program, saved)
    if any(task.node.role == "body" for task in opened.tasks):
        return start  # its calls are compared, each when it is made
    is_workflow = any(node.role == "body" for node in start.program.nodes.values())
    if start.over is not None and is_workflow:
        return _kept(saver, replace(start, over=None), opened, options)
    found = kept_results(start.program, saver, saved)
    what = f"the results of thread {address.thread_id!r}"
    is_rerun = found.is_rerun(options, what)
    # An answer has its question in what is there, and an earlier run is over for good.
    may_rerun = saved.is_latest and not isinstance(start.given, Command)
    if is_rerun and may_rerun and found.first_checkpoint is not None:
        one = replace(address, checkpoint_id=found.first_checkpoint)
        again = _replayed(saver, replace(_as_before(start, saved), over=None), one)
        adopts_input = bool(found.changed_files)
        return replace(again, given=None, address=one, adopts_input=adopts_input)
    return replace(start, kept=found)


def _replayed(saver: BaseCheckpointSaver, start: Start, address: Address) -> Start:
    """Return how a run starts that goes on from a checkpoint of its past."""
    saved = saver.load(address, lazy_results=True)
    if saved is None:
        return replace(start, loaded=(None,))
    checkpoint = saved.checkpoint
    # An edit made a branch when what it goes back to had happened: its parent tells
    # when.
    is_edit = checkpoint.source in ("update", "fork")
    before = (checkpoint.parent_id if is_edit else None) or checkpoint.id
    return replace(start, loaded=(saved,), replayed_before=before)


def _started_again(
    program: Program, saver: BaseCheckpointSaver, address: Address, start: Start
) -> Start:
    """Return how a run starts, with input, that may have been started before."""
    saved = start.loaded[0] if start.loaded else None
    is_last = start.run_id is None or (
        saved is not None
        and start.run_id == str(saved.checkpoint.metadata.get("run_id"))
    )
    if not is_last:
        earlier = saver.history(address, filter={"run_id": start.run_id}, limit=1)
        saved = next(iter(earlier), None)
    opened = None if saved is None else open_checkpoint(program, saved)
    labels = _labels_of_input(start.given)
    digest = labels[DIGEST]
    if opened is None or not (opened.tasks or start.run_id):
        return replace(start, metadata=labels)
    if opened.tasks and not is_last:
        raise ConfigurationError(
            f"run {start.run_id!r} of thread {address.thread_id!r} was left "
            "unfinished, "
            "and a later run took its place: use another run_id"
        )
    recorded = _recorded_digest(program, opened)
    if recorded != digest and not _is_recorded_input(start.given, recorded):
        raise InputMismatchError(address.thread_id, _why(recorded, opened, labels))
    if not opened.tasks:
        return replace(start, over=opened.saved)
    return replace(_as_before(start, opened.saved), given=None)


def _as_before(start: Start, saved: Saved) -> Start:
    metadata = saved.checkpoint.metadata
    kept = {
        key: metadata[key] for key in (DIGEST, FILES, FLOW, FOLDER) if key in metadata
    }
    run_id = None if metadata.get("run_id") is None else str(metadata["run_id"])
    return replace(start, run_id=start.run_id or run_id, metadata=kept)


def _once(
    saver: BaseCheckpointSaver,
    start: Start,
    address: Address,
    once: RunIdentity,
    options: Options,
) -> Start:
    """Return how a run starts that is to have been run once."""
    given, saved = start.given, start.loaded[0] if start.loaded else None
    metadata = flow_labels(once.flow, once.folder)
    if given is not None:
        metadata |= _labels_of_input(given)
    if saved is None:
        return replace(start, metadata=metadata)
    recorded = str(saved.checkpoint.metadata.get(FLOW, once.flow))
    if not once.owns(recorded):
        raise FlowMismatchError(address.thread_id, recorded, once.flow)
    if once.again:
        return _from_scratch(start, saved, metadata)
    program, start = (
        _program_named(start.program, node_of(recorded)),
        _as_before(start, saved),
    )
    metadata = {**start.metadata, **metadata, FLOW: recorded}
    start = replace(start, metadata=metadata, program=program, adopts_input=once.adopt)
    saved_with_input = with_input(
        saved, program.input_channels, given, options.on_unreadable
    )
    is_replaced = saved_with_input is not saved
    opened = open_checkpoint(program, saved_with_input)
    start = replace(start, loaded=(saved_with_input,))
    if given is not None and not is_replaced:
        difference = _input_difference(saver, start, opened, once)
        if difference is not None:
            if once.adopt:
                return _adopting(saver, start, opened)
            raise InputMismatchError(address.thread_id, difference, adopts=True)
    if opened.tasks:
        return replace(start, given=None)
    return _kept(saver, start, opened, options)


def _input_difference(
    saver: BaseCheckpointSaver,
    start: Start,
    opened: OpenCheckpoint,
    once: RunIdentity,
) -> str | None:
    """Return why the input is not the recorded one; None: it is the same."""
    program = start.program
    metadata = start.metadata
    digest = _recorded_digest(program, opened)
    if digest is None and not opened.tasks:
        first = _input_of_run(program, saver, opened)
        digest = _recorded_digest(program, first)
    if digest == metadata[DIGEST]:
        return None
    if _is_recorded_input(start.given, digest):
        return None
    if _is_respelled(program, saver, opened, once, metadata):
        return None
    return _why(digest, opened, metadata)


def _adopting(
    saver: BaseCheckpointSaver, start: Start, opened: OpenCheckpoint
) -> Start:
    """Return how a run starts that goes on with another input than it began with."""
    first = opened if opened.tasks else _input_of_run(start.program, saver, opened)
    if not first.tasks:
        # Nothing is kept of what it asked.
        return replace(start, run_id=None)
    # As the run's own write, on the checkpoint it started from: its calls are known by
    # that.
    channel = str(start.program.input_channels)
    begun = with_input(_without_end(first), channel, start.given, "rerun")
    return replace(start, given=Command(update={channel: start.given}), loaded=(begun,))


def _from_scratch(start: Start, saved: Saved, metadata: Mapping[str, Any]) -> Start:
    """Return how a run starts as if nothing were kept; what is kept stays in the
    history.
    """
    if start.given is None:
        raise ConfigurationError(
            f"thread {saved.address.thread_id!r} cannot start again without input: "
            "pass it"
        )
    return replace(
        start, run_id=None, metadata=metadata, loaded=(None,), after=saved.newest_id
    )


def _kept(
    saver: BaseCheckpointSaver, start: Start, opened: OpenCheckpoint, options: Options
) -> Start:
    """Return how a finished run starts: with its result, or from its input where code
    or files have changed.
    """
    program, saved = start.program, opened.saved
    found, policy = kept_results(program, saver, saved), options.on_code_change
    result_name = f"the result of run {saved.address.thread_id!r}"
    options = replace(options, adopts_input=start.adopts_input)
    is_rerun = found.is_rerun(options, result_name)
    lost = error_in(saved.checkpoint.values.values())
    if lost is not None:
        check_policy(options.on_unreadable, lost)
    # Of tasks that the body does not name only its calls can say whether they have
    # changed.
    is_rerun |= lost is not None or (policy != "keep" and bool(found.unknown))
    if saved.is_latest and is_rerun:
        first = _input_of_run(program, saver, opened)
        if first.tasks:
            begun = with_input(
                _without_end(first),
                program.input_channels,
                start.given,
                options.on_unreadable,
            )
            adopts_input = options.adopts_input or bool(found.changed_files)
            return replace(
                start, given=None, loaded=(begun,), adopts_input=adopts_input
            )
        # with durability="exit" nothing but its end is kept
        if start.given is not None:
            return _from_scratch(start, saved, start.metadata)
    return replace(start, given=None, over=saved, kept=found)


def _without_end(first: OpenCheckpoint) -> Saved:
    """Return the checkpoint with a run's input, without what its body came to; its
    answers stay.
    """
    bodies = {task.id for task in first.tasks}
    writes = tuple(
        each
        for each in first.saved.writes
        if each.task_id not in bodies or each.channel in (records.RESUME, records.ASKED)
    )
    return replace(first.saved, writes=writes)


def _program_named(program: Program, name: str) -> Program:
    """Return the *program* of a workflow under another name, of which its calls' ids
    are made.
    """
    if name in program.nodes:
        return program
    (node,) = program.nodes.values()
    triggers = dict.fromkeys(program.triggers, (name,))
    return replace(program, nodes={name: replace(node, name=name)}, triggers=triggers)


def _input_of_run(
    program: Program, saver: BaseCheckpointSaver, opened: OpenCheckpoint
) -> OpenCheckpoint:
    """Return the checkpoint that took in the input of a run; *opened*, its last, if it
    is gone.
    """
    saved: Saved | None = opened.saved
    while saved is not None and saved.checkpoint.source != "input":
        parent = saved.checkpoint.parent_id
        if parent is None:
            return opened
        saved = saver.load(
            replace(saved.address, checkpoint_id=parent), lazy_results=True
        )
    return opened if saved is None else open_checkpoint(program, saved)


def _recorded_digest(program: Program, opened: OpenCheckpoint) -> str | None:
    """Return the digest of the input that a run was started with, None: it is not
    known.
    """
    recorded: str | None = opened.saved.checkpoint.metadata.get(DIGEST)
    if recorded is not None and opened.applied is None:
        return recorded
    channel = _input_channel(program, opened)
    return (
        None if channel is None else digest_of(channel.get(), "the input", strict=False)
    )


def _input_channel(
    program: Program, opened: OpenCheckpoint
) -> BaseChannel[Any, Any] | None:
    """Return the channel that holds the input of a run; None: none does any more."""
    keys = program.input_channels
    channel = opened.state.channels.get(keys) if isinstance(keys, str) else None
    return channel if channel is not None and channel.is_available() else None


def _is_respelled(
    program: Program,
    saver: BaseCheckpointSaver,
    opened: OpenCheckpoint,
    once: RunIdentity,
    labels: Mapping[str, Any],
) -> bool:
    """Return whether the recorded input is the given one, but for parameters with
    defaults.

    These were added to the workflow since, so that the same call stands for another
    input.
    """
    first = opened if opened.tasks else _input_of_run(program, saver, opened)
    channel = _input_channel(program, first)
    if once.completed is None or channel is None or first.applied is not None:
        return False
    # Files are digested as they are now, and not as they were.
    if labels.get(FILES) != opened.saved.checkpoint.metadata.get(FILES):
        return False
    try:
        value = once.completed(channel.get())
    except TypeError:  # the workflow does not take that any more
        return False
    return bool(digest_of(value, "the input", strict=False) == labels[DIGEST])


def _labels_of_input(given: Any) -> dict[str, Any]:
    """Return what metadata keep of an input: its digest, and the files in it."""
    digest, files = with_files(lambda: digest_of(given, "the input", strict=False))
    return (
        {DIGEST: digest, FILES: [list(each) for each in files]}
        if files
        else {DIGEST: digest}
    )


def _is_recorded_input(given: Any, recorded: str | None) -> bool:
    """Return whether an input is the one that was recorded, but for fields that have
    defaults.

    Args:
        given: The input.
        recorded: The digest of an input from before its class may have gained these
            fields.
    """
    return recorded is not None and recorded in earlier_digests(given, "the input")


def _why(
    recorded: str | None, opened: OpenCheckpoint, labels: Mapping[str, Any]
) -> str:
    """Return why an input is not the one that was recorded."""
    if recorded is None:
        return "what its input was is not recorded"
    files = opened.saved.checkpoint.metadata.get(FILES, ())
    changed = changed_files(files, labels.get(FILES, ()))
    return "; ".join(text for _, text in changed) or "its input was another one"


def kept_result(program: Program, saved: Saved, options: Options) -> Steps:
    """Return the steps of a run that is over: they emit what it came to."""
    saved = readable(saved, options.on_unreadable)
    values = read(
        open_checkpoint(program, saved).state.channels, options.output_channels
    )
    if "values" in options.modes:
        yield Emit("values", values)
    return Result(values)


def for_saver(options: Options, saver: BaseCheckpointSaver) -> Options:
    """Return *options* for what *saver* can keep, and for the versions it makes."""
    own = replace(
        options,
        keeps_deltas=saver.keeps_deltas,
        keeps_arguments=saver.keeps_arguments,
        keeps_attempts=saver.keeps_attempts,
    )
    if not saver.owns_versions:
        return own
    return replace(
        own, next_version=lambda newest, _: saver.get_next_version(newest, None)
    )


# ---------------------------------------------------------------- what is kept


@dataclass(frozen=True, slots=True)
class OpenCheckpoint:
    """A saved checkpoint with its state, and the tasks that are due on it."""

    saved: Saved
    state: RunState
    tasks: list[Task]
    pending: Mapping[str, list[Write]]
    applied: Update | None
    """What the run's own writes changed in the state; no checkpoint holds it yet."""


def open_checkpoint(
    program: Program,
    saved: Saved,
    next_version: Callable[[Version | None, int], Version] = next_version,
    now: int = 0,
) -> OpenCheckpoint:
    """Return a saved checkpoint's state and due tasks, the run's own writes applied.

    Args:
        program: Whose thread it is.
        saved: The checkpoint.
        next_version: Makes the version of what those writes change, if it is to be
            kept.
        now: Wall-clock nanoseconds.
    """
    state = load_state(program, saved)
    checkpoint = saved.checkpoint
    step = checkpoint.step + 1
    pending: dict[str, list[Write]] = {}
    for item in saved.writes:
        pending.setdefault(item.task_id, []).append((item.channel, item.value))
    place = StepContext(checkpoint.id, saved.address.namespace, step, step + 2)
    own = [
        write
        for write in pending.get(RUN_TASK_ID, ())
        if write[0] not in records.SILENT_WRITES
    ]
    sends = any(channel == records.TASKS for channel, _ in own)
    tasks = [] if sends else plan(program, state, None, place)
    applied = (
        apply(program, state, [TaskOutput(own)], next_version(state.newest, now))
        if own
        else None
    )
    if sends:
        # What a command sent took the place of what the last superstep had sent, so
        # that those tasks are not due any more, nor their questions. Of other writes of
        # its own LangGraph's states do not show which tasks they lead to.
        tasks = plan(program, state, None, place)
    return OpenCheckpoint(saved, state, tasks, pending, applied)
