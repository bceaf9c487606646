"""The questions of one task, matched with the recorded questions, and the answers of a
run.

A question is recognised by its content, regardless of where it stands in the body:

==============================  ========================================================
the task asks                   effect
==============================  ========================================================
a recorded question             the task gets the answer to that question
another question, with the      the task gets the first unused answer, as in LangGraph,
code that asked before          and the user gets a notice; the question may differ only
                                because it contains a newly generated text
another question, with other    the question is asked; unused answers are kept
code
==============================  ========================================================

So an answer never goes to a different question that other code asks instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowpregel._core.commands import Interrupt
from flowpregel._core.ids import KnownQuestions, QuestionRecord, interrupt_id
from flowpregel._pickling.digest import digest_of
from flowpregel._text import outlined
from flowpregel.errors import ConfigurationError

NOTHING_KNOWN = KnownQuestions((), "")
ANY_QUESTION = ""
"""The key of an answer that was given without the id of a question. The question that
is asked first gets this answer.
"""


@dataclass(slots=True, eq=False)
class Answers:
    """The answers and the open questions of a run."""

    by_id: dict[str, Any] = field(default_factory=dict)
    """The answers that no task has taken yet, by interrupt id."""
    for_moved: list[Any] = field(default_factory=list)
    """The answers to a nested graph's own questions, if the ids of the graph's stored
    questions have changed (with its namespace), so that no answer fits by id. They go,
    in order, to the questions that the graph asks now.
    """
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    """The questions that this run has asked and that have no answer, by id."""
    questions: dict[str, QuestionRecord] = field(default_factory=dict)
    """The records of all questions without answers, by id, whether this run or an
    earlier run asked them.
    """

    @property
    def has_free_answer(self) -> bool:
        """True if there is an answer without a question id, which goes to the first
        question that is asked.
        """
        return bool(self.for_moved) or ANY_QUESTION in self.by_id


class AskedQuestions:
    """The questions that an attempt of a task asks, matched with the recorded
    questions.

    Args:
        name: The name of the task, for notices.
        namespace: The namespace of the task, from which the ids of the questions are
            made.
        known: The questions of earlier attempts. Questions with answers come first.
        answered: The number of questions with answers.
    """

    __slots__ = (
        "_answered",
        "_code",
        "_name",
        "_namespace",
        "_unused",
        "notices",
        "records",
    )

    def __init__(
        self,
        name: str,
        namespace: str,
        known: KnownQuestions,
        answered: int,
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._code = known.code
        self._answered = answered
        self.records: list[QuestionRecord] = list(known.records)
        """The recorded questions, and the new ones of this attempt."""
        for index in range(len(self.records), answered):
            self.records.append(QuestionRecord(interrupt_id(namespace, index)))
        self._unused = list(range(len(self.records)))
        """The indices in `records` of the recorded questions that this attempt has not
        asked yet.
        """
        self.notices: list[str] = []
        """The notices that the user has not received yet."""

    def find(self, value: Any) -> int:
        """Return the index in `records` of the question that *value* asks.

        If the question has an answer, the answer has the same index among the answers.
        """
        question = QuestionRecord("", _content_of(value), outlined(value))
        for index in self._unused:
            if self.records[index].content == question.content:
                self._unused.remove(index)
                return index
        for index in self._unused:
            known = self.records[index]
            if not known.content or known.code in ("", self._code):
                return self._take_by_order(index, question)
        if self._unused:
            self._notify_new(question)
        question = question._replace(
            id=interrupt_id(self._namespace, len(self.records))
        )
        self.records.append(question)
        return len(self.records) - 1

    def is_answered(self, index: int) -> bool:
        """Return whether the question at *index* has an answer."""
        return index < self._answered

    def without_answer(self, index: int) -> tuple[QuestionRecord, ...]:
        """Return the records in the new order that results if the question at *index*
        loses its answer: the question moves behind those with answers.
        """
        others = [record for at, record in enumerate(self.records) if at != index]
        others.insert(self._answered - 1, self.records[index])
        return tuple(others)

    def notify_unused(self) -> None:
        """Add a notice for each answer that no question used, after the task has
        returned.
        """
        for index in self._unused:
            if self.is_answered(index):
                self.notices.append(
                    f"{self._name}: the answer to "
                    f"{_question_text(self.records[index])} was not used, because the "
                    "question was not asked again; the answer is kept"
                )

    def _take_by_order(self, index: int, question: QuestionRecord) -> int:
        """Match *question* with the recorded question at *index*, in whose position the
        task asks it.
        """
        self._unused.remove(index)
        known = self.records[index]
        if not self.is_answered(index):
            # The user sees the new question now, so the next answer belongs to it.
            self.records[index] = question._replace(id=known.id)
        elif known.content:
            self.notices.append(
                f"{self._name}: the answer to {_question_text(known)} is used for "
                f"{_question_text(question)}, which the same code now asks instead; "
                "ask the same question each time, or compute the question in a task"
            )
        return index

    def _notify_new(self, question: QuestionRecord) -> None:
        """Add a notice that *question* is new, if the user might mistake it for a
        recorded question.
        """
        before = ", ".join(
            _question_text(self.records[index]) for index in self._unused
        )
        self.notices.append(
            f"{self._name}: the code or the input has changed since it asked "
            f"{before}; {_question_text(question)} is a new question, so it is asked; "
            "answers to earlier questions are kept"
        )


def _content_of(value: Any) -> str:
    """Return a digest of a question's value."""
    try:
        return digest_of(value, "a question", strict=False)
    except ConfigurationError:
        # A value that is nested too deeply has no digest, so its type stands for it.
        return f"a nested {type(value).__qualname__}"


def _question_text(record: QuestionRecord) -> str:
    return record.text or f"interrupt {record.id}"
