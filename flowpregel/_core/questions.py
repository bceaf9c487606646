"""The questions of one task: which of those it asked before it asks now, and with which
answer.

A question is known by what it asks, wherever it stands in the body now:

==============================  ========================================================
the task asks                   then
==============================  ========================================================
what it asked before            it has the answer to that
something else, by the code     the first answer that is left counts, by order, as in
that asked before               LangGraph: a draft, say, was made anew, and a notice is
                                shown
something else, by other code   it is asked; the answers that are left are kept
==============================  ========================================================

So no answer is given to a question that other code asks in the place of another.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.digest import digest_of
from flowpregel._core.ids import KnownQuestions, QuestionRecord, interrupt_id
from flowpregel._text import outlined
from flowpregel.errors import ConfigurationError

NOTHING_KNOWN = KnownQuestions((), "")


class AskedQuestions:
    """The questions that an attempt of a task asks, beside those that are known of it.

    Args:
        name: The name of the task, for notices.
        namespace: The namespace that the ids of its questions are made of.
        known: Those that it has asked before; those with answers come first.
        answered: How many have answers.
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
        self.records = list(known.records)
        """All that are known by now."""
        for index in range(len(self.records), answered):
            self.records.append(QuestionRecord(interrupt_id(namespace, index)))
        self._unused = list(range(len(self.records)))
        """The places among these of the questions that this attempt has not asked."""
        self.notices: list[str] = []
        """What the user is to know and was not told."""

    def find(self, value: Any) -> int:
        """Return the place among the records of the question that *value* asks.

        Its answer has the same place among the answers, if it has one.
        """
        asked = QuestionRecord("", _content_of(value), outlined(value))
        for index in self._unused:
            if self.records[index].content == asked.content:
                self._unused.remove(index)
                return index
        for index in self._unused:
            known = self.records[index]
            if not known.content or known.code in ("", self._code):
                return self._take_by_order(index, asked)
        self._note_new(asked)
        asked = asked._replace(id=interrupt_id(self._namespace, len(self.records)))
        self.records.append(asked)
        return len(self.records) - 1

    def is_answered(self, index: int) -> bool:
        """Return whether the question at *index* has an answer."""
        return index < self._answered

    def without_answer(self, index: int) -> tuple[QuestionRecord, ...]:
        """Return the records where the answer to the question at *index* does not
        count.
        """
        others = [record for at, record in enumerate(self.records) if at != index]
        others.insert(self._answered - 1, self.records[index])
        return tuple(others)

    def note_unused(self) -> None:
        """Note the answers that no question took: the task has returned."""
        for index in self._unused:
            if self.is_answered(index):
                self.notices.append(
                    f"{self._name}: the answer to "
                    f"{_question_text(self.records[index])} was not used, for "
                    "that was not asked again; it is kept"
                )

    def _take_by_order(self, index: int, asked: QuestionRecord) -> int:
        """Take the question at *index* for the one that is *asked* in its place."""
        self._unused.remove(index)
        known = self.records[index]
        if not self.is_answered(index):
            # The next answer is one to what is shown now.
            self.records[index] = asked._replace(id=known.id)
        elif known.content:
            self.notices.append(
                f"{self._name}: the answer to {_question_text(known)} is used for "
                f"{_question_text(asked)}, which the same code asks in its place now; "
                "ask for the same each time, or make what is asked in a task"
            )
        return index

    def _note_new(self, asked: QuestionRecord) -> None:
        """Note that *asked* is new, if there are others that it might be taken for."""
        if not self._unused:
            return
        before = ", ".join(
            _question_text(self.records[index]) for index in self._unused
        )
        self.notices.append(
            f"{self._name}: its code or its input has changed since it asked {before}; "
            f"{_question_text(asked)} is another question, and is asked; "
            "an answer to the former is kept"
        )


def _content_of(value: Any) -> str:
    """Return a digest of what is asked."""
    try:
        return digest_of(value, "a question", strict=False)
    except ConfigurationError:  # nested too deeply to be looked at
        return f"a nested {type(value).__qualname__}"


def _question_text(record: QuestionRecord) -> str:
    return record.text or f"interrupt {record.id}"
