"""`StateGraph`: a program defined as nodes and edges around a shared state."""

from flowpregel.graph.compile import CompiledStateGraph
from flowpregel.graph.message import (
    REMOVE_ALL_MESSAGES,
    MessagesState,
    add_messages,
    message_reducer,
    reduce_messages,
)
from flowpregel.graph.state import StateGraph
from flowpregel.pregel.definition import END, START

__all__ = [
    "END",
    "REMOVE_ALL_MESSAGES",
    "START",
    "CompiledStateGraph",
    "MessagesState",
    "StateGraph",
    "add_messages",
    "message_reducer",
    "reduce_messages",
]
