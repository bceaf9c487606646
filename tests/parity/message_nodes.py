"""Nodes that write messages without ids, and a state whose messages are deltas.

Worker processes import this module.
"""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from typing_extensions import TypedDict

from flowpregel.channels import DeltaChannel
from flowpregel.plugins.langchain import reduce_messages


class DeltaState(TypedDict):
    """Our state of which each superstep stores what it added."""

    messages: Annotated[list[Any], DeltaChannel(reduce_messages)]


def answer(state: Any) -> Any:
    """Write messages without ids."""
    return {"messages": [AIMessage("a"), AIMessage("b")]}


def shorten(state: Any) -> Any:
    """Write a pair, a text and a dict, and remove the first message."""
    return {
        "messages": [
            ("ai", "c"),
            "d",
            {"role": "user", "content": "e"},
            RemoveMessage(state["messages"][0].id),
        ]
    }


def start_over(state: Any) -> Any:
    """Remove all messages, and write one."""
    return {"messages": [RemoveMessage("__remove_all__"), HumanMessage("f")]}


def fail(state: Any) -> Any:
    """Fail."""
    raise ValueError("on purpose")
