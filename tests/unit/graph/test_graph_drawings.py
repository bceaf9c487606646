"""A graph is drawn with its nodes, its edges, and where its branches may lead."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command


class State(TypedDict, total=False):
    """A state."""

    n: int


def node(state: State) -> State:
    """Do nothing."""
    return {}


def choose(state: State) -> Literal["left", "right"]:
    """Choose a way."""
    return "left"


def go(state: State) -> Command[Literal["left", "__end__"]]:
    """Go on with a command."""
    return Command(goto="left")


def edges(graph: StateGraph, **asked: Any) -> set[tuple[str, str | None, str, bool]]:
    """Return the edges of the drawing of *graph*."""
    drawn = graph.compile().get_graph(**asked)
    return {(e.source, e.data, e.target, e.conditional) for e in drawn.edges}


def ways() -> StateGraph:
    """Return a graph of a node and two that it leads to."""
    graph = StateGraph(State).add_node("a", node).add_edge(START, "a")
    return graph.add_node("left", node).add_node("right", node)


def test_edges_are_drawn_and_what_leads_nowhere_leads_to_the_end() -> None:
    """Nothing has to be added for it."""
    graph = (
        StateGraph(State).add_sequence([("a", node), ("b", node)]).add_edge(START, "a")
    )

    assert {
        (START, None, "a", False),
        ("a", None, "b", False),
        ("b", None, END, False),
    } == edges(graph)


def test_a_barrier_is_an_edge_from_each_of_its_starts() -> None:
    """They meet at the end."""
    graph = ways().add_edge(START, "right").add_edge(["a", "right"], "left")

    assert {("a", None, "left", False), ("right", None, "left", False)} <= edges(graph)


def test_a_conditional_edge_is_labelled_with_the_answer_that_leads_there() -> None:
    """An answer that is the node's own name needs no label."""
    graph = ways().add_conditional_edges(
        "a", lambda _: "yes", {"yes": "left", "right": "right"}
    )

    assert {("a", "yes", "left", True), ("a", None, "right", True)} <= edges(graph)


def test_a_path_functions_annotation_is_as_good_as_a_map() -> None:
    """``Literal`` answers."""
    drawn = edges(ways().add_conditional_edges("a", choose))

    assert {("a", None, "left", True), ("a", None, "right", True)} == {
        edge for edge in drawn if edge[3]
    }


def test_a_path_of_which_nothing_is_known_may_lead_anywhere() -> None:
    """To every other node, and to the end."""
    drawn = edges(ways().add_conditional_edges("a", lambda _: END))

    assert {"left", "right", END} == {edge[2] for edge in drawn if edge[3]}


def test_a_commands_destinations_are_drawn_with_their_labels() -> None:
    """As the annotation, or ``destinations``, says."""
    graph = (
        ways().add_node(go).add_node("c", node, destinations={"left": "on the left"})
    )
    graph.add_edge("a", "go").add_edge("a", "c")

    assert {
        ("go", None, "left", True),
        ("go", None, END, True),
        ("c", "on the left", "left", True),
    } <= edges(graph)


def test_an_error_handler_is_drawn_beside_its_node() -> None:
    """With a dashed edge."""
    graph = ways().add_node("risky", node, error_handler=node).add_edge("a", "risky")

    assert ("risky", "error", "__error_handler__risky", True) in edges(graph)


def test_a_nested_graph_is_drawn_when_it_is_x_rayed() -> None:
    """As deep as was asked for."""
    inner = StateGraph(State).add_node("deep", node).add_edge(START, "deep")
    graph = (
        StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    )
    app = graph.compile()

    assert "deep" not in app.get_graph().draw_mermaid()
    assert "deep" in app.get_graph(xray=True).draw_mermaid()
    assert "deep" in app.get_graph(xray=1).draw_ascii()


def test_graphs_that_call_each_other_are_drawn_and_listed_once() -> None:
    """Each in the other would go on without end."""

    def call_there(state: State) -> State:
        return there.invoke(state)

    def call_here(state: State) -> State:
        return here.invoke(state)

    here = StateGraph(State).add_node("a", call_there).add_edge(START, "a").compile()
    there = StateGraph(State).add_node("b", call_here).add_edge(START, "b").compile()

    assert [("a", there)] == [*here.get_subgraphs(recurse=True)]
    assert {"__start__", "a:__start__", "a:b", "a:__end__", "__end__"} == {
        *here.get_graph(xray=True).leaves()
    }
