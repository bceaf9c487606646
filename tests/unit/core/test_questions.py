"""The questions that a task asks again: which answers are theirs, and what is told."""

from __future__ import annotations

from flowpregel._core.ids import KnownQuestions, QuestionRecord
from flowpregel._core.questions import AskedQuestions


def asked(*questions: str, code: str = "old") -> tuple[QuestionRecord, ...]:
    """Return the records of *questions* of a task with that *code*."""
    first = AskedQuestions("n", "space", KnownQuestions((), code), 0)
    for question in questions:
        first.find(question)
    return tuple(record._replace(code=code) for record in first.records)


def again(
    records: tuple[QuestionRecord, ...], answered: int, code: str = "old"
) -> AskedQuestions:
    """Return the questions of the next attempt, which *code* asks."""
    return AskedQuestions("n", "space", KnownQuestions(records, code), answered)


def test_a_question_that_was_asked_before_has_its_answer_wherever_it_is() -> None:
    """Other code may ask in another order."""
    questions = again(asked("one", "two"), 2, code="new")

    assert [1, 0] == [questions.find("two"), questions.find("one")]
    assert questions.is_answered(0)
    assert questions.is_answered(1)
    assert [] == questions.notices


def test_an_answer_is_used_for_what_the_same_code_asks_in_its_place() -> None:
    """A draft, say, was made anew; the user gets a notice with both."""
    questions = again(asked("draft 1"), 1)

    assert 0 == questions.find("draft 2")
    (notice,) = questions.notices
    assert "draft 1" in notice.partition(" is used for ")[0]
    assert "draft 2" in notice.partition(" is used for ")[2]


def test_a_question_without_an_answer_is_replaced_by_what_the_same_code_asks() -> None:
    """The answer that comes next is one to that; its id stays."""
    records = asked("draft 1")
    questions = again(records, 0)

    assert 0 == questions.find("draft 2")
    (record,) = questions.records
    assert (records[0].id, asked("draft 2")[0].content) == (record.id, record.content)
    assert [] == questions.notices


def test_what_other_code_asks_is_a_question_of_its_own() -> None:
    """The answer to the former one is kept for it, and the user gets a notice."""
    questions = again(asked("old?"), 1, code="new")

    index = questions.find("new?")

    assert 1 == index
    assert not questions.is_answered(index)
    assert asked("old?")[0].id != questions.records[index].id
    (notice,) = questions.notices
    assert "has changed since it asked" in notice


def test_an_answer_that_no_question_took_is_named_when_the_task_returns() -> None:
    """An open question without an answer is not."""
    questions = again(asked("one", "two", "three"), 2)
    questions.find("one")

    questions.notify_unused()

    (notice,) = questions.notices
    assert "the answer to two was not used" in notice.replace("'", "")


def test_a_refused_answer_leaves_its_question_open() -> None:
    """The questions with answers come first, in the order of these."""
    questions = again(asked("one", "two", "three"), 2)

    records = questions.without_answer(0)

    one, two, three = asked("one", "two", "three")
    assert (two, one, three) == records
