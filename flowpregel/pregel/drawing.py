"""`Graph`: the nodes and edges of a program as plain data, and the drawing of them.

There are three output formats: Mermaid, Graphviz, and a list for a terminal. Nested
graphs are drawn as boxes with their own start and end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from flowpregel._text import no_such_option, printable
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.graph_picture import Edge, graph_svg
from flowpregel.pregel.png import png_of

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
_LANGCHAINS_OPTIONS = frozenset(
    {
        "base_url",
        "curve_style",
        "draw_method",
        "frontmatter_config",
        "max_retries",
        "node_colors",
        "padding",
        "proxies",
        "retry_delay",
        "wrap_label_n_words",
    }
)
"""The options of LangChain's ``draw_mermaid_png`` that a `Graph` accepts and ignores.
"""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node of a drawing."""

    name: str
    """The label of the node."""
    kind: Literal["node", "start", "end"] = "node"
    """The kind: an ordinary node, or the start or end marker of a graph."""
    subgraph: Graph | None = None
    """The nested graph, if the node is a graph that the drawing shows."""
    data: Any = field(default=None, repr=False, compare=False)
    """The function, object or graph that the node calls, or None for a marker."""


class Part(NamedTuple):
    """A node of a graph or of a nested graph, or the end of a nested graph."""

    depth: int
    id: str
    """The id of the node: node ``b`` of a nested graph ``a`` has the id ``a:b``."""
    title: str
    """The name of the node, preceded by the ids of the nested graphs around it."""
    node: NodeShape | None
    """The node, or None if this part is the end of the nested graph with this id."""

    @property
    def is_marker(self) -> bool:
        """True for the start and the end of a graph."""
        return self.node is not None and self.node.kind != "node"


def _fields_for_json(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a graph, a node or an edge. The `data` of a node is left
    out.
    """
    fields = dict(items)
    if "subgraph" in fields:
        del fields["data"]
    return fields


@dataclass(frozen=True)
class Graph:
    """The nodes and edges of a program.

    A notebook displays the graph as a drawing.

    Args:
        nodes: The nodes by their ids, in the order in which they are drawn.
        edges: The edges between the nodes.

    Raises:
        ConfigurationError: An edge starts or ends at a node that does not exist.

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
                        f"node {end!r}, and the graph has none; add it to the nodes"
                    )

    def parts(
        self,
        prefix: str = "",
        depth: int = 1,
    ) -> Iterator[Part]:
        """Yield the nodes in order, and after a node that is a nested graph the nodes
        in that graph.
        """
        for key, node in self.nodes.items():
            part = Part(
                depth,
                prefix + key,
                prefix + node.name,
                node,
            )
            yield part
            if node.subgraph is not None:
                yield from node.subgraph.parts(f"{part.id}:", depth + 1)
                yield part._replace(node=None)

    def all_edges(self, prefix: str = "") -> Iterator[Edge]:
        """Yield the edges between all drawn nodes. An edge to or from a nested graph is
        attached to that graph's markers.
        """
        for key, node in self.nodes.items():
            if node.subgraph is not None:
                yield from node.subgraph.all_edges(f"{prefix}{key}:")
        for edge in self.edges:
            source = prefix + _end_inside(self, edge.source, "end")
            target = prefix + _end_inside(self, edge.target, "start")
            yield replace(edge, source=source, target=target)

    def leaves(self) -> dict[str, NodeShape]:
        """Return the nodes that are not nested graphs, by id, with their full names."""
        return {
            part.id: replace(part.node, name=part.title)
            for part in self.parts()
            if part.node is not None and part.node.subgraph is None
        }

    def draw_ascii(self, *, charset: Charset = "unicode") -> str:
        """Return the graph as a list: each node, and below it the edges that leave it.

        Args:
            charset: ``"unicode"`` for line-drawing characters, ``"ascii"`` for ASCII
                only.
        """
        signs = _UNICODE_SIGNS if charset == "unicode" else _ASCII_SIGNS
        titles = {id_: _line(node.name) for id_, node in self.leaves().items()}
        edges_from: dict[str, list[Edge]] = {id_: [] for id_ in titles}
        for edge in self.all_edges():
            edges_from[edge.source].append(edge)
        lines: list[str] = []
        for id_, title in titles.items():
            lines.append(title)
            edges = edges_from[id_]
            for number, edge in enumerate(edges, 1):
                fork = signs.corner if number == len(edges) else signs.branch
                lines.append(f"  {fork}{_arrow(edge, signs)} {titles[edge.target]}")
        return "\n".join(lines) or "(no nodes)"

    def print_ascii(self) -> None:
        """Print `draw_ascii`."""
        print(self.draw_ascii())

    def draw_mermaid(self, *, direction: Direction = "TD") -> str:
        """Return the graph in Mermaid's language, with nested graphs as boxes.

        Args:
            direction: The layout: top down, left to right, bottom to top or right to
                left.
        """
        parts = list(self.parts())
        ids = _mermaid_ids(dict.fromkeys(part.id for part in parts))
        lines = [f"flowchart {direction}"]
        for part in parts:
            line = _mermaid_node(part, ids[part.id])
            lines += ["    " * part.depth + line]
        for edge in self.all_edges():
            arrow = _mermaid_arrow(edge)
            lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
        markers = [ids[part.id] for part in parts if part.is_marker]
        if markers:
            lines.append(
                "    classDef marker fill:#eceff1,stroke:#90a4ae,color:#37474f"
            )
            lines.append(f"    class {','.join(markers)} marker")
        return "\n".join(lines) + "\n"

    def draw_dot(self) -> str:
        """Return the graph in Graphviz's language."""
        lines = [
            "digraph {",
            '  node [shape=box, style=rounded, fontname="Helvetica"];',
            '  edge [fontname="Helvetica", fontsize=10];',
        ]
        for part in self.parts():
            lines += ["  " * part.depth + _dot_node(part)]
        for edge in self.all_edges():
            attributes: list[str] = []
            if edge.data:
                attributes.append(f"label={_quoted(edge.data)}")
            if edge.conditional:
                attributes.append("style=dashed")
            source = _quoted(edge.source)
            target = _quoted(edge.target)
            lines.append(f"  {source} -> {target} [{', '.join(attributes)}];")
        lines.append("}")
        return "\n".join(lines) + "\n"

    def draw_svg(self) -> str:
        """Return the graph as an SVG element, with the nodes in layers."""
        leaves = self.leaves()
        return graph_svg(
            {id_: node.name for id_, node in leaves.items()},
            {id_ for id_, node in leaves.items() if node.kind != "node"},
            list(self.all_edges()),
        )

    def draw_png(
        self,
        output_file_path: str | os.PathLike[str] | None = None,
        *,
        background_color: str = "white",
    ) -> bytes:
        """Return the picture of `draw_svg` as PNG.

        The package ``resvg-py`` or ``cairosvg`` converts the picture. Neither Graphviz,
        nor a browser, nor a service on the internet is used.

        Args:
            output_file_path: The path of a file to which the picture is written, too.
            background_color: The color behind the graph.

        Raises:
            ConfigurationError: Neither package is installed.
        """
        data = png_of(self.draw_svg(), background_color)
        if output_file_path is not None:
            Path(output_file_path).write_bytes(data)
        return data

    def draw_mermaid_png(
        self,
        *,
        output_file_path: str | os.PathLike[str] | None = None,
        background_color: str = "white",
        **layout: Any,
    ) -> bytes:
        """Return the picture of `draw_png`.

        The method has this name because LangGraph's programs call it.

        Args:
            output_file_path, background_color: As `draw_png` takes them.
            layout: The other options of LangChain's method, such as ``draw_method`` and
                ``max_retries``, which have no effect.

        Raises:
            ConfigurationError: The package that `draw_png` needs is not installed.
            TypeError: LangChain's method has no such option.
        """
        for name in layout:
            if name not in _LANGCHAINS_OPTIONS:
                known = ("output_file_path", "background_color")
                raise TypeError(no_such_option("draw_mermaid_png", name, known))
        return self.draw_png(output_file_path, background_color=background_color)

    def _repr_mimebundle_(
        self,
        include: Any = None,
        exclude: Any = None,
    ) -> dict[str, str]:
        return {
            "text/plain": self.draw_ascii(),
            "text/html": self.draw_svg(),
            "text/vnd.mermaid": self.draw_mermaid(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the graph, as values for ``json.dumps``.

        The objects that the nodes call are left out.
        """
        return asdict(self._without_data(), dict_factory=_fields_for_json)

    def _without_data(self) -> Graph:
        """Return the graph without the objects that the nodes call."""
        nodes = {}
        for id_, node in self.nodes.items():
            inner = None
            if node.subgraph is not None:
                inner = node.subgraph._without_data()  # noqa: SLF001 - of this class
            nodes[id_] = replace(node, subgraph=inner, data=None)
        return replace(self, nodes=nodes)

    def outline(self) -> dict[str, Any]:
        """Return the parts of the graph as JSON. For nodes, these are the ids. For each
        edge, these are the two ends, the label, and whether it is conditional.
        """
        ids: dict[str, list[str]] = {"node": [], "start": [], "end": []}
        for id_, node in self.nodes.items():
            ids[node.kind].append(id_)
        return {
            "nodes": ids["node"],
            "start": ids["start"],
            "end": ids["end"],
            "edges": [(edge.source, edge.target) for edge in self.edges],
            "labels": [edge.data or "" for edge in self.edges],
            "conditional": [edge.conditional for edge in self.edges],
        }


def _end_inside(
    graph: Graph,
    id_: str,
    kind: Literal["start", "end"],
) -> str:
    """Return the id of the drawn node at which an edge begins or ends.

    If the edge is attached to a nested graph, this is the start or end marker in that
    graph.

    Args:
        graph: The graph of the edge.
        id_: The node of *graph* at which the edge begins or ends.
        kind: The marker to use: ``"start"`` for an edge to a nested graph, ``"end"``
            for an edge from it.
    """
    inner = graph.nodes[id_].subgraph
    if inner is None or not inner.nodes:
        return id_
    markers = [name for name, node in inner.nodes.items() if node.kind == kind]
    candidates = markers or list(inner.nodes)
    marker = candidates[-1] if kind == "end" else candidates[0]
    return f"{id_}:{_end_inside(inner, marker, kind)}"


# ---------------------------------------------------------------- terminal drawings


class _Signs(NamedTuple):
    """The characters with which edges are drawn."""

    branch: str
    corner: str
    solid: str
    dashed: str


_UNICODE_SIGNS = _Signs(
    "├",
    "└",
    "─",
    "┄",
)
_ASCII_SIGNS = _Signs(
    "+",
    "+",
    "-",
    ".",
)


def _arrow(
    edge: Edge,
    signs: _Signs,
) -> str:
    """Return an edge as an arrow with a label, for the list in a terminal."""
    line = signs.dashed if edge.conditional else signs.solid
    if not edge.data:
        return f"{line}>"
    return f"{line} {_line(edge.data)} {line}>"


def _line(text: str) -> str:
    """Return *text* on one line."""
    return printable(" ".join(text.split("\n")))


# ---------------------------------------------------------------- Mermaid


def _mermaid_node(
    part: Part,
    id_: str,
) -> str:
    """Return the Mermaid text of a node, or of an end of a nested graph.

    Args:
        part: The part of the drawing.
        id_: The id of the part in Mermaid's language.
    """
    node = part.node
    if node is None:
        return "end"
    label = _mermaid_label(node.name)
    if node.subgraph is not None:
        return f"subgraph {id_}[{label}]"
    return f"{id_}([{label}])" if part.is_marker else f"{id_}[{label}]"


def _mermaid_arrow(edge: Edge) -> str:
    """Return the Mermaid text of an edge, which is an arrow with a label."""
    if not edge.data:
        return "-.->" if edge.conditional else "-->"
    label = _mermaid_label(edge.data)
    return f"-. {label} .->" if edge.conditional else f"-- {label} -->"


def _mermaid_label(text: str) -> str:
    return f'"{printable(text).translate(_MERMAID_ESCAPES)}"'


def _mermaid_ids(names: Collection[str]) -> dict[str, str]:
    """Return an id that Mermaid accepts for each name: the name itself if it is a valid
    id, and otherwise a generated id such as ``n0``.
    """
    words = {
        name
        for name in names
        if name.isascii() and name.isidentifier() and name.lower() not in _MERMAID_WORDS
    }
    numbered = (f"n{number}" for number in count() if f"n{number}" not in words)
    return {name: name if name in words else next(numbered) for name in names}


# ---------------------------------------------------------------- Graphviz


def _dot_node(part: Part) -> str:
    """Return the Graphviz text of a node, or of an end of a nested graph."""
    node = part.node
    if node is None:
        return "}"
    label = f"label={_quoted(node.name)}"
    if node.subgraph is not None:
        # Graphviz draws a frame around a subgraph only if its name begins with
        # "cluster".
        name = _quoted(f"cluster {part.id}")
        indent = "  " * part.depth
        return f"subgraph {name} {{\n{indent}  {label};"
    if part.is_marker:
        label += ", shape=oval"
    return f"{_quoted(part.id)} [{label}];"


def _quoted(text: str) -> str:
    """Return *text* as a name or label in Graphviz's language."""
    return f'"{printable(text).translate(_DOT_ESCAPES)}"'
