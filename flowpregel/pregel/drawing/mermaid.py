"""A graph in Mermaid's language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flowpregel.pregel.drawing.styles import STYLES

if TYPE_CHECKING:
    from flowpregel.pregel.drawing.graph import Edge, Graph, NodeShape

_RESERVED = frozenset({
    "call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph",
    "href", "linkstyle", "style", "subgraph",
})  # fmt: skip
_ESCAPED = {
    ord("#"): "#35;", ord('"'): "#quot;", ord("<"): "#lt;", ord(">"): "#gt;",
    ord("`"): "#96;", ord("\\"): "#92;", ord("\n"): "<br/>",
}  # fmt: skip
_OUTLINES = {"node": ("[", "]"), "start": ("([", "])"), "end": ("([", "])")}


def draw(graph: Graph, *, direction: str = "TD", classes: Mapping[str, str] | None = None) -> str:
    """Return *graph* as a Mermaid flowchart.

    Args:
        graph: What to draw.
        direction: Where the edges go: ``TD``, ``LR``, ``BT`` or ``RL``.
        classes: The style class of nodes that have one; see `STYLES`.
    """
    flat = graph.flat()
    ids = _ids([*flat.nodes, *_nested(graph, "")])
    lines = [f"flowchart {direction}", *_members(graph, "", flat, ids, "    ")]
    lines += [_edge(edge, ids) for edge in flat.edges]
    styled = dict(classes or {})
    for id_, node in flat.nodes.items():
        if node.kind != "node":
            styled.setdefault(id_, "marker")
    for name, style in STYLES.items():
        members = [ids[id_] for id_, its in styled.items() if its == name and id_ in ids]
        if members:
            lines += [
                f"    classDef {name} {style.to_mermaid()}",
                f"    class {','.join(members)} {name}",
            ]
    return "\n".join(lines) + "\n"


def _members(
    graph: Graph, prefix: str, flat: Graph, ids: Mapping[str, str], indent: str
) -> Iterator[str]:
    for id_, node in graph.nodes.items():
        full = prefix + id_
        if node.subgraph is None:
            if full in flat.nodes:
                yield indent + _node(ids[full], node)
            continue
        yield f'{indent}subgraph {ids[full]}["{_escape(node.name)}"]'
        yield from _members(node.subgraph, f"{full}:", flat, ids, indent + "    ")
        yield f"{indent}end"


def _node(id_: str, node: NodeShape) -> str:
    left, right = _OUTLINES[node.kind]
    return f'{id_}{left}"{_escape(node.name)}"{right}'


def _edge(edge: Edge, ids: Mapping[str, str]) -> str:
    label = f'"{_escape(edge.data)}"' if edge.data else ""
    if edge.conditional:
        arrow = f"-. {label} .->" if label else "-.->"
    else:
        arrow = f"-- {label} -->" if label else "-->"
    return f"    {ids[edge.source]} {arrow} {ids[edge.target]}"


def _ids(names: Sequence[str]) -> dict[str, str]:
    """Return ids that Mermaid takes: the names themselves, where they are words to it."""
    made = {name: name for name in names if _is_word(name)}
    plain = set(made)
    number = 0
    for name in names:
        if name in plain:
            continue
        while f"n{number}" in plain:
            number += 1
        made[name] = f"n{number}"
        number += 1
    return made


def _nested(graph: Graph, prefix: str) -> Iterator[str]:
    for id_, node in graph.nodes.items():
        if node.subgraph is not None:
            yield prefix + id_
            yield from _nested(node.subgraph, f"{prefix}{id_}:")


def _is_word(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name.lower() not in _RESERVED


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)
