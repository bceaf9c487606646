"""A `StateGraph` runs as its nodes and edges say: the examples of the documentation,
and more.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, TypedDict

import pytest

from flowpregel.errors import GraphRecursionError
from flowpregel.graph import END, START, CompiledStateGraph, StateGraph
from flowpregel.managed import IsLastStep, RemainingSteps
from flowpregel.pregel import Pregel
from flowpregel.types import Send
from tests.graphs import Lists, fan, put
from tests.runs.conftest import Drive


class Joke(TypedDict, total=False):
    """The state of the first example that every newcomer meets."""

    topic: str
    review: Literal["good", "bad"]
    init_joke: str
    improved_joke: str


def tell(state: Joke) -> Joke:
    """Tell a joke."""
    return {"init_joke": f"a joke about {state['topic']}"}


def tell_better(state: Joke) -> Joke:
    """Tell it better."""
    return {"improved_joke": f"{state['init_joke']}, but better"}


def jokes(review: str) -> StateGraph:
    """Return a graph that tells a joke, reviews it, and perhaps tells it better."""
    builder = (
        StateGraph(Joke)
        .add_node("generate_joke", tell)
        .add_node("regenerate_joke", tell_better)
    )
    builder.add_edge(START, "generate_joke")
    builder.add_edge("regenerate_joke", END)
    builder.add_conditional_edges(
        "generate_joke", lambda _: review, {"good": END, "bad": "regenerate_joke"}
    )
    return builder


@pytest.mark.parametrize(("review", "improved"), [("bad", True), ("good", False)])
def test_a_conditional_edge_leads_where_its_path_map_says(
    drive: Drive, executor: str, review: str, improved: bool
) -> None:
    """The answer of the path function is looked up in the map."""
    app: Pregel = jokes(review).compile(executor=executor)

    result = drive.invoke(app, {"topic": "cats"})

    assert "a joke about cats" == result["init_joke"]
    assert improved == ("improved_joke" in result)


class Essay(TypedDict, total=False):
    """A state of three plain values."""

    topic: str
    content: str | None
    score: float | None


def write_essay(essay: Essay) -> Essay:
    """Write."""
    return {"content": f"Essay about {essay['topic']}"}


def score_essay(essay: Essay) -> Essay:
    """Score."""
    return {"score": 10}


def test_nodes_named_after_their_functions_run_along_edges(
    drive: Drive, executor: str
) -> None:
    """The essay example: two nodes, one after the other."""
    builder = StateGraph(Essay)
    builder.add_node(write_essay)
    builder.add_node(score_essay)
    builder.add_edge(START, "write_essay")
    builder.add_edge("write_essay", "score_essay")

    result = drive.invoke(builder.compile(executor=executor), {"topic": "cats"})

    assert {"topic": "cats", "content": "Essay about cats", "score": 10} == result


def test_a_compiled_graph_shows_the_program_it_was_lowered_to() -> None:
    """Its nodes, and the channels of its state and of its edges."""
    app = (
        StateGraph(Essay).add_node(write_essay).add_edge(START, "write_essay").compile()
    )

    assert isinstance(app, CompiledStateGraph)
    assert ["__start__", "write_essay"] == list(app.nodes)
    assert {"topic", "content", "score", "__start__", "branch:to:write_essay"} <= set(
        app.channels
    )


def test_writes_of_one_superstep_fold_in_the_order_of_node_names(
    drive: Drive, executor: str
) -> None:
    """Whichever ends first, the result is the same."""
    app = fan("c", "a", "b").compile(executor=executor)

    assert ["a", "b", "c"] == drive.invoke(app, {"items": []})["items"]


def test_a_list_of_starts_waits_for_all_of_them(drive: Drive, executor: str) -> None:
    """A barrier: the end runs once, when the longer way has come to it as well."""
    builder = fan("a", "b").add_node("b2", put("b2")).add_edge("b", "b2")
    builder.add_node("end", lambda state: {"items": [len(state["items"])]})
    builder.add_edge(["a", "b2"], "end")

    result = drive.invoke(builder.compile(executor=executor), {"items": []})

    assert ["a", "b", "b2", 3] == result["items"]


def test_without_a_barrier_a_node_runs_once_for_each_superstep_that_leads_to_it(
    drive: Drive,
) -> None:
    """Two edges that arrive in different supersteps run it twice."""
    builder = fan("a", "b").add_node("b2", put("b2")).add_edge("b", "b2")
    builder.add_node("end", put("end")).add_edge("a", "end").add_edge("b2", "end")

    result = drive.invoke(builder.compile(executor="inline"), {"items": []})

    assert ["a", "b", "b2", "end", "end"] == result["items"]


def test_a_deferred_node_runs_when_nothing_else_is_left(
    drive: Drive, executor: str
) -> None:
    """Edges of different lengths lead to it, and it runs once, at the end."""
    builder = fan("a", "b").add_node("b2", put("b2")).add_edge("b", "b2")
    builder.add_node("end", put("end"), defer=True).add_edge("a", "end").add_edge(
        "b2", "end"
    )

    result = drive.invoke(builder.compile(executor=executor), {"items": []})

    assert ["a", "b", "b2", "end"] == result["items"]


def test_a_deferred_node_waits_for_what_was_sent_too(drive: Drive) -> None:
    """A task that was asked for with `Send` is something that is left to run."""
    builder = fan("a").add_node("sent", lambda given: {"items": [given]})
    builder.add_node("end", put("end"), defer=True).add_edge("a", "end")
    builder.add_conditional_edges(
        "a", lambda _: [Send("sent", 1), Send("sent", 2)], ["sent"]
    )

    result = drive.invoke(builder.compile(executor="inline"), {"items": []})

    assert ["a", 1, 2, "end"] == result["items"]


def test_a_path_function_sees_what_its_node_wrote_and_nobody_else(drive: Drive) -> None:
    """The state is fresh: with the node's own writes folded in, not its siblings'."""
    seen: list[Any] = []
    builder = fan("b", "a")
    builder.add_conditional_edges("a", lambda state: seen.append(state["items"]) or END)

    drive.invoke(builder.compile(executor="inline"), {"items": ["in"]})

    assert [["in", "a"]] == seen


def annotated(state: Lists) -> str:
    """Lead to the end if nothing but state is there."""
    return END if state.keys() <= {"items", "total"} else "b"


@pytest.mark.parametrize(
    ("path", "update", "items"),
    [
        # Without a key of the state there would be a notice, as no one gets the update.
        (annotated, {"extra": 1, "items": []}, []),
        (lambda state: "b" if "extra" in state else END, {"extra": 1}, ["b"]),
    ],
)
def test_a_path_function_gets_what_its_node_returned_unless_it_names_a_schema(
    drive: Drive, path: Any, update: Any, items: list[str]
) -> None:
    """Keys that are no state are passed on to a path function of any state."""
    builder = StateGraph(Lists).add_node("a", lambda _: update).add_edge(START, "a")
    builder.add_node("b", put("b")).add_conditional_edges("a", path, ["b", END])

    assert (
        items
        == drive.invoke(builder.compile(executor="inline"), {"items": []})["items"]
    )


def test_a_conditional_edge_may_lead_to_several_nodes_and_sends(drive: Drive) -> None:
    """Names and `Send`s in one list."""
    builder = fan("a").add_node("b", put("b"))
    builder.add_node("each", lambda given: {"items": [given["n"]]})
    builder.add_conditional_edges("a", lambda _: ["b", Send("each", {"n": 1})])

    result = drive.invoke(builder.compile(executor="inline"), {"items": []})

    assert ["a", "b", 1] == result["items"]


async def async_path(state: Lists) -> str:
    """Lead to ``b``."""
    return "b"


def test_an_async_path_function_is_awaited() -> None:
    """Also after a node, and at the entry, that are not async themselves."""
    builder = StateGraph(Lists).add_node("a", put("a")).add_node("b", put("b"))
    builder.set_conditional_entry_point(entry_path)
    builder.add_conditional_edges("a", async_path)

    result = Drive(True).invoke(builder.compile(executor="threads"), {"items": []})

    assert ["a", "b"] == result["items"]


async def entry_path(state: Lists) -> Literal["a"]:
    """Lead to ``a``."""
    return "a"


def test_an_async_path_function_in_a_sync_run_says_what_to_do() -> None:
    """The error names the node, and the methods to use."""
    app = fan("a").add_conditional_edges("a", async_path).compile(executor="inline")

    with pytest.raises(TypeError, match=r"'a' is async.*use ainvoke"):
        app.invoke({"items": []})


def test_a_loop_ends_when_its_conditional_edge_says_so(
    drive: Drive, executor: str
) -> None:
    """Ten rounds, each a superstep."""
    builder = StateGraph(Lists).add_node(
        "n", lambda state: {"total": state["total"] + 1}
    )
    builder.add_edge(START, "n")
    builder.add_conditional_edges(
        "n", lambda state: "n" if state["total"] < 10 else END
    )

    assert 10 == drive.invoke(builder.compile(executor=executor), {"total": 0})["total"]


def test_a_loop_without_an_end_is_stopped_by_the_recursion_limit(drive: Drive) -> None:
    """The limit counts supersteps."""
    builder = (
        StateGraph(Lists).add_node("n", put(1)).add_edge(START, "n").add_edge("n", "n")
    )

    with pytest.raises(GraphRecursionError, match="5 supersteps"):
        drive.invoke(
            builder.compile(executor="inline"), {"items": []}, recursion_limit=5
        )


class Steps(TypedDict, total=False):
    """A state with managed values."""

    left: RemainingSteps
    last: IsLastStep
    seen: Annotated[list[Any], operator.add]


def test_managed_values_tell_nodes_and_paths_how_far_they_may_go(drive: Drive) -> None:
    """They are read like state, and are no part of it."""
    builder = StateGraph(Steps)
    builder.add_node("n", lambda s: {"seen": [(s["left"], s["last"])]}).add_edge(
        START, "n"
    )
    builder.add_conditional_edges("n", lambda s: END if s["left"] <= 1 else "n")

    result = drive.invoke(
        builder.compile(executor="inline"), {"seen": []}, recursion_limit=3
    )

    assert {"seen": [(2, False), (1, True)]} == result
