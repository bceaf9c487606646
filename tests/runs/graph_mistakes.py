"""Mistakes with graphs, for `test_mistakes_of_a_working_day`."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from flowpregel import END, START, Command, InMemorySaver, Send, StateGraph
from flowpregel.errors import EmptyInputError, InvalidUpdateError
from tests.runs.mistakes import Mistake, one


class State(TypedDict, total=False):
    """The state of the graphs."""

    n: int
    log: Annotated[list[str], lambda old, new: old + new]


class FoldsOne(TypedDict):
    """A state whose reducer takes one argument."""

    n: Annotated[int, lambda a: a]


def graph(
    *edges: tuple[str, str], a: Any = lambda state: {"n": 1}, **nodes: Any
) -> Any:
    """Return a graph that begins with the node ``a``, not compiled."""
    built: Any = StateGraph(State)
    for name, node in {"a": a, **nodes}.items():
        built.add_node(name, node)
    for start, end in ((START, "a"), *edges):
        built.add_edge(start, end)
    return built


def ran(*edges: tuple[str, str], **nodes: Any) -> Any:
    """Run such a graph in this process."""
    return graph(*edges, **nodes).compile(executor="inline").invoke({"n": 0})


def branching(choose: Any, *ends: Any) -> Any:
    """Run a graph with a conditional edge."""
    built = graph()
    built.add_conditional_edges("a", choose, *ends)
    return built.compile(executor="inline").invoke({"n": 0})


GRAPHS: dict[str, Mistake] = {
    "returns a text from a node": (
        lambda: ran(a=lambda s: "x"),
        InvalidUpdateError,
        "return a dict",
    ),
    "returns a list from a node": (
        lambda: ran(a=lambda s: [1]),
        InvalidUpdateError,
        "from node 'a'",
    ),
    "gives a number as the input": (
        lambda: graph().compile().invoke(3),
        InvalidUpdateError,
        "Expected dict, got 3",
    ),
    "gives no input": (
        lambda: graph().compile().invoke(None),
        EmptyInputError,
        "no input",
    ),
    "writes a channel twice": (
        lambda: ran((START, "b"), b=lambda s: {"n": 2}),
        InvalidUpdateError,
        "At key 'n': Can receive only one value...Annotated",
    ),
    "folds with one argument": (
        lambda: StateGraph(FoldsOne),
        ValueError,
        "Expected (a, b) -> c",
    ),
    "adds a node twice": (
        lambda: graph().add_node("a", one),
        ValueError,
        "already present",
    ),
    "names a node END": (lambda: graph().add_node(END, one), ValueError, "is reserved"),
    "names a node with a bar": (
        lambda: graph().add_node("a|b", one),
        ValueError,
        "'|' is a",
    ),
    "adds a number": (lambda: graph().add_node("b", 3), ValueError, "give a callable"),
    "adds a name alone": (
        lambda: graph().add_node("b"),
        ValueError,
        "add_node('b', function)",
    ),
    "leads an edge to nowhere": (
        lambda: graph(("a", "b")).compile(),
        ValueError,
        "unknown node 'b'; the nodes are: a",
    ),
    "leads an edge from nowhere": (
        lambda: graph(("b", "a")).compile(),
        ValueError,
        "starting at unknown node 'b'; the nodes are: a",
    ),
    "leaves out the entry": (
        lambda: StateGraph(State).add_node("a", one).compile(),
        ValueError,
        "add at least one edge from START",
    ),
    "leads a branch to nowhere": (
        lambda: branching(lambda s: "b"),
        InvalidUpdateError,
        "the nodes are: a",
    ),
    "leads a branch beside its map": (
        lambda: branching(lambda s: "x", {"y": END}),
        ValueError,
        "it returned 'x', and its path map has 'y'",
    ),
    "leads a branch to None": (
        lambda: branching(lambda s: None),
        ValueError,
        "a node's name",
    ),
    "commands to nowhere": (
        lambda: ran(a=lambda s: Command(goto="b")),
        InvalidUpdateError,
        "leads to node 'b', which does not exist; the nodes are: a",
    ),
    "sends to nowhere": (
        lambda: branching(lambda s: [Send("b", 1)]),
        InvalidUpdateError,
        "sent to node 'b', which does not exist",
    ),
    "stops before nowhere": (
        lambda: graph().compile(interrupt_before=["b"]),
        ValueError,
        "Interrupt node 'b' not found; the nodes are: a",
    ),
    "stops a run before nowhere": (
        lambda: graph().compile().invoke({"n": 0}, interrupt_before=["b"]),
        ValueError,
        "interrupt_before names node 'b', which does not exist; the nodes are: a",
    ),
    "stops a run after nowhere": (
        lambda: graph().compile().invoke({"n": 0}, interrupt_after="b"),
        ValueError,
        "interrupt_after names node 'b', which does not exist; the nodes are: a",
    ),
    "commands to a number": (
        lambda: ran(a=lambda s: Command(goto=3)),  # type: ignore[type-var]
        InvalidUpdateError,
        "Command(goto=...) takes node names and Sends, not 3",
    ),
    "commands to None": (
        lambda: ran(a=lambda s: Command(goto=None)),
        InvalidUpdateError,
        "Command(goto=...) takes node names and Sends, not None",
    ),
    "gives a thread an empty name": (
        lambda: (
            graph()
            .compile(checkpointer=InMemorySaver())
            .invoke({"n": 0}, {"configurable": {"thread_id": ""}})
        ),
        ValueError,
        "thread_id is empty: name the thread by any other text",
    ),
    "goes round for ever": (
        lambda: (
            graph(("a", "a"))
            .compile(executor="inline")
            .invoke({"n": 0}, recursion_limit=5)
        ),
        RecursionError,
        "check that the cycle ends",
    ),
    "writes as a node that is not there": (
        lambda: (
            graph()
            .compile(checkpointer=InMemorySaver())
            .update_state({"configurable": {"thread_id": "1"}}, {"n": 1}, as_node="b")
        ),
        InvalidUpdateError,
        "Node 'b' does not exist",
    ),
    "gives a text as the config": (
        lambda: graph().compile().invoke({"n": 0}, "thread-1"),
        ValueError,
        "config must be a dict",
    ),
    "gives the thread beside configurable": (
        lambda: graph().compile().invoke({"n": 0}, {"thread_id": "1"}),
        ValueError,
        "it takes:...configurable",
    ),
    "runs a graph that is not compiled": (
        lambda: graph().invoke({"n": 0}),
        AttributeError,
        "write .compile().invoke",
    ),
}
