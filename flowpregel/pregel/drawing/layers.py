"""Where the boxes of a graph stand: in layers, so that edges lead down.

1. Edges that close a cycle are set apart as *loops*; the others lead down.
2. A node stands one layer below the lowest of those that lead to it. An edge
   over several layers gets a cell in each of them, and a labelled one a cell
   that holds its label: so nothing ever crosses a box or a label.
3. Within a layer, cells are ordered by where their neighbours stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

if TYPE_CHECKING:
    from flowpregel.pregel.drawing.graph import Edge, Graph

_SWEEPS = 6
_GAP = 3
"""Columns between two cells of a layer."""


@dataclass(slots=True, eq=False)
class Cell:
    """A place in a layer: a node's box, an edge's label, or an edge that passes by."""

    text: str = ""
    is_box: bool = False
    layer: int = 0
    column: int = 0
    """Its middle."""
    pins_above: int = 0
    """How many lines end in it from above, and below how many start."""
    pins_below: int = 0
    above: list[Cell] = field(default_factory=list)
    below: list[tuple[Cell, bool]] = field(default_factory=list)
    """Where its lines lead, and whether they are dashed."""

    @property
    def reach(self) -> int:
        """How many columns it takes on either side of its middle."""
        if not self.is_box:
            return (width(self.text) + 1) // 2
        return max(width(self.text) // 2 + 3, 2 * max(self.pins_above, self.pins_below) + 1)


@dataclass(slots=True, eq=False)
class Loop:
    """The edges that lead back up to one node, drawn as one line past all boxes."""

    target: Cell
    text: str
    dashed: bool
    sources: list[Cell] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Layout:
    """The cells of a graph in their layers, each from left to right."""

    layers: list[list[Cell]]
    loops: list[Loop]


def width(text: str) -> int:
    """Return how many columns *text* takes in a terminal."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def arrange(graph: Graph) -> Layout:
    """Return *graph* in layers, ordered; columns are still to be given."""
    edges = _merged(graph.edges)
    back = _closing(graph, edges)
    down = [edge for edge in edges if edge not in back]
    cells = {id_: Cell(" ".join(node.name.split("\n")), True) for id_, node in graph.nodes.items()}
    depths = _depths(graph, down)
    # Labels stand in layers of their own, below those of the boxes they start from.
    labelled = {depths[edge.source] for edge in down if edge.data}
    for id_, depth in depths.items():
        cells[id_].layer = depth + sum(other < depth for other in labelled)
    layers: list[list[Cell]] = [[] for _ in range(1 + max(c.layer for c in cells.values()))]
    for cell in cells.values():
        layers[cell.layer].append(cell)
    for edge in down:
        _lead(cells[edge.source], cells[edge.target], edge, layers)
    _order(layers)
    return Layout(layers, _loops(edges, back, cells))


def _merged(edges: Iterable[Edge]) -> list[Edge]:
    """Return one edge for all that lead the same way."""
    found: dict[tuple[str, str, bool], list[Edge]] = {}
    for edge in edges:
        found.setdefault((edge.source, edge.target, edge.conditional), []).append(edge)
    merged = []
    for same in found.values():
        labels = dict.fromkeys(edge.data for edge in same if edge.data)
        first = same[0]
        label = ", ".join(labels) or None
        merged.append(type(first)(first.source, first.target, label, first.conditional))
    return merged


def _closing(graph: Graph, edges: Iterable[Edge]) -> set[Edge]:
    """Return the edges that close a cycle when walked in the order of the nodes."""
    leaving: dict[str, list[Edge]] = {id_: [] for id_ in graph.nodes}
    for edge in edges:
        leaving[edge.source].append(edge)
    reached = {edge.target for edge in edges if edge.source != edge.target}
    closing: set[Edge] = set()
    open_: set[str] = set()
    done: set[str] = set()
    # Entrances come first: a cycle is entered where the program enters it.
    for root in sorted(graph.nodes, key=lambda id_: id_ in reached):
        path = [(root, iter(leaving[root]))] if root not in done else []
        open_.update(id_ for id_, _ in path)
        while path:
            id_, rest = path[-1]
            for edge in rest:
                if edge.target in open_:
                    closing.add(edge)
                elif edge.target not in done:
                    open_.add(edge.target)
                    path.append((edge.target, iter(leaving[edge.target])))
                    break
            else:
                path.pop()
                open_.discard(id_)
                done.add(id_)
    return closing


def _depths(graph: Graph, down: list[Edge]) -> dict[str, int]:
    """Return each node's layer: the longest way that leads to it."""
    waiting = dict.fromkeys(graph.nodes, 0)
    targets: dict[str, list[str]] = {id_: [] for id_ in graph.nodes}
    for edge in down:
        waiting[edge.target] += 1
        targets[edge.source].append(edge.target)
    sources = {id_ for id_, count in waiting.items() if not count}
    depths = dict.fromkeys(graph.nodes, 0)
    ready = list(sources)
    for id_ in ready:
        for target in targets[id_]:
            depths[target] = max(depths[target], depths[id_] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    lowest = max(depths.values(), default=0)
    for id_, node in graph.nodes.items():
        if node.kind == "end" and id_ not in sources:
            depths[id_] = lowest
        elif node.kind == "node" and id_ in sources and targets[id_]:
            depths[id_] = min(depths[target] for target in targets[id_]) - 1
    return depths


def _lead(source: Cell, target: Cell, edge: Edge, layers: list[list[Cell]]) -> None:
    """Connect two cells by one in each layer between them."""
    above = source
    for layer in range(source.layer + 1, target.layer):
        text = edge.data if edge.data and above is source else ""
        cell = Cell(text or "", False, layer)
        layers[layer].append(cell)
        _connect(above, cell, edge.conditional)
        above = cell
    _connect(above, target, edge.conditional)


def _connect(above: Cell, below: Cell, dashed: bool) -> None:
    above.below.append((below, dashed))
    below.above.append(above)


def _loops(edges: Iterable[Edge], back: set[Edge], cells: dict[str, Cell]) -> list[Loop]:
    found: dict[tuple[str, str | None, bool], Loop] = {}
    for edge in edges:
        if edge in back:
            key = (edge.target, edge.data, edge.conditional)
            loop = Loop(cells[edge.target], edge.data or "", edge.conditional)
            found.setdefault(key, loop).sources.append(cells[edge.source])
    # Short loops are drawn inside long ones.
    return sorted(found.values(), key=_length)


def _length(loop: Loop) -> int:
    return max(cell.layer for cell in loop.sources) - loop.target.layer


def _order(layers: list[list[Cell]]) -> None:
    """Order each layer by the mean place of the neighbours, down and up in turns."""
    for sweep in range(_SWEEPS + 1):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            place = {}
            for index, cell in enumerate(layer):
                near = cell.above if downwards else [other for other, _ in cell.below]
                place[cell] = _mean([other.column for other in near], index)
            layer.sort(key=place.__getitem__)
            for index, cell in enumerate(layer):
                # Until columns are given, they hold the order.
                cell.column = index


def give_columns(layers: list[list[Cell]]) -> None:
    """Give each cell its column: near its neighbours, and clear of the next cell."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(2 * _SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            wanted = []
            for cell in layer:
                near = cell.above if downwards else [other for other, _ in cell.below]
                wanted.append(_mean([other.column for other in near], cell.column))
            _spread(layer, wanted)
    edge = min(cell.column - cell.reach for layer in layers for cell in layer)
    for layer in layers:
        for cell in layer:
            cell.column -= edge


def _mean(numbers: list[int], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _spread(layer: list[Cell], wanted: list[float]) -> None:
    """Put cells as near as can be to where they are wanted, in order and without overlap.

    What is least in squares comes from pooling neighbours that would overlap
    into blocks that stand at their common mean.
    """
    offsets, offset = [], 0
    for left, cell in zip([None, *layer], layer, strict=False):
        offset += left.reach + _GAP + cell.reach if left else 0
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean = (before * many + mean * count) / (many + count)
            count += many
        blocks.append((mean, count))
    bases = [round(mean) for mean, count in blocks for _ in range(count)]
    for cell, base, offset in zip(layer, bases, offsets, strict=True):
        cell.column = base + offset
