"""LangChain's `astream_events` of a graph, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from tests.parity.langchain import ChatSide, flowpregel, langgraph, shown
from tests.parity.message_nodes import fail
from tests.parity.speakers import HELLO, ask, line, speak, speak_later, think, write

Make = Callable[[ChatSide], Any]
PROGRAMS: dict[str, Make] = {
    "written": lambda side: line(side, write),
    "async models": lambda side: line(side, speak_later, write),
    "models": lambda side: line(side, speak, think),
    "subgraph": lambda side: line(side, line(side, speak, write), think),
}


@pytest.fixture(params=["inline", "threads", "processes"])
def ours(request: pytest.FixtureRequest) -> ChatSide:
    """flowpregel, on each executor."""
    return flowpregel(request.param)


class Stops(BaseCallbackHandler):
    """A handler that notes the supersteps whose nodes end with an error."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []

    def on_chain_error(
        self, error: BaseException, *, tags: list[str] | None = None, **details: Any
    ) -> None:
        """Note the error, unless it is that of a nested graph as a whole."""
        self.errors += [
            (tag, type(error).__name__)
            for tag in tags or ()
            if tag.startswith("graph:step")
        ]


def events_of(app: Any, **options: Any) -> list[Any]:
    """Return the events of a run, without what differs between the two engines.

    A graph in a graph has events of its own in LangGraph, and a model its class and its
    input.
    """

    async def events() -> list[Any]:
        return [event async for event in app.astream_events(HELLO, **options)]

    comparable = []
    for event in asyncio.run(events()):
        is_graph = event["name"] == "LangGraph" and "seq:step:1" in event["tags"]
        if is_graph:
            continue
        is_model = "chat_model" in event["event"]
        data = event["data"]
        if is_model:
            data = {key: data[key].content for key in data.keys() - {"input"}}
        metadata = event["metadata"]
        comparable.append(
            [
                event["event"],
                "model" if is_model else event["name"],
                [] if is_model else event["tags"],
                shown(data),
                metadata.get("langgraph_node"),
                metadata.get("langgraph_step"),
                metadata.get("user"),
            ]
        )
    return comparable


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_has_the_events_that_langgraphs_has(name: str, ours: ChatSide) -> None:
    """The run, its nodes, and the words of models, in the same order."""
    options = {"config": {"metadata": {"user": "Ada"}}}
    expected = events_of(PROGRAMS[name](langgraph()), **options)

    assert expected == events_of(PROGRAMS[name](ours), **options)


def stopping_at_a_question(side: ChatSide) -> Any:
    """Return a graph whose second node is a graph that asks."""
    inner = line(side, partial(ask, types=side.types))
    return line(side, write, inner, checkpointer=side.saver())


def stopping_at_a_breakpoint(side: ChatSide) -> Any:
    """Return a graph whose second node is a graph with a breakpoint."""
    inner = line(side, write, interrupt_before=["node 0"])
    return line(side, write, inner, checkpointer=side.saver())


@pytest.mark.parametrize("make", [stopping_at_a_question, stopping_at_a_breakpoint])
def test_a_node_that_stops_has_not_ended(make: Make, ours: ChatSide) -> None:
    """Handlers get the stop as an error; there is no event for it."""
    found = []
    for side in (langgraph(), ours):
        stops = Stops()
        config = {"configurable": {"thread_id": "1"}, "callbacks": [stops]}
        found.append((events_of(make(side), config=config), stops.errors))

    expected, actual = found
    assert expected == actual
    ends = [name for event, name, *_ in actual[0] if event == "on_chain_end"]
    assert ["node 0", "LangGraph"] == ends


def test_a_node_that_ended_before_a_resume_has_no_error(ours: ChatSide) -> None:
    """Its stored result is used. A node beside it had asked."""
    builder = ours.graph.StateGraph(ours.messages_state)
    builder.add_node("write", write).add_edge("__start__", "write")
    builder.add_node("ask", partial(ask, types=ours.types)).add_edge("__start__", "ask")
    app = builder.compile(checkpointer=ours.saver(), **ours.options)
    events_of(app, config={"configurable": {"thread_id": "1"}})
    stops = Stops()
    config = {"configurable": {"thread_id": "1"}, "callbacks": [stops]}
    answer = ours.types.Command(resume="this")

    async def resume() -> None:
        async for _ in app.astream_events(answer, config, version="v2"):
            pass

    asyncio.run(resume())

    assert [] == stops.errors


def test_events_are_chosen_by_name_and_kind(ours: ChatSide) -> None:
    """By LangChain's options; items of the stream are those of the stream's mode."""
    options = {"include_names": ["LangGraph"], "stream_mode": "values"}
    expected = events_of(line(langgraph(), write), **options)
    words = events_of(line(ours, speak), include_types=["chat_model"])

    assert expected == events_of(line(ours, write), **options)
    assert ["one", " ", "two"] == [
        data["chunk"] for event, _, _, data, *_ in words if event.endswith("_stream")
    ]


def test_a_failure_ends_the_events(ours: ChatSide) -> None:
    """With the error of the node."""
    for side in (langgraph(), ours):
        with pytest.raises(ValueError, match="on purpose"):
            events_of(line(side, fail))


def test_events_of_nested_graphs_have_their_namespaces() -> None:
    """If the caller asks for them."""
    modes = {"stream_mode": ["updates"], "subgraphs": True}
    events = events_of(PROGRAMS["subgraph"](flowpregel()), **modes)

    chunks = [
        data["chunk"]
        for event, name, _, data, *_ in events
        if (event, name) == ("on_chain_stream", "LangGraph")
    ]
    assert [1, 1, 0, 0] == [len(namespace) for namespace, *_ in chunks]
    assert {"updates"} == {mode for _, mode, _ in chunks}


def test_a_node_has_events_too() -> None:
    """Those that any Runnable has."""
    node = line(flowpregel(), write).nodes["node 0"]

    async def kinds() -> list[str]:
        return [event["event"] async for event in node.astream_events(HELLO)]

    expected = ["on_chain_start", "on_chain_stream", "on_chain_end"]
    assert expected == asyncio.run(kinds())
