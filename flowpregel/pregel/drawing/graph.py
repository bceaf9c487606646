"""`Graph`: the nodes and edges of a program, as plain data that draws itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, Final, Literal, TypeAlias

from flowpregel._core.program import names
from flowpregel._text import printable
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.drawing.formats import STYLES, mermaid_ids, mermaid_label, quoted, render

Direction: TypeAlias = Literal["TD", "LR", "BT", "RL"]
Charset: TypeAlias = Literal["unicode", "ascii"]

START: Final = "__start__"
"""The marker for what a run is given."""
END: Final = "__end__"
"""The marker for what a run gives back."""


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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the program says about it; `Graph.to_json` passes it on."""
    note: str = ""
    """A second line that Mermaid and Graphviz write on it."""
    style: str = ""
    """The name of its colours; empty: the usual ones."""

    @property
    def label(self) -> str:
        """The lines that are written on it."""
        return f"{self.name}\n{self.note}" if self.note else self.name


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
        >>> graph = Graph(nodes, [Edge("a", "b"), Edge("a", "c", "later", conditional=True)])
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
                        f"the edge from {edge.source!r} to {edge.target!r} needs a node "
                        f"{end!r}, and the graph has none; add it to the nodes"
                    )

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return the graph as a list: each node, and below it the edges that leave it.

        Args:
            charset: Line-drawing characters, or nothing but ASCII.
        """
        branch, corner, solid, dashed = "├└─┄" if charset == "unicode" else "++-."
        flat = self.flat()
        titles = {id_: _line(node.name) for id_, node in flat.nodes.items()}
        lines = []
        for id_, title in titles.items():
            lines.append(title)
            leaving = [edge for edge in flat.edges if edge.source == id_]
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
        flat, parts = self.flat(), [*self.parts()]
        nested = [id_ for _, id_, node in parts if node is not None and node.subgraph is not None]
        ids = mermaid_ids([*flat.nodes, *nested])
        lines = [f"flowchart {direction}"]
        styled: dict[str, list[str]] = {name: [] for name in STYLES}
        for depth, id_, node in parts:
            if node is None:
                line = "end"
            elif node.subgraph is not None:
                line = f"subgraph {ids[id_]}[{mermaid_label(node.label)}]"
            elif id_ not in flat.nodes:
                continue
            else:
                label = mermaid_label(node.label)
                line = ids[id_] + (f"[{label}]" if node.kind == "node" else f"([{label}])")
                if style := node.style or ("" if node.kind == "node" else "marker"):
                    styled[style].append(ids[id_])
            lines.append("    " * depth + line)
        for edge in flat.edges:
            start, end = ("-.", ".->") if edge.conditional else ("--", "-->")
            bare = "-.->" if edge.conditional else "-->"
            arrow = f"{start} {mermaid_label(edge.data)} {end}" if edge.data else bare
            lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
        for name, members in styled.items():
            fill, stroke, text, dashed = STYLES[name]
            dashes = ",stroke-dasharray:4" * dashed
            if members:
                lines.append(
                    f"    classDef {name} fill:{fill},stroke:{stroke},color:{text}{dashes}"
                )
                lines.append(f"    class {','.join(members)} {name}")
        return "\n".join(lines) + "\n"

    def draw_dot(self) -> str:
        """Return it in Graphviz's language."""
        flat = self.flat()
        lines = [
            "digraph {",
            '  node [shape=box, style=rounded, fontname="Helvetica"];',
            '  edge [fontname="Helvetica", fontsize=10];',
        ]
        for depth, id_, node in self.parts():
            indent = "  " * depth
            if node is None:
                lines.append(f"{indent}}}")
            elif node.subgraph is not None:
                # Graphviz draws a frame around a subgraph whose name begins with this word.
                lines.append(f"{indent}subgraph {quoted('cluster ' + id_)} {{")
                lines.append(f"{indent}  label={quoted(node.label)};")
            elif id_ in flat.nodes:
                looks = f"label={quoted(node.label)}" + ", shape=oval" * (node.kind != "node")
                if node.style:
                    fill, stroke, text, dashed = STYLES[node.style]
                    looks += f', style="rounded,filled{",dashed" * dashed}", fillcolor="{fill}"'
                    looks += f', color="{stroke}", fontcolor="{text}"'
                lines.append(f"{indent}{quoted(id_)} [{looks}];")
        for edge in flat.edges:
            marks = [f"label={quoted(edge.data)}"] if edge.data else []
            marks += ["style=dashed"] if edge.conditional else []
            lines.append(f"  {quoted(edge.source)} -> {quoted(edge.target)} [{', '.join(marks)}];")
        return "\n".join([*lines, "}"]) + "\n"

    def draw_svg(self) -> str:
        """Return it as an SVG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return render(self.draw_dot(), "svg").decode()

    def draw_png(self) -> bytes:
        """Return it as a PNG picture, made by the ``dot`` program of Graphviz.

        Raises:
            ConfigurationError: ``dot`` is not installed, or failed.
        """
        return render(self.draw_dot(), "png")

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(self.draw_ascii())}</pre>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": self.draw_ascii(),
            "text/html": self._repr_html_(),
            "text/vnd.mermaid": self.draw_mermaid(),
        }

    def parts(
        self, prefix: str = "", depth: int = 1
    ) -> Iterator[tuple[int, str, NodeShape | None]]:
        """Yield (depth, id, node) in order; None as the node is the end of a nested graph."""
        for id_, node in self.nodes.items():
            yield depth, prefix + id_, node
            if node.subgraph is not None:
                yield from node.subgraph.parts(f"{prefix}{id_}:", depth + 1)
                yield depth, prefix + id_, None

    def to_json(self) -> dict[str, Any]:
        """Return the graph as values that ``json.dumps`` takes (if the metadata is)."""
        nodes = []
        for id_, node in self.nodes.items():
            inner = node.subgraph and node.subgraph.to_json()
            optional = {"metadata": dict(node.metadata), "graph": inner}
            known = {name: value for name, value in optional.items() if value}
            nodes.append({"id": id_, "name": node.name, "kind": node.kind, **known})
        edges = [
            {name: value for name, value in asdict(edge).items() if value not in (None, False)}
            for edge in self.edges
        ]
        return {"nodes": nodes, "edges": edges}

    def flat(self) -> Graph:
        """Return the graph with nested ones in place of their nodes.

        A nested node ``b`` of ``a`` is called ``a:b``. The markers of a nested
        graph give way to the edges that lead to and from it, where it has both.
        """
        nodes: dict[str, NodeShape] = {}
        edges: list[Edge] = []
        heads: dict[str, list[Edge]] = {}
        tails: dict[str, list[Edge]] = {}
        for id_, node in self.nodes.items():
            if node.subgraph is None:
                nodes[id_] = node
                heads[id_] = tails[id_] = [Edge(id_, id_)]
            else:
                inner, heads[id_], tails[id_] = _inlined(id_, node.subgraph.flat())
                nodes |= inner.nodes
                edges += inner.edges
        for edge in self.edges:
            edges += _joined(edge, tails[edge.source], heads[edge.target])
        return Graph(nodes, edges)


def _line(text: str) -> str:
    return printable(" ".join(text.split("\n")))


def graph_of(
    triggers: Mapping[str, Iterable[str]],
    writes: Mapping[str, Iterable[str]],
    input_channels: str | Sequence[str],
    output_channels: str | Sequence[str],
    *,
    subgraphs: Mapping[str, Graph] | None = None,
) -> Graph:
    """Return the graph of a program whose edges are channels.

    There is an edge from a node to another, labelled with the channel, where
    the one writes a channel that triggers the other; from the start to what the
    input triggers; and to the end from what writes the output.

    Args:
        triggers: For each node, by its name, the channels that make it run.
        writes: For nodes that write, the channels they are known to write.
        input_channels: The channels a run's input is written to.
        output_channels: The channels a run's output is read from.
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
    edges = [*_channel_edges(START, names(input_channels), readers)]
    for channel in names(output_channels):
        readers.setdefault(channel, []).append(END)
    for name in triggers:
        edges += _channel_edges(name, writes.get(name, ()), readers)
    shapes = {name: NodeShape(name, "node", (subgraphs or {}).get(name)) for name in triggers}
    if any(edge.source == START for edge in edges):
        shapes = {START: NodeShape(START, "start"), **shapes}
    if any(edge.target == END for edge in edges):
        shapes[END] = NodeShape(END, "end")
    return Graph(shapes, edges)


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


def _inlined(prefix: str, graph: Graph) -> tuple[Graph, list[Edge], list[Edge]]:
    """Return a nested graph renamed for the graph around it, its edges in and its edges out."""
    starts = {id_ for id_, node in graph.nodes.items() if node.kind == "start"}
    ends = {id_ for id_, node in graph.nodes.items() if node.kind == "end"}

    def renamed(edges: Iterable[Edge]) -> list[Edge]:
        return [
            Edge(f"{prefix}:{e.source}", f"{prefix}:{e.target}", e.data, e.conditional)
            for e in edges
        ]

    heads = [edge for edge in graph.edges if edge.source in starts]
    tails = [edge for edge in graph.edges if edge.target in ends]
    markers = starts | ends
    if not heads or not tails or any(edge.target in ends for edge in heads):
        markers = set()
        heads = [Edge(id_, id_) for id_ in starts or graph.nodes]
        tails = [Edge(id_, id_) for id_ in ends or graph.nodes]
    nodes = {
        f"{prefix}:{id_}": replace(node, name=f"{prefix}:{node.name}")
        for id_, node in graph.nodes.items()
        if id_ not in markers
    }
    inside = [edge for edge in graph.edges if not markers & {edge.source, edge.target}]
    return Graph(nodes, renamed(inside)), renamed(heads), renamed(tails)


def _joined(edge: Edge, tails: list[Edge], heads: list[Edge]) -> Iterator[Edge]:
    """Yield *edge* between each edge out of its source and each edge into its target."""
    for tail in tails:
        for head in heads:
            parts = (tail, edge, head)
            labels = dict.fromkeys(part.data for part in parts if part.data)
            conditional = any(part.conditional for part in parts)
            yield Edge(tail.source, head.target, ", ".join(labels) or None, conditional)
