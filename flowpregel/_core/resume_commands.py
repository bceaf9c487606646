"""Commands as the input of a run: writes, answers, and the nodes that run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowpregel import errors
from flowpregel._annotations import annotations_of
from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TO_NODE,
    TaskOutput,
    apply,
    changing,
    check_writes,
    plan,
)
from flowpregel._core.commands import Command, Interrupt, Send
from flowpregel._core.effects import Steps
from flowpregel._core.ids import QuestionRecord
from flowpregel._core.prepared_writes import prepared_writes
from flowpregel._core.program import Program
from flowpregel._core.questions import ANY_QUESTION
from flowpregel._core.records import Write
from flowpregel._core.run import Run
from flowpregel._core.stream_events import interrupts_of
from flowpregel._text import outlined


def apply_command(
    run: Run,
    command: Command[Any],
    *,
    stores_writes: bool,
) -> Steps:
    """Apply a `Command` that is the input of a run.

    Args:
        run: The run that starts with the command.
        command: The command that the user passed as the input.
        stores_writes: True if the writes of the command are stored on the checkpoint
            from which the run starts.
    """
    writes = command_writes(run.program, command)
    if command.resume is not None:
        answers = _answers_of(run, command.resume, _open_questions(run, ()))
        if any(channel == records.TASKS for channel, _ in writes):
            answers = _after_goto(run, command.resume, answers, writes)
        run.answers.by_id.update(answers)
        writes.append((records.RESUME, dict(run.answers.by_id)))
    if not writes:
        raise errors.EmptyInputError(
            "Received empty Command input: give it update, resume or goto"
        )
    # The position of a stored write never changes, so the new writes get the positions
    # after the stored ones.
    pending = run.replay.pending
    stored = [
        write
        for write in pending.get(records.RUN_TASK_ID, ())
        if write[0] != records.RESUME
    ]
    preparations = run.program.preparations
    if preparations:
        author = f"{run.cursor.checkpoint_id}, {records.RUN_TASK_ID}, {run.now}"
        writes = list(prepared_writes(preparations, author, writes))
    stored += writes
    pending[records.RUN_TASK_ID] = stored
    if stores_writes and run.cursor.stored_id is not None:
        run.store_writes(records.RUN_TASK_ID, "", stored)
        yield from run.flush()


def own_writes(run: Run) -> list[Write]:
    """Return the writes that the run itself makes: a `Command`'s update and goto."""
    return [
        write
        for write in run.replay.pending.get(records.RUN_TASK_ID, ())
        if write[0] not in records.SILENT_WRITES
    ]


# ---------------------------------------------------------------- writes


def command_writes(program: Program, command: Command[Any]) -> list[Write]:
    """Return the channel writes of a `Command` that is the run's input.

    Raises:
        InvalidUpdateError: The command names a parent graph, an unknown channel or an
            unknown node.
    """
    if command.graph == Command.PARENT:
        raise errors.InvalidUpdateError(
            "There is no parent graph: Command.PARENT is for nested graphs"
        )
    goto: Any = command.goto
    is_several = isinstance(goto, list | tuple | set | frozenset)
    targets = goto if is_several else (goto,)
    writes = [_goto_write(program, target) for target in targets]
    if command.update is None:
        return writes
    updates = update_writes(command.update)
    check_writes(program, "Command(update=...)", updates)
    return writes + updates


def _goto_write(program: Program, target: Any) -> Write:
    """Return the channel write that starts a task of *target*: a node, or a `Send`."""
    if isinstance(target, Send):
        write = records.TASKS, target
        check_writes(program, "Command(goto=...)", (write,))
        return write
    if not isinstance(target, str):
        raise TypeError(f"Command(goto=...) takes node names and Sends, not {target!r}")
    channel = f"{TO_NODE}{target}"
    if channel not in program.channels:
        raise errors.InvalidUpdateError(
            f"Command(goto={target!r}): there is no such node; the nodes are: "
            f"{', '.join(sorted(program.nodes))}"
        )
    return channel, "__start__"


def update_writes(update: Any) -> list[Write]:
    """Return the (channel, value) pairs of an update: a dict, pairs, or an annotated
    object.
    """
    if isinstance(update, Mapping):
        return list(update.items())
    if isinstance(update, list | tuple) and all(_is_pair(item) for item in update):
        return list(update)
    annotations = annotations_of(type(update))
    if not annotations:
        return [("__root__", update)]
    values = ((name, getattr(update, name, None)) for name in annotations)
    return [(name, value) for name, value in values if value is not None]


def _is_pair(item: Any) -> bool:
    """Return whether *item* is a (channel, value) pair."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


# ---------------------------------------------------------------- questions


def _open_questions(run: Run, writes: Sequence[Write]) -> dict[str, Interrupt]:
    """Return the open questions of the tasks that are due, by id.

    Args:
        run: The run that starts with the command.
        writes: The writes of the command. The questions of tasks that they replace are
            left out.
    """
    replaced = _replaced_tasks(run, writes)
    questions: dict[str, Interrupt] = {}
    dropped: set[str] = set()
    for task_id, stored in run.replay.pending.items():
        if task_id == records.RUN_TASK_ID:
            continue
        for interrupt in interrupts_of(stored, live=True):
            if task_id in replaced:
                dropped.add(interrupt.id)
            questions[interrupt.id] = interrupt
    # The question of a call is also stored, under the same id, as a question of the
    # task that made the call. The question is dropped if either of the two tasks is
    # replaced.
    return {id: item for id, item in questions.items() if id not in dropped}


def _unanswered_records(run: Run) -> set[str]:
    """Return the ids of the recorded questions that have no answer. A task may ask some
    of them again only after it has got other answers.
    """
    question_ids: set[str] = set()
    replaced = _replaced_tasks(run, ())
    for task_id, stored in run.replay.pending.items():
        if task_id in replaced or not interrupts_of(stored, live=True):
            continue
        writes = dict(stored)
        answer_count = len(writes.get(records.RESUME, ()))
        for fields in writes.get(records.ASKED, ())[answer_count:]:
            question_ids.add(QuestionRecord(*fields).id)
    return question_ids


def _replaced_tasks(run: Run, writes: Sequence[Write]) -> set[str]:
    """Return the ids of the tasks that were due, and are not due any more because of a
    command.

    The `Send` objects of a command replace those of the last superstep, so the tasks
    that the replaced objects had planned are not due any more.
    """
    output = TaskOutput([*own_writes(run), *writes])
    if not any(channel == records.TASKS for channel, _ in output.writes):
        return set()
    step = run.step_context()
    before = plan(run.program, run.state, None, step)
    state = run.state.copy(changing(run.program, run.state, [output]))
    version = run.options.next_version(state.newest, run.now)
    apply(run.program, state, [output], version)
    after = plan(run.program, state, None, step)
    return {task.id for task in before} - {task.id for task in after}


# ---------------------------------------------------------------- answers


def _after_goto(
    run: Run,
    resume: Any,
    answers: dict[str, Any],
    writes: Sequence[Write],
) -> dict[str, Any]:
    """Return the answers to use for a command with both answers and a goto. The
    *writes* of the goto may replace the tasks whose questions are answered.

    An answer by id goes only to its question. An answer without an id goes, as in
    LangGraph, to the question that is asked first.
    """
    before = _open_questions(run, ())
    after = _open_questions(run, writes)
    dropped = [
        question
        for question_id, question in before.items()
        if question_id in answers and question_id not in after
    ]
    if dropped and not _is_by_id(resume):
        return {ANY_QUESTION: resume}
    for question in dropped:
        run.outbox.notify(
            f"the answer to {outlined(question.value)} is kept, but no task receives "
            "it: goto=Send(...) has replaced the task that asked (interrupt "
            f"{question.id})"
        )
    return answers


def _answers_of(
    run: Run,
    resume: Any,
    questions: Mapping[str, Interrupt],
) -> dict[str, Any]:
    """Return *resume* as answers by interrupt id.

    Raises:
        UnknownInterruptError: An id is unknown, or there is one answer for several
            questions.
    """
    if run.options.address is None:
        raise errors.ConfigurationError(
            "Cannot use Command(resume=...) without checkpointer: nothing was kept to "
            "resume (MISSING_CHECKPOINTER)"
        )
    pending = list(questions)
    if _is_by_id(resume):
        _check_ids(run, resume, questions)
        return dict(resume)
    if len(pending) > 1:
        raise errors.UnknownInterruptError(
            f"{len(pending)} interrupts are waiting for an answer: choose one with "
            "Command(resume={interrupt_id: answer}); if there are multiple pending "
            "interrupts, you must specify the interrupt id",
            "ambiguous",
            (),
            pending,
        )
    if pending:
        return {pending[0]: resume}
    is_at_rest = not run.replay.pending
    if is_at_rest and plan(run.program, run.state, None, run.step_context()):
        # The thread waits at a breakpoint and not for an answer, so the run continues.
        return {}
    raise errors.UnknownInterruptError(
        "there is nothing to resume: no interrupt of this thread is waiting for an "
        "answer; pass an input, or the thread_id of a run that is waiting"
    )


def _check_ids(
    run: Run,
    answers: Mapping[str, Any],
    questions: Mapping[str, Interrupt],
) -> None:
    """Raise an error if an answer names an interrupt that waits for no answer."""
    unknown = sorted(answers.keys() - questions.keys() - _unanswered_records(run))
    if not unknown or not run.replay.reuses_writes:
        return
    pending = list(questions)
    raise errors.UnknownInterruptError(
        f"interrupt {unknown[0]} is not waiting for an answer: it was answered, or "
        "belongs to another thread; the waiting interrupts are: "
        f"{', '.join(pending) or 'none'}",
        "not_pending",
        unknown,
        pending,
    )


def _is_by_id(resume: Any) -> bool:
    """Return whether *resume* maps the ids of questions to their answers."""
    if not isinstance(resume, Mapping) or not resume:
        return False
    return all(ids.is_interrupt_id(key) for key in resume)
