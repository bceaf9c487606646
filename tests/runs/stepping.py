"""Graphs whose process is killed or paused between two supersteps."""

from __future__ import annotations

import os
from typing import Annotated, Any, TypedDict

from flowpregel.graph import END, START, StateGraph

STORE = "FLOWPREGEL_TEST_STORE"
"""The environment variable that names the store of these graphs."""


def joined(left: list[str], right: list[str]) -> list[str]:
    """Return both lists in one."""
    return [*left, *right]


class Path(TypedDict, total=False):
    """The nodes that ran, in order."""

    nodes: Annotated[list[str], joined]


def _built(nodes: tuple[str, ...], **options: Any) -> Any:
    graph = StateGraph(Path)
    for name in nodes:
        graph.add_node(name, lambda _, name=name: {"nodes": [name]})
    for before, after in zip((START, *nodes), (*nodes, END), strict=True):
        graph.add_edge(before, after)
    return graph.compile(
        checkpointer=os.environ.get(STORE), executor="inline", **options
    )


def walked() -> Any:
    """Return a graph of three supersteps."""
    return _built(("one", "two", "three"))


def looked_at() -> Any:
    """Return one that stops before its second superstep, for a person."""
    return _built(("one", "two", "three"), interrupt_before=["two"])


def checked() -> Any:
    """Return one that stops after its first superstep, for a person."""
    return _built(("one", "two", "three"), interrupt_after=["one"])


walk, look, check = walked(), looked_at(), checked()
