"""`Graph`: the nodes and edges of a program, as plain data that draws itself.

There are three drawings: Mermaid, Graphviz, and a list for a terminal. Graphs in the
graph are boxes with their own start and end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import count
from typing import Any, Literal, NamedTuple, TypeAlias

from flowpregel._core.program import names
from flowpregel._text import printable
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.definition import END, START, GraphDefinition

Direction: TypeAlias = Literal["TD", "LR", "BT", "RL"]
Charset: TypeAlias = Literal["unicode", "ascii"]

_MERMAID_WORDS = frozenset(
    {
        "call",
        "class",
        "classdef",
        "click",
        "default",
        "direction",
        "end",
        "flowchart",
        "graph",
        "href",
        "linkstyle",
        "style",
        "subgraph",
    }
)
_MERMAID_ESCAPES = {
    ord("#"): "#35;",
    ord('"'): "#quot;",
    ord("<"): "#lt;",
    ord(">"): "#gt;",
    ord("&"): "#38;",
    ord("%"): "#37;",
    ord("`"): "#96;",
    ord("\\"): "#92;",
    ord("\n"): "<br/>",
}
_DOT_ESCAPES = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n"}


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another."""

    source: str
    target: str
    data: str | None = None
    """The label: the channel, or the answer that leads this way."""
    conditional: bool = False
    """Whether the source decides, each time, if it goes this way."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node as it is drawn."""

    name: str
    """What is written on it."""
    kind: Literal["node", "start", "end"] = "node"
    """A node, or one of the two markers."""
    subgraph: Graph | None = None
    """What is inside, if it is a graph of its own and is to be shown."""


class Part(NamedTuple):
    """A node of a graph or of a graph in it, or the end of such a nested graph."""

    depth: int
    id: str
    """A node ``b`` of a nested graph ``a`` is ``a:b``."""
    title: str
    """Its name, with those of the graphs around it."""
    node: NodeShape | None
    """None: the nested graph of this id ends here."""


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
        >>> nodes = {name: NodeShape(name) for name in "abc"}
        >>> edges = [Edge("a", "b"), Edge("a", "c", "later", conditional=True)]
        >>> graph = Graph(nodes, edges)
        >>> print(graph.draw_ascii(charset="ascii"))
        a
          +-> b
          +. later .> c
        b
        c
    """

    nodes: dict[str, NodeShape]
    edges: list[Edge] = field(default_factory=list)

    def __post_init__(self) -> None:
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in self.nodes:
                    raise ConfigurationError(
                        f"the edge from {edge.source!r} to {edge.target!r} needs a "
                        "node "
                        f"{end!r}, and the graph has none; add it to the nodes"
                    )

    def parts(self, prefix: str = "", depth: int = 1) -> Iterator[Part]:
        """Yield the nodes in order, those of a nested graph after the node that it
        is.
        """
        for key, node in self.nodes.items():
            part = Part(depth, prefix + key, prefix + node.name, node)
            yield part
            if node.subgraph is not None:
                yield from node.subgraph.parts(f"{part.id}:", depth + 1)
                yield part._replace(node=None)

    def all_edges(self, prefix: str = "") -> Iterator[Edge]:
        """Yield the edges between all drawn nodes; at a nested graph they are at its
        markers.
        """
        for key, node in self.nodes.items():
            if node.subgraph is not None:
                yield from node.subgraph.all_edges(f"{prefix}{key}:")
        for edge in self.edges:
            source = prefix + _end_inside(self, edge.source, "end")
            target = prefix + _end_inside(self, edge.target, "start")
            yield replace(edge, source=source, target=target)

    def leaves(self) -> dict[str, NodeShape]:
        """Return the nodes that are no graphs, by their ids, each with its full
        name.
        """
        return {
            part.id: replace(part.node, name=part.title)
            for part in self.parts()
            if part.node is not None and part.node.subgraph is None
        }

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return the graph as a list: each node, and below it the edges that leave it.

        Args:
            charset: Line-drawing characters, or nothing but ASCII.
        """
        branch, corner, solid, dashed = "├└─┄" if charset == "unicode" else "++-."
        titles = {id_: _line(node.name) for id_, node in self.leaves().items()}
        edges = [*self.all_edges()]
        lines = []
        for id_, title in titles.items():
            lines.append(title)
            leaving = [edge for edge in edges if edge.source == id_]
            for number, edge in enumerate(leaving, 1):
                fork = corner if number == len(leaving) else branch
                line = dashed if edge.conditional else solid
                label = f" {_line(edge.data)} {line}" if edge.data else ""
                lines.append(f"  {fork}{line}{label}> {titles[edge.target]}")
        return "\n".join(lines) or "(no nodes)"

    def print_ascii(self) -> None:
        """Print `draw_ascii`."""
        print(self.draw_ascii())

    def draw_mermaid(self, *, direction: Direction = "TD") -> str:
        """Return it in Mermaid's language; nested graphs are boxes around their nodes.

        Args:
            direction: Top down, left to right, bottom to top or right to left.
        """
        ids = _mermaid_ids(dict.fromkeys(part.id for part in self.parts()))
        lines = [f"flowchart {direction}"]
        markers = []
        for depth, id_, _, node in self.parts():
            if node is None:
                line = "end"
            elif node.subgraph is not None:
                line = f"subgraph {ids[id_]}[{_mermaid_label(node.name)}]"
            else:
                label = _mermaid_label(node.name)
                line = ids[id_] + (
                    f"[{label}]" if node.kind == "node" else f"([{label}])"
                )
                if node.kind != "node":
                    markers.append(ids[id_])
            lines.append("    " * depth + line)
        for edge in self.all_edges():
            start, end, arrow = (
                ("-.", ".->", "-.->") if edge.conditional else ("--", "-->", "-->")
            )
            if edge.data:
                arrow = f"{start} {_mermaid_label(edge.data)} {end}"
            lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
        if markers:
            lines.append(
                "    classDef marker fill:#eceff1,stroke:#90a4ae,color:#37474f"
            )
            lines.append(f"    class {','.join(markers)} marker")
        return "\n".join(lines) + "\n"

    def draw_dot(self) -> str:
        """Return it in Graphviz's language."""
        lines = [
            "digraph {",
            '  node [shape=box, style=rounded, fontname="Helvetica"];',
            '  edge [fontname="Helvetica", fontsize=10];',
        ]
        for depth, id_, _, node in self.parts():
            if node is None:
                line = "}"
            elif node.subgraph is not None:
                # Graphviz draws a frame around a subgraph whose name begins with this
                # word.
                label = f"\n{'  ' * depth}  label={_quoted(node.name)};"
                line = f"subgraph {_quoted('cluster ' + id_)} {{{label}"
            else:
                looks = f"label={_quoted(node.name)}" + ", shape=oval" * (
                    node.kind != "node"
                )
                line = f"{_quoted(id_)} [{looks}];"
            lines.append("  " * depth + line)
        for edge in self.all_edges():
            marks = [f"label={_quoted(edge.data)}"] if edge.data else []
            marks += ["style=dashed"] if edge.conditional else []
            source, target = _quoted(edge.source), _quoted(edge.target)
            lines.append(f"  {source} -> {target} [{', '.join(marks)}];")
        return "\n".join([*lines, "}"]) + "\n"

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, str]:
        text = self.draw_ascii()
        return {
            "text/plain": text,
            "text/html": f'<pre style="line-height: 1.2">{escape(text)}</pre>',
            "text/vnd.mermaid": self.draw_mermaid(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as values that ``json.dumps`` takes: its fields, and theirs."""
        return asdict(self)

    def outline(self) -> dict[str, Any]:
        """Return the ids of its nodes, and where its edges begin and end."""
        nodes = [id_ for id_, node in self.nodes.items() if node.kind == "node"]
        return {
            "nodes": nodes,
            "edges": [(each.source, each.target) for each in self.edges],
        }


def _end_inside(graph: Graph, id_: str, kind: Literal["start", "end"]) -> str:
    """Return where an edge to a node begins or ends: at a nested graph at its marker,
    if any.
    """
    inner = graph.nodes[id_].subgraph
    if inner is None or not inner.nodes:
        return id_
    marked = [each for each, node in inner.nodes.items() if node.kind == kind] or [
        *inner.nodes
    ]
    return f"{id_}:{_end_inside(inner, marked[-1 if kind == 'end' else 0], kind)}"


def _mermaid_label(text: str) -> str:
    return f'"{printable(text).translate(_MERMAID_ESCAPES)}"'


def _mermaid_ids(names: Collection[str]) -> dict[str, str]:
    """Return ids that Mermaid takes: the names themselves where they are words to
    it.
    """
    words = {
        name
        for name in names
        if name.isascii() and name.isidentifier() and name.lower() not in _MERMAID_WORDS
    }
    numbered = (f"n{number}" for number in count() if f"n{number}" not in words)
    return {name: name if name in words else next(numbered) for name in names}


def _quoted(text: str) -> str:
    """Return *text* as a name or label in Graphviz's language."""
    return f'"{printable(text).translate(_DOT_ESCAPES)}"'


def _line(text: str) -> str:
    return printable(" ".join(text.split("\n")))


def graph_of(
    nodes: Iterable[str], edges: list[Edge], inside: Mapping[str, Graph]
) -> Graph:
    """Return the graph of these nodes and edges, with a start and an end if one leads
    there.

    Args:
        nodes: Their names.
        edges: The edges between them, `START` and `END`.
        inside: For nodes that are graphs and are to be shown, what is inside.
    """
    has_start = any(edge.source == START for edge in edges)
    shapes = {START: NodeShape(START, "start")} if has_start else {}
    shapes |= {name: NodeShape(name, "node", inside.get(name)) for name in nodes}
    if any(edge.target == END for edge in edges):
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


def edges_of(program: GraphDefinition) -> list[Edge]:
    """Return the edges of a program, which are its channels.

    There is an edge from a node to another, labelled with the channel, where
    the one writes a channel that triggers the other; from the start to what the
    input triggers; and to the end from what writes the output.
    """
    readers: dict[str, list[str]] = {}
    for name, node in program.nodes.items():
        for channel in dict.fromkeys(node.triggers):
            readers.setdefault(channel, []).append(name)
    edges = [*_channel_edges(START, names(program.input_channels), readers)]
    for channel in names(program.output_channels):
        readers.setdefault(channel, []).append(END)
    for name, node in program.nodes.items():
        edges += _channel_edges(name, {*node.written}, readers)
    return edges


def _channel_edges(
    source: str, channels: Iterable[str], readers: Mapping[str, list[str]]
) -> Iterator[Edge]:
    """Yield one edge to each node that these channels trigger."""
    labels: dict[str, list[str]] = {}
    for channel in sorted(channels):
        for reader in readers.get(channel, ()):
            labels.setdefault(reader, []).append(channel)
    for reader, through in labels.items():
        yield Edge(source, reader, ", ".join(through))
