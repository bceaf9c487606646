"""Graphs that nodes call side by side all come to their end, on one OS thread too."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import START, StateGraph
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[str], operator.add]


def calling(name: str, checkpointer: Any, config: Any) -> Callable[[Items], Items]:
    """Return a node that calls a graph of two supersteps."""
    steps = [
        ("first", lambda _: {"items": [name]}),
        ("second", lambda _: {"items": [name]}),
    ]
    graph = (
        StateGraph(Items)
        .add_sequence(steps)
        .add_edge(START, "first")
        .compile(checkpointer)
    )
    return lambda _: {"items": graph.invoke({"items": []}, config)["items"]}


def test_one_that_waits_for_its_saver_is_not_forgotten(
    drive: Drive, executor: str, saver: BaseCheckpointSaver
) -> None:
    """While one calls its graph, another one's ends, with a commit of a third under
    way.
    """
    own = {"configurable": {"thread_id": "own"}}
    builder = StateGraph(Items)
    for name in ("a", "b", "c"):
        builder.add_node(name, calling(name, None, None)).add_edge(START, name)
        builder.add_node(f"{name}2", calling(name, InMemorySaver(), own)).add_edge(
            START, f"{name}2"
        )
    app = builder.compile(saver, executor=executor)

    ended = drive.invoke(app, {"items": []}, thread_id="1")

    assert ["a", "a", "a", "a", "b", "b", "b", "b", "c", "c", "c", "c"] == ended[
        "items"
    ]
