"""A drawing for the terminal shows exactly the edges of its graph: they are read off it again."""

import re

from hypothesis import given
from hypothesis import strategies as st

from flowpregel.pregel.drawing import Edge, Graph, NodeShape

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
WAYS = {
    "│": (UP, DOWN), "┆": (UP, DOWN), "▲": (UP, DOWN), "─": (LEFT, RIGHT), "┄": (LEFT, RIGHT),
    "┘": (UP, LEFT), "└": (UP, RIGHT), "┐": (DOWN, LEFT), "┌": (DOWN, RIGHT),
    "┤": (UP, DOWN, LEFT), "├": (UP, DOWN, RIGHT), "┴": (UP, LEFT, RIGHT),
    "┬": (DOWN, LEFT, RIGHT), "┼": (UP, DOWN, LEFT, RIGHT),
}  # fmt: skip


class Reader:
    """Reads a drawing as a person does: from the bottom of a box along the lines to arrows."""

    def __init__(self, drawing: str) -> None:
        self.rows = drawing.split("\n")
        self.arrows: dict[tuple[int, int], str] = {}
        self.borders: set[tuple[int, int]] = set()
        self.starts: list[tuple[str, int, int]] = []
        for number, row in enumerate(self.rows):
            for box in re.finditer(r"│ +(n\d+) +│", row):
                inside = range(box.start() + 1, box.end() - 1)
                for column in inside:
                    self.arrows[number - 2, column] = box[1]
                    self.borders.add((number + 1, column))
                    if self.at(number + 1, column) == "┬":
                        self.starts.append((box[1], number + 2, column))

    def at(self, row: int, column: int) -> str:
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row])
        return self.rows[row][column] if inside else " "

    def edges(self) -> set[tuple[str, str]]:
        return {
            (name, target)
            for name, row, column in self.starts
            for target in self._reached(row, column)
        }

    def _reached(self, row: int, column: int) -> set[str]:
        found = set()
        ways = [(row, column, DOWN)]
        for row, column, way in ways:
            char = self.at(row, column)
            if char == "▼":
                found.add(self.arrows[row, column])
            elif (row, column) not in self.borders:
                ways += [
                    step
                    for step in self._steps(char, row, column, way)
                    if step not in ways and (step[2] != UP or way == UP or self._rises(*step[:2]))
                ]
        return found

    def _rises(self, row: int, column: int) -> bool:
        """Whether a line may be followed upwards from here: only where an arrow says so."""
        while UP in WAYS.get(self.at(row, column), ()):
            if self.at(row, column) == "▲":
                return True
            row -= 1
        return False

    @staticmethod
    def _steps(
        char: str, row: int, column: int, way: tuple[int, int]
    ) -> list[tuple[int, int, tuple[int, int]]]:
        came = (-way[0], -way[1])
        out = WAYS.get(char, (UP, DOWN))
        assert char != " ", f"a line ends in nothing at row {row}, column {column}"
        if came not in out:
            # Two lines cross: each goes straight on.
            assert out == (UP, DOWN), f"{char!r} at row {row}, column {column} is no way on"
            return [(row + way[0], column + way[1], way)]
        return [(row + y, column + x, (y, x)) for y, x in out if (y, x) != came]


@st.composite
def graphs(draw: st.DrawFn, labelled: bool) -> Graph:
    count = draw(st.integers(1, 8))
    ids = st.integers(0, count - 1)
    pairs = draw(st.sets(st.tuples(ids, ids), max_size=14))
    label = st.sampled_from([None, "a", "label"]) if labelled else st.none()
    edges = [Edge(f"n{a}", f"n{b}", draw(label), draw(st.booleans())) for a, b in sorted(pairs)]
    return Graph({f"n{index}": NodeShape(f"n{index}") for index in range(count)}, edges)


def check(graph: Graph) -> None:
    drawing = graph.draw_ascii()
    shown = Reader(drawing).edges()

    assert {(edge.source, edge.target) for edge in graph.edges} == shown, "\n" + drawing


@given(graph=graphs(labelled=False))
def test_its_edges_can_be_read_off_it(graph: Graph) -> None:
    check(graph)


@given(graph=graphs(labelled=True))
def test_its_labelled_edges_can_be_read_off_it(graph: Graph) -> None:
    check(graph)
