"""What a `Command` wrote, and no superstep has kept yet, survives an edit of the
state.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.graphs import extend


class State(TypedDict, total=False):
    """A plain value, and one that is kept as deltas."""

    word: str
    log: Annotated[list[str], DeltaChannel(extend)]


def ask(state: State) -> dict[str, Any]:
    """Ask before anything is written."""
    return {"log": [interrupt("really?")]}


def test_an_edit_keeps_what_a_command_wrote() -> None:
    """The command's update is part of the state, deltas included, and stays part of
    it.
    """
    graph = StateGraph(State).add_node(ask).add_edge(START, "ask")
    app = graph.compile(InMemorySaver(), executor="inline")
    app.invoke({"log": ["in"]}, thread_id="1")
    app.invoke(
        Command(update={"log": ["command"], "word": "w"}, goto="ask"), thread_id="1"
    )

    app.update_state(None, {"log": ["edit"]}, "ask", thread_id="1")

    expected = {"word": "w", "log": ["in", "command", "edit"]}
    assert expected == app.get_state(thread_id="1").values
