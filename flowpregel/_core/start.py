"""How a run starts: from new input, from where it stopped, or from its past.

====================  ==========================  ===============================
what is given         on a thread that has state   on one that has none
====================  ==========================  ===============================
input                 drops unfinished tasks,      starts
                      applies the input
None                  goes on                      EmptyInputError
Command(resume=...)   answers, goes on             UnknownInterruptError
Command(update=...)   writes, goes on              writes, starts
+ a checkpoint_id     replays from there, on a     LookupError
                      branch of its own
====================  ==========================  ===============================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowpregel import errors
from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TO_NODE,
    TaskOutput,
    apply,
    barrier_of,
    changing,
    check_writes,
    plan,
)
from flowpregel._core.commands import Command, Interrupt, Send
from flowpregel._core.effects import Emit, Load, Steps
from flowpregel._core.ids import QuestionRecord
from flowpregel._core.program import Options, Program, load_state, names, new_state
from flowpregel._core.provenance import code_of_node
from flowpregel._core.records import Durability, Saved, Write
from flowpregel._core.run_state import ANY_QUESTION, Run
from flowpregel._core.stream_events import StreamEvents, interrupts_of
from flowpregel._core.unreadable import readable
from flowpregel._text import outlined
from flowpregel.channels.base import read


def start(program: Program, options: Options, given: Any) -> Steps:
    """Load the thread, take in what was given, and return the `Run` to go on with."""
    address, nested = options.address, options.nested
    addressed = address is not None and address.checkpoint_id is not None
    saved: Saved | None = None
    if options.loaded is not None:
        saved = options.loaded[0]
    elif address is not None:
        saved = yield Load(address, None if nested is None else nested.before)
    run = _run_from(program, options, saved)
    _read_code_of_bodies(run)
    command = given if isinstance(given, Command) and nested is None else None
    if nested is not None:
        goes_on, addressed, answering = (
            nested.resuming,
            nested.addressed,
            bool(nested.answers),
        )
    else:
        goes_on = given is None or command is not None or _is_same_run(options, saved)
        answering = command is not None and command.resume is not None
    run.resuming = goes_on and bool(run.state.versions)
    forks = _choose_branch(
        run, saved, addressed=addressed, replaying=addressed and not answering
    )
    _find_answers(run)
    if run.resuming and saved is not None and not (command and command.goto):
        _check_next(run, saved)
    if command is not None:
        yield from _obey(run, command, keep=not forks)
    if writes := _own_writes(run):
        applied = run.apply([TaskOutput(writes)])
        if run.updated is not None:
            run.updated |= applied.updated
    if run.resuming:
        # Past the breakpoint that stopped here.
        run.state.seen[records.INTERRUPT] = dict(run.state.versions)
        run.show()
        yield from run.save("fork", run.follows()) if forks else run.flush()
    else:
        yield from _start_anew(run, given)
    return run


def _read_code_of_bodies(run: Run) -> None:
    """Take the digests of bodies, which are kept with their results, before any of them
    runs.

    A body may change the objects that it closes over, and that is no edit of it.
    """
    if run.options.address is None:
        return
    for node in run.program.nodes.values():
        if node.role == "body":
            code_of_node(node)


def _run_from(program: Program, options: Options, saved: Saved | None) -> Run:
    """Return the run that stands at *saved*.

    Raises:
        LookupError: There is nothing at the checkpoint that the user addressed.
        ValueEncodingError: Something there cannot be read back, and is not made anew.
    """
    address = options.address
    if saved is None and address is not None and address.checkpoint_id is not None:
        raise LookupError(
            f"thread {address.thread_id!r} has no checkpoint {address.checkpoint_id!r}"
        )
    saved = saved and readable(saved, options.on_unreadable)
    run = Run(
        program=program,
        options=options,
        stream_events=StreamEvents(
            options.modes,
            options.output_channels,
            program.stream_channels,
            options.messages,
        ),
        state=new_state(program) if saved is None else load_state(program, saved),
        now=options.now,
        checkpoint_id=f"{options.now:x}",
        at_exit=options.durability is Durability.EXIT,
    )
    if saved is not None:
        checkpoint = saved.checkpoint
        run.checkpoint_id = run.kept_id = checkpoint.id
        run.parent_id = checkpoint.parent_id
        run.step = checkpoint.step + 1
        run.source = checkpoint.source
        run.now = not_before(run.now, saved)
        run.updated = set(checkpoint.updated_channels or ()) or None
        for item in saved.writes:
            run.pending.setdefault(item.task_id, []).append((item.channel, item.value))
        run.lazy_results = saved.lazy_results
    if records.PREVIOUS in run.state.channels:
        run.previous = read(run.state.channels, records.PREVIOUS)
    run.stop = run.step + options.recursion_limit + 1
    return run


def not_before(now: int, saved: Saved) -> int:
    """Return *now*, or a later time: what follows *saved* must not be older than what
    is there.

    A clock that was set back would put a fork's checkpoints before those of the branch
    that was there, or give them, and the versions of their channels, the very same ids.
    """
    newest = 0 if saved.newest_id is None else ids.time_from_id(saved.newest_id)
    return max(now, saved.checkpoint.at, newest)


def _is_same_run(options: Options, saved: Saved | None) -> bool:
    """Return whether *saved* was kept by a run of the same id, which this one
    continues.
    """
    run_id = options.metadata.get("run_id")
    return bool(
        run_id is not None
        and saved
        and saved.checkpoint.metadata.get("run_id") == run_id
    )


def _choose_branch(
    run: Run, saved: Saved | None, *, addressed: bool, replaying: bool
) -> bool:
    """Return whether the run needs a branch of its own, and drop what it must not use
    again.

    Args:
        run: The run.
        saved: The checkpoint that it starts from.
        addressed: Whether that was asked for by its id.
        replaying: Whether it was, and not to answer what was asked there.
    """
    superseded = addressed and saved is not None and not saved.is_latest
    run.hand_back = not (replaying or superseded)
    if not replaying:
        return False
    # What an edit made is a branch already, until tasks have kept something on it:
    # first results stay, so those of another try need a checkpoint of their own.
    has_results = run.lazy_results is not None or any(
        channel not in (records.INTERRUPT, records.ASKED)
        for task_id, writes in run.pending.items()
        if task_id != records.RUN_TASK_ID
        for channel, _ in writes
    )
    for task_id, writes in run.pending.items():
        run.pending[task_id] = [write for write in writes if write[0] != records.RESUME]
    is_branch = run.source in ("update", "fork") and not (superseded or has_results)
    return run.resuming and not is_branch


def _find_answers(run: Run) -> None:
    """Take answers kept for tasks that have not run since, and those of the graph
    around.
    """
    for channel, value in run.pending.get(records.RUN_TASK_ID, ()):
        if channel == records.RESUME and isinstance(value, Mapping):
            run.answers |= value
    if (nested := run.options.nested) is not None:
        run.answers |= nested.answers
        if nested.addressed and nested.own_answers:
            pending = run.pending.values()
            asks = {
                each.id
                for writes in pending
                for each in interrupts_of(writes, live=True)
            }
            if asks.isdisjoint(nested.answers):
                run.moved_answers += nested.own_answers


def _own_writes(run: Run) -> list[Write]:
    """Return the writes that the run itself made: those of `Command.update` and
    `goto`.
    """
    return [
        write
        for write in run.pending.get(records.RUN_TASK_ID, ())
        if write[0] not in records.SILENT_WRITES
    ]


def _check_next(run: Run, saved: Saved) -> None:
    """Refuse to go on as if all were done where a node that is due is gone from the
    program.

    And where another library stopped in a superstep: its tasks have other ids than
    ours.
    """
    checkpoint = saved.checkpoint
    # see `ids.checkpoint_id`
    is_ours = checkpoint.id.endswith(f"-{checkpoint.step + 2:012x}")
    if (
        not is_ours
        and ids.time_from_id(checkpoint.id)
        and run.hand_back
        and run.pending.keys() - {records.RUN_TASK_ID}
    ):
        raise errors.ConfigurationError(
            f"thread {saved.address.thread_id!r} was left by another library in the "
            "middle of a "
            "superstep, of which tasks have ended or ask: only threads at rest move "
            "over; finish "
            "it there, or start anew with an input"
        )
    if _own_writes(run):
        return  # a command sent it elsewhere
    updated, values = checkpoint.updated_channels or (), checkpoint.values
    # What is no channel of the program stays in the state for ever: it is due only at
    # first.
    due = [
        (name, None) for name in updated if name.startswith(TO_NODE) and name in values
    ]
    sent = run.state.channels.get(records.TASKS)
    if sent is not None and sent.is_available():
        due.append((records.TASKS, sent.get()))
    check_writes(run.program, "what this thread is to do next", due)


# ---------------------------------------------------------------- commands


def _obey(run: Run, command: Command[Any], *, keep: bool) -> Steps:
    """Take in a `Command`; *keep* its writes on the checkpoint the run starts from."""
    writes = command_writes(run.program, command)
    if command.resume is not None:
        waiting = _waiting(run, ())
        answers = _answers_of(run, command.resume, waiting)
        if any(channel == records.TASKS for channel, _ in writes):
            answers = _after_goto(run, command.resume, answers, writes)
        run.answers.update(answers)
        writes.append((records.RESUME, dict(run.answers)))
    if not writes:
        raise errors.EmptyInputError(
            "Received empty Command input: give it update, resume or goto"
        )
    # Positions count from what is kept already: a write's place never changes.
    kept = [
        write
        for write in run.pending.get(records.RUN_TASK_ID, ())
        if write[0] != records.RESUME
    ]
    run.pending[records.RUN_TASK_ID] = kept = [*kept, *writes]
    if keep and run.kept_id is not None:
        run.keep(records.RUN_TASK_ID, "", kept)
        yield from run.flush()


def command_writes(program: Program, command: Command[Any]) -> list[Write]:
    """Return the channel writes that a `Command` given as input stands for.

    Raises:
        InvalidUpdateError: It names a parent graph, an unknown channel or node.
    """
    if command.graph == Command.PARENT:
        raise errors.InvalidUpdateError(
            "There is no parent graph: Command.PARENT is for nested graphs"
        )
    writes: list[Write] = []
    goto: Any = command.goto
    for target in goto if isinstance(goto, list | tuple | set | frozenset) else (goto,):
        if isinstance(target, Send):
            check_writes(program, "Command(goto=...)", ((records.TASKS, target),))
            writes.append((records.TASKS, target))
        elif not isinstance(target, str):
            raise TypeError(
                f"Command(goto=...) takes node names and Sends, not {target!r}"
            )
        elif (channel := f"{TO_NODE}{target}") in program.channels:
            writes.append((channel, "__start__"))
        else:
            raise errors.InvalidUpdateError(
                f"Command(goto={target!r}): there is no node of that name to go to; "
                f"the nodes are: {', '.join(sorted(program.nodes))}"
            )
    if command.update is None:
        return writes
    updates = update_writes(command.update)
    check_writes(program, "Command(update=...)", updates)
    return writes + updates


def update_writes(update: Any) -> list[Write]:
    """Return the (channel, value) pairs of an update: a dict, pairs, or an annotated
    object.
    """
    if isinstance(update, Mapping):
        return list(update.items())
    if isinstance(update, list | tuple) and all(
        isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
        for item in update
    ):
        return list(update)
    if annotations := getattr(type(update), "__annotations__", None):
        found = ((name, getattr(update, name, None)) for name in annotations)
        return [(name, value) for name, value in found if value is not None]
    return [("__root__", update)]


def _waiting(run: Run, writes: Sequence[Write]) -> dict[str, Interrupt]:
    """Return the questions of the tasks that are due, by id.

    Args:
        run: The run.
        writes: What the run itself is about to write, beside what it wrote before.
    """
    replaced = _replaced_tasks(run, writes)
    waiting: dict[str, Interrupt] = {}
    dropped: set[str] = set()
    for task_id, kept in run.pending.items():
        if task_id == records.RUN_TASK_ID:
            continue
        for item in interrupts_of(kept, live=True):
            if task_id in replaced:
                dropped.add(item.id)
            waiting[item.id] = item
    # What a call asks, the task that made it asks too.
    return {id: item for id, item in waiting.items() if id not in dropped}


def _asked_before(run: Run) -> set[str]:
    """Return the ids of unanswered questions that other code asks now, or asks
    later.
    """
    before: set[str] = set()
    replaced = _replaced_tasks(run, ())
    for task_id, kept in run.pending.items():
        if task_id not in replaced and interrupts_of(kept, live=True):
            found = dict(kept)
            answered = len(found.get(records.RESUME, ()))
            asked = found.get(records.ASKED, ())
            before.update(QuestionRecord(*each).id for each in asked[answered:])
    return before


def _replaced_tasks(run: Run, writes: Sequence[Write]) -> set[str]:
    """Return the ids of the tasks that are not due any more since a command sent
    others.

    A `Send` of a command takes the place of those that the last superstep has sent.
    """
    own = [TaskOutput([*_own_writes(run), *writes])]
    if not any(channel == records.TASKS for channel, _ in own[0].writes):
        return set()
    setting = run.setting()
    before = {task.id for task in plan(run.program, run.state, None, setting)}
    state = run.state.copy(changing(run.program, run.state, own))
    apply(run.program, state, own, run.options.next_version(state.newest, run.now))
    return before - {task.id for task in plan(run.program, state, None, setting)}


def _after_goto(
    run: Run, resume: Any, answers: dict[str, Any], writes: Sequence[Write]
) -> dict[str, Any]:
    """Return *answers* where *writes* of the same command may drop the tasks that
    asked.

    An answer by id stays with its question. One to the only question is, as in
    LangGraph, for what is asked first.
    """
    before, after = _waiting(run, ()), _waiting(run, writes)
    dropped = [
        question for id, question in before.items() if id in answers and id not in after
    ]
    if dropped and not _is_by_id(resume):
        return {ANY_QUESTION: resume}
    for question in dropped:
        run.note(
            f"the answer to {outlined(question.value)} is kept, and no task takes it: "
            f"goto=Send(...) has replaced the task that asked (interrupt {question.id})"
        )
    return answers


def _answers_of(
    run: Run, resume: Any, waiting: Mapping[str, Interrupt]
) -> dict[str, Any]:
    """Return *resume* as answers by interrupt id.

    Raises:
        UnknownInterruptError: An unknown id, or one answer for several questions.
    """
    if run.options.address is None:
        raise errors.ConfigurationError(
            "Cannot use Command(resume=...) without checkpointer: nothing was kept to "
            "resume"
        )
    pending = list(waiting)
    if _is_by_id(resume):
        unknown = sorted(resume.keys() - waiting.keys() - _asked_before(run))
        if unknown and run.hand_back:
            raise errors.UnknownInterruptError(
                f"interrupt {unknown[0]} is not waiting for an answer: it was "
                "answered, or never "
                f"asked on this thread; waiting are: {', '.join(pending) or 'none'}",
                "not_pending",
                unknown,
                pending,
            )
        return dict(resume)
    if len(pending) > 1:
        raise errors.UnknownInterruptError(
            f"{len(pending)} interrupts wait for an answer: say which one with "
            "Command(resume={interrupt_id: answer})",
            "ambiguous",
            (),
            pending,
        )
    if pending:
        return {pending[0]: resume}
    if not run.pending and plan(run.program, run.state, None, run.setting()):
        return {}  # it stands at a breakpoint, and goes on
    raise errors.UnknownInterruptError(
        "there is nothing to resume: no interrupt of this thread waits for an answer; "
        "pass an "
        "input, or the thread_id of a run that asks"
    )


def _is_by_id(resume: Any) -> bool:
    """Return whether *resume* maps the ids of questions to their answers."""
    return (
        isinstance(resume, Mapping)
        and bool(resume)
        and all(map(ids.is_interrupt_id, resume))
    )


# ---------------------------------------------------------------- input


def _start_anew(run: Run, given: Any) -> Steps:
    """Apply new input, and drop what an earlier run left unfinished."""
    if writes := input_writes(run.program, given):
        dropped = plan(run.program, run.state, None, run.setting())
        if run.options.nested is None and any(
            task.node.role == "body" for task in dropped
        ):
            run.after.extend(_left_behind(run))
        for task in dropped:
            task.writes = ()
        applied = run.apply([TaskOutput(writes, records.INPUT), *barrier_of(dropped)])
        run.updated = applied.updated
        run.pending, run.lazy_results = {}, None
    elif run.unsaved is None or not isinstance(given, Command):
        raise errors.EmptyInputError(
            f"Received no input for {', '.join(names(run.program.input_channels))}: "
            "pass one; "
            "None goes on with a run that is there, under its thread_id"
        )
    yield from run.save("input", run.follows())


def _left_behind(run: Run) -> list[Emit]:
    """Return the notice that new input drops finished calls of an unfinished run, if it
    does.
    """
    assert run.options.address is not None
    calls = 0 if run.lazy_results is None else run.lazy_results.count()
    for writes in run.pending.values():
        calls += any(name == records.RETURN for name, _ in writes)
    if not calls:
        return []
    thread_id = run.options.address.thread_id
    return [
        Emit(
            "notices",
            f"an unfinished run with {calls:,} finished call{'s' * (calls > 1)} "
            "is left behind: "
            f"to go on with it, use run(..., id={thread_id!r}) or "
            f"invoke(None, thread_id={thread_id!r})",
        )
    ]


def input_writes(program: Program, given: Any) -> list[Write]:
    """Return the channel writes that an input stands for; None and a `Command` stand
    for none.

    Raises:
        TypeError: Several input channels, and no dict.
        InvalidUpdateError: A key that is no input channel.
    """
    if given is None or isinstance(given, Command):
        return []
    channels = program.input_channels
    if isinstance(channels, str):
        return [(channels, given)]
    if not isinstance(given, Mapping):
        raise TypeError(
            f"the input must be a dict with keys of {', '.join(channels)}, not "
            f"{given!r}"
        )
    for name in given:
        if name not in channels:
            raise errors.InvalidUpdateError(
                f"{name!r} is not an input channel; the input channels are: "
                f"{', '.join(channels)}"
            )
    return list(given.items())
