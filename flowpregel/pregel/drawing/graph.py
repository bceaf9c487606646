"""`Graph`: the nodes and edges of a program, as plain data that draws itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, Literal, TypeAlias

from flowpregel.errors import ConfigurationError
from flowpregel.pregel.drawing import dot, mermaid, terminal

START: Final = "__start__"
"""The marker for what a run is given."""
END: Final = "__end__"
"""The marker for what a run gives back."""

Kind: TypeAlias = Literal["node", "start", "end"]
Direction: TypeAlias = Literal["TD", "LR", "BT", "RL"]
Charset: TypeAlias = Literal["unicode", "ascii"]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node as it is drawn."""

    name: str
    """What is written on it."""
    kind: Kind = "node"
    """A node, or one of the two markers."""
    subgraph: Graph | None = None
    """What is inside, if it is a graph of its own and is to be shown."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the program says about it; `Graph.to_json` passes it on."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another."""

    source: str
    target: str
    data: str | None = None
    """The label: the channel, or the answer that leads this way."""
    conditional: bool = False
    """Whether the source decides, each time, if it goes this way."""


@dataclass(frozen=True)
class Graph:
    """The nodes and edges of a program.

    In a notebook it shows itself.

    Args:
        nodes: The nodes by their ids, in the order in which they are drawn.
        edges: The edges between them.

    Raises:
        ConfigurationError: An edge starts or ends at a node that is not there.

    Example:
        >>> graph = Graph({"a": NodeShape("a"), "b": NodeShape("b")}, [Edge("a", "b")])
        >>> print(graph.draw_ascii(charset="ascii"))
        +-----+
        |  a  |
        +--+--+
           |
           v
        +-----+
        |  b  |
        +-----+
    """

    nodes: dict[str, NodeShape]
    edges: list[Edge] = field(default_factory=list)

    def __post_init__(self) -> None:
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in self.nodes:
                    raise ConfigurationError(
                        f"the edge from {edge.source!r} to {edge.target!r} needs a node "
                        f"{end!r}, and the graph has none; add it to the nodes"
                    )

    def draw_mermaid(self, *, direction: Direction = "TD") -> str:
        """Return the graph in Mermaid's language; nested graphs are boxes around their nodes.

        Args:
            direction: Top down, left to right, bottom to top or right to left.
        """
        return mermaid.draw(self, direction=direction)

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return the graph as boxes and lines for a terminal.

        Args:
            charset: Line-drawing characters, or nothing but ASCII.
        """
        return terminal.draw(self.flat(), ascii_only=charset == "ascii")

    def print_ascii(self) -> None:
        """Print `draw_ascii`."""
        print(self.draw_ascii())

    def draw_svg(self) -> str:
        """Return the graph as an SVG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return dot.render(self, "svg").decode()

    def draw_png(self) -> bytes:
        """Return the graph as a PNG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return dot.render(self, "png")

    def to_json(self) -> dict[str, Any]:
        """Return the graph as values that ``json.dumps`` takes (if the metadata is)."""
        return {
            "nodes": [_node_to_json(id_, node) for id_, node in self.nodes.items()],
            "edges": [_edge_to_json(edge) for edge in self.edges],
        }

    def flat(self) -> Graph:
        """Return the graph with nested ones in place of their nodes.

        A nested node ``b`` of ``a`` is called ``a:b``. The markers of a nested
        graph give way to the edges that lead to and from it, where it has both.
        """
        nodes: dict[str, NodeShape] = {}
        heads: dict[str, list[Edge]] = {}
        tails: dict[str, list[Edge]] = {}
        edges: list[Edge] = []
        for id_, node in self.nodes.items():
            if node.subgraph is None:
                nodes[id_] = node
                heads[id_] = tails[id_] = [Edge(id_, id_)]
            else:
                inner = _Inlined(id_, node.subgraph.flat())
                nodes |= inner.nodes
                edges += inner.edges
                heads[id_], tails[id_] = inner.heads, inner.tails
        for edge in self.edges:
            edges += _joined(edge, tails[edge.source], heads[edge.target])
        return Graph(nodes, edges)

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(self.draw_ascii())}</pre>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": self.draw_ascii(),
            "text/html": self._repr_html_(),
            "text/vnd.mermaid": self.draw_mermaid(),
        }


class _Inlined:
    """A nested graph, renamed for the graph around it, and its ways in and out."""

    def __init__(self, prefix: str, graph: Graph) -> None:
        starts = {id_ for id_, node in graph.nodes.items() if node.kind == "start"}
        ends = {id_ for id_, node in graph.nodes.items() if node.kind == "end"}
        renamed = [
            Edge(f"{prefix}:{e.source}", f"{prefix}:{e.target}", e.data, e.conditional)
            for e in graph.edges
        ]
        pairs = list(zip(graph.edges, renamed, strict=True))
        self.heads = [new for old, new in pairs if old.source in starts]
        self.tails = [new for old, new in pairs if old.target in ends]
        through = any(old.source in starts and old.target in ends for old in graph.edges)
        markers = starts | ends
        if through or not self.heads or not self.tails:
            markers = set()
            self.heads = list(self._ends_of(prefix, starts or graph.nodes))
            self.tails = list(self._ends_of(prefix, ends or graph.nodes))
        self.edges = [
            new for old, new in pairs if old.source not in markers and old.target not in markers
        ]
        self.nodes = {
            f"{prefix}:{id_}": NodeShape(f"{prefix}:{node.name}", node.kind, None, node.metadata)
            for id_, node in graph.nodes.items()
            if id_ not in markers
        }

    @staticmethod
    def _ends_of(prefix: str, ids: Any) -> Iterator[Edge]:
        for id_ in ids:
            yield Edge(f"{prefix}:{id_}", f"{prefix}:{id_}")


def _joined(edge: Edge, tails: list[Edge], heads: list[Edge]) -> Iterator[Edge]:
    """Yield *edge* between each way out of its source and each way into its target."""
    for tail in tails:
        for head in heads:
            labels = dict.fromkeys(filter(None, (tail.data, edge.data, head.data)))
            yield Edge(
                tail.source,
                head.target,
                ", ".join(labels) or None,
                edge.conditional or tail.conditional or head.conditional,
            )


def _node_to_json(id_: str, node: NodeShape) -> dict[str, Any]:
    made: dict[str, Any] = {"id": id_, "name": node.name, "kind": node.kind}
    if node.metadata:
        made["metadata"] = dict(node.metadata)
    if node.subgraph is not None:
        made["graph"] = node.subgraph.to_json()
    return made


def _edge_to_json(edge: Edge) -> dict[str, Any]:
    made: dict[str, Any] = {"source": edge.source, "target": edge.target}
    if edge.data is not None:
        made["data"] = edge.data
    if edge.conditional:
        made["conditional"] = True
    return made
