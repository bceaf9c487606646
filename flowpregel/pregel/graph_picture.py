"""The picture of a graph as SVG, with the nodes in layers from top to bottom.

The layer of a node is the length of the longest path that leads to it. Edges that lead
back to an earlier layer are not counted. An edge that passes other layers has a slot of
its own in each of them, so it does not cross a node. An edge that leads back is drawn
on the right::

        a   <-.       layer 0
       / \\    |
      b   |   |       layer 1: the node b, and a slot for the edge from a to c
       \\ /    |
        c  ---'       layer 2

The picture takes the colour of the text around it, so it can be read on a light and on
a dark page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from flowpregel._text import in_one_line

_Slot: TypeAlias = str | tuple[int, int]
"""A position in a layer: the id of a node, or the index of an edge that passes the
layer, with the number of the layer.
"""
_CHARACTER: Final = 8
_HEIGHT: Final = 32
_GAP: Final = 24
_LAYER: Final = 84
"""Sizes in pixels: the width of a character, the height of a node, the gap between two
slots (places) of a layer, and the distance between two layers.
"""
_LONGEST: Final = 40
"""The greatest number of characters of a label."""
_ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto-start-reverse">'
    '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed edge from one node to another."""

    source: str
    target: str
    data: str | None = None
    """The label: the name of a channel, or the value for which the function that
    chooses the next node takes this edge.
    """
    conditional: bool = False
    """True if the source decides each time whether the run takes this edge."""


class Box(NamedTuple):
    """The place of a node in the picture, or of an edge in a layer that it passes."""

    x: float
    """The horizontal position of the centre."""
    y: float
    """The vertical position of the upper side."""
    width: float

    @property
    def right_side(self) -> float:
        """The horizontal position of the right side."""
        return self.x + self.width / 2


def graph_svg(
    labels: Mapping[str, str],
    markers: Collection[str],
    edges: Sequence[Edge],
) -> str:
    """Return a graph as an SVG element.

    Args:
        labels: The label of each node, by id.
        markers: The ids of the start and end of a graph, which are drawn round.
        edges: The edges between the nodes.
    """
    depths = _depths(list(labels), edges)
    routes = [_route(number, edge, depths) for number, edge in enumerate(edges)]
    widths = _widths(labels, edges, routes)
    boxes = _boxes(_layers(depths, routes), widths)
    paths = [
        _edge_svg(edge, route, boxes) for edge, route in zip(edges, routes, strict=True)
    ]
    nodes = [
        _node_svg(label, boxes[id_], is_round=id_ in markers)
        for id_, label in labels.items()
    ]
    width, height = _size(boxes.values(), edges)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        'font-family="sans-serif" font-size="13" fill="none" stroke="currentColor">'
    )
    return "".join([head, _ARROW, *paths, *nodes, "</svg>"])


def _widths(
    labels: Mapping[str, str],
    edges: Sequence[Edge],
    routes: Sequence[Sequence[_Slot]],
) -> dict[_Slot, float]:
    """Return the width of each slot (a place in a layer).

    An edge that passes through layers has a slot in each of them. Its label is beside
    the first of these slots, which is wide enough for the label.
    """
    widths: dict[_Slot, float] = {
        id_: _text_width(label) + _GAP for id_, label in labels.items()
    }
    for edge, route in zip(edges, routes, strict=True):
        passed = route[1:-1]
        widths |= dict.fromkeys(passed, 0)
        if passed:
            widths[passed[0]] = 2 * _text_width(edge.data or "")
    return widths


def _size(
    boxes: Collection[Box],
    edges: Sequence[Edge],
) -> tuple[float, float]:
    """Return the width and the height of the picture."""
    # The labels of edges that lead back are drawn on the right of all boxes.
    longest = max((_text_width(edge.data or "") for edge in edges), default=0)
    right_side = max((box.right_side for box in boxes), default=0)
    bottom = max((box.y for box in boxes), default=0) + _HEIGHT
    return right_side + longest + 2 * _GAP, bottom + _GAP


def _depths(
    ids: Sequence[str],
    edges: Sequence[Edge],
) -> dict[str, int]:
    """Return the number of each node's layer."""
    order = _order(ids, edges)
    ranks = {id_: rank for rank, id_ in enumerate(order)}
    depths = dict.fromkeys(ids, 0)
    for edge in sorted(edges, key=lambda edge: ranks[edge.source]):
        # An edge that leads back, and so closes a cycle, does not move its target to a
        # lower layer.
        if ranks[edge.source] < ranks[edge.target]:
            depth = depths[edge.source] + 1
            depths[edge.target] = max(depths[edge.target], depth)
    return depths


def _order(
    ids: Sequence[str],
    edges: Sequence[Edge],
) -> list[str]:
    """Return the ids of the nodes in an order in which most edges lead forward.

    Each node comes after all nodes from which an edge leads to it, unless it is the
    first node of a cycle.
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


def _route(
    number: int,
    edge: Edge,
    depths: Mapping[str, int],
) -> list[_Slot]:
    """Return the slots of an edge (its places in the layers), from its source to its
    target.
    """
    between = range(depths[edge.source] + 1, depths[edge.target])
    return [edge.source, *[(number, depth) for depth in between], edge.target]


def _layers(
    depths: Mapping[str, int],
    routes: Sequence[Sequence[_Slot]],
) -> list[list[_Slot]]:
    """Return the slots of each layer (the places of nodes and of passing edges), from
    left to right. A slot is near the mean position of the slots in the layer above that
    lead to it.
    """
    layers: list[list[_Slot]] = [[] for _ in range(max(depths.values(), default=0) + 1)]
    for id_, depth in depths.items():
        layers[depth].append(id_)
    sources: dict[_Slot, list[_Slot]] = {}
    for route in routes:
        for slot in route[1:-1]:
            assert isinstance(slot, tuple)
            layers[slot[1]].append(slot)
        for source, target in pairwise(route):
            sources.setdefault(target, []).append(source)
    places: dict[_Slot, float] = {}
    for layer in layers:
        means = {slot: _mean_place(sources.get(slot, ()), places) for slot in layer}
        layer.sort(key=means.__getitem__)
        for position, slot in enumerate(layer):
            places[slot] = (position + 0.5) / len(layer)
    return layers


def _mean_place(
    sources: Sequence[_Slot],
    places: Mapping[_Slot, float],
) -> float:
    """Return the mean position, from 0 to 1, of the slots (places) in the layer above
    from which edges lead to a slot.
    """
    above = [places[source] for source in sources if source in places]
    return sum(above) / len(above) if above else 0.5


def _boxes(
    layers: Sequence[Sequence[_Slot]],
    widths: Mapping[_Slot, float],
) -> dict[_Slot, Box]:
    """Return the positions in the picture of all nodes, and of edges in the layers that
    they pass.
    """
    sizes = [
        sum(widths[slot] for slot in layer) + _GAP * (len(layer) - 1)
        for layer in layers
    ]
    widest = max(sizes, default=0)
    boxes: dict[_Slot, Box] = {}
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        x = _GAP + (widest - size) / 2
        for slot in layer:
            width = widths[slot]
            boxes[slot] = Box(x + width / 2, _GAP + number * _LAYER, width)
            x += width + _GAP
    return boxes


def _node_svg(
    label: str,
    box: Box,
    *,
    is_round: bool,
) -> str:
    """Return a node as SVG."""
    left_side = box.x - box.width / 2
    radius = _HEIGHT / 2 if is_round else 5
    return (
        f'<rect x="{left_side:g}" y="{box.y:g}" width="{box.width:g}" '
        f'height="{_HEIGHT}" rx="{radius:g}"/>'
        f"{_text_svg(label, box.x, box.y + _HEIGHT / 2, 'middle')}"
    )


def _edge_svg(
    edge: Edge,
    route: Sequence[_Slot],
    boxes: Mapping[_Slot, Box],
) -> str:
    """Return an edge as SVG, dashed if the source decides whether it is taken."""
    source = boxes[edge.source]
    target = boxes[edge.target]
    if target.y > source.y:
        path, label_x, label_y = _downward_path([boxes[slot] for slot in route])
    else:
        between = [
            box.right_side for box in boxes.values() if target.y <= box.y <= source.y
        ]
        path, label_x, label_y = _upward_path(source, target, max(between) + _GAP)
    dashes = ' stroke-dasharray="5 4"' if edge.conditional else ""
    line = f'<path d="{path}" marker-end="url(#arrow)"{dashes}/>'
    if not edge.data:
        return line
    return line + _text_svg(edge.data, label_x + 6, label_y, "start")


def _downward_path(boxes: Sequence[Box]) -> tuple[str, float, float]:
    """Return the path of an edge through its places in the layers, and the position of
    the edge's label.
    """
    source = boxes[0]
    x = source.x
    y = source.y + _HEIGHT
    path = f"M{x:g} {y:g}"
    for number, box in enumerate(boxes[1:], 1):
        bend = (box.y - y) / 2
        path += f"C{x:g} {y + bend:g} {box.x:g} {box.y - bend:g} {box.x:g} {box.y:g}"
        x = box.x
        y = box.y
        if number < len(boxes) - 1:
            # In a layer that the edge only passes, the line is straight.
            y += _HEIGHT
            path += f"L{x:g} {y:g}"
    if len(boxes) > 2:
        return path, boxes[1].x, boxes[1].y + _HEIGHT / 2
    # An edge to the next layer passes no other layer: it is one curve, with the label
    # in the middle.
    return path, (source.x + x) / 2, (source.y + _HEIGHT + y) / 2


def _upward_path(
    source: Box,
    target: Box,
    side: float,
) -> tuple[str, float, float]:
    """Return the path of an edge that leads back, and the position of the label.

    Args:
        source: The node at which the edge begins.
        target: The node at which the edge ends.
        side: A horizontal position to the right of all nodes between the two.
    """
    begin = source.y + _HEIGHT * 3 / 4
    end = target.y + _HEIGHT / 4
    path = (
        f"M{source.right_side:g} {begin:g}"
        f"C{side:g} {begin:g} {side:g} {begin:g} {side:g} {(begin + end) / 2:g}"
        f"C{side:g} {end:g} {side:g} {end:g} {target.right_side:g} {end:g}"
    )
    return path, side, (begin + end) / 2


def _text_svg(
    text: str,
    x: float,
    y: float,
    anchor: str,
) -> str:
    """Return a string as SVG text, whose middle or start is at a point."""
    from html import escape  # noqa: PLC0415 - 3 ms, only to draw

    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
        'dominant-baseline="central" fill="currentColor" '
        f'stroke="none">{escape(_label_text(text))}</text>'
    )


def _text_width(label: str) -> float:
    """Return the estimated width of a label, in pixels."""
    return _CHARACTER * len(_label_text(label))


def _label_text(label: str) -> str:
    """Return a label in one line, cut if it is long."""
    line = in_one_line(label)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
