"""The drawing of a graph: what leads where, as its builder knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowpregel.graph.names import DEFAULT_HANDLER, END, START
from flowpregel.graph.spec import BranchSpec, GraphSpec, NodeSpec
from flowpregel.pregel.drawing import Edge, Graph, NodeShape


def drawing_of(builder: GraphSpec, subgraphs: Mapping[str, Any], depth: int) -> Graph:
    """Return the graph of *builder*.

    Args:
        builder: Its nodes, edges and branches.
        subgraphs: The compiled graphs among its nodes, by name.
        depth: How deep to draw those too.
    """
    shapes = {START: NodeShape(START, "start")}
    for name, spec in builder.nodes.items():
        inner = None
        if depth > 0 and name in subgraphs:
            inner = subgraphs[name].get_graph(xray=depth - 1)
        shapes[name] = NodeShape(name, "node", inner, dict(spec.metadata or {}))
    if builder.defaults.error_handler is not None:
        shapes[DEFAULT_HANDLER] = NodeShape(DEFAULT_HANDLER)
    edges = list(dict.fromkeys(_edges(builder)))
    leads_on = {edge.source for edge in edges}
    # Where nothing leads on, the run can end.
    edges += [
        Edge(name, END)
        for name, spec in builder.nodes.items()
        if name not in leads_on and not spec.is_handler
    ]
    if any(edge.target == END for edge in edges):
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


def _edges(builder: GraphSpec) -> Iterator[Edge]:
    for start, end in builder.edges:
        yield Edge(start, end)
    for starts, end in builder.waiting_edges:
        for start in starts:
            yield Edge(start, end)
    for source, branches in builder.branches.items():
        for branch in branches.values():
            yield from _branch_edges(builder, source, branch)
    for name, spec in builder.nodes.items():
        for end, label in (spec.ends or {}).items():
            yield Edge(name, end, label, conditional=True)
        yield from _handler_edge(builder, name, spec)


def _branch_edges(builder: GraphSpec, source: str, branch: BranchSpec) -> Iterator[Edge]:
    if branch.ends is None:
        # Nothing is known of the answers: it may lead anywhere.
        for name, spec in builder.nodes.items():
            if name != source and not spec.is_handler:
                yield Edge(source, name, conditional=True)
        yield Edge(source, END, conditional=True)
        return
    for answer, end in branch.ends.items():
        yield Edge(source, end, str(answer) if answer != end else None, conditional=True)


def _handler_edge(builder: GraphSpec, name: str, spec: NodeSpec) -> Iterator[Edge]:
    """Yield the edge to what handles the failures of a node."""
    handler = spec.error_handler
    if handler is None and not spec.is_handler and builder.defaults.error_handler is not None:
        handler = DEFAULT_HANDLER
    if handler is not None:
        yield Edge(name, handler, "error", conditional=True)
