"""A barrier that fails leaves the state as the one before left it, whatever the
durability.
"""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import InvalidUpdateError
from flowpregel.graph import START, StateGraph
from flowpregel.types import interrupt
from tests.runs.conftest import Drive


class State(TypedDict, total=False):
    """Two plain values."""

    early: int
    value: int


def clash(*extra: Any) -> StateGraph:
    """Return nodes of one superstep that cannot all write what they write."""
    builder = (
        StateGraph(State).add_node("first", lambda _: None).add_edge(START, "first")
    )
    for name in ("a", "b"):
        builder.add_node(name, lambda _: {"value": 1})
        builder.add_edge("first", name)
    # Applied before the clash is met: nothing of it may be seen afterwards.
    builder.add_node("_", lambda _: {"early": 1}).add_edge("first", "_")
    for action in extra:
        builder.add_node(action).add_edge("first", action.__name__)
    return builder


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_nothing_of_a_failed_barrier_is_kept(
    drive: Drive, saver: BaseCheckpointSaver, durability: str
) -> None:
    """All its tasks are still there."""
    app = clash().compile(saver, executor="inline")

    with pytest.raises(InvalidUpdateError):
        drive.invoke(app, {"value": 0}, thread_id="1", durability=durability)

    (state, *_) = app.get_state_history(thread_id="1")
    assert {"value": 0} == state.values
    assert ["_", "a", "b"] == sorted(task.name for task in state.tasks)


def ask(state: State) -> State:
    """Ask."""
    return {"value": interrupt("?")}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_nothing_of_a_failed_look_ahead_is_kept(
    drive: Drive, saver: BaseCheckpointSaver, durability: str
) -> None:
    """The same where a task asks, and what the others wrote is only shown."""
    app = clash(ask).compile(saver, executor="inline")

    with pytest.raises(InvalidUpdateError):
        drive.invoke(app, {"value": 0}, thread_id="1", durability=durability)

    (state, *_) = app.get_state_history(thread_id="1")
    assert {"value": 0} == state.values
    assert ["_", "a", "ask", "b"] == sorted(task.name for task in state.tasks)
