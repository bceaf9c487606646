"""Graphs inside graphs: as nodes, called in nodes, with and without a memory of their
own.
"""

from __future__ import annotations

import operator
import threading
from typing import Annotated, Any, TypedDict
from unittest.mock import MagicMock, Mock

import pytest

from flowpregel.channels import UntrackedValue
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, InvalidUpdateError
from flowpregel.func import task
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, Send, interrupt
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


class Own(TypedDict, total=False):
    """The state of a graph that shares nothing with the one around it."""

    text: str


def note(name: str) -> Any:
    """Return a node that adds *name*."""
    return lambda _: {"items": [name]}


def ask(state: Items) -> Items:
    """Ask, and add the answer."""
    return {"items": [interrupt("really?")]}


class StepId(TypedDict, total=False):
    """A state that is replaced, so that an inner graph may return all of it."""

    trail: str


def walk(name: str) -> Any:
    """Return a node that appends *name* to the trail."""
    return lambda state: {"trail": f"{state.get('trail', '')}{name}"}


def inner(*names: str) -> StateGraph:
    """Return nodes that run one after the other."""
    builder = StateGraph(StepId).add_sequence([(name, walk(name)) for name in names])
    return builder.add_edge(START, names[0])


def around(graph: Any, name: str = "inner") -> StateGraph:
    """Return a graph with *graph* between two nodes."""
    builder = StateGraph(StepId)
    builder.add_sequence([("before", walk("<")), (name, graph), ("after", walk(">"))])
    return builder.add_edge(START, "before")


def test_a_graph_is_a_node_that_shares_the_keys_it_knows(
    drive: Drive, executor: str
) -> None:
    """It is given the state, and what it returns is written to it."""
    app = around(inner("a", "b").compile()).compile(executor=executor)

    assert {"trail": "<ab>"} == drive.invoke(app, {"trail": ""})


def test_graphs_nest_to_any_depth(drive: Drive) -> None:
    """Five graphs, one in the other."""
    graph: Any = inner("a").compile()
    for depth in range(4):
        graph = around(graph, f"level{depth}").compile(executor="inline")

    assert {"trail": "<<<<a>>>>"} == drive.invoke(graph, {"trail": ""})


def test_a_graph_with_another_state_is_called_in_a_node(
    drive: Drive, executor: str
) -> None:
    """The node turns one state into the other."""
    shout = StateGraph(Own).add_node("up", lambda s: {"text": s["text"].upper()})
    loud = shout.add_edge(START, "up").compile()

    def call(state: Items) -> Items:
        return {"items": [loud.invoke({"text": "hi"})["text"]]}

    app = (
        StateGraph(Items)
        .add_node(call)
        .add_edge(START, "call")
        .compile(executor=executor)
    )

    assert {"items": ["HI"]} == drive.invoke(app, {"items": []})


def test_a_question_of_an_inner_graph_is_answered_through_the_outer(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """The inner graph goes on where it was; what it did before is not done again."""
    runs: list[int] = []

    def first(state: StepId) -> StepId:
        runs.append(1)
        return {"trail": state["trail"] + "1"}

    def asks(state: StepId) -> StepId:
        return {"trail": state["trail"] + interrupt("letter?")}

    deep = (
        StateGraph(StepId)
        .add_sequence([first, asks])
        .add_edge(START, "first")
        .compile()
    )
    app = around(deep).compile(saver, executor=executor)

    stopped = drive.invoke(app, {"trail": ""}, thread_id="1")
    shown = app.get_state(thread_id="1", subgraphs=True)

    assert "letter?" == stopped["__interrupt__"][0].value
    assert ("inner",) == shown.next
    assert {"trail": "<1"} == shown.tasks[0].state.values
    assert ("asks",) == shown.tasks[0].state.next
    assert {"trail": "<1x>"} == drive.invoke(app, Command(resume="x"), thread_id="1")
    assert [1] == runs


def test_the_state_of_an_inner_graph_can_be_addressed_and_edited(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Its config is in the outer snapshot's task."""
    deep = inner("a", "b").compile(interrupt_before=["b"])
    app = around(deep).compile(saver, executor="inline")
    drive.invoke(app, {"trail": ""}, thread_id="1")
    config = app.get_state(thread_id="1").tasks[0].state

    assert {"trail": "<a"} == app.get_state(config).values
    app.update_state(config, {"trail": "edited"}, "a")

    assert {"trail": "editedb>"} == drive.invoke(app, None, thread_id="1")


def asking(saver: BaseCheckpointSaver) -> Any:
    """Return a graph around one whose second node asks."""
    deep = StateGraph(StepId).add_sequence(
        [
            ("a", walk("a")),
            ("asks", lambda _: {"trail": interrupt("?")}),
            ("b", walk("b")),
        ]
    )
    return around(deep.add_edge(START, "a").compile()).compile(saver, executor="inline")


def inside(app: Any, upcoming: str) -> Any:
    """Return the config of the oldest checkpoint of the inner graph at which *upcoming*
    is next.
    """
    config = (
        app.get_state(thread_id="1", subgraphs=True)
        .tasks[0]
        .state.config["configurable"]
    )
    history = app.get_state_history(
        thread_id="1", checkpoint_ns=config["checkpoint_ns"]
    )
    return [item.config for item in history if item.next == (upcoming,)][-1]


def test_a_checkpoint_of_an_inner_graph_replays_the_run_around_it(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Its config says which checkpoint of the outer graph it belongs to."""
    app = asking(saver)
    drive.invoke(app, {"trail": ""}, thread_id="1")
    config = inside(app, "asks")
    drive.invoke(app, Command(resume="x"), thread_id="1")

    (question,) = drive.invoke(app, None, config)["__interrupt__"]

    assert "?" == question.value
    assert ("inner",) == app.get_state(thread_id="1").next
    assert {"trail": "yb>"} == drive.invoke(app, Command(resume="y"), thread_id="1")


def test_a_question_is_answered_at_the_checkpoint_of_the_inner_graph_that_asked_it(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Although the run around it was replayed since, and asked it again."""
    app = asking(saver)
    drive.invoke(app, {"trail": ""}, thread_id="1")
    config = inside(app, "asks")
    drive.invoke(app, None, config)

    assert {"trail": "xb>"} == drive.invoke(app, Command(resume="x"), config)


def test_an_inner_graph_is_replayed_from_its_own_checkpoint_after_an_edit_around_it(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The edit is a branch already: the inner graph is where it was, and goes back from
    there.
    """
    app = asking(saver)
    drive.invoke(app, {"trail": ""}, thread_id="1")
    app.update_state({"configurable": {"thread_id": "1"}}, {"trail": "e"}, "before")
    drive.invoke(app, None, thread_id="1")
    config = inside(app, "asks")

    (question,) = drive.invoke(app, None, config)["__interrupt__"]

    assert "?" == question.value
    shown = app.get_state(thread_id="1", subgraphs=True).tasks[0].state
    assert {"trail": "ea"} == shown.values
    assert config != shown.config
    assert (
        config["configurable"]["checkpoint_id"]
        == (shown.parent_config["configurable"]["checkpoint_id"])
    )


def test_streams_tell_where_in_the_nest_something_happened(drive: Drive) -> None:
    """With ``subgraphs=True`` each item comes with its namespace."""
    app = around(inner("a").compile()).compile(executor="inline")

    found = drive.stream(app, {"trail": ""}, stream_mode="updates", subgraphs=True)

    named = [(tuple(part.split(":")[0] for part in ns), [*data]) for ns, data in found]
    assert [
        ((), ["before"]),
        (("inner",), ["a"]),
        ((), ["inner"]),
        ((), ["after"]),
    ] == named
    assert ":" in found[1][0][0]


def test_without_subgraphs_a_stream_tells_of_the_outer_graph_alone(
    drive: Drive,
) -> None:
    """An inner graph is one node."""
    app = around(inner("a").compile()).compile(executor="inline")

    found = drive.stream(app, {"trail": ""}, stream_mode="updates")

    assert [["before"], ["inner"], ["after"]] == [[*item] for item in found]


def test_a_command_for_the_parent_updates_and_goes_there(
    drive: Drive, executor: str
) -> None:
    """The inner graph ends with it."""
    command = Command(graph=Command.PARENT, update={"trail": "sent up "}, goto="last")
    deep = (
        StateGraph(StepId)
        .add_node("up", lambda _: command)
        .add_node("never", walk("never"))
    )
    deep.add_edge(START, "up").add_edge("up", "never")
    builder = (
        StateGraph(StepId).add_node("inner", deep.compile()).add_edge(START, "inner")
    )
    builder.add_node("last", walk("last"))

    result = drive.invoke(builder.compile(executor=executor), {"trail": ""})

    assert {"trail": "sent up last"} == result


def test_a_command_for_the_parent_may_send(drive: Drive) -> None:
    """The tasks it asks for run in the outer graph."""
    command = Command(graph=Command.PARENT, goto=[Send("each", 1), Send("each", 2)])
    deep = StateGraph(Items).add_node("up", lambda _: command).add_edge(START, "up")
    builder = (
        StateGraph(Items).add_node("inner", deep.compile()).add_edge(START, "inner")
    )
    builder.add_node("each", lambda given: {"items": [given]})

    assert {"items": [1, 2]} == drive.invoke(
        builder.compile(executor="inline"), {"items": []}
    )


def test_a_command_for_the_parent_of_the_outermost_graph_is_an_error(
    drive: Drive,
) -> None:
    """There is none."""
    builder = StateGraph(Items).add_node("up", lambda _: Command(graph=Command.PARENT))
    app = builder.add_edge(START, "up").compile(executor="inline")

    with pytest.raises(InvalidUpdateError, match="no parent graph"):
        drive.invoke(app, {"items": []})


def counting() -> StateGraph:
    """Return a graph that adds a mark each time it runs."""
    return StateGraph(Items).add_node("mark", note("x")).add_edge(START, "mark")


def calls(graph: Any, times: int = 1) -> StateGraph:
    """Return a graph whose node calls *graph*, and adds how many marks it shows."""

    def call(state: Items) -> Items:
        return {
            "items": [len(graph.invoke({"items": []})["items"]) for _ in range(times)]
        }

    return StateGraph(Items).add_node(call).add_edge(START, "call")


@pytest.mark.parametrize(
    ("checkpointer", "counts"),
    [
        (None, [1, 1]),
        (True, [1, 2]),
        (False, [1, 1]),
    ],
)
def test_an_inner_graph_remembers_earlier_runs_only_if_it_is_told_to(
    drive: Drive,
    checkpointer: bool | None,
    counts: list[int],
    saver: BaseCheckpointSaver,
) -> None:
    """``checkpointer=True`` gives it one history per thread."""
    app = calls(counting().compile(checkpointer)).compile(saver, executor="inline")

    drive.invoke(app, {"items": []}, thread_id="1")

    assert counts == drive.invoke(app, {"items": []}, thread_id="1")["items"]


def test_the_outermost_graph_cannot_use_its_parents_checkpointer(drive: Drive) -> None:
    """``True`` means that of the graph around, and there is none."""
    with pytest.raises(ConfigurationError, match="cannot be used for root graphs"):
        drive.invoke(
            counting().compile(True, executor="inline"), {"items": []}, thread_id="1"
        )


def test_a_graph_called_several_times_in_one_node_runs_anew_each_time(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Each call has a namespace of its own."""
    app = calls(counting().compile(), times=3).compile(saver, executor="inline")

    assert [1, 1, 1] == drive.invoke(app, {"items": []}, thread_id="1")["items"]


def test_a_question_asked_in_a_called_graph_bubbles_up(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The node that called it is run again with the answer."""
    asks = StateGraph(Items).add_node(ask).add_edge(START, "ask").compile()

    def call(state: Items) -> Items:
        return asks.invoke({"items": ["called"]})

    app = StateGraph(Items).add_node(call).add_edge(START, "call")
    app = app.compile(saver, executor="inline")
    stopped = drive.invoke(app, {"items": []}, thread_id="1")

    assert "really?" == stopped["__interrupt__"][0].value
    done = drive.invoke(app, Command(resume="yes"), thread_id="1")
    assert {"items": ["called", "yes"]} == done


def test_an_inner_graph_can_be_sent_to(drive: Drive, executor: str) -> None:
    """Each `Send` is a run of its own."""
    deep = StateGraph(Items).add_node("n", lambda s: {"items": [f"{s['items'][0]}!"]})
    builder = StateGraph(Items).add_node("inner", deep.add_edge(START, "n").compile())
    builder.set_conditional_entry_point(
        lambda _: [Send("inner", {"items": [word]}) for word in ("a", "b")], ["inner"]
    )

    result = drive.invoke(builder.compile(executor=executor), {"items": []})

    assert {"items": ["a", "a!", "b", "b!"]} == result


class Jump(TypedDict):
    """What the graphs of a jump share nothing of but its name."""

    x: int


@pytest.mark.parametrize("through", ["directly", "by a task"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_command_of_a_called_graph_is_for_the_graph_of_its_caller(
    drive: Any, saved: bool, through: str
) -> None:
    """It takes the place of what the caller would have returned; its body goes no
    further.
    """
    child = StateGraph(Jump).add_edge(START, "n")
    child.add_node(
        "n", lambda _: Command(graph=Command.PARENT, update={"x": 7}, goto="second")
    )
    called = child.compile()

    def first(state: Jump) -> Jump:
        if through == "directly":
            called.invoke(state)
        else:
            task(called.invoke)(state).result()
        raise AssertionError("not reached")

    builder = StateGraph(Jump).add_node(first).add_edge(START, "first")
    builder.add_node("second", lambda state: {"x": state["x"] * 2})
    app = builder.compile(InMemorySaver() if saved else None, executor="threads")

    assert {"x": 14} == drive.invoke(app, {"x": 1}, thread_id="1")


def test_what_is_untracked_travels_with_a_send_but_is_not_kept(drive: Any) -> None:
    """The task that is sent the whole state has it; the record of the `Send` has the
    rest.
    """
    builder = StateGraph(WithClient).add_edge(START, "setup")
    builder.add_node("setup", lambda _: {"client": threading.Lock(), "log": ["setup"]})
    builder.add_node("tool", lambda state: {"log": [type(state["client"]).__name__]})
    builder.add_conditional_edges("setup", lambda state: [Send("tool", state)])
    app = builder.compile(InMemorySaver(), executor="threads")

    assert ["setup", "lock"] == drive.invoke(app, {"log": []}, thread_id="1")["log"]

    sent = [each.values.get("client") for each in app.get_state_history(thread_id="1")]
    assert {None} == set(sent)


class WithClient(TypedDict, total=False):
    """A state that holds what cannot be kept."""

    log: Annotated[list[str], operator.add]
    client: Annotated[Any, UntrackedValue]


@pytest.mark.parametrize("kind", [Mock, MagicMock])
def test_an_object_that_has_every_attribute_is_called_as_a_node(kind: Any) -> None:
    """As those who test a graph give their mocks: not for the ``invoke`` that they seem
    to have.
    """
    builder = (
        StateGraph(Jump).add_node("n", kind(return_value={"x": 5})).add_edge(START, "n")
    )

    assert {"x": 5} == builder.compile(executor="inline").invoke({"x": 1})
