"""The picture of a graph as SVG, with the nodes in layers from top to bottom.

The layer of a node is the length of the longest path to it, without the edges that lead
back. An edge that leads back is drawn on the right. The picture takes the colour of the
text around it, so it can be read on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from flowpregel._text import in_one_line

if TYPE_CHECKING:
    from flowpregel.pregel.drawing import Edge

_CHARACTER: Final = 8
_HEIGHT: Final = 32
_GAP: Final = 24
_LAYER: Final = 84
"""Sizes in pixels: the width of a character, the height of a node, the gap between two
nodes of a layer, and the distance between two layers.
"""
_LONGEST: Final = 40
"""The greatest number of characters of a label."""
_ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto-start-reverse">'
    '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
)


class Box(NamedTuple):
    """A node in the picture."""

    label: str
    x: float
    """The horizontal position of the centre."""
    y: float
    """The vertical position of the upper side."""
    width: float


def graph_svg(
    labels: Mapping[str, str],
    markers: Collection[str],
    edges: Sequence[Edge],
) -> str:
    """Return a graph as an SVG element.

    Args:
        labels: The label of each node, by id.
        markers: The ids of the start and end of a graph, which are drawn round.
        edges: The edges.
    """
    layers = _layers(list(labels), edges)
    boxes = _boxes(labels, layers)
    width = max((box.x + box.width / 2 for box in boxes.values()), default=0) + _GAP
    has_back_edges = any(boxes[edge.target].y <= boxes[edge.source].y for edge in edges)
    if has_back_edges:
        width += 3 * _GAP
    height = max((box.y for box in boxes.values()), default=0) + _HEIGHT + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        'font-family="sans-serif" font-size="13" fill="none" stroke="currentColor">',
        _ARROW,
    ]
    parts += [_edge_svg(edge, boxes) for edge in edges]
    parts += [_box_svg(box, is_round=id_ in markers) for id_, box in boxes.items()]
    parts.append("</svg>")
    return "".join(parts)


def _layers(ids: Sequence[str], edges: Sequence[Edge]) -> list[list[str]]:
    """Return the ids of the nodes by layer."""
    order = _order(ids, edges)
    ranks = {id_: rank for rank, id_ in enumerate(order)}
    depths = dict.fromkeys(ids, 0)
    for edge in sorted(edges, key=lambda edge: ranks[edge.source]):
        # An edge that closes a cycle moves no node.
        if ranks[edge.source] < ranks[edge.target]:
            depth = depths[edge.source] + 1
            depths[edge.target] = max(depths[edge.target], depth)
    layers: list[list[str]] = [[] for _ in range(max(depths.values(), default=0) + 1)]
    for id_, depth in depths.items():
        layers[depth].append(id_)
    return layers


def _order(ids: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """Return the ids in an order in which most edges lead forward.

    Each node follows all nodes that lead to it, unless it is the first of a cycle.
    """
    sources: dict[str, set[str]] = {id_: set() for id_ in ids}
    for edge in edges:
        if edge.source != edge.target:
            sources[edge.target].add(edge.source)
    order: list[str] = []
    while sources:
        free = [id_ for id_, before in sources.items() if not before & sources.keys()]
        following = free or [next(iter(sources))]
        for id_ in following:
            del sources[id_]
        order += following
    return order


def _boxes(
    labels: Mapping[str, str],
    layers: Sequence[Sequence[str]],
) -> dict[str, Box]:
    """Return the nodes of all layers with their positions."""
    texts = {id_: _label_text(label) for id_, label in labels.items()}
    widths = {id_: _CHARACTER * len(text) + _GAP for id_, text in texts.items()}
    sizes = [
        sum(widths[id_] for id_ in layer) + _GAP * (len(layer) - 1) for layer in layers
    ]
    widest = max(sizes, default=0)
    boxes: dict[str, Box] = {}
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        x = _GAP + (widest - size) / 2
        for id_ in layer:
            centre = x + widths[id_] / 2
            boxes[id_] = Box(texts[id_], centre, _GAP + number * _LAYER, widths[id_])
            x += widths[id_] + _GAP
    return boxes


def _box_svg(box: Box, *, is_round: bool) -> str:
    """Return a node as SVG."""
    left_side = box.x - box.width / 2
    radius = _HEIGHT / 2 if is_round else 5
    return (
        f'<rect x="{left_side:g}" y="{box.y:g}" width="{box.width:g}" '
        f'height="{_HEIGHT}" rx="{radius:g}"/>'
        f"{_text_svg(box.label, box.x, box.y + _HEIGHT / 2)}"
    )


def _edge_svg(edge: Edge, boxes: Mapping[str, Box]) -> str:
    """Return an edge as SVG, dashed if the source decides whether it is taken."""
    source = boxes[edge.source]
    target = boxes[edge.target]
    if target.y > source.y:
        begin = source.x, source.y + _HEIGHT
        end = target.x, target.y
        bend = (target.y - source.y - _HEIGHT) / 2
        controls = (begin[0], begin[1] + bend, end[0], end[1] - bend)
    else:
        begin = source.x + source.width / 2, source.y + _HEIGHT / 2
        end = target.x + target.width / 2, target.y + _HEIGHT / 2
        side = max(begin[0], end[0]) + 2 * _GAP
        controls = (side, begin[1] + _GAP, side, end[1] - _GAP)
    x1, y1, x2, y2 = controls
    dashes = ' stroke-dasharray="5 4"' if edge.conditional else ""
    path = (
        f'<path d="M{begin[0]:g} {begin[1]:g}C{x1:g} {y1:g} {x2:g} {y2:g} '
        f'{end[0]:g} {end[1]:g}" marker-end="url(#arrow)"{dashes}/>'
    )
    if not edge.data:
        return path
    middle = (begin[0] + end[0] + 3 * (x1 + x2)) / 8
    centre = (begin[1] + end[1] + 3 * (y1 + y2)) / 8
    return path + _text_svg(_label_text(edge.data), middle, centre)


def _text_svg(text: str, x: float, y: float) -> str:
    """Return a text that is centred at a point, as SVG."""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" dominant-baseline="central" '
        f'fill="currentColor" stroke="none">{escape(text)}</text>'
    )


def _label_text(label: str) -> str:
    """Return a label in one line, cut if it is long."""
    line = in_one_line(label)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
