"""An answer that does not fit its question is refused, and the question waits for
another.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, ValidationError

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import is_invalid_resume
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.runs.conftest import Drive


class Decision(BaseModel):
    """What a person says."""

    approved: bool


@dataclass
class Amount:
    """Another kind of schema."""

    euros: int


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


RIGHT = {"approved": True}
WRONG = {"approved": "perhaps"}
HERE = {"thread_id": "1"}


def decide(_: Any) -> dict[str, Any]:
    """Ask once, for anything, and once for a decision."""
    name = interrupt("name?")
    return {"items": [name, interrupt("yes?", response_schema=Decision)]}


def refused(drive: Drive, app: Any, command: Any) -> None:
    """Expect that the run fails because the answer does not fit."""
    with pytest.raises(ValidationError) as caught:
        drive.invoke(app, command, **HERE)
    assert is_invalid_resume(caught.value)


def waiting(app: Any) -> list[Any]:
    """Return the questions that wait."""
    return [each.value for each in app.get_state(**HERE).interrupts]


@pytest.mark.parametrize("where", ["inline", "threads", "processes"])
def test_the_question_waits_for_another_answer(
    drive: Drive, saver: BaseCheckpointSaver, where: str
) -> None:
    """Whatever was said in between, and without anything said it is asked again."""
    builder = StateGraph(Items).add_node("decide", decide).add_edge(START, "decide")
    app = builder.compile(saver, executor=where)
    drive.invoke(app, {"items": []}, **HERE)
    drive.invoke(app, Command(resume="Ada"), **HERE)

    refused(drive, app, Command(resume=WRONG))
    refused(drive, app, Command(resume=WRONG))
    assert ["yes?"] == waiting(app)
    asked = drive.invoke(app, None, **HERE)["__interrupt__"]

    assert ["yes?"] == [each.value for each in asked]
    assert Decision.model_json_schema() == asked[0].response_schema
    ended = drive.invoke(app, Command(resume={asked[0].id: RIGHT}), **HERE)
    assert {"items": ["Ada", Decision(approved=True)]} == ended


def test_what_was_answered_beside_it_is_done_once(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The run fails when the other task has ended; its effect does not happen twice."""
    sent: list[str] = []

    def send(_: Any) -> dict[str, Any]:
        interrupt("send?", response_schema=Amount)
        sent.append("mail")
        return {"items": ["sent"]}

    def check(_: Any) -> dict[str, Any]:
        interrupt("check?", response_schema=Decision)
        return {"items": ["checked"]}

    builder = StateGraph(Items).add_node("send", send).add_node("check", check)
    app = (
        builder.add_edge(START, "send")
        .add_edge(START, "check")
        .compile(saver, executor=executor)
    )
    drive.invoke(app, {"items": []}, **HERE)
    ids = {each.value: each.id for each in app.get_state(**HERE).interrupts}

    refused(
        drive, app, Command(resume={ids["send?"]: {"euros": 3}, ids["check?"]: WRONG})
    )

    assert ["check?"] == waiting(app)
    ended = drive.invoke(app, Command(resume=RIGHT), **HERE)
    assert {"items": ["checked", "sent"]} == ended
    assert ["mail"] == sent


def test_a_task_may_ask_too(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The calls that have ended are not made again."""
    calls: list[int] = []

    @task
    def count(number: int) -> int:
        calls.append(number)
        return number

    @task
    def ask() -> bool:
        return bool(interrupt("yes?", response_schema=Decision).approved)

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(number: int) -> list[Any]:
        return [count(number).result(), ask().result()]

    drive.invoke(flow, 3, **HERE)
    refused(drive, flow, Command(resume=WRONG))

    assert [3, True] == drive.invoke(flow, Command(resume=RIGHT), **HERE)
    assert [3] == calls


def test_who_catches_the_refusal_decides(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """It may go on without an answer."""

    def lenient(_: Any) -> dict[str, Any]:
        try:
            return {"items": [interrupt("yes?", response_schema=Decision)]}
        except ValidationError:
            return {"items": ["unclear"]}

    builder = StateGraph(Items).add_node("ask", lenient).add_edge(START, "ask")
    app = builder.compile(saver, executor=executor)
    drive.invoke(app, {"items": []}, **HERE)

    assert {"items": ["unclear"]} == drive.invoke(app, Command(resume=WRONG), **HERE)


def test_a_json_schema_is_only_shown(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """Whoever answers may look at it."""
    schema = {"type": "integer"}

    def ask(_: Any) -> dict[str, Any]:
        return {"items": [interrupt("how many?", response_schema=schema)]}

    builder = StateGraph(Items).add_node("ask", ask).add_edge(START, "ask")
    app = builder.compile(saver, executor=executor)

    asked = drive.invoke(app, {"items": []}, **HERE)["__interrupt__"]

    assert schema == asked[0].response_schema
    assert {"items": ["many"]} == drive.invoke(app, Command(resume="many"), **HERE)


def test_a_nested_graph_may_ask_too(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """Its answers come from the graph around it."""
    inner = (
        StateGraph(Items).add_node("decide", decide).add_edge(START, "decide").compile()
    )
    builder = StateGraph(Items).add_node("inner", inner).add_edge(START, "inner")
    app = builder.compile(saver, executor=executor)
    drive.invoke(app, {"items": []}, **HERE)
    drive.invoke(app, Command(resume="Ada"), **HERE)

    refused(drive, app, Command(resume=WRONG))

    assert ["yes?"] == waiting(app)
    ended = drive.invoke(app, Command(resume=RIGHT), **HERE)
    assert {"items": ["Ada", Decision(approved=True)]} == ended


def test_a_refused_answer_of_a_nested_graph_is_forgotten_too(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The answer to what is asked beside it finds it gone, and is taken."""

    def ask(_: Any) -> dict[str, Any]:
        return {"items": [interrupt("yes?", response_schema=Decision).approved]}

    inner = StateGraph(Items).add_node("ask", ask).add_edge(START, "ask").compile()
    builder = StateGraph(Items).add_node("inner", inner).add_edge(START, "inner")
    builder.add_node("name", lambda _: {"items": [interrupt("name?")]}).add_edge(
        START, "name"
    )
    app = builder.compile(saver, executor=executor)
    drive.invoke(app, {"items": []}, **HERE)
    ids = {each.value: each.id for each in app.get_state(**HERE).interrupts}

    refused(drive, app, Command(resume={ids["yes?"]: WRONG}))
    drive.invoke(app, Command(resume={ids["name?"]: "Ada"}), **HERE)

    assert ["yes?"] == waiting(app)
    assert {"items": [True, "Ada"]} == drive.invoke(app, Command(resume=RIGHT), **HERE)


def test_the_task_shows_why_its_answer_was_refused(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """Its error handler is not asked, and its question not shown again."""
    builder = StateGraph(Items).add_edge(START, "decide")
    builder.add_node("decide", decide, error_handler=lambda _: {"items": ["handled"]})
    app = builder.compile(saver, executor=executor)
    drive.invoke(app, {"items": []}, **HERE)
    drive.invoke(app, Command(resume="Ada"), **HERE)
    shown: list[Any] = []

    with pytest.raises(ValidationError):
        drive.stream_until(
            shown.append, app, Command(resume=WRONG), stream_mode="updates", **HERE
        )

    (state,) = app.get_state(**HERE).tasks
    assert isinstance(state.error, ValidationError)
    assert ["yes?"] == waiting(app)
    assert [] == shown


def test_another_answer_takes_the_place_of_one_that_the_node_failed_with(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """Its question still waits, and the answers before it stay."""

    def count(_: Any) -> dict[str, Any]:
        return {"items": [interrupt("name?"), int(interrupt("number?"))]}

    builder = StateGraph(Items).add_node("count", count).add_edge(START, "count")
    app = builder.compile(saver, executor=executor)
    drive.invoke(app, {"items": []}, **HERE)
    drive.invoke(app, Command(resume="Ada"), **HERE)
    for again in (Command(resume="many"), None):
        with pytest.raises(ValueError, match="many"):
            drive.invoke(app, again, **HERE)
    assert ["number?"] == waiting(app)

    assert {"items": ["Ada", 7]} == drive.invoke(app, Command(resume="7"), **HERE)
