"""The start of a run: with new input, at the point where the last run stopped, or at an
earlier checkpoint.

====================  ==========================  ===============================
user input            on a thread with a state    on a thread without one
====================  ==========================  ===============================
input                 drops unfinished tasks,      starts
                      applies the input
None                  resumes                     EmptyInputError
Command(resume=...)   answers, resumes            UnknownInterruptError
Command(update=...)   writes, resumes             writes, starts
+ a checkpoint_id     replays from this            LookupError
                      checkpoint, on a new branch
====================  ==========================  ===============================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowpregel import errors
from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TO_NODE,
    TaskOutput,
    barrier_of,
    check_writes,
    plan,
)
from flowpregel._core.commands import Command
from flowpregel._core.effects import Emit, Load, Steps
from flowpregel._core.prepared_writes import prepared_writes
from flowpregel._core.program import Options, Program, names
from flowpregel._core.provenance import code_of_node
from flowpregel._core.records import Durability, Saved, Write
from flowpregel._core.resume_commands import apply_command, own_writes
from flowpregel._core.run import Run
from flowpregel._core.run_state import load_state, new_state
from flowpregel._core.stream_events import StreamEvents, interrupts_of
from flowpregel._core.unreadable import readable


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMode:
    """The relation of a run to the stored state of the thread."""

    resumes: bool
    """True if the run continues the thread's present superstep."""
    is_addressed: bool
    """True if the user has named the checkpoint from which the run starts."""
    is_answering: bool = False
    """True if the user answers a question."""
    command: Command[Any] | None = None
    """The command that is the input of the outermost run."""


def start(
    program: Program,
    options: Options,
    user_input: Any,
) -> Steps:
    """Load the thread, apply the user's input, and return the `Run`."""
    before = None if options.nested is None else options.nested.before
    saved: Saved | None = None
    if options.loaded is not None:
        (saved,) = options.loaded
    elif options.address is not None:
        saved = yield Load(options.address, before)
    run = _run_from(program, options, saved)
    _read_code_of_bodies(run)
    mode = _mode_of(options, saved, user_input)
    run.replay.is_resuming = mode.resumes and bool(run.state.versions)
    needs_branch = _choose_branch(run, saved, mode)
    _find_answers(run)
    if saved is not None:
        _check_next(run, saved, mode)
    if mode.command is not None:
        yield from apply_command(run, mode.command, stores_writes=not needs_branch)
    _apply_own_writes(run)
    if not run.replay.is_resuming:
        yield from _start_over(run, user_input)
        return run
    # The breakpoint at which the run stopped must not stop it again, so all versions
    # are marked as seen at the breakpoint.
    run.state.seen[records.INTERRUPT] = dict(run.state.versions)
    run.show()
    if needs_branch:
        yield from run.save_checkpoint("fork")
    else:
        yield from run.flush()
    return run


def _mode_of(
    options: Options,
    saved: Saved | None,
    user_input: Any,
) -> StartMode:
    """Return the relation of a run to the stored state of the thread."""
    nested = options.nested
    if nested is not None:
        return StartMode(
            resumes=nested.resuming,
            is_addressed=nested.addressed,
            is_answering=bool(nested.answers),
        )
    address = options.address
    is_addressed = address is not None and address.checkpoint_id is not None
    if isinstance(user_input, Command):
        return StartMode(
            resumes=True,
            is_addressed=is_addressed,
            is_answering=user_input.resume is not None,
            command=user_input,
        )
    resumes = user_input is None or _is_same_run(options, saved)
    return StartMode(resumes=resumes, is_addressed=is_addressed)


def _apply_own_writes(run: Run) -> None:
    """Apply the update and goto of a `Command` that is the input of the run."""
    writes = own_writes(run)
    if not writes:
        return
    update = run.apply([TaskOutput(writes)])
    if run.state.updated is not None:
        run.state.updated |= update.updated


def _read_code_of_bodies(run: Run) -> None:
    """Compute the digests of bodies before the bodies run. The digests are stored with
    the results.

    A body may change the objects that it closes over. If the digest were computed
    afterwards, such a change would look like an edit of the body.
    """
    if run.options.address is None:
        return
    for node in run.program.nodes.values():
        if node.role == "body":
            code_of_node(node)


def _run_from(
    program: Program,
    options: Options,
    saved: Saved | None,
) -> Run:
    """Return the run at the checkpoint *saved*.

    Raises:
        LookupError: The checkpoint that the user addressed does not exist.
        ValueEncodingError: A value of the checkpoint cannot be read, and is not
            computed again.
    """
    address = options.address
    if saved is None and address is not None and address.checkpoint_id is not None:
        raise LookupError(
            f"thread {address.thread_id!r} has no checkpoint {address.checkpoint_id!r}"
        )
    if saved is None:
        state = new_state(program)
    else:
        saved = readable(saved, options.on_unreadable)
        state = load_state(program, saved)
    events = StreamEvents(
        options.modes,
        options.output_channels,
        program.stream_channels,
        options.messages,
        options.task_labels,
    )
    run = Run(program, options, events, state, options.now)
    run.cursor.checkpoint_id = f"{options.now:x}"
    if options.durability is Durability.EXIT:
        run.outbox.is_deferred = True
        run.outbox.holds_attempts = True
    if saved is not None:
        _resume_at(run, saved)
    if records.PREVIOUS in state.channels:
        state.previous = state.read(records.PREVIOUS)
    run.cursor.stop = run.cursor.step + options.recursion_limit + 1
    return run


def _resume_at(run: Run, saved: Saved) -> None:
    """Let *run* continue at the checkpoint *saved*: set its superstep, and take over
    the checkpoint's pending writes.
    """
    checkpoint = saved.checkpoint
    cursor = run.cursor
    cursor.checkpoint_id = checkpoint.id
    cursor.stored_id = checkpoint.id
    cursor.parent_id = checkpoint.parent_id
    cursor.step = checkpoint.step + 1
    cursor.source = checkpoint.source
    run.now = not_before(run.now, saved)
    run.state.updated = set(checkpoint.updated_channels or ()) or None
    pending = run.replay.pending
    for write in saved.writes:
        pending.setdefault(write.task_id, []).append((write.channel, write.value))
    run.replay.lazy_results = saved.lazy_results


def not_before(now: int, saved: Saved) -> int:
    """Return *now*, or a later time if the thread has records that are newer than
    *now*.

    Otherwise, after the clock was set back, the checkpoints of a fork would sort before
    the checkpoints of the original branch, or would have the same ids and channel
    versions.
    """
    newest = 0
    if saved.newest_id is not None:
        newest = ids.time_from_id(saved.newest_id)
    return max(now, saved.checkpoint.at, newest)


def _is_same_run(options: Options, saved: Saved | None) -> bool:
    """Return whether a run with the same id has stored *saved*."""
    run_id = options.metadata.get("run_id")
    if run_id is None or not saved:
        return False
    return bool(saved.checkpoint.metadata.get("run_id") == run_id)


def _choose_branch(
    run: Run,
    saved: Saved | None,
    mode: StartMode,
) -> bool:
    """Return whether the run needs its own branch, and drop those stored writes that it
    must not use.
    """
    replay = run.replay
    is_replaying = mode.is_addressed and not mode.is_answering
    is_superseded = mode.is_addressed and saved is not None and not saved.is_latest
    replay.reuses_writes = not (is_replaying or is_superseded)
    if not is_replaying:
        return False
    # A replay from an edit's checkpoint needs no branch of its own, because the edit
    # has begun a branch. But once tasks have stored results there, the replay needs
    # one, because stored results are never replaced.
    has_results = replay.lazy_results is not None or _has_stored_results(run)
    for task_id, writes in replay.pending.items():
        without_answers = [write for write in writes if write[0] != records.RESUME]
        replay.pending[task_id] = without_answers
    is_edit = run.cursor.source in ("update", "fork")
    is_branch = is_edit and not (is_superseded or has_results)
    return replay.is_resuming and not is_branch


def _has_stored_results(run: Run) -> bool:
    """Return whether a task has stored writes other than questions."""
    for task_id, writes in run.replay.pending.items():
        if task_id == records.RUN_TASK_ID:
            continue
        for channel, _ in writes:
            if channel not in (records.INTERRUPT, records.ASKED):
                return True
    return False


def _find_answers(run: Run) -> None:
    """Collect the stored answers that no task has received yet, and the answers that
    the outer graph passes on.
    """
    answers = run.answers
    pending = run.replay.pending
    for channel, value in pending.get(records.RUN_TASK_ID, ()):
        if channel == records.RESUME and isinstance(value, Mapping):
            answers.by_id |= value
    nested = run.options.nested
    if nested is None:
        return
    answers.by_id |= nested.answers
    if not (nested.addressed and nested.own_answers):
        return
    questions: set[str] = set()
    for writes in pending.values():
        questions.update(item.id for item in interrupts_of(writes, live=True))
    if questions.isdisjoint(nested.answers):
        answers.for_moved += nested.own_answers


def _check_next(run: Run, saved: Saved, mode: StartMode) -> None:
    """Raise an error if a run that resumes cannot plan the tasks that are due.

    Raises:
        ConfigurationError: Another library stopped the thread in the middle of a
            superstep. The ids of the tasks in that superstep differ from ours.
        InvalidUpdateError: A node that is due no longer exists in the program.
    """
    is_redirected = mode.command is not None and bool(mode.command.goto)
    if is_redirected or not run.replay.is_resuming:
        return
    checkpoint = saved.checkpoint
    # If this library has made a checkpoint, the checkpoint's id ends with the number of
    # the superstep (see `ids.checkpoint_id`).
    is_ours = checkpoint.id.endswith(f"-{checkpoint.step + 2:012x}")
    is_foreign = not is_ours and bool(ids.time_from_id(checkpoint.id))
    has_tasks = bool(run.replay.pending.keys() - {records.RUN_TASK_ID})
    if is_foreign and has_tasks and run.replay.reuses_writes:
        raise errors.ConfigurationError(
            f"thread {saved.address.thread_id!r} was stopped by another library in the "
            "middle of a superstep: some of its tasks have ended, or have asked a "
            "question. Only a thread between two supersteps can be continued here; "
            "finish the superstep there, or start again with an input"
        )
    if own_writes(run):
        # A command has chosen the next nodes, so the stored next nodes are not checked.
        return
    # The state keeps the channels that the program no longer has. A node that such a
    # channel triggers was due only in the superstep after an update of the channel, so
    # only updated channels are checked.
    due: list[Write] = [
        (name, None)
        for name in checkpoint.updated_channels or ()
        if name.startswith(TO_NODE) and name in checkpoint.values
    ]
    sends = run.state.channels.get(records.TASKS)
    if sends is not None and sends.is_available():
        due.append((records.TASKS, sends.get()))
    check_writes(run.program, "the next superstep of this thread", due)


# ---------------------------------------------------------------- input


def _start_over(run: Run, user_input: Any) -> Steps:
    """Apply new input, and drop the unfinished tasks of an earlier run."""
    writes = input_writes(run, user_input)
    if writes:
        dropped = plan(run.program, run.state, None, run.step_context())
        has_body = any(task.node.role == "body" for task in dropped)
        if run.options.nested is None and has_body:
            run.outbox.effects.extend(_abandonment_notice(run))
        outputs = [TaskOutput(writes, records.INPUT), *barrier_of(dropped)]
        run.state.updated = run.apply(outputs).updated
        run.replay.clear()
    elif run.state.unsaved is None or not isinstance(user_input, Command):
        channels = ", ".join(names(run.program.input_channels))
        raise errors.EmptyInputError(
            f"Received no input for {channels}: pass one; None only resumes an "
            "existing run, under its thread_id"
        )
    yield from run.save_checkpoint("input")


def _abandonment_notice(run: Run) -> list[Emit]:
    """Return the notice that new input drops finished calls of an unfinished run.

    Returns:
        An empty list if no call has finished.
    """
    assert run.options.address is not None
    replay = run.replay
    count = 0 if replay.lazy_results is None else replay.lazy_results.count()
    for writes in replay.pending.values():
        if any(name == records.RETURN for name, _ in writes):
            count += 1
    if not count:
        return []
    thread_id = run.options.address.thread_id
    calls = "call" if count == 1 else "calls"
    text = (
        f"an unfinished run with {count:,} finished {calls} is left behind: to resume "
        f"it, use run(..., id={thread_id!r}) or invoke(None, thread_id={thread_id!r})"
    )
    return [Emit("notices", text)]


def input_writes(run: Run, user_input: Any) -> Sequence[Write]:
    """Return the channel writes of an input, as their channels prepare them. If the
    input is None or a `Command`, there are none.

    Raises:
        TypeError: There are several input channels, and the input is not a dict.
        InvalidUpdateError: A key of the input is not an input channel.
    """
    if user_input is None or isinstance(user_input, Command):
        return ()
    preparations = run.program.preparations
    channels = run.program.input_channels
    writes: Sequence[Write] = [(str(channels), user_input)]
    if not isinstance(channels, str):
        _check_keys(channels, user_input)
        writes = list(user_input.items())
    if not preparations:
        return writes
    author = f"{run.cursor.checkpoint_id}, {records.INPUT}, {run.now}"
    return prepared_writes(preparations, author, writes)


def _check_keys(channels: Sequence[str], user_input: Any) -> None:
    """Raise an error for an input whose keys are not the names of input channels."""
    if not isinstance(user_input, Mapping):
        raise TypeError(
            f"the input must be a dict with keys of {', '.join(channels)}, not "
            f"{user_input!r}"
        )
    for name in user_input:
        if name not in channels:
            raise errors.InvalidUpdateError(
                f"{name!r} is not an input channel; the input channels are: "
                f"{', '.join(channels)}"
            )
