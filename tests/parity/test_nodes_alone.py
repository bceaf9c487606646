"""A node of a compiled graph is called by itself, as tests of single nodes do."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig

from tests.parity.libraries import BOTH, Library


class State(TypedDict, total=False):
    """A state of one number."""

    x: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


def by_config(state: State, config: RunnableConfig) -> State:
    """Add what the config says."""
    return {"x": state["x"] + config.get("configurable", {}).get("more", 1)}


async def alone(state: State) -> State:
    """Double, as a coroutine."""
    return {"x": 2 * state["x"]}


def fail(state: State) -> State:
    """Fail."""
    raise OSError("no")


def test_a_node_returns_what_its_function_returns(library: Library) -> None:
    """With a config or without, in either colour; a graph as a node is run."""
    inner = library.compile(library.graph(State, by_config), checkpointer=None)
    builder = library.graph(State, by_config, alone, ("inner", inner))
    nodes = library.compile(builder, checkpointer=None).nodes

    assert {"x": 2} == nodes["by_config"].invoke({"x": 1})
    assert {"x": 6} == nodes["by_config"].invoke(
        {"x": 1}, {"configurable": {"more": 5}}
    )
    assert {"x": 2} == asyncio.run(nodes["by_config"].ainvoke({"x": 1}))
    assert {"x": 4} == asyncio.run(nodes["alone"].ainvoke({"x": 2}))
    assert {"x": 3} == nodes["inner"].invoke({"x": 2})
    assert {"x": 3} == asyncio.run(nodes["inner"].ainvoke({"x": 2}))


def test_a_node_built_by_hand_calls_its_steps_in_order(library: Library) -> None:
    """One without any passes its input on."""
    node = library.of("pregel.NodeBuilder")().subscribe_only("a")

    assert 3 == node.build().invoke(3)
    assert 8 == node.do(lambda x: x + 1).do(lambda x: 2 * x).write_to(
        "b"
    ).build().invoke(3)


def test_what_a_node_raises_is_raised(library: Library) -> None:
    """An async one cannot be called in a sync way."""
    nodes = library.compile(library.graph(State, fail, alone), checkpointer=None).nodes

    with pytest.raises(OSError, match="no"):
        nodes["fail"].invoke({"x": 1})
    with pytest.raises(TypeError):
        nodes["alone"].invoke({"x": 1})
