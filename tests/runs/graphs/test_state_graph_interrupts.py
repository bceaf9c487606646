"""A graph stops to ask, at a breakpoint or in a node, and goes on with the answer."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, UnknownInterruptError
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, Interrupt, interrupt
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


def line(*names: str) -> StateGraph:
    """Return nodes that run one after the other and add their names."""
    builder = StateGraph(Items)
    builder.add_sequence(
        [(name, lambda _, name=name: {"items": [name]}) for name in names]
    )
    return builder.add_edge(START, names[0])


def asking(*names: str) -> StateGraph:
    """Return nodes that run side by side; each asks by its name, and adds the
    answer.
    """
    builder = StateGraph(Items)
    for name in names:
        builder.add_node(name, lambda _, name=name: {"items": [interrupt(name)]})
        builder.add_edge(START, name)
    return builder


def test_a_breakpoint_before_a_node_stops_there(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The state is shown, and None goes on."""
    app = line("a", "b").compile(saver, interrupt_before=["b"], executor=executor)

    first = drive.invoke(app, {"items": []}, thread_id="1")

    assert {"items": ["a"]} == first
    assert ("b",) == app.get_state(thread_id="1").next
    assert {"items": ["a", "b"]} == drive.invoke(app, None, thread_id="1")


def test_a_breakpoint_after_a_node_stops_when_it_has_run(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The same, one barrier later."""
    app = line("a", "b", "c").compile(saver, interrupt_after=["b"], executor="inline")

    assert {"items": ["a", "b"]} == drive.invoke(app, {"items": []}, thread_id="1")
    assert {"items": ["a", "b", "c"]} == drive.invoke(app, None, thread_id="1")


def test_a_breakpoint_on_every_node_passes_over_the_hidden_start(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Each run does one superstep."""
    app = line("a", "b").compile(saver, interrupt_before="*", executor="inline")

    seen = [drive.invoke(app, {"items": []}, thread_id="1")]
    seen += [drive.invoke(app, None, thread_id="1") for _ in range(2)]

    assert [[], ["a"], ["a", "b"]] == [item["items"] for item in seen]


def test_a_breakpoint_may_be_given_with_a_run(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It overrides what the graph was compiled with."""
    app = line("a", "b").compile(saver, executor="inline")

    first = drive.invoke(app, {"items": []}, thread_id="1", interrupt_before=["b"])

    assert {"items": ["a"]} == first


def test_no_breakpoints_with_a_run_are_those_of_the_graph(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """An empty list does not let a run pass a node that waits for approval."""
    app = line("a", "b").compile(saver, interrupt_before=["b"], executor="inline")

    first = drive.invoke(app, {"items": []}, thread_id="1", interrupt_before=[])

    assert {"items": ["a"]} == first


def test_a_node_asks_and_is_given_the_answer(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The question is in the output; the answer is what `interrupt` returns."""
    app = asking("name?").compile(saver, executor=executor)

    first = drive.invoke(app, {"items": []}, thread_id="1")
    (asked,) = first["__interrupt__"]

    assert isinstance(asked, Interrupt)
    assert "name?" == asked.value
    assert (asked,) == app.get_state(thread_id="1").interrupts
    answered = drive.invoke(app, Command(resume="Ada"), thread_id="1")
    assert {"items": ["Ada"]} == answered
    assert () == app.get_state(thread_id="1").interrupts


def test_several_questions_of_a_node_are_answered_in_turn(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The node runs from its beginning each time; answers it has are returned at
    once.
    """
    runs: list[int] = []

    def ask(state: Items) -> Items:
        runs.append(1)
        return {"items": [interrupt("first"), interrupt("second")]}

    app = (
        StateGraph(Items)
        .add_node(ask)
        .add_edge(START, "ask")
        .compile(saver, executor="inline")
    )
    asked = [drive.invoke(app, {"items": []}, thread_id="1")]
    asked.append(drive.invoke(app, Command(resume=1), thread_id="1"))

    done = drive.invoke(app, Command(resume=2), thread_id="1")

    assert ["first", "second"] == [item["__interrupt__"][0].value for item in asked]
    assert {"items": [1, 2]} == done
    assert 3 == len(runs)


def test_an_answer_is_used_once(drive: Drive, saver: BaseCheckpointSaver) -> None:
    """Going on without one asks the second question again."""

    def ask(state: Items) -> Items:
        return {"items": [interrupt("first"), interrupt("second")]}

    app = StateGraph(Items).add_node(ask).add_edge(START, "ask")
    app = app.compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")
    drive.invoke(app, Command(resume=1), thread_id="1")

    again = drive.invoke(app, None, thread_id="1")

    assert ["second"] == [item.value for item in again["__interrupt__"]]


def test_questions_side_by_side_are_answered_by_their_ids(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """Some now, some later; what was answered is not asked again."""
    app = asking("a", "b", "c").compile(saver, executor=executor)
    first = drive.invoke(app, {"items": []}, thread_id="1")
    ids = {item.value: item.id for item in first["__interrupt__"]}

    second = drive.invoke(
        app, Command(resume={ids["b"]: 2, ids["a"]: 1}), thread_id="1"
    )

    assert {"a", "b", "c"} == ids.keys()
    assert ["c"] == [item.value for item in second["__interrupt__"]]
    done = drive.invoke(app, Command(resume={ids["c"]: 3}), thread_id="1")
    assert {"items": [1, 2, 3]} == done


def test_one_answer_for_several_questions_is_refused(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Nobody can tell whose it is."""
    app = asking("a", "b").compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")

    with pytest.raises(UnknownInterruptError, match="2 interrupts are waiting"):
        drive.invoke(app, Command(resume="x"), thread_id="1")


def test_an_answer_to_nothing_is_refused(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """LangGraph ignores it in silence; here it is an error that says so."""
    app = line("a").compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")

    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(app, Command(resume="x"), thread_id="1")


def test_an_answer_needs_a_checkpointer(drive: Drive) -> None:
    """Without one, nothing was kept that could be resumed; and asking is refused
    too.
    """
    app = asking("a").compile(executor="inline")

    with pytest.raises(ConfigurationError, match="without checkpointer"):
        drive.invoke(app, Command(resume="x"))
    with pytest.raises(ConfigurationError, match="no checkpointer"):
        drive.invoke(app, {"items": []})


def test_a_finished_sibling_does_not_run_again_when_the_question_is_answered(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Its result was kept, and the live state shows it."""
    runs: list[int] = []
    builder = asking("ask").add_node(
        "work", lambda _: runs.append(1) or {"items": ["work"]}
    )
    app = builder.add_edge(START, "work").compile(saver, executor="inline")

    drive.invoke(app, {"items": []}, thread_id="1")
    live = app.get_state(thread_id="1")
    done = drive.invoke(app, Command(resume="answer"), thread_id="1")

    assert {"items": ["work"]} == live.values
    assert ("ask",) == live.next
    assert {"items": ["answer", "work"]} == done
    assert [1] == runs


def test_a_resume_may_update_the_state_and_go_somewhere_as_well(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """All parts of the command count."""
    builder = asking("ask").add_node("more", lambda _: {"items": ["more"]})
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")

    command = Command(resume="yes", update={"items": ["update"]}, goto="more")
    done = drive.invoke(app, command, thread_id="1")

    assert {"items": ["update", "yes", "more"]} == done


def test_new_input_drops_a_question(drive: Drive, saver: BaseCheckpointSaver) -> None:
    """What was asked is not asked any more; the node asks anew."""
    app = asking("ask").compile(saver, executor="inline")
    first = drive.invoke(app, {"items": [1]}, thread_id="1")["__interrupt__"]

    second = drive.invoke(app, {"items": [2]}, thread_id="1")["__interrupt__"]

    assert 1 == len(second)
    assert first[0].id != second[0].id
    assert {"items": [1, 2, "x"]} == drive.invoke(
        app, Command(resume="x"), thread_id="1"
    )


@pytest.mark.parametrize("answer", ["go", True])
def test_an_answer_at_a_breakpoint_goes_on(drive: Drive, answer: Any) -> None:
    """As LangGraph's do: nobody asked, and there is something to do."""
    app = line("n").compile(InMemorySaver(), interrupt_before=["n"], executor="threads")
    drive.invoke(app, {"items": ["a"]}, thread_id="1")

    assert {"items": ["a", "n"]} == drive.invoke(
        app, Command(resume=answer), thread_id="1"
    )

    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(app, Command(resume=answer), thread_id="1")


def test_metadata_have_parents_in_the_outermost_graph_too() -> None:
    """None of them."""
    app = line("n").compile(InMemorySaver(), executor="inline")

    shown = [*app.stream({"items": []}, thread_id="1", stream_mode="checkpoints")]

    states = [*app.get_state_history(thread_id="1")]
    assert [{}] * 3 == [each.metadata["parents"] for each in states]
    assert [{}] * 3 == [each["metadata"]["parents"] for each in shown]
