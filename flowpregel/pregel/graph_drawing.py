"""The drawing of a compiled graph: its nodes, the edges between them, nested graphs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from flowpregel._code.sources import SOURCES
from flowpregel._core.ids import text_digest
from flowpregel._core.program import names
from flowpregel.pregel.definition import END, START, GraphDefinition
from flowpregel.pregel.drawing import Graph, NodeShape
from flowpregel.pregel.graph_picture import Edge

_LARGEST_STORED = 1 << 16
"""The greatest number of characters of a drawing that is stored with runs."""
STORED_DRAWINGS: WeakKeyDictionary[GraphDefinition, str] = WeakKeyDictionary()
"""The digest of the drawing that is stored with a graph's runs, by graph."""
_MOST_NAMES = 5
"""The number of nodes that the `repr` of a graph names."""


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """A builder of the drawing of a compiled graph.

    Args:
        definition: The parts of the graph.
    """

    definition: GraphDefinition

    def graph(self, *, xray: bool | int = False) -> Graph:
        """Return the nodes and edges of the graph.

        Args:
            xray: Whether to draw nested graphs too. A number limits the depth of
                nesting.
        """
        definition = self.definition
        if definition.drawn_parts is not None:
            nodes, edges = definition.drawn_parts()
        else:
            nodes = definition.nodes
            edges = _edges_of(definition)
        actions = {name: node.bound for name, node in definition.nodes.items()}
        return graph_of(nodes, edges, self._nested(xray), actions)

    def summary(self) -> str:
        """Return the name of the graph, its first nodes and its store, for a `repr`."""
        definition = self.definition
        nodes = [name for name in definition.nodes if not name.startswith("__")]
        text = ", ".join(nodes[:_MOST_NAMES]) or "no nodes"
        if len(nodes) > _MOST_NAMES:
            text += f" and {len(nodes) - _MOST_NAMES:,} more"
        return f"{definition.name!r} of {text}{self.store_text()}"

    def store_text(self) -> str:
        """Return a clause about the store of the graph's runs, or an empty string."""
        path = getattr(self.definition.checkpointer, "path", None)
        if isinstance(path, str):
            return f", stored in {path!r}"
        return ""

    def _nested(self, xray: bool | int) -> dict[str, Graph]:
        """Return the drawings of nested graphs, by the names of their nodes."""
        definition = self.definition
        if xray is True:
            # The depth of the drawing must be limited, because graphs may call each
            # other.
            paths = [path for path, _ in definition.subgraphs(recurse=True)]
            depths = [path.count("|") for path in paths]
            xray = 1 + max(depths, default=0)
        if xray <= 0:
            return {}
        return {
            name: graph.get_graph(xray=xray - 1)
            for name, graph in definition.subgraphs()
        }


def store_drawing(definition: GraphDefinition) -> str:
    """Register the drawing of a `StateGraph`, and return the digest of the drawing. A
    registered drawing is stored with the graph's runs, so that it can be shown after
    the process of a run has ended.

    The digest is empty for a graph whose edges are not declared, and for a large
    drawing.
    """
    digest = ""
    if definition.drawn_parts is not None:
        graph = GraphDrawing(definition).graph()
        text = json.dumps(graph.outline())
        if len(text) <= _LARGEST_STORED:
            digest = text_digest("drawing", text)
            SOURCES[digest] = text
    STORED_DRAWINGS[definition] = digest
    return digest


def graph_of(
    nodes: Iterable[str],
    edges: list[Edge],
    nested: Mapping[str, Graph],
    actions: Mapping[str, Any] = MappingProxyType({}),
) -> Graph:
    """Return the graph of *nodes* and *edges*.

    The graph has a start or an end marker if an edge leads from or to the marker.

    Args:
        nodes: The names of the nodes.
        edges: The edges between the nodes, `START` and `END`.
        nested: The drawings of the nested graphs to show, by node name.
        actions: The functions, objects and graphs that the nodes call, by node name.
    """
    sources = {edge.source for edge in edges}
    targets = {edge.target for edge in edges}
    shapes: dict[str, NodeShape] = {}
    if START in sources:
        shapes[START] = NodeShape(START, "start")
    for name in nodes:
        action = actions.get(name)
        shapes[name] = NodeShape(name, "node", nested.get(name), action)
    if END in targets:
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


def _edges_of(definition: GraphDefinition) -> list[Edge]:
    """Return the edges of a graph, derived from its channels.

    An edge leads from a node that writes to a channel to each node that the channel
    triggers, and has the channel's name as the label. Edges lead from the start to the
    nodes that the input triggers, and to the end from the nodes that write the output.
    """
    readers: dict[str, list[str]] = {}
    for name, node in definition.nodes.items():
        for channel in dict.fromkeys(node.triggers):
            readers.setdefault(channel, []).append(name)
    edges: list[Edge] = []
    inputs = names(definition.input_channels)
    first_edges = _channel_edges(START, inputs, readers)
    edges.extend(first_edges)
    for channel in names(definition.output_channels):
        readers.setdefault(channel, []).append(END)
    for name, node in definition.nodes.items():
        written = set(node.written)
        edges.extend(_channel_edges(name, written, readers))
    return edges


def _channel_edges(
    source: str,
    channels: Iterable[str],
    readers: Mapping[str, list[str]],
) -> Iterator[Edge]:
    """Yield one edge from *source* to each node that *channels* trigger."""
    labels: dict[str, list[str]] = {}
    for channel in sorted(channels):
        for reader in readers.get(channel, ()):
            labels.setdefault(reader, []).append(channel)
    for reader, channel_names in labels.items():
        yield Edge(source, reader, ", ".join(channel_names))
