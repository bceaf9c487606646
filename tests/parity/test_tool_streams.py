"""The stream mode ``tools`` on both engines: the calls of tools, while they run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.plugins.langchain import ToolNode
from flowpregel.types import Command
from tests.parity.chat_agents import HELLO, MIXED, build
from tests.parity.chat_tools import tools_of
from tests.parity.langchain import (
    ChatSide,
    ScriptedModel,
    asks,
    call,
    flowpregel,
    langgraph,
    shown,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has been moved to `langchain.agents`"),
    pytest.mark.filterwarnings(
        "ignore:(?s)Pydantic serializer warnings.*field_name='context'"
    ),
]
CONFIG = {"configurable": {"thread_id": "1"}, "recursion_limit": 40}


@pytest.fixture(params=["inline", "threads", "processes"])
def ours(request: pytest.FixtureRequest) -> ChatSide:
    """flowpregel, on each executor."""
    return flowpregel(request.param)


def events_of(
    side: ChatSide, app: Any, *, is_async: bool = False, **options: Any
) -> list[Any]:
    """Return what the stream of *app* shows of tools, without ids that differ between
    two runs.
    """
    options = {"stream_mode": "tools", **options}

    async def read() -> list[Any]:
        return [item async for item in app.astream(HELLO, CONFIG, **options)]

    if is_async:
        return asyncio.run(read())
    return [*app.stream(HELLO, CONFIG, **options)]


def by_call(events: list[Any]) -> dict[str, list[Any]]:
    """Return the events of each call, in order. Calls that run side by side may end in
    any order.
    """
    calls: dict[str, list[Any]] = {}
    for event in events:
        calls.setdefault(event["tool_call_id"], []).append(shown(event))
    return calls


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_shows_the_tools_that_langgraphs_shows(
    ours: ChatSide, is_async: bool
) -> None:
    """Their starts, outputs and errors, with their input; an interrupted tool only
    starts.
    """
    streams = []
    for side in (langgraph(), ours):
        app = build(side, {}, checkpointer=side.saver())
        streams.append(by_call(events_of(side, app, is_async=is_async)))

    assert streams[0] == streams[1]
    assert {"1", "2", "3", "5", "6", "7", "8", "9"} == streams[1].keys()
    assert ["tool-started"] == [event["event"] for event in streams[1]["9"]]


def test_a_tool_that_was_asked_shows_its_end_when_it_is_resumed(ours: ChatSide) -> None:
    """It starts again then."""
    app = build(ours, {"model": ScriptedModel(script=MIXED[4:])})
    app.checkpointer = InMemorySaver()

    events_of(ours, app)
    resumed = app.stream(Command(resume="ONE"), CONFIG, stream_mode="tools")

    assert ["tool-started", "tool-finished"] == [event["event"] for event in resumed]


def counting(side: ChatSide, name: str, **changes: Any) -> Any:
    """Return an agent that calls the tool *name* twice, side by side."""
    counter = tools_of(side)[name].model_copy(update=changes)
    script = [asks(call(name, "1", to=2), call(name, "2", to=1))]
    return build(side, {"model": ScriptedModel(script=script), "tools": [counter]})


def test_a_tool_shows_parts_of_its_output(ours: ChatSide) -> None:
    """While it runs, in order; beside another call."""
    theirs, calls = (
        by_call(events_of(side, counting(side, "count")))
        for side in (langgraph(), ours)
    )

    assert theirs == calls
    assert [
        ["tool-started", "tool-output-delta", "tool-output-delta", "tool-finished"],
        ["tool-started", "tool-output-delta", "tool-finished"],
    ] == [[event["event"] for event in calls[key]] for key in ("1", "2")]


def test_an_awaited_tool_shows_parts_of_its_output() -> None:
    """On the event loop."""
    theirs, ours = (
        by_call(events_of(side, counting(side, "count_later"), is_async=True))
        for side in (langgraph(), flowpregel("threads"))
    )

    assert theirs == ours
    assert 4 == len(ours["1"])


def test_parts_of_an_output_that_no_stream_shows_are_dropped(ours: ChatSide) -> None:
    """The tool answers as it does in a stream."""
    app = counting(ours, "count")

    answers = [
        message.content
        for message in app.invoke(HELLO)["messages"]
        if message.type == "tool"
    ]

    assert ["done", "done"] == answers
    assert [] == [*app.stream(HELLO, stream_mode="custom")]


def test_a_tool_outside_of_a_run_shows_nothing() -> None:
    """Its node may be called alone."""
    counter = tools_of(flowpregel())["count"]

    [answer] = ToolNode([counter]).invoke([asks(call("count", "1", to=1))])

    assert "done" == answer.content


def test_a_tool_that_is_tagged_nostream_is_left_out(ours: ChatSide) -> None:
    """As a model is."""
    assert [] == events_of(ours, counting(ours, "count", tags=["nostream"]))


@pytest.mark.parametrize("subgraphs", [False, True])
def test_the_tools_of_nested_graphs_are_shown_with_them(
    ours: ChatSide, subgraphs: bool
) -> None:
    """With the namespace of their graph; otherwise they are left out."""
    streams = []
    for side in (langgraph(), ours):
        script = [asks(call("add", "1", a=1, b=2), call("count", "2", to=1))]
        inner = build(side, {"model": ScriptedModel(script=script)})
        builder = side.graph.StateGraph(side.messages_state)
        builder.add_node("agent", inner).add_edge("__start__", "agent")
        app = builder.compile(side.saver(), store=side.store(), **side.options)
        items = events_of(side, app, subgraphs=subgraphs, version="v2")
        streams.append(
            sorted(
                ([part.split(":")[0] for part in item["ns"]], repr(shown(item["data"])))
                for item in items
                if item["type"] == "tools"
            )
        )

    assert streams[0] == streams[1]
    assert subgraphs == bool(streams[1])
