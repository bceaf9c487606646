"""A graph as boxes and lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowpregel.pregel.drawing.canvas import DOWN, UP, Canvas
from flowpregel.pregel.drawing.layers import Cell, Layout, Loop, arrange, give_columns, width
from flowpregel.pregel.drawing.wires import Wire, give_rows

if TYPE_CHECKING:
    from flowpregel.pregel.drawing.graph import Graph


def draw(graph: Graph, *, ascii_only: bool = False) -> str:
    """Return *graph*, in which no graph is nested, as text."""
    if not graph.nodes:
        return "(no nodes)"
    return _Drawing(arrange(graph)).canvas.show(ascii_only=ascii_only)


class _Bundle:
    """Lines between two layers that all lead to the same cells: drawn as one."""

    def __init__(self, targets: tuple[Cell, ...], dashed: bool) -> None:
        self.sources: list[Cell] = []
        self.targets = targets
        self.dashed = dashed


class _Drawing:
    """One drawing on its way from a layout to a canvas."""

    def __init__(self, layout: Layout) -> None:
        self.layers, self.loops = layout.layers, layout.loops
        self.canvas = Canvas()
        self.bundles = [_bundles(layer) for layer in self.layers]
        for bundles in self.bundles:
            for bundle in bundles:
                for cell in bundle.sources:
                    cell.pins_below += 1
                for cell in bundle.targets:
                    cell.pins_above += 1
        self.pins_above, self.pins_below = self._count_loops()
        give_columns(self.layers)
        self.lanes = self._give_lanes()
        self.ends: dict[int, list[tuple[int, bool]]] = {}
        """Where the wires are that run into a lane, by the lane's column."""
        self.wires = [self._wires(gap) for gap in range(len(self.layers) + 1)]
        """The wires above each layer, and those below the last."""
        self._draw()

    def _count_loops(self) -> tuple[dict[Cell, int], dict[Cell, int]]:
        """Make room for the loops' pins, right of the others; return how many those are."""
        above = {cell: cell.pins_above for layer in self.layers for cell in layer}
        below = {cell: cell.pins_below for layer in self.layers for cell in layer}
        for loop in self.loops:
            loop.target.pins_above += 1
            for cell in loop.sources:
                cell.pins_below += 1
        return above, below

    def _give_lanes(self) -> dict[Loop, int]:
        column = 3 + max(cell.column + cell.reach for layer in self.layers for cell in layer)
        lanes = {}
        for loop in self.loops:
            lanes[loop] = column
            column += 4 + (width(loop.text) + 1 if loop.text else 0)
        self.free = column
        return lanes

    def _wires(self, gap: int) -> tuple[list[Wire], int]:
        """Return the wires above layer *gap*, and in how many rows they run."""
        wires: dict[_Bundle, Wire] = {}
        upper = self.layers[gap - 1] if gap else []
        lower = self.layers[gap] if gap < len(self.layers) else []
        bundles = self.bundles[gap - 1] if gap else []
        for bundle in bundles:
            wires[bundle] = Wire(dashed=bundle.dashed)
        for cell in upper:
            starting = [b for b in bundles if cell in b.sources]
            starting.sort(key=lambda b: sum(c.column for c in b.targets) / len(b.targets))
            for bundle, column in zip(starting, _pins(cell, len(starting)), strict=True):
                wires[bundle].tops.append(column)
        for cell in lower:
            ending = [b for b in bundles if cell in b.targets]
            ending.sort(key=lambda b: sum(c.column for c in b.sources) / len(b.sources))
            for bundle, column in zip(ending, _pins(cell, len(ending)), strict=True):
                wires[bundle].bottoms.append(column)
        made, rows = give_rows([*wires.values(), *self._turns(upper, lower)], self.free)
        turns = [wire.turn for wire in made if wire.after]
        self.free = max([self.free, *(turn + 3 for turn in turns if turn is not None)])
        return made, rows

    def _turns(self, upper: list[Cell], lower: list[Cell]) -> list[Wire]:
        """Return the wires that lead from *upper* into the lanes, and out of them to *lower*."""
        made = []
        taken_below, taken_above = dict(self.pins_below), dict(self.pins_above)
        for loop, lane in self.lanes.items():
            leaving = Wire(turn=lane, dashed=loop.dashed)
            for cell in loop.sources:
                taken_below[cell] += 1
                if cell in upper:
                    leaving.tops.append(_loop_pin(cell, taken_below[cell], self.pins_below[cell]))
            taken_above[loop.target] += 1
            if leaving.tops:
                made.append(leaving)
            if loop.target in lower:
                taken, others = taken_above[loop.target], self.pins_above[loop.target]
                pin = _loop_pin(loop.target, taken, others)
                made.append(Wire([], [pin], lane, loop.dashed))
        return made

    def _draw(self) -> None:
        row = 0
        middles: list[int] = []
        for gap, (wires, rows) in enumerate(self.wires):
            lower = self.layers[gap] if gap < len(self.layers) else []
            has_boxes = any(cell.is_box for cell in lower)
            height = _height(rows, has_boxes) if wires else 0
            for wire in wires:
                self._draw_wire(wire, row, height)
            self._draw_arrows(wires, lower, row + height - 1)
            row += height
            height = 3 if has_boxes else 1
            middles.append(row + height // 2)
            for cell in lower:
                self._draw_cell(cell, row, height)
            row += height
        for lane, ends in self.ends.items():
            rows_ = [at for at, _ in ends]
            self.canvas.down(lane, (min(rows_), max(rows_)), lane, dashed=ends[0][1])
        self._draw_lane_signs(middles)

    def _draw_arrows(self, wires: list[Wire], lower: list[Cell], row: int) -> None:
        boxes = [cell for cell in lower if cell.is_box]
        for column in {column for wire in wires for column in wire.bottoms}:
            if any(abs(cell.column - column) <= cell.reach for cell in boxes):
                self.canvas.write(row, column, "▼")

    def _draw_wire(self, wire: Wire, row: int, height: int) -> None:
        """Draw a wire in the gap that begins at *row*."""
        canvas, at, dashed = self.canvas, row + wire.row, wire.dashed
        # A wire that turns shares its owner with the other wires of its lane.
        owner: object = wire if wire.turn is None else wire.turn
        for column in wire.tops:
            canvas.line(owner, row, column, UP, dashed=dashed)
            canvas.start(row - 1, column)
            canvas.down(owner, (row, at), column, dashed=dashed)
        for column in wire.bottoms:
            canvas.down(owner, (at, row + height - 1), column, dashed=dashed)
            canvas.line(owner, row + height - 1, column, DOWN, dashed=dashed)
        if wire.turn is not None:
            self.ends.setdefault(wire.turn, []).append((at, dashed))
        canvas.across(owner, at, (min(wire.columns), max(wire.columns)), dashed=dashed)

    def _draw_cell(self, cell: Cell, row: int, height: int) -> None:
        canvas, column = self.canvas, cell.column
        if not cell.is_box:
            dashed = bool(cell.below and cell.below[0][1])
            canvas.line(cell, row, column, UP, dashed=dashed)
            canvas.down(cell, (row, row + height - 1), column, dashed=dashed)
            canvas.line(cell, row + height - 1, column, DOWN, dashed=dashed)
            if cell.text:
                self._write(row + height // 2, column - (width(cell.text) - 1) // 2, cell.text)
            return
        left, right = column - cell.reach, column + cell.reach
        for at in (row, row + 2):
            canvas.across(cell, at, (left, right))
        for side in (left, right):
            canvas.down(cell, (row, row + 2), side)
        self._write(row + 1, column - (width(cell.text) - 1) // 2, cell.text)

    def _draw_lane_signs(self, middles: list[int]) -> None:
        for loop, column in self.lanes.items():
            row = middles[loop.target.layer]
            self.canvas.write(row, column, "▲")
            self._write(row, column + 2, loop.text)

    def _write(self, row: int, column: int, text: str) -> None:
        self.canvas.write(row, column, text, [width(char) for char in text])


def _height(rows: int, has_boxes: bool) -> int:
    """Return how many rows a gap has whose wires run in *rows* of them."""
    if not has_boxes:
        return max(rows, 1)
    return max(rows + 1, 2)  # the last one is for the arrows


def _bundles(layer: list[Cell]) -> list[_Bundle]:
    found: dict[tuple[frozenset[Cell], bool], _Bundle] = {}
    for cell in layer:
        for dashed in (False, True):
            targets = tuple(target for target, its in cell.below if its == dashed)
            if targets:
                bundle = _Bundle(targets, dashed)
                found.setdefault((frozenset(targets), dashed), bundle).sources.append(cell)
    return list(found.values())


def _pins(cell: Cell, count: int) -> list[int]:
    """Return the columns of *count* lines at the middle of a cell."""
    return [cell.column - (count - 1) + 2 * index for index in range(count)]


def _loop_pin(cell: Cell, number: int, others: int) -> int:
    """Return the column of a loop's line, right of the *others* at a cell's middle."""
    first = others + 1 if others else 0
    return cell.column + first + 2 * (number - others - 1)
