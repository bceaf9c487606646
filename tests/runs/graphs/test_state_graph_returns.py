"""What a node may return, and where that leads; what cannot be is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.channels import EphemeralValue, Overwrite, Topic
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    InvalidUpdateError,
    RunNotice,
)
from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command, Send
from tests.graphs import Lists, fan, put
from tests.runs.conftest import Drive


def test_none_writes_nothing(drive: Drive) -> None:
    """A node need not return anything."""
    builder = StateGraph(Lists).add_node("n", lambda _: None).add_edge(START, "n")

    assert {"items": ["in"]} == drive.invoke(
        builder.compile(executor="inline"), {"items": ["in"]}
    )


def test_keys_that_are_no_state_are_left_out(drive: Drive) -> None:
    """As in LangGraph: a node may return more than the graph wants."""
    builder = StateGraph(Lists).add_node("n", lambda _: {"other": 1, "total": 2})
    builder.add_edge(START, "n")

    assert {"items": [], "total": 2} == drive.invoke(
        builder.compile(executor="inline"), {"items": [], "more": 1}
    )


@pytest.mark.parametrize(
    "returned", [{"itmes": ["a"]}, Command(update={"itmes": ["a"]})]
)
def test_a_notice_tells_of_an_update_without_any_key_of_the_state(
    drive: Drive, executor: str, returned: Any
) -> None:
    """LangGraph drops it without a word; most often a key is misspelled."""
    builder = StateGraph(Lists).add_node("n", lambda _: returned).add_edge(START, "n")
    app = builder.compile(executor=executor)

    with pytest.warns(
        RunNotice,
        match="the update by node 'n' has no key of the state"
        ".* are 'itmes', .*'items', 'total'",
    ):
        result = drive.invoke(app, {"items": ["in"]})

    assert {"items": ["in"]} == result


def test_a_notice_tells_of_an_input_without_any_key_of_the_state(drive: Drive) -> None:
    """The nodes would run on an empty state."""
    builder = StateGraph(Lists).add_node("n", put("n")).add_edge(START, "n")

    with pytest.warns(RunNotice, match="the input has no key of the state.*'itmes'"):
        result = drive.invoke(builder.compile(executor="inline"), {"itmes": ["in"]})

    assert {"items": ["n"]} == result


def test_a_warning_tells_of_an_edit_without_any_key_of_the_state() -> None:
    """It points at the line that edits."""
    builder = StateGraph(Lists).add_node("n", put("n")).add_edge(START, "n")
    app = builder.compile(executor="inline", checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    app.invoke({"items": ["in"]}, config)

    with pytest.warns(
        RunNotice, match="the update by node 'n' has no key of the state.*'itmes'"
    ) as caught:
        app.update_state(config, {"itmes": ["edited"]})

    assert [__file__] == [each.filename for each in caught]
    assert ["in", "n"] == app.get_state(config).values["items"]


@pytest.mark.parametrize("wrong", [1, "text", ["a"], {1, 2}])
def test_anything_but_a_dict_is_refused(drive: Drive, wrong: Any) -> None:
    """The message names the node, and shows what it returned."""
    builder = StateGraph(Lists).add_node("odd", lambda _: wrong).add_edge(START, "odd")

    with pytest.raises(
        InvalidUpdateError, match=r"Expected dict, got .* from node 'odd'"
    ):
        drive.invoke(builder.compile(executor="inline"), {"items": []})


def test_a_command_updates_and_goes(drive: Drive, executor: str) -> None:
    """To nodes, and to sends; edges of the node are followed as well."""
    go = Command(update={"items": ["a"]}, goto=["b", Send("each", 7)])
    builder = StateGraph(Lists).add_node("a", lambda _: go).add_edge(START, "a")
    builder.add_node("b", put("b")).add_node("c", put("c")).add_edge("a", "c")
    builder.add_node("each", lambda given: {"items": [given]})

    result = drive.invoke(builder.compile(executor=executor), {"items": []})

    assert ["a", "b", "c", 7] == result["items"]


def test_several_commands_and_dicts_may_be_returned_in_one_list(drive: Drive) -> None:
    """Each does its part."""
    several = [Command(update={"items": [1]}), {"items": [2]}, Command(goto="b")]
    builder = StateGraph(Lists).add_node("a", lambda _: several).add_edge(START, "a")
    builder.add_node("b", put("b"))

    assert [1, 2, "b"] == drive.invoke(
        builder.compile(executor="inline"), {"items": []}
    )["items"]


def test_a_command_to_an_unknown_node_names_it(drive: Drive) -> None:
    """And the nodes that there are."""
    builder = (
        fan("a").add_node("b", lambda _: Command(goto="nowhere")).add_edge("a", "b")
    )

    with pytest.raises(
        InvalidUpdateError, match=r"node 'b' leads to node 'nowhere'.*: a, b"
    ):
        drive.invoke(builder.compile(executor="inline"), {"items": []})


def test_a_command_to_the_end_goes_nowhere(drive: Drive) -> None:
    """`END` is no node."""
    builder = (
        StateGraph(Lists)
        .add_node("a", lambda _: Command(goto=END))
        .add_edge(START, "a")
    )

    assert {"items": []} == drive.invoke(
        builder.compile(executor="inline"), {"items": []}
    )


def test_an_overwrite_replaces_what_a_reducer_would_add_to(drive: Drive) -> None:
    """Other writes of its superstep are dropped."""
    builder = (
        fan("a")
        .add_node("b", lambda _: {"items": Overwrite(["new"])})
        .add_edge("a", "b")
    )

    assert ["new"] == drive.invoke(
        builder.compile(executor="inline"), {"items": ["old"]}
    )["items"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "Branch 'path' of node 'a' did not return a valid destination"),
        (START, "Branch 'path' of node 'a' did not return a valid destination"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error(
    drive: Drive, answer: Any, message: str
) -> None:
    """None and `START` are no destinations."""

    def path(state: Lists) -> Any:
        return answer

    app = fan("a").add_conditional_edges("a", path).compile(executor="inline")

    with pytest.raises(ConfigurationError, match=message):
        drive.invoke(app, {"items": []})


def test_an_answer_that_is_not_in_the_path_map_is_an_error(drive: Drive) -> None:
    """The message shows the answer and the map."""
    app = (
        fan("a")
        .add_conditional_edges("a", lambda _: "x", {"y": "a"})
        .compile(executor="inline")
    )

    with pytest.raises(
        ConfigurationError, match=r"it returned 'x', and its path map has 'y'"
    ):
        drive.invoke(app, {"items": []})


def test_a_send_to_the_end_is_an_error(drive: Drive) -> None:
    """Nothing runs there."""
    app = (
        fan("a")
        .add_conditional_edges("a", lambda _: Send(END, 1))
        .compile(executor="inline")
    )

    with pytest.raises(
        InvalidUpdateError, match="Cannot send a packet to the END node"
    ):
        drive.invoke(app, {"items": []})


def test_two_writes_to_a_plain_value_in_one_superstep_are_an_error(
    drive: Drive,
) -> None:
    """The message says what to use instead."""
    builder = StateGraph(Lists)
    for name in "ab":
        builder.add_node(name, lambda _: {"total": 1}).add_edge(START, name)

    with pytest.raises(InvalidUpdateError, match="total"):
        drive.invoke(builder.compile(executor="inline"), {"items": []})


def test_no_input_is_an_error_on_a_new_thread(drive: Drive) -> None:
    """None goes on with a run, and there is none."""
    with pytest.raises(EmptyInputError):
        drive.invoke(fan("a").compile(executor="inline"), None)


class Kinds(TypedDict, total=False):
    """A state of channels."""

    once: Annotated[str, EphemeralValue]
    notes: Annotated[list[str], Topic(str, accumulate=True)]


def test_channels_in_annotations_keep_their_ways(drive: Drive) -> None:
    """A class or an instance: an ephemeral value is gone after one superstep."""
    seen: list[Any] = []
    builder = StateGraph(Kinds)
    builder.add_node("a", lambda s: seen.append(s.get("once")) or {"notes": "a"})
    builder.add_node("b", lambda s: seen.append(s.get("once")) or {"notes": "b"})
    builder.add_edge(START, "a").add_edge("a", "b")

    result = drive.invoke(builder.compile(executor="inline"), {"once": "x"})

    assert ["x", None] == seen
    assert {"notes": ["a", "b"]} == result


def test_a_text_as_path_map_says_nothing() -> None:
    """As LangGraph has it: it is no list of the letters' names."""
    builder = StateGraph(dict).add_node("aa", lambda _: {"x": 1}).add_edge(START, "aa")
    builder.add_conditional_edges("aa", lambda _: END, "aa")

    assert {"x": 1} == builder.compile(executor="inline").invoke({"x": 0})
