"""The ids of messages, and lists of messages that are stored as deltas."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from typing_extensions import TypedDict

from flowpregel.plugins.langchain import add_messages, reduce_messages
from tests.parity.langchain import ChatSide, flowpregel, langgraph, shown
from tests.parity.message_nodes import DeltaState, answer, shorten, start_over
from tests.parity.speakers import speak, write

CONFIG = {"configurable": {"thread_id": "1"}}


def line(side: ChatSide, schema: Any, *nodes: Callable[..., Any]) -> Any:
    """Return a graph of *nodes*, one after the other, with a saver."""
    names = [f"{node.__name__} {index}" for index, node in enumerate(nodes)]
    builder = side.graph.StateGraph(schema)
    builder.add_sequence([*zip(names, nodes, strict=True)])
    builder.add_edge("__start__", names[0])
    return builder.compile(checkpointer=side.saver(), **side.options)


@pytest.fixture(params=["inline", "threads", "processes"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> ChatSide:
    """flowpregel, on each executor, with its threads on disk."""
    return flowpregel(request.param, str(tmp_path / "runs.lmdb"))


@pytest.mark.parametrize("is_delta", [False, True])
def test_every_view_of_a_message_has_its_id(ours: ChatSide, is_delta: bool) -> None:
    """The streams `updates`, `values` and `messages`, the state, and its history."""
    schema = DeltaState if is_delta else ours.messages_state
    app = line(ours, schema, answer, speak, write)
    modes = ["updates", "values", "messages"]
    events = [*app.stream({"messages": ["hi"]}, CONFIG, stream_mode=modes)]

    updates = [
        message.id
        for mode, payload in events
        if mode == "updates"
        for update in payload.values()
        for message in update["messages"]
    ]
    parts = [payload[0].id for mode, payload in events if mode == "messages"]
    values = [payload for mode, payload in events if mode == "values"][-1]
    state = app.get_state(CONFIG).values["messages"]
    history = [
        message.id
        for snapshot in app.get_state_history(CONFIG)
        for message in snapshot.values["messages"]
    ]

    assert [message.id for message in state] == [
        message.id for message in values["messages"]
    ]
    known = {message.id for message in state}
    assert None not in known
    assert len(known) == len(state)
    assert known == {*history} == {*updates} | {state[0].id}
    assert {*parts} == {*updates} - {state[0].id}


def test_a_list_of_updates_has_the_ids_of_the_state_on_both() -> None:
    """LangGraph's messages get theirs after the event: in a list they have them."""
    for side in (langgraph(), flowpregel()):
        app = line(side, side.messages_state, answer)

        (update,) = app.stream({"messages": []}, CONFIG)

        state = app.get_state(CONFIG).values["messages"]
        assert state == update["answer 0"]["messages"]


def delta_state(side: ChatSide) -> Any:
    """Return the state of *side* whose messages are in a `DeltaChannel`."""
    if side.name == "flowpregel":
        return DeltaState
    channel = importlib.import_module("langgraph.channels.delta").DeltaChannel
    module = importlib.import_module("langgraph.graph.message")
    reducer = vars(module)["_messages_delta_reducer"]
    channels = Annotated[list, channel(reducer)]
    return TypedDict("PeerState", {"messages": channels})  # type: ignore[operator]


@pytest.mark.parametrize("end", [answer, shorten, start_over])
def test_a_delta_of_messages_reads_as_langgraphs(
    end: Callable[..., Any], ours: ChatSide
) -> None:
    """Added, replaced, removed, and all removed; the whole history."""
    histories = []
    for side in (langgraph(), ours):
        app = line(side, delta_state(side), answer, shorten, answer, end)
        app.invoke({"messages": ["hi", ("ai", "hello")]}, CONFIG)
        app.update_state(
            CONFIG, {"messages": [AIMessage("edited", id="1")]}, as_node="answer 0"
        )
        history = app.get_state_history(CONFIG)
        histories.append(
            [shown(snapshot.values.get("messages", [])) for snapshot in history]
        )

    assert histories[0] == histories[1]


def test_the_reducers_agree_about_messages_of_langchain() -> None:
    """Pairs, texts, dicts, chunks and messages, removed and replaced."""
    writes: list[Any] = [
        [("user", "hi"), "again", {"type": "ai", "content": "x", "id": "7"}],
        AIMessage("y", id="7"),
        [["ai", "a list of two"]],
        RemoveMessage("7"),
        AIMessage("z", id="7"),
        [RemoveMessage("7"), AIMessage("back", id="7")],
    ]
    state: list[Any] = []
    for count, update in enumerate(writes, 1):
        state = add_messages(state, update)

        assert shown(state) == shown(reduce_messages([], writes[:count]))
        kinds = [type(message) for message in reduce_messages([], writes[:count])]
        assert [type(message) for message in state] == kinds
