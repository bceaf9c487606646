"""What a `Command` wrote, and no superstep has kept yet, survives an edit of the
state.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.parity import sides
from tests.parity.sides import Side, extend

CONFIG = {"configurable": {"thread_id": "1"}}


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


FORKS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda app, past: app.update_state(past, {"word": "fork"}),
    "update as a node": lambda app, past: app.update_state(past, {"word": "fork"}, "a"),
    "input": lambda app, past: app.update_state(past, {"word": "fork"}, "__input__"),
    "copy": lambda app, past: app.update_state(past, None, "__copy__"),
    "copy and update": lambda app, past: app.update_state(
        past, [({"word": "fork"}, "a")], "__copy__"
    ),
    "two supersteps": lambda app, past: app.bulk_update_state(
        past, [[({"word": "f"}, "a", None)], [({"word": "fork"}, "a", None)]]
    ),
}


@pytest.mark.parametrize("side", [sides.langgraph(), sides.flowpregel()])
@pytest.mark.parametrize("kind", FORKS)
def test_a_fork_off_an_old_checkpoint_has_no_later_command(
    side: Side, kind: str
) -> None:
    """The thread went on from there with a command, whose writes belong to the branch
    that the thread took. The fork of the fork is free of them, too.
    """
    delta = side.delta(extend)
    fields = {
        "word": str,
        "items": Annotated[list[str], operator.add],
        "log": Annotated[list[str], delta],
    }
    state = TypedDict("State", fields, total=False)  # type: ignore[operator]
    builder = side.graph.StateGraph(state)
    builder.add_node("a", lambda _: {"word": "a"})
    builder.add_node("b", lambda _: {"log": ["b"], "items": ["b"]})
    builder.add_edge("__start__", "a").add_edge("a", "b")
    app = builder.compile(side.saver(), **side.options)
    app.invoke({"word": "in"}, CONFIG, interrupt_before=["b"])
    past = app.get_state(CONFIG).config
    command = side.types.Command(update={"log": ["later"], "items": ["later"]})
    app.invoke(command, CONFIG)

    fork = FORKS[kind](app, past)
    again = app.update_state(fork, {"word": "again"}, "a")

    for config in (fork, again):
        values = app.get_state(config).values
        assert ([], []) == (values["log"], values["items"])
    assert ["b"] == app.invoke(None, again)["log"]
