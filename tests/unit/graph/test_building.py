"""A graph that cannot work is refused while it is built, and the message says which
part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command


class State(TypedDict, total=False):
    """A state."""

    n: int


def a(state: State) -> State:
    """Do nothing."""
    return {}


def b(state: State) -> Command[Literal["a", "__end__"]]:
    """Go to ``a`` or to the end."""
    return Command(goto="a")


def empty() -> StateGraph:
    """Return a graph with the nodes ``a`` and ``b``."""
    return StateGraph(State).add_node(a).add_node(b)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: g.add_node("a", a), "Node 'a' already present"),
        (lambda g: g.add_node("__start__", a), "Node '__start__' is reserved"),
        (lambda g: g.add_node(END, a), "Node '__end__' is reserved"),
        (lambda g: g.add_node("x:y", a), "':' is a reserved character .* 'x:y'"),
        (lambda g: g.add_node("x|y", a), r"'\|' is a reserved character .* 'x\|y'"),
        (lambda g: g.add_node("x"), "node 'x' has no action"),
        (lambda g: g.add_node("x", 5), "node 'x': 5 cannot be a node"),
        (lambda g: g.add_edge(END, "a"), "END cannot be a start node"),
        (lambda g: g.add_edge("a", START), "START cannot be an end node"),
        (lambda g: g.add_edge(["a", "x"], "b"), "Need to add_node 'x' first"),
        (lambda g: g.add_edge([], "b"), "needs a node to start from"),
        (lambda g: g.add_sequence([]), "Sequence requires at least one node"),
        (lambda g: g.add_conditional_edges("a", 5), "5 cannot be a node"),
        (
            lambda g: g.add_conditional_edges("a", a).add_conditional_edges("a", a),
            "Branch with name 'a' already exists for node 'a'",
        ),
    ],
)
def test_what_cannot_be_added_is_refused_at_once(
    build: Callable[[StateGraph], Any], message: str
) -> None:
    """With the name of the node or edge."""
    with pytest.raises(ConfigurationError, match=message):
        build(empty())


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (lambda g: g, {}, "must have an entrypoint"),
        (
            lambda g: g.add_edge(START, "x"),
            {},
            "from '__start__' ending at unknown node 'x'; .*a, b",
        ),
        (
            lambda g: g.add_edge(START, "a").add_edge("x", "a"),
            {},
            "starting at unknown node 'x'",
        ),
        (
            lambda g: g.add_edge(START, "a").add_conditional_edges(
                "a", lambda _: "x", ["x"]
            ),
            {},
            "At 'a' node, 'condition' branch found unknown node 'x'",
        ),
        (
            lambda g: g.add_edge(START, "a").add_conditional_edges("x", lambda _: "a"),
            {},
            "starting at unknown node 'x'",
        ),
        (
            lambda g: g.add_edge(START, "a").add_node("c", a, destinations=("x",)),
            {},
            "destinations of node 'c' name unknown node 'x'",
        ),
        (
            lambda g: g.add_edge(START, "a"),
            {"interrupt_before": ["x"]},
            "Interrupt node 'x' not found",
        ),
        (
            lambda g: g.add_edge(START, "a"),
            {"interrupt_after": ["x"]},
            "Interrupt node 'x' not found",
        ),
        (lambda g: g.add_edge(START, "a"), {"executor": "x"}, "executor='x'"),
        (
            lambda g: g.add_edge(START, "a"),
            {"checkpointer": 5},
            "Invalid checkpointer 5",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_when_it_is_compiled(
    build: Callable[[StateGraph], StateGraph], options: dict[str, Any], message: str
) -> None:
    """With the names that there are."""
    with pytest.raises(ConfigurationError, match=message):
        build(empty()).compile(**options)


def test_a_conditional_edge_may_have_several_unnamed_paths() -> None:
    """Each lambda is a branch of its own."""
    graph = empty().add_edge(START, "a")
    graph.add_conditional_edges("a", lambda _: END).add_conditional_edges(
        "a", lambda _: "b"
    )

    assert ["condition", "condition1"] == list(graph.branches["a"])


def test_compiling_leaves_the_graph_as_it_is() -> None:
    """So that it can be compiled again, with a default error handler too."""
    graph = empty().add_edge(START, "a").set_node_defaults(error_handler=a)

    first, second = graph.compile(), graph.compile()

    assert ["a", "b"] == list(graph.nodes)
    assert list(first.nodes) == list(second.nodes)


def test_a_sequence_takes_names_beside_actions() -> None:
    """The same action under two names."""
    graph = StateGraph(State).add_sequence([a, ("again", a)])

    assert [("a", "again")] == list(graph.edges)


def test_entry_and_finish_points_are_edges_from_start_and_to_end() -> None:
    """Their other names."""
    graph = empty().set_entry_point("a").set_finish_point("b")

    assert [(START, "a"), ("b", END)] == list(graph.edges)


def test_the_return_annotation_of_a_node_names_its_destinations() -> None:
    """``Command[Literal[...]]`` is what a drawing shows."""
    assert {"a": None, "__end__": None} == empty().nodes["b"].ends
