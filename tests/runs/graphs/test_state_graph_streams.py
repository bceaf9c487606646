"""What a graph streams, in LangGraph's shapes and order."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.config import get_stream_writer
from flowpregel.errors import ConfigurationError, GraphRecursionError
from flowpregel.graph import START, CompiledStateGraph, StateGraph
from flowpregel.types import Command, GraphOutput, StreamWriter, interrupt
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


def line(**options: Any) -> CompiledStateGraph:
    """Return two nodes, one after the other."""
    builder = StateGraph(Items).add_edge(START, "a")
    builder.add_sequence(
        [(name, lambda _, name=name: {"items": [name]}) for name in "ab"]
    )
    return builder.compile(executor="inline", **options)


def asking(saver: BaseCheckpointSaver) -> CompiledStateGraph:
    """Return a node that asks, and one beside it that does not."""
    builder = StateGraph(Items)
    builder.add_node("ask", lambda _: {"items": [interrupt("?")]}).add_edge(
        START, "ask"
    )
    builder.add_node("work", lambda _: {"items": ["work"]}).add_edge(START, "work")
    return builder.compile(saver, executor="inline")


def test_a_graph_streams_updates_unless_it_is_told_otherwise(drive: Drive) -> None:
    """Each node's update by its name, as it ends."""
    assert [{"a": {"items": ["a"]}}, {"b": {"items": ["b"]}}] == drive.stream(
        line(), {"items": []}
    )


def test_values_are_the_state_after_each_superstep(drive: Drive, executor: str) -> None:
    """The input first."""
    found = drive.stream(line(), {"items": ["in"]}, stream_mode="values")

    assert [["in"], ["in", "a"], ["in", "a", "b"]] == [item["items"] for item in found]


def test_several_modes_are_told_apart_by_their_names(drive: Drive) -> None:
    """A tuple of modes is as good as a list."""
    for modes in (["values", "updates"], ("values", "updates")):
        found = drive.stream(line(), {"items": []}, stream_mode=modes)
        assert ["values", "updates", "values", "updates", "values"] == [
            mode for mode, _ in found
        ]


def test_an_update_that_wrote_a_key_twice_is_a_list(drive: Drive) -> None:
    """So that nothing is hidden."""
    twice = [Command(update={"items": [1]}), Command(update={"items": [2]})]
    app = StateGraph(Items).add_node("n", lambda _: twice).add_edge(START, "n")

    found = drive.stream(app.compile(executor="inline"), {"items": []})

    assert [{"n": [{"items": [1]}, {"items": [2]}]}] == found


def test_nodes_write_to_the_custom_stream(drive: Drive, executor: str) -> None:
    """By a parameter, or by a function; before their update is told."""

    def tell(state: Items, writer: StreamWriter) -> Items:
        writer("by parameter")
        get_stream_writer()({"by": "function"})
        return {"items": [1]}

    app = (
        StateGraph(Items)
        .add_node(tell)
        .add_edge(START, "tell")
        .compile(executor=executor)
    )

    found = drive.stream(app, {"items": []}, stream_mode=["custom", "updates"])

    assert [
        ("custom", "by parameter"),
        ("custom", {"by": "function"}),
        ("updates", {"tell": {"items": [1]}}),
    ] == found


@pytest.mark.parametrize("mode", ["updates", "tasks"])
def test_a_graph_that_a_node_calls_is_no_node_of_the_stream(
    drive: Drive, mode: str
) -> None:
    """Only what happens inside of it is shown, with ``subgraphs=True``."""
    inner = line(name="inner")
    builder = StateGraph(Items).add_node("call", inner.invoke).add_edge(START, "call")
    outer = builder.compile(executor="inline")

    found = drive.stream(outer, {"items": []}, stream_mode=mode)
    inside = drive.stream(outer, {"items": []}, stream_mode=mode, subgraphs=True)

    assert {"call"} == {item.get("name", next(iter(item))) for item in found}
    assert ["", "call"] == sorted(
        {":".join(space).split(":")[0] for space, _ in inside}
    )
    assert {"a", "b", "call"} == {
        item.get("name", next(iter(item))) for _, item in inside
    }


def test_nested_graphs_write_to_the_custom_stream(drive: Drive, executor: str) -> None:
    """Also if the stream does not show nested graphs. LangGraph drops these items."""

    def write(state: Items) -> Items:
        get_stream_writer()("inner")
        return {"items": []}

    inner = StateGraph(Items).add_node(write).add_edge(START, "write").compile()
    builder = StateGraph(Items).add_node("inner", inner).add_edge(START, "inner")
    app = builder.compile(executor=executor)

    assert ["inner"] == drive.stream(app, {"items": []}, stream_mode="custom")


def test_a_question_is_streamed_when_it_is_asked(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """As an update, and beside the values; what siblings did is shown at the end."""
    found = drive.stream(
        asking(saver), {"items": []}, thread_id="1", stream_mode=["values", "updates"]
    )

    updates = [payload for mode, payload in found if mode == "updates"]
    assert ["?"] == [
        u["__interrupt__"][0].value for u in updates if "__interrupt__" in u
    ]
    assert ("values", {"items": ["work"]}) == found[-1]


def test_what_was_done_before_a_resume_is_told_as_cached(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It did not run again."""
    app = asking(saver)
    drive.invoke(app, {"items": []}, thread_id="1")

    found = drive.stream(
        app, Command(resume="yes"), thread_id="1", stream_mode="updates"
    )

    assert [
        {"work": {"items": ["work"]}, "__metadata__": {"cached": True}},
        {"ask": {"items": ["yes"]}},
    ] == found


def test_a_breakpoint_is_streamed_as_an_empty_interrupt(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Nothing is asked."""
    app = line(checkpointer=saver, interrupt_before=["b"])

    found = drive.stream(app, {"items": []}, thread_id="1", stream_mode="updates")

    assert [{"a": {"items": ["a"]}}, {"__interrupt__": ()}] == found


@pytest.mark.parametrize("is_node", [True, False])
def test_a_breakpoint_inside_a_graph_is_streamed_by_the_outermost(
    drive: Drive, saver: BaseCheckpointSaver, is_node: bool
) -> None:
    """Whoever reads its stream learns that it stopped, and once."""
    inner = line(interrupt_after=["a"])
    builder = StateGraph(Items).add_node("inner", inner if is_node else inner.invoke)
    app = builder.add_edge(START, "inner").compile(saver, executor="inline")

    plain = drive.stream(app, {"items": []}, thread_id="1", stream_mode="updates")
    spaces = drive.stream(
        app, {"items": []}, thread_id="2", stream_mode="updates", subgraphs=True
    )

    assert [{"__interrupt__": ()}] == plain
    assert [((), {"__interrupt__": ()})] == [
        each for each in spaces if "a" not in each[1]
    ]
    assert ["a", "b"] == drive.invoke(app, None, thread_id="1")["items"]


def test_a_node_whose_graph_stops_at_a_breakpoint_has_not_ended(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It has no result yet, so the stream shows its start alone."""
    inner = line(interrupt_before=["a"])
    builder = StateGraph(Items).add_node("inner", inner)
    app = builder.add_edge(START, "inner").compile(saver, executor="inline")

    found = drive.stream(app, {"items": []}, thread_id="1", stream_mode="tasks")

    assert [("inner", True)] == [(item["name"], "input" in item) for item in found]


def test_tasks_are_streamed_when_they_start_and_end(drive: Drive) -> None:
    """With input, triggers and result; hidden nodes are not told."""
    found = drive.stream(line(), {"items": []}, stream_mode="tasks")

    start, end = found[:2]
    assert ["a", "a", "b", "b"] == [item["name"] for item in found]
    assert {"items": []} == start["input"]
    assert ("branch:to:a",) == start["triggers"]
    assert start["id"] == end["id"]
    assert ({"items": ["a"]}, None, []) == (
        end["result"],
        end["error"],
        end["interrupts"],
    )


def test_checkpoints_are_streamed_with_what_is_next(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """One for the input, one for each superstep."""
    app = line(checkpointer=saver)

    found = drive.stream(app, {"items": []}, thread_id="1", stream_mode="checkpoints")

    assert [["__start__"], ["a"], ["b"], []] == [item["next"] for item in found]
    assert [-1, 0, 1, 2] == [item["metadata"]["step"] for item in found]


def test_the_last_checkpoint_before_the_recursion_limit_shows_what_is_next(
    saver: BaseCheckpointSaver,
) -> None:
    """The node that is due may not start, but a later run can continue with it."""
    app = line(checkpointer=saver)
    modes = {"stream_mode": "checkpoints", "recursion_limit": 1}
    stream = app.stream({"items": []}, thread_id="1", **modes)

    found = [next(stream) for _ in range(3)]
    with pytest.raises(GraphRecursionError):
        next(stream)

    assert [["__start__"], ["a"], ["b"]] == [item["next"] for item in found]
    assert ("b",) == app.get_state(thread_id="1").next


def test_debug_is_tasks_and_checkpoints_with_their_steps(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """In the order in which they happen."""
    app = line(checkpointer=saver)

    found = drive.stream(app, {"items": []}, thread_id="1", stream_mode="debug")

    assert [
        "checkpoint",
        "checkpoint",
        "task",
        "task_result",
        "checkpoint",
        "task",
        "task_result",
        "checkpoint",
    ] == [item["type"] for item in found]
    assert [-1, 0, 1, 1, 1, 2, 2, 2] == [item["step"] for item in found]


def test_version_2_says_the_type_of_each_item(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """And keeps questions apart from the values."""
    found = drive.stream(
        asking(saver),
        {"items": []},
        thread_id="1",
        stream_mode=["values", "updates"],
        version="v2",
    )

    assert {"values", "updates"} == {item["type"] for item in found}
    asked = [item for item in found if item["type"] == "values" and item["interrupts"]]
    assert ["?"] == [item["interrupts"][0].value for item in asked]
    assert all("__interrupt__" not in item["data"] for item in asked)


def test_version_2_of_invoke_returns_value_and_questions_apart(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """A `GraphOutput`."""
    output = drive.invoke(asking(saver), {"items": []}, thread_id="1", version="v2")

    assert isinstance(output, GraphOutput)
    assert {"items": ["work"]} == output.value
    assert ["?"] == [item.value for item in output.interrupts]


def test_an_unknown_mode_is_refused(drive: Drive) -> None:
    """The message lists the modes."""
    with pytest.raises(
        ConfigurationError, match="'tool' is unknown; the modes are: values"
    ):
        drive.stream(line(), {"items": []}, stream_mode="tool")


def test_a_reader_that_stops_early_ends_the_run(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """What finished is kept, and the run can go on."""
    app = line(checkpointer=saver)

    drive.stream_until(
        lambda item: "a" in item,
        app,
        {"items": []},
        thread_id="1",
        stream_mode="updates",
    )

    assert {"items": ["a", "b"]} == drive.invoke(app, None, thread_id="1")
