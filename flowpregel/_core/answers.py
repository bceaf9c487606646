"""The answers that a run gives its tasks, and what is kept of their questions."""

from __future__ import annotations

from flowpregel._core import ids, records
from flowpregel._core.ids import KnownQuestions, QuestionRecord
from flowpregel._core.provenance import code_of_node
from flowpregel._core.records import Interrupted, Outcome, Task, Write
from flowpregel._core.replay import digest_of_caller
from flowpregel._core.run_state import ANY_QUESTION, Run
from flowpregel._core.stream_events import interrupts_of


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* what it saved and the answers it had; the new one it waits for is
    kept.
    """
    asked: tuple[QuestionRecord, ...] = ()
    for channel, value in run.pending.get(task.id, ()):
        if channel == records.RESUME:
            task.answers = tuple(value)
        elif channel == records.ASKED:
            asked = tuple(QuestionRecord(*each) for each in value)
        elif channel == records.SAVED and run.hand_back:
            task.saved = value
    if task.node.role == "graph":
        waiting = interrupts_of(run.pending.get(task.id, ()), live=True)
        given = [run.answers[each.id] for each in waiting if each.id in run.answers]
        task.answers = tuple(given) if run.answers else task.answers
        return
    if run.answers:
        asked = _take_answers(run, task, asked)
    if asked:
        task.questions = KnownQuestions(asked, _code_of_asker(task))


def _take_answers(
    run: Run, task: Task, asked: tuple[QuestionRecord, ...]
) -> tuple[QuestionRecord, ...]:
    """Give *task* the answers to what it has *asked*; return that, what is answered
    first.
    """
    had = len(task.answers)
    known = [*asked]
    known += [
        QuestionRecord(ids.interrupt_id(task.namespace, index))
        for index in range(len(known), had)
    ]
    if had and known[had - 1].id in run.answers:
        had -= 1  # it failed with that answer, and gets another in its place
    answers, answered, waiting = (
        [*task.answers[:had]],
        known[:had],
        list[QuestionRecord](),
    )
    for record in known[had:]:
        if record.id in run.answers:
            answered.append(record)
            answers.append(run.answers.pop(record.id))
        else:
            waiting.append(record)
    # Of a question that another library has kept there is no record.
    while (
        next_id := ids.interrupt_id(task.namespace, len(answered + waiting))
    ) in run.answers:
        answered.append(QuestionRecord(next_id))
        answers.append(run.answers.pop(next_id))
    if len(answers) == had:
        return asked
    task.answers = tuple(answers)
    reordered = (*answered, *waiting)
    kept: tuple[Write, ...] = ((records.RESUME, task.answers),)
    if reordered != asked:
        kept = (*kept, (records.ASKED, tuple(map(tuple, reordered))))
    run.keep(task.id, task.path, kept)
    # If the call is made again, by the next attempt of its body, it has its answers
    # too.
    run.pending.setdefault(task.id, []).extend(kept)
    return reordered


def answer_first_question(run: Run, task: Task, outcome: Outcome) -> bool:
    """Give *task* the answer that is for what is asked first, if it asks now; return
    whether.
    """
    if not isinstance(outcome, Interrupted) or not outcome.interrupts:
        return False
    if ANY_QUESTION in run.answers:
        answer = run.answers.pop(ANY_QUESTION)
        run.drop_answer(ANY_QUESTION)
    else:
        answer = run.moved_answers.pop(0)
    run.answers[outcome.interrupts[0].id] = answer
    run.pending.setdefault(task.id, []).extend(questions_of(run, task, outcome))
    answer_from_pending(run, task)
    return True


def questions_of(run: Run, task: Task, outcome: Interrupted) -> tuple[Write, ...]:
    """Return the writes that keep what *task* has asked, and which code has asked
    it.
    """
    if not outcome.questions:
        return ()
    code = _code_of_asker(task)
    asked = [
        each if each.code else each._replace(code=code) for each in outcome.questions
    ]
    answered = len(task.answers if outcome.refused is None else outcome.answers)
    # Of a graph those that have answers are kept with its own tasks.
    for question in asked if task.node.role == "graph" else asked[answered:]:
        run.questions[question.id] = question
    return ((records.ASKED, tuple(map(tuple, asked))),)


def _code_of_asker(task: Task) -> str:
    """Return a digest of the code that *task* asks by; of a body, of its input too."""
    if task.record is not None:
        return task.record.code
    return (
        digest_of_caller(task) if task.node.role == "body" else code_of_node(task.node)
    )
