"""A question that the code caught is still the one that is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import TypedDict

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.runs.conftest import Drive


class State(TypedDict):
    """What the node was told."""

    told: list[str]


def ask_on(state: State) -> State:
    """Ask twice, whether there is an answer or not."""
    told = []
    for question in ("one?", "two?"):
        with suppress(BaseException):
            told.append(interrupt(question))
    return {"told": told}


def test_a_task_that_asks_on_is_asked_its_first_question_first(drive: Drive) -> None:
    """It cannot get the answer to one question for the other."""
    builder = StateGraph(State).add_node(ask_on).add_edge(START, "ask_on")
    app = builder.compile(InMemorySaver(), executor="inline")
    config = {"configurable": {"thread_id": "1"}}

    asked = []
    result = drive.invoke(app, {"told": []}, config)
    while "__interrupt__" in result:
        [question] = result["__interrupt__"]
        asked.append(question.value)
        result = drive.invoke(app, Command(resume=question.value.upper()), config)

    assert ["one?", "two?"] == asked
    assert {"told": ["ONE?", "TWO?"]} == result
