"""A graph that a node calls is a subgraph: its state and its place are shown as
LangGraph's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypedDict

import pytest

from tests.parity.libraries import BOTH, CONFIG, Library


class Outer(TypedDict, total=False):
    """The state of the graph around."""

    foo: str


class Inner(TypedDict, total=False):
    """The state of the graph in it."""

    bar: str
    baz: str


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


def inner(library: Library, checkpointer: Any = None) -> Any:
    """Return a graph that asks, and then uses the answer."""
    interrupt = library.of("types.interrupt")
    builder = library.graph(
        Inner,
        ("ask", lambda state: {"baz": interrupt("baz?")}),
        ("use", lambda state: {"bar": state["bar"] + state["baz"]}),
    )
    return library.compile(builder, checkpointer=checkpointer)


def around(library: Library, called: Any) -> Any:
    """Return a graph whose only node calls *called*."""

    def node(state: Outer) -> Outer:
        return {"foo": called.invoke({"bar": state["foo"]})["bar"]}

    return library.compile(library.graph(Outer, node))


@pytest.mark.parametrize("checkpointer", [None, True])
def test_the_state_of_a_called_graph_is_shown(
    library: Library, checkpointer: Any
) -> None:
    """In the task that calls it, and under its namespace."""
    called = inner(library, checkpointer)
    app = around(library, called)

    app.invoke({"foo": "foo"}, CONFIG)
    (task,) = app.get_state(CONFIG, subgraphs=True).tasks
    (shallow,) = app.get_state(CONFIG).tasks
    own = app.get_state(shallow.state)

    assert {"bar": "foo"} == task.state.values == own.values
    assert ("ask",) == task.state.next == own.next
    assert [("node", called)] == [*app.get_subgraphs()]
    assert {"foo": "foobaz"} == app.invoke(
        library.of("types.Command")(resume="baz"), CONFIG
    )


def test_the_stream_says_where_the_state_of_a_called_graph_is(library: Library) -> None:
    """A task in a checkpoint's event has the config of its subgraph, called or not."""
    app = around(library, inner(library))

    events = [*app.stream({"foo": "foo"}, CONFIG, stream_mode="checkpoints")]
    (task,) = events[-1]["tasks"]
    place = task["state"]["configurable"]

    assert "1" == place["thread_id"]
    assert f"node:{task['id']}" == place["checkpoint_ns"]
    assert isinstance(task["interrupts"], tuple)


def test_a_graph_without_a_memory_is_not_shown(library: Library) -> None:
    """``checkpointer=False`` keeps nothing that could be looked at."""
    app = around(library, inner(library, False))

    assert [] == [*app.get_subgraphs()]


def test_graphs_are_found_by_what_the_code_of_a_node_names(library: Library) -> None:
    """An attribute that has the name of a variable is not that variable."""
    called = inner(library)

    def nested(state: Outer) -> Outer:
        return (lambda: called)().invoke({"bar": "x"})

    def attribute(state: Any) -> Outer:
        return SimpleNamespace(called=state).called

    def before_it_is_there(state: Outer) -> Outer:
        return later.invoke(state)

    found = [*library.compile(library.graph(Outer, nested)).get_subgraphs()]
    assert [("nested", called)] == found
    assert [] == [*library.compile(library.graph(Outer, attribute)).get_subgraphs()]
    app = library.compile(library.graph(Outer, before_it_is_there))
    later = inner(library)
    assert later is not None
    if library.is_ours:  # the other one looks when the graph is built
        assert [("before_it_is_there", later)] == [*app.get_subgraphs()]


def test_several_levels_are_named_by_their_path(library: Library) -> None:
    """A graph in a graph, called in each."""
    innermost = inner(library)
    middle = around(library, innermost)
    app = around(library, middle)

    assert [("node", middle)] == [*app.get_subgraphs()]
    assert [("node", middle), ("node|node", innermost)] == [
        *app.get_subgraphs(recurse=True)
    ]
    assert [("node|node", innermost)] == [
        *app.get_subgraphs(namespace="node|node", recurse=True)
    ]
