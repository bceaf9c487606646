"""The graph of a program whose edges are channels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowpregel.pregel.drawing.graph import END, START, Edge, Graph, NodeShape


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLinks:
    """What connects a node of a program to the others."""

    triggers: Collection[str] = ()
    """The channels that make it run."""
    writes: Collection[str] = ()
    """The channels that it is known to write."""
    sends: Collection[str] = ()
    """The nodes that it may send tasks to."""
    subgraph: Graph | None = None
    """What is inside, if it is a graph and is to be shown."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def graph_of(
    nodes: Mapping[str, NodeLinks],
    input_channels: str | Iterable[str],
    output_channels: str | Iterable[str],
) -> Graph:
    """Return the graph of a program.

    There is an edge from a node to another, labelled with the channel, where
    the one writes a channel that triggers the other; from the start to what the
    input triggers; and to the end from what writes the output.

    Args:
        nodes: The program's nodes by name.
        input_channels: The channels a run's input is written to.
        output_channels: The channels a run's output is read from.

    Example:
        >>> graph = graph_of({"double": NodeLinks(triggers=["a"], writes=["b"])}, "a", "b")
        >>> [(edge.source, edge.data, edge.target) for edge in graph.edges]
        [('__start__', 'a', 'double'), ('double', 'b', '__end__')]
    """
    inputs, outputs = _names(input_channels), _names(output_channels)
    writes = {START: set(inputs), **{name: set(links.writes) for name, links in nodes.items()}}
    triggers: dict[str, list[str]] = {name: list(node.triggers) for name, node in nodes.items()}
    readers: dict[str, list[str]] = {}
    for name, channels in triggers.items():
        for channel in dict.fromkeys(channels):
            readers.setdefault(channel, []).append(name)
    for channel in outputs:
        readers.setdefault(channel, []).append(END)
    edges: list[Edge] = []
    for source, written in writes.items():
        labels: dict[str, list[str]] = {}
        for channel in sorted(written):
            for reader in readers.get(channel, ()):
                if (source, reader) != (START, END):
                    labels.setdefault(reader, []).append(channel)
        edges += [Edge(source, reader, ", ".join(names)) for reader, names in labels.items()]
        sends = nodes[source].sends if source in nodes else ()
        edges += [Edge(source, target, conditional=True) for target in sends]
    return _with_markers(nodes, edges)


def _with_markers(nodes: Mapping[str, NodeLinks], edges: list[Edge]) -> Graph:
    shapes = {
        name: NodeShape(name, "node", links.subgraph, links.metadata)
        for name, links in nodes.items()
    }
    if any(edge.source == START for edge in edges):
        shapes = {START: NodeShape(START, "start"), **shapes}
    if any(edge.target == END for edge in edges):
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


def _names(channels: str | Iterable[str]) -> list[str]:
    return [channels] if isinstance(channels, str) else list(channels)
