"""The graph of a program whose edges are channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flowpregel.pregel.drawing.graph import END, START, Edge, Graph, NodeShape


def graph_of(
    triggers: Mapping[str, Iterable[str]],
    writes: Mapping[str, Iterable[str]],
    input_channels: str | Iterable[str],
    output_channels: str | Iterable[str],
    *,
    sends: Mapping[str, Iterable[str]] | None = None,
    subgraphs: Mapping[str, Graph] | None = None,
) -> Graph:
    """Return the graph of a program.

    There is an edge from a node to another, labelled with the channel, where
    the one writes a channel that triggers the other; from the start to what the
    input triggers; and to the end from what writes the output.

    Args:
        triggers: For each node, by its name, the channels that make it run.
        writes: For nodes that write, the channels they are known to write.
        input_channels: The channels a run's input is written to.
        output_channels: The channels a run's output is read from.
        sends: For nodes that send tasks, the nodes they may send them to.
        subgraphs: For nodes that are graphs and are to be shown, what is inside.

    Example:
        >>> graph = graph_of({"double": ["a"]}, {"double": ["b"]}, "a", "b")
        >>> [(edge.source, edge.data, edge.target) for edge in graph.edges]
        [('__start__', 'a', 'double'), ('double', 'b', '__end__')]
    """
    readers: dict[str, list[str]] = {}
    for name, channels in triggers.items():
        for channel in dict.fromkeys(channels):
            readers.setdefault(channel, []).append(name)
    edges = [*_edges(START, _names(input_channels), readers)]
    for channel in _names(output_channels):
        readers.setdefault(channel, []).append(END)
    for name in triggers:
        edges += _edges(name, writes.get(name, ()), readers)
        targets = (sends or {}).get(name, ())
        edges += [Edge(name, target, conditional=True) for target in targets]
    shapes = {name: NodeShape(name, "node", (subgraphs or {}).get(name)) for name in triggers}
    if any(edge.source == START for edge in edges):
        shapes = {START: NodeShape(START, "start"), **shapes}
    if any(edge.target == END for edge in edges):
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


def _edges(
    source: str, channels: Iterable[str], readers: Mapping[str, list[str]]
) -> Iterator[Edge]:
    """Yield one edge to each node that these channels trigger."""
    labels: dict[str, list[str]] = {}
    for channel in sorted(channels):
        for reader in readers.get(channel, ()):
            labels.setdefault(reader, []).append(channel)
    for reader, names in labels.items():
        yield Edge(source, reader, ", ".join(names))


def _names(channels: str | Iterable[str]) -> list[str]:
    return [channels] if isinstance(channels, str) else list(channels)
