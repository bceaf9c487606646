"""The questions that wait for answers, and the answers that no task has taken yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowpregel._core.commands import Interrupt
from flowpregel._core.ids import QuestionRecord

ANY_QUESTION = ""
"""The id of an answer without a particular question. The question that is asked first
gets this answer.
"""


@dataclass(slots=True, eq=False)
class Answers:
    """The answers and the open questions of a run."""

    by_id: dict[str, Any] = field(default_factory=dict)
    """The answers that no task has taken yet, by interrupt id."""
    for_moved: list[Any] = field(default_factory=list)
    """The answers to questions that were asked before the graph was moved. They go to
    the questions that the graph asks now.
    """
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    """The questions that were asked and have no answer, by id."""
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
