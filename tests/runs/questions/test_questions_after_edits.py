"""A question has the answer that was meant for it, whatever was edited since it was
asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import RunNotice, UnansweredError, UnknownInterruptError
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.runs.conftest import Drive
from tests.runs.notes import Notes

Asks = Callable[[], Any]
"""Asks one question or several, and returns the answers by question."""

HOLIDAY = "Approve Ann's holiday?"
DELETE = "Delete the database?"


# where questions are asked -------------------------------------------------


def as_body(asks: Asks, saver: BaseCheckpointSaver) -> Any:
    """Return a workflow whose body asks."""

    def flow(_: int) -> Any:
        return asks()

    return entrypoint(checkpointer=saver, executor="threads")(flow)


def as_task(asks: Asks, saver: BaseCheckpointSaver, executor: str = "threads") -> Any:
    """Return a workflow of which a task asks."""
    ask = task(asks, name="ask")  # type: ignore[call-overload]

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(_: int) -> Any:
        return ask().result()

    return flow


def as_node(
    asks: Asks, saver: BaseCheckpointSaver | None, executor: str = "threads"
) -> Any:
    """Return a graph of which a node asks."""

    def ask(_: Any) -> Any:
        return asks()

    builder = StateGraph(dict)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    return builder.compile(saver, executor=executor)


def as_nested_graph(asks: Asks, saver: BaseCheckpointSaver) -> Any:
    """Return a graph with a graph in it of which a node asks."""
    builder = StateGraph(dict)
    builder.add_node("inner", as_node(asks, None))
    builder.add_edge(START, "inner")
    return builder.compile(saver, executor="threads")


def as_graph_called_by_a_body(asks: Asks, saver: BaseCheckpointSaver) -> Any:
    """Return a workflow whose body calls a graph of which a node asks."""
    graph = as_node(asks, None)

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(_: int) -> Any:
        return graph.invoke({})

    return flow


@pytest.fixture(
    params=[as_body, as_task, as_node, as_nested_graph, as_graph_called_by_a_body],
    ids=lambda place: place.__name__,
)
def place(request: pytest.FixtureRequest) -> Any:
    """Return what makes a program that asks: in each place in turn."""
    return request.param


# ---------------------------------------------------------------- programs that ask


def holiday() -> Any:
    """Ask one question."""
    return {HOLIDAY: interrupt(HOLIDAY)}


def delete_first() -> Any:
    """Ask another one before it: what an edit makes of `holiday`."""
    return {DELETE: interrupt(DELETE), HOLIDAY: interrupt(HOLIDAY)}


def delete_alone() -> Any:
    """Ask another one in its place."""
    return {DELETE: interrupt(DELETE)}


def in_order(*texts: str) -> Asks:
    """Return what asks *texts*, one after the other."""
    return lambda: {text: interrupt(text) for text in texts}


@contextmanager
def no_notice() -> Iterator[None]:
    """Fail at a notice."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        yield


@contextmanager
def notices(*words: str) -> Iterator[None]:
    """Check that there is one notice, and that it has all *words*."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RunNotice)
        yield
    texts = [
        str(each.message) for each in found if issubclass(each.category, RunNotice)
    ]
    assert len(texts) == 1, texts
    assert all(word in texts[0] for word in words), texts


def asked_by(output: Any) -> dict[Any, str]:
    """Return what a run asks, and the ids."""
    return {item.value: item.id for item in output["__interrupt__"]}


# ---------------------------------------------------------------- other code


def test_other_code_that_asks_something_else_gets_no_answer_of_another_question(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """The answer is kept: the question that it was meant for has it, behind the new
    one.
    """
    drive.invoke(place(in_order(HOLIDAY, "sure?"), saver), {}, thread_id="1")
    app = place(in_order(HOLIDAY, "sure?"), saver)
    assert ["sure?"] == [
        *asked_by(drive.invoke(app, Command(resume="yes"), thread_id="1"))
    ]

    with notices(HOLIDAY, DELETE, "has changed"):
        asked = drive.invoke(place(delete_first, saver), None, thread_id="1")

    assert [DELETE] == [*asked_by(asked)]
    with no_notice():
        last = drive.invoke(
            place(delete_first, saver), Command(resume="no"), thread_id="1"
        )
    assert {DELETE: "no", HOLIDAY: "yes"} == last


@pytest.mark.parametrize("by_id", [True, False])
def test_an_answer_to_what_other_code_asked_is_not_one_to_what_it_asks_now(
    by_id: bool, place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """The question waited while its code was edited; its answer is its own, and
    named.
    """
    waiting = asked_by(drive.invoke(place(holiday, saver), {}, thread_id="1"))
    answer = Command(resume={waiting[HOLIDAY]: "yes"} if by_id else "yes")

    with notices(HOLIDAY, DELETE, "are kept"):
        asked = asked_by(
            drive.invoke(place(delete_first, saver), answer, thread_id="1")
        )

    assert [DELETE] == [*asked]
    assert asked[DELETE] != waiting[HOLIDAY]
    answer = Command(resume={asked[DELETE]: "no"} if by_id else "no")
    with no_notice():
        last = drive.invoke(place(delete_first, saver), answer, thread_id="1")
    assert {DELETE: "no", HOLIDAY: "yes"} == last


def test_a_late_answer_by_id_waits_for_its_question(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """Somebody answers what was shown before the edit, when the new question waits
    already.
    """
    waiting = asked_by(drive.invoke(place(holiday, saver), {}, thread_id="1"))
    with notices(HOLIDAY, DELETE):
        asked = asked_by(drive.invoke(place(delete_first, saver), None, thread_id="1"))

    late = Command(resume={waiting[HOLIDAY]: "yes"})
    again = asked_by(drive.invoke(place(delete_first, saver), late, thread_id="1"))

    assert asked == again
    last = drive.invoke(place(delete_first, saver), Command(resume="no"), thread_id="1")
    assert {DELETE: "no", HOLIDAY: "yes"} == last


def test_an_answer_that_nothing_asks_for_any_more_is_named(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """The run ends without it."""
    drive.invoke(place(holiday, saver), {}, thread_id="1")

    with notices(HOLIDAY, "was not used"):
        last = drive.invoke(
            place(lambda: {"asked": "nothing"}, saver),
            Command(resume="yes"),
            thread_id="1",
        )

    assert {"asked": "nothing"} == last


def test_the_same_question_has_its_answer_wherever_it_stands_now(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """Questions may change places, and others come between them."""
    drive.invoke(place(in_order("a?", "b?", "c?"), saver), {}, thread_id="1")
    for number in (1, 2):
        app = place(in_order("a?", "b?", "c?"), saver)
        drive.invoke(app, Command(resume=f"answer {number}"), thread_id="1")

    with no_notice():
        swapped = in_order("c?", "b?", "a?")
        asked = drive.invoke(place(swapped, saver), None, thread_id="1")
        last = drive.invoke(
            place(swapped, saver), Command(resume="answer 3"), thread_id="1"
        )

    assert ["c?"] == [*asked_by(asked)]
    assert {"a?": "answer 1", "b?": "answer 2", "c?": "answer 3"} == last


@pytest.mark.parametrize("place", [as_task, as_node])
def test_a_question_that_is_asked_in_a_worker_process_is_known_too(place: Any) -> None:
    """What is known goes to the worker, and what it asks comes back."""
    saver = InMemorySaver()
    place(holiday, saver, "processes").invoke({}, thread_id="1")

    with notices(HOLIDAY, DELETE):
        app = place(delete_first, saver, "processes")
        asked = asked_by(app.invoke(Command(resume="yes"), thread_id="1"))

    assert [DELETE] == [*asked]
    last = place(delete_first, saver, "processes").invoke(
        Command(resume="no"), thread_id="1"
    )
    assert {DELETE: "no", HOLIDAY: "yes"} == last


def test_a_store_in_postgres_keeps_what_was_asked(
    place: Any, postgres_url: str
) -> None:
    """As the others do."""
    from flowpregel.plugins.postgres import PostgresSaver

    with closing(PostgresSaver(postgres_url)) as saver:
        place(holiday, saver).invoke({}, thread_id="1")
        with notices(HOLIDAY, DELETE):
            app = place(delete_first, saver)
            asked = asked_by(app.invoke(Command(resume="yes"), thread_id="1"))

        assert [DELETE] == [*asked]
        last = place(delete_first, saver).invoke(Command(resume="no"), thread_id="1")
        assert {DELETE: "no", HOLIDAY: "yes"} == last


# ---------------------------------------------------------------- the same code


def test_the_same_code_that_asks_something_else_gets_the_answer_by_order(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """As where a draft is made anew before it is shown: one notice shows both texts."""
    drafts = Notes()

    def asks() -> Any:
        drafts.append("a new one")
        return {"answer": interrupt(f"draft {len(drafts)}: good?")}

    app = place(asks, saver)
    drive.invoke(app, {}, thread_id="1")

    with notices("draft 1: good?", "draft 2: good?"):
        last = drive.invoke(app, Command(resume="yes"), thread_id="1")

    assert {"answer": "yes"} == last


def test_such_a_question_is_answered_as_it_was_shown_last(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """It keeps its id, and the notice shows what the answer was given to."""
    drafts = Notes()

    def asks() -> Any:
        drafts.append("a new one")
        return {"answer": interrupt(f"draft {len(drafts)}: good?")}

    app = place(asks, saver)
    first = asked_by(drive.invoke(app, {}, thread_id="1"))
    second = asked_by(drive.invoke(app, None, thread_id="1"))

    assert {"draft 1: good?": "draft 2: good?"} == dict(zip(first, second, strict=True))
    assert [*first.values()] == [*second.values()]
    with notices("draft 2: good?", "draft 3: good?"):
        last = drive.invoke(
            app, Command(resume=dict.fromkeys(first.values(), 1)), thread_id="1"
        )
    assert {"answer": 1} == last


def test_equal_questions_have_their_answers_in_order(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """A question may be asked until the answer will do."""

    def asks() -> Any:
        return {"answers": [interrupt("more?"), interrupt("more?"), interrupt("more?")]}

    app = place(asks, saver)
    drive.invoke(app, {}, thread_id="1")
    with no_notice():
        for number in range(2):
            drive.invoke(app, Command(resume=number), thread_id="1")
        last = drive.invoke(app, Command(resume=2), thread_id="1")

    assert {"answers": [0, 1, 2]} == last


def test_an_answer_to_nothing_is_still_an_error(
    place: Any, saver: BaseCheckpointSaver, drive: Drive
) -> None:
    """It was answered, or it was never asked."""
    waiting = asked_by(
        drive.invoke(place(in_order("a?", "b?"), saver), {}, thread_id="1")
    )
    answer = Command(resume={waiting["a?"]: 1})
    drive.invoke(place(in_order("a?", "b?"), saver), answer, thread_id="1")

    with pytest.raises(UnknownInterruptError, match="is not waiting"):
        drive.invoke(place(in_order("a?", "b?"), saver), answer, thread_id="1")


def test_a_body_that_got_another_input_asks_anew(saver: BaseCheckpointSaver) -> None:
    """With ``adopt`` the code is the same, and yet another question is no chance."""

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(name: str) -> Any:
        return {name: interrupt(f"Delete {name}?"), "sure": interrupt("sure?")}

    with pytest.raises(UnansweredError):
        flow.run("a test", id="1")
    assert ["sure?"] == [*asked_by(flow.invoke(Command(resume="yes"), thread_id="1"))]

    with (
        notices("a test", "production", "are kept"),
        pytest.raises(UnansweredError) as raised,
    ):
        flow.run("production", id="1", adopt=True)

    assert ["Delete production?"] == [item.value for item in raised.value.interrupts]
