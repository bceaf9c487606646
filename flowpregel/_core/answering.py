"""The answers that a run gives its tasks, and the records of their questions."""

from __future__ import annotations

from typing import Any

from flowpregel import errors
from flowpregel._core import ids, records
from flowpregel._core.ids import KnownQuestions, QuestionRecord
from flowpregel._core.provenance import code_of_node
from flowpregel._core.questions import ANY_QUESTION
from flowpregel._core.recorded_calls import digest_of_caller
from flowpregel._core.records import Interrupted, Kind, Outcome, Task, Write
from flowpregel._core.run import Run
from flowpregel._core.stream_events import interrupts_of
from flowpregel._pickling.copies import as_storable

Questions = tuple[QuestionRecord, ...]
"""The questions of a task. Questions with answers come first."""


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* the state that its last attempt saved, its earlier answers, and its
    new answers to its questions.

    A new answer is stored before the task starts.
    """
    questions = _read_pending(run, task)
    if task.node.role == "graph":
        _pass_answers_on(run, task)
        return
    if run.answers.by_id:
        questions = _take_answers(run, task, questions)
    if questions:
        task.attempt.questions = KnownQuestions(questions, _code_of_asker(task))


def _read_pending(run: Run, task: Task) -> Questions:
    """Give *task* the state that its last attempt saved and its earlier answers, and
    return the task's questions.
    """
    attempt = task.attempt
    writes = dict(run.replay.pending.get(task.id, ()))
    if records.RESUME in writes:
        attempt.answers = tuple(writes[records.RESUME])
    if records.SAVED in writes and run.replay.reuses_writes:
        attempt.saved = writes[records.SAVED]
    rows = writes.get(records.ASKED, ())
    return tuple(QuestionRecord(*row) for row in rows)


def _pass_answers_on(run: Run, task: Task) -> None:
    """Give a task that runs a graph the answers to the questions asked inside the
    graph.
    """
    answers = run.answers.by_id
    if not answers:
        return
    pending = run.replay.pending.get(task.id, ())
    waiting = interrupts_of(pending, live=True)
    task.attempt.answers = tuple(
        answers[interrupt.id] for interrupt in waiting if interrupt.id in answers
    )


def _take_answers(
    run: Run,
    task: Task,
    questions: Questions,
) -> Questions:
    """Give *task* the new answers to its questions, and return all its questions, the
    answered ones first.
    """
    by_id = run.answers.by_id
    count = len(task.attempt.answers)
    known = list(questions)
    while len(known) < count:
        known.append(QuestionRecord(ids.interrupt_id(task.namespace, len(known))))
    if count and known[count - 1].id in by_id:
        # The user has answered the task's last question again, because the task failed
        # after it had got the first answer. The new answer replaces the first one.
        count -= 1
    answers = list(task.attempt.answers[:count])
    answered = known[:count]
    waiting: list[QuestionRecord] = []
    for record in known[count:]:
        if record.id in by_id:
            answered.append(record)
            answers.append(by_id.pop(record.id))
        else:
            waiting.append(record)
    # An interrupt that another library has stored has no record of the question, so it
    # is not in *questions*. Its answer is found under the id that the task's next
    # interrupt would have.
    next_id = ids.interrupt_id(task.namespace, len(answered) + len(waiting))
    while next_id in by_id:
        answered.append(QuestionRecord(next_id))
        answers.append(by_id.pop(next_id))
        next_id = ids.interrupt_id(task.namespace, len(answered) + len(waiting))
    if len(answers) == count:
        return questions
    task.attempt.answers = tuple(answers)
    reordered = (*answered, *waiting)
    _store_answers(run, task, reordered, is_reordered=reordered != questions)
    return reordered


def _store_answers(
    run: Run,
    task: Task,
    questions: Questions,
    *,
    is_reordered: bool,
) -> None:
    """Store the answers of *task*, and its questions if the answers have changed their
    order.
    """
    writes: tuple[Write, ...] = ((records.RESUME, task.attempt.answers),)
    if is_reordered:
        rows = tuple(tuple(question) for question in questions)
        writes = (*writes, (records.ASKED, rows))
    run.store_writes(task.id, task.path, writes)
    # The answers are also added to the pending writes. If *task* is a call of a body,
    # and the body makes the call again in its next attempt, the call finds its answers
    # there.
    run.replay.pending.setdefault(task.id, []).extend(writes)


def answer_first_question(
    run: Run,
    task: Task,
    outcome: Outcome,
) -> bool:
    """Give the answer that is meant for the first question of the run to *task*, if it
    has just asked a question.

    Returns:
        True if the task has asked a question. Its next attempt gets the answer.
    """
    if not isinstance(outcome, Interrupted) or not outcome.interrupts:
        return False
    answers = run.answers
    if ANY_QUESTION in answers.by_id:
        answer = answers.by_id.pop(ANY_QUESTION)
        run.drop_answer(ANY_QUESTION)
    else:
        answer = answers.for_moved.pop(0)
    answers.by_id[outcome.interrupts[0].id] = answer
    writes = questions_of(run, task, outcome)
    run.replay.pending.setdefault(task.id, []).extend(writes)
    answer_from_pending(run, task)
    return True


def questions_of(
    run: Run,
    task: Task,
    outcome: Interrupted,
) -> tuple[Write, ...]:
    """Return the writes that record the questions of *task* and the code that asked."""
    if not outcome.questions:
        return ()
    code = _code_of_asker(task)
    questions = [
        question if question.code else question._replace(code=code)
        for question in outcome.questions
    ]
    open_questions = questions
    # All questions in the outcome of a graph are still open, because its answered
    # questions are stored with the graph's own tasks.
    if task.node.role != "graph":
        is_refused = outcome.refused is not None
        answers = outcome.answers if is_refused else task.attempt.answers
        open_questions = questions[len(answers) :]
    for question in open_questions:
        run.answers.questions[question.id] = question
    return ((records.ASKED, tuple(tuple(question) for question in questions)),)


def _code_of_asker(task: Task) -> str:
    """Return a digest of the code of *task*. If the task runs a body, the digest
    includes the body's input.
    """
    record = task.record
    if record is not None:
        return record.code
    if task.node.role == "body":
        return digest_of_caller(task)
    return code_of_node(task.node)


def interrupts_by_id(task: Task, outcome: Interrupted) -> dict[str, Any]:
    """Return the interrupts of the calls of *task* and then of *task* itself, by id."""
    by_id: dict[str, Any] = {}
    body = task.attempt.body
    if body is not None:
        for path in sorted(body.interrupts):
            for interrupt in body.interrupts[path]:
                by_id[interrupt.id] = interrupt
    for interrupt in outcome.interrupts:
        by_id[interrupt.id] = interrupt
    return by_id


def store_questions(run: Run, task: Task, outcome: Interrupted) -> None:
    """Store the questions of a task and its calls, and add them to the stream.

    An answer that did not fit the schema of valid answers to its question is dropped.
    The questions of a call are also stored as questions of the body that made the call.
    """
    error = outcome.refused
    is_call = task.kind is Kind.CALL
    by_id = interrupts_by_id(task, outcome)
    interrupts = tuple(by_id.values())
    after_commit = run.outbox.effects
    events = run.stream_events
    writes: list[Write] = []
    if error is not None:
        # The run fails because the task has refused the answer, but not at once: the
        # other tasks continue, because they have already received their answers.
        setattr(error, errors.INVALID_RESUME, outcome.interrupts[0].id)
        run.refuse_answer(error)
        writes.append((records.RESUME, outcome.answers))
        if not is_call:
            # If a call has refused an answer, no error is stored for the call, because
            # it is tried again together with its body.
            writes.append((records.ERROR, as_storable(error)))
    elif interrupts and run.options.modes and not is_call:
        values = run.state.read(run.options.output_channels)
        after_commit.extend(events.interrupted(interrupts, values))
    writes.append((records.INTERRUPT, interrupts))
    writes += questions_of(run, task, outcome)
    run.store_end(task, writes)
    end = error or interrupts
    # A task that has neither has only stopped: a graph that it runs is at a breakpoint.
    if events.shows_tasks and end:
        after_commit.extend(events.ended(task, run.cursor.step, run.now, end))
    if not is_call:
        run.answers.interrupts |= by_id
        return
    assert task.parent is not None
    task.parent.attempt.body.interrupts[task.path] = interrupts
