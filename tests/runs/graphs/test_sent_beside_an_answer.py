"""``Command(resume=..., goto=Send(...))`` while tasks that were sent before wait for
answers.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import RunNotice, UnknownInterruptError
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, Send, interrupt
from tests.runs.conftest import Drive


class Log(TypedDict, total=False):
    """A state whose list adds up."""

    log: Annotated[list[str], operator.add]


def ask(name: str) -> Log:
    """Ask by *name*, and log the answer."""
    return {"log": [f"{name}: {interrupt(f'{name}?')}"]}


def note(name: str) -> Log:
    """Log *name*."""
    return {"log": [name]}


def fan_out(*sends: Send) -> StateGraph:
    """Return a graph whose first node makes *sends*."""
    builder = StateGraph(Log)
    builder.add_node("first", lambda _: {"log": ["in"]})
    builder.add_node("ask", ask)
    builder.add_node("note", note)
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", lambda _: sends, ["ask", "note"])
    return builder


def shown(app: Any) -> tuple[list[str], dict[str, str]]:
    """Return the log of a thread's state, and the ids of what it asks by its text."""
    state = app.get_state(thread_id="1")
    return state.values["log"], {item.value: item.id for item in state.interrupts}


FAN_OUTS = [
    (Send("note", "p"), Send("ask", "a")),
    (Send("ask", "a"), Send("note", "p")),
]


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
@pytest.mark.parametrize("sends", FAN_OUTS)
def test_an_answer_to_the_only_question_is_for_what_is_asked_first(
    sends: tuple[Send, ...], drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """What is sent takes the place of what waits, and its question the answer: as
    LangGraph's.
    """
    app = fan_out(*sends).compile(saver, executor="inline")
    drive.invoke(app, {"log": []}, thread_id="1")

    command = Command(resume="yes", goto=Send("ask", "x"))

    assert {"log": ["in", "x: yes"]} == drive.invoke(app, command, thread_id="1")
    assert (["in", "x: yes"], {}) == shown(app)


def test_such_an_answer_outlives_a_failure(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The question may be asked only when the run goes on; a second one gets no answer
    of it.
    """
    failures = ["once"]

    def fail_once_and_ask(name: str) -> Log:
        if failures:
            raise OSError(failures.pop())
        return {"log": [f"{name}: {interrupt('one?')} {interrupt('two?')}"]}

    builder = fan_out(*FAN_OUTS[0])
    builder.add_node("late", fail_once_and_ask)
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"log": []}, thread_id="1")

    command = Command(resume="yes", goto=Send("late", "x"))
    with pytest.raises(OSError, match="once"):
        drive.invoke(app, command, thread_id="1")
    asked = drive.invoke(app, None, thread_id="1")["__interrupt__"]

    assert ["two?"] == [item.value for item in asked]
    assert {"log": ["in", "x: yes no"]} == drive.invoke(
        app, Command(resume="no"), thread_id="1"
    )


def test_a_graph_that_is_sent_to_gets_such_an_answer_too(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The task that asks first may be one inside of it."""
    inner = StateGraph(Log)
    inner.add_node("inside", lambda _: {"log": [f"inside: {interrupt('inside?')}"]})
    inner.add_edge(START, "inside")
    builder = fan_out(*FAN_OUTS[0])
    builder.add_node("graph", inner.compile())
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"log": []}, thread_id="1")

    command = Command(resume="yes", goto=Send("graph", {"log": []}))

    assert {"log": ["in", "inside: yes"]} == drive.invoke(app, command, thread_id="1")


def test_an_answer_by_id_is_named_where_its_question_is_not_asked_any_more(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It is not moved; what waits is shown, can be answered, and the run goes on."""
    app = fan_out(*FAN_OUTS[0]).compile(saver, executor="inline")
    drive.invoke(app, {"log": []}, thread_id="1")
    _, asked = shown(app)

    command = Command(resume={asked["a?"]: "yes"}, goto=Send("ask", "x"))
    with pytest.warns(RunNotice, match=f"the answer to 'a\\?' is kept.*{asked['a?']}"):
        first = drive.invoke(app, command, thread_id="1")

    log, waiting = shown(app)
    assert (["in"], ["x?"]) == (log, [*waiting])
    assert (["in"], ["x?"]) == (
        first["log"],
        [item.value for item in first["__interrupt__"]],
    )
    with pytest.raises(
        UnknownInterruptError, match=f"{asked['a?']} is not waiting.*{waiting['x?']}"
    ):
        drive.invoke(app, Command(resume={asked["a?"]: "late"}), thread_id="1")
    last = drive.invoke(app, Command(resume={waiting["x?"]: "no"}), thread_id="1")
    assert {"log": ["in", "x: no"]} == last


def test_what_a_command_goes_to_by_name_does_not_take_the_answer(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The tasks that were sent are still due: the answer is for the one that asked."""
    app = fan_out(*FAN_OUTS[0]).compile(saver, executor="inline")
    builder_names = {"log": []}
    drive.invoke(app, builder_names, thread_id="1")

    command = Command(resume="yes", goto="first")

    assert "a: yes" in drive.invoke(app, command, thread_id="1")["log"]


def test_what_a_command_sends_is_shown_while_it_waits(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Beside the task that took the answer; LangGraph's state shows neither."""
    builder = StateGraph(Log)
    builder.add_node("ask", lambda given: ask(given.get("name", "own")))
    builder.add_edge(START, "ask")
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"log": []}, thread_id="1")
    _, asked = shown(app)

    command = Command(resume={asked["own?"]: "yes"}, goto=Send("ask", {"name": "sent"}))
    drive.invoke(app, command, thread_id="1")

    state, (log, waiting) = app.get_state(thread_id="1"), shown(app)
    assert (("ask",), ["own: yes"], ["sent?"]) == (state.next, log, [*waiting])
    last = drive.invoke(app, Command(resume={waiting["sent?"]: "no"}), thread_id="1")
    assert {"log": ["own: yes", "sent: no"]} == last
