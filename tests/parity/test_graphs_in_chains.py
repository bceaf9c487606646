"""A graph is a step of a LangChain chain, on either side of the bar."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest

from tests.parity.libraries import BOTH, Library

runnables = pytest.importorskip("langchain_core.runnables")


class State(TypedDict, total=False):
    """A state of one number."""

    x: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def graph(request: pytest.FixtureRequest) -> Any:
    """Return a graph that adds one."""
    library: Library = request.param
    builder = library.graph(State, ("add", lambda state: {"x": state["x"] + 1}))
    return library.compile(builder, checkpointer=None)


def test_a_graph_takes_what_the_step_before_it_gives(graph: Any) -> None:
    """One input, several, and on an event loop."""
    given = runnables.RunnableLambda(lambda number: {"x": number})
    taken = runnables.RunnableLambda(lambda state: state["x"])
    chain = given | graph | taken

    assert 5 == chain.invoke(4, {"tags": ["a"]})
    assert [2, 3] == chain.batch([1, 2])
    assert 6 == asyncio.run(chain.ainvoke(5))


def test_a_chain_begins_with_a_graph(graph: Any) -> None:
    """The bar is LangChain's."""
    assert 5 == (graph | runnables.RunnableLambda(lambda state: state["x"])).invoke(
        {"x": 4}
    )


def test_a_graph_is_one_of_several_steps_side_by_side(graph: Any) -> None:
    """As in a dict of steps."""
    both = runnables.RunnablePassthrough() | {
        "more": graph,
        "same": lambda state: state,
    }

    assert {"more": {"x": 2}, "same": {"x": 1}} == both.invoke({"x": 1})
