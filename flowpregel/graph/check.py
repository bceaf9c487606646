"""Checks that a graph's edges begin and end at nodes, before it is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from flowpregel.errors import ConfigurationError
from flowpregel.graph.names import END, START

if TYPE_CHECKING:
    from flowpregel.graph.state import StateGraph


def check_graph(graph: StateGraph, breakpoints: Iterable[str] = ()) -> None:
    """Check *graph*.

    Raises:
        ConfigurationError: An edge begins or ends nowhere, nothing follows the
            start, or a breakpoint names no node; the message says which.
    """
    sources = set(_sources(graph))
    for source in sorted(sources):
        if source not in graph.nodes and source != START:
            raise ConfigurationError(
                f"Found edge starting at unknown node {source!r}; {_known(graph)}"
            )
    if START not in sources:
        raise ConfigurationError(
            "Graph must have an entrypoint: add at least one edge from START to another node"
        )
    for target, what in _targets(graph):
        if target not in graph.nodes and target != END:
            raise ConfigurationError(f"{what} unknown node {target!r}; {_known(graph)}")
    for name in breakpoints:
        if name not in graph.nodes:
            raise ConfigurationError(f"Interrupt node {name!r} not found; {_known(graph)}")


def _sources(graph: StateGraph) -> Iterator[str]:
    yield from (start for start, _ in graph.edges)
    yield from (start for starts, _ in graph.waiting_edges for start in starts)
    yield from graph.branches
    yield from (name for name, spec in graph.nodes.items() if spec.ends)


def _targets(graph: StateGraph) -> Iterator[tuple[str, str]]:
    """Yield where something leads, and what leads there."""
    for start, end in graph.edges:
        yield end, f"Found edge from {start!r} ending at"
    for starts, end in graph.waiting_edges:
        yield end, f"Found edge from {', '.join(map(repr, starts))} ending at"
    for start, branches in graph.branches.items():
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                yield end, f"At {start!r} node, {name!r} branch found"
    for name, spec in graph.nodes.items():
        for end in spec.ends or ():
            yield end, f"The destinations of node {name!r} name"


def _known(graph: StateGraph) -> str:
    names = [name for name, spec in graph.nodes.items() if not spec.is_handler]
    return f"the nodes are: {', '.join(names) or 'none'}"
