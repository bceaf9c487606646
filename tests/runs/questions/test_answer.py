"""`Flow.answer`: the answer to a question of a run, by the id of the run."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel import interrupt
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import (
    ConfigurationError,
    UnansweredError,
    UnknownInterruptError,
)
from flowpregel.func import Flow, entrypoint, task
from tests.runs.conftest import Drive
from tests.runs.functional.flows import run
from tests.runs.notes import Notes


@task(executor="inline")
def review(page: int) -> str:
    """Ask about one page."""
    return f"{page}: {interrupt(f'is page {page} good?')}"


def book_on(saver: BaseCheckpointSaver | None, seen: Notes) -> Flow[[int], list[str]]:
    """Return a workflow that asks about each page, and notes how often its body ran."""

    @entrypoint(checkpointer=saver)
    def book(pages: int) -> list[str]:
        seen.append(pages)
        return [future.result() for future in review.map(range(pages))]

    return book


def answer(drive: Drive, flow: Flow[..., Any], value: Any, **options: Any) -> Any:
    """Answer a question, sync or async."""
    if not drive.is_async:
        return flow.answer(value, **options)
    return drive.wait_for(lambda: flow.aanswer(value, **options))


def questions_of(drive: Drive, flow: Flow[..., Any], pages: int) -> list[str]:
    """Run *flow*, and return the ids of the questions that it asks."""
    with pytest.raises(UnansweredError) as caught:
        run(drive, flow, pages, id="b")
    return [question.id for question in caught.value.interrupts]


def test_an_answer_resumes_the_run_and_returns_its_result(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The result is recorded: `run` returns it without running the body."""
    seen = Notes()
    book = book_on(saver, seen)
    questions_of(drive, book, 1)

    assert ["0: yes"] == answer(drive, book, "yes", id="b")

    assert [1, 1] == seen
    assert ["0: yes"] == run(drive, book, 1, id="b")
    assert [1, 1] == seen


def test_questions_that_stay_open_are_in_the_error(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Answers by id may come one after the other."""
    book = book_on(saver, Notes())
    first, second = questions_of(drive, book, 2)

    with pytest.raises(UnansweredError) as caught:
        answer(drive, book, {second: "no"}, id="b")
    assert [first] == [question.id for question in caught.value.interrupts]

    assert ["0: yes", "1: no"] == answer(drive, book, {first: "yes"}, id="b")


def test_an_answer_to_no_question_is_refused(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Nobody asks, before the run and after it."""
    book = book_on(saver, Notes())
    with pytest.raises(UnknownInterruptError):
        answer(drive, book, "yes", id="b")
    questions_of(drive, book, 1)
    answer(drive, book, "yes", id="b")

    with pytest.raises(UnknownInterruptError):
        answer(drive, book, "no", id="b")

    assert ["0: yes"] == run(drive, book, 1, id="b")


def test_an_answer_takes_the_options_of_a_run(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Their values are checked, and options of the input are unknown."""
    book = book_on(saver, Notes())
    questions_of(drive, book, 1)

    with pytest.raises(ConfigurationError, match="durability"):
        answer(drive, book, "yes", id="b", durability="often")
    with pytest.raises(TypeError, match="an answer has no option 'adopt'"):
        answer(drive, book, "yes", id="b", adopt=True)
    assert ["0: yes"] == answer(drive, book, "yes", id="b", durability="exit")


def test_a_workflow_without_a_checkpointer_has_no_run_to_answer(drive: Drive) -> None:
    """The message names the call."""
    with pytest.raises(ConfigurationError, match=r"book.answer\(..., id='b'\)"):
        answer(drive, book_on(None, Notes()), "yes", id="b")
