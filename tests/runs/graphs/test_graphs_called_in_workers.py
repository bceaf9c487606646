"""A node in a worker process calls a graph: that runs, and keeps its state, where the
run is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver as TheirSaver

from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.graph import START, StateGraph
from flowpregel.runtime import Runtime
from flowpregel.store.memory import InMemoryStore
from flowpregel.types import Command, interrupt
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


OWN_THREAD = {"configurable": {"thread_id": "own"}}


def mark(state: Items, runtime: Runtime[Any]) -> Items:
    """Add how many marks there are, and keep that in the store, if there is one."""
    found = len(state["items"])
    if runtime.store is not None:
        runtime.store.put(("marks",), "newest", {"count": found})
    return {"items": [found]}


def ask(_: Items) -> Items:
    """Ask for an item."""
    return {"items": [interrupt("item?")]}


def inner_with(**parts: Any) -> Any:
    """Return a graph of `mark` and `ask`, with what it is compiled with."""
    builder = StateGraph(Items).add_node("mark", mark).add_node("ask", ask)
    return builder.add_edge(START, "mark").add_edge("mark", "ask").compile(**parts)


def calling(call: Callable[[], Any]) -> Any:
    """Return a graph whose node returns the items that *call* returns."""
    builder = StateGraph(Items).add_node("caller", lambda _: {"items": call()})
    return builder.add_edge(START, "caller").compile(
        InMemorySaver(), executor="processes"
    )


@pytest.mark.parametrize("saver", [InMemorySaver, TheirSaver])
def test_a_graph_with_a_saver_of_its_own_asks_through_the_node(
    drive: Drive, saver: Callable[[], Any]
) -> None:
    """It goes on where it stopped, when the node calls it again."""
    inner = inner_with(checkpointer=saver())
    app = calling(lambda: inner.invoke({"items": ["in"]})["items"])
    asked = drive.invoke(app, {"items": []}, thread_id="1")

    assert ["item?"] == [each.value for each in asked["__interrupt__"]]
    ended = drive.invoke(app, Command(resume="out"), thread_id="1")

    assert ["in", 1, "out"] == ended["items"]


def test_its_memory_is_that_of_the_program(drive: Drive) -> None:
    """Its saver, store and cache are those that the program holds, not copies."""
    saver, store = InMemorySaver(), InMemoryStore()
    builder = StateGraph(Items).add_node("mark", mark).add_edge(START, "mark")
    inner = builder.compile(saver, store=store, cache=InMemoryCache())
    app = calling(
        lambda: inner.with_config(tags=["t"]).invoke({"items": ["in"]}, OWN_THREAD)[
            "items"
        ]
    )

    for _ in range(2):
        ended = drive.invoke(app, {"items": []}, thread_id="1")

    assert ["in", 1, "in", 1, "in", 3] == ended["items"]
    assert ["in", 1, "in", 3] == inner.get_state(OWN_THREAD).values["items"]
    assert {"count": 3} == store.get(("marks",), "newest").value


@pytest.mark.parametrize("use", ["get_state", "stream"])
def test_its_saver_cannot_be_used_in_the_worker(drive: Drive, use: str) -> None:
    """The error says where it can."""
    inner = inner_with(checkpointer=InMemorySaver())
    uses = {
        "get_state": lambda: inner.get_state(OWN_THREAD).values,
        "stream": lambda: [*inner.stream({"items": []}, OWN_THREAD)],
    }
    app = calling(uses[use])

    with pytest.raises(ConfigurationError, match="stand-in for a InMemorySaver"):
        drive.invoke(app, {"items": []}, thread_id="1")
