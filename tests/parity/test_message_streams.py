"""The stream mode ``messages`` on both engines: what models say, and what nodes
write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.types import Command, interrupt
from tests.parity.langchain import ChatSide, flowpregel, langgraph
from tests.parity.speakers import (
    HELLO,
    line,
    programs,
    speak,
    speak_later,
    think,
    told,
    write,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has been moved to `langchain.agents`"),
    pytest.mark.filterwarnings(
        "ignore:(?s)Pydantic serializer warnings.*field_name='context'"
    ),
]
Make = Callable[[ChatSide], Any]
CONFIG = {"configurable": {"thread_id": "1"}}


@pytest.fixture(params=["inline", "threads", "processes"])
def ours(request: pytest.FixtureRequest) -> ChatSide:
    """flowpregel, on each executor."""
    return flowpregel(request.param)


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("make", programs().values(), ids=programs())
def test_a_stream_shows_what_langgraphs_shows(
    make: Make, ours: ChatSide, subgraphs: bool
) -> None:
    """Each word and message once, in order, with its node, step and tags, among the
    updates.
    """
    expected = told(make(langgraph()), subgraphs=subgraphs)

    assert expected == told(make(ours), subgraphs=subgraphs)


def test_a_model_that_is_awaited_is_streamed(ours: ChatSide) -> None:
    """On the event loop of an async node; sync nodes beside it too."""
    streams = [
        told(line(side, speak_later, speak), is_async=True)
        for side in (langgraph(), ours)
    ]

    assert streams[0] == streams[1]


def test_messages_are_in_the_state_with_the_ids_that_were_shown(ours: ChatSide) -> None:
    """Also those that had none before."""
    app = line(ours, lambda _: {"messages": [AIMessage("without an id")]}, speak)
    app.checkpointer = InMemorySaver()

    streamed = [
        said.id for said, _ in app.stream(HELLO, CONFIG, stream_mode="messages")
    ]

    state = [message.id for message in app.get_state(CONFIG).values["messages"]]
    assert state == ["id hi", *dict.fromkeys(streamed)]
    assert None not in state


def test_what_was_shown_before_a_question_is_not_shown_again(ours: ChatSide) -> None:
    """A run that goes on shows what is new."""
    app = line(
        ours, speak, lambda _: {"messages": [AIMessage(interrupt("what?"), id="id a")]}
    )
    app.checkpointer = InMemorySaver()
    asked = {"stream_mode": "messages", "version": "v2"}

    first = [part["data"][0].content for part in app.stream(HELLO, CONFIG, **asked)]
    then = [*app.stream(Command(resume="that"), CONFIG, **asked)]

    assert ["one", " ", "two"] == first
    assert [("messages", "that")] == [
        (part["type"], part["data"][0].content) for part in then
    ]


def test_nobody_listens_to_a_run_that_did_not_ask(ours: ChatSide) -> None:
    """Nor to what is called where another run is streamed."""
    app = line(ours, speak, think, write)

    assert 2 == len(app.invoke(HELLO)["messages"]) - 1
    assert [*app.stream(HELLO, stream_mode="custom")] == []


def test_several_runs_at_once_do_not_hear_each_other() -> None:
    """Of one event loop."""
    app = line(flowpregel("threads"), speak, speak_later)

    async def words() -> list[str]:
        streamed = app.astream(HELLO, stream_mode="messages")
        return [said.content async for said, _ in streamed]

    async def story() -> list[list[str]]:
        return await asyncio.gather(words(), words(), words())

    assert [["one", " ", "two", "three", " ", "four"]] * 3 == asyncio.run(story())
