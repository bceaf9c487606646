"""A page of characters on which lines that meet are joined."""

from __future__ import annotations

from itertools import pairwise

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8

# The index is the sum of the directions in which a line leaves the place.
_LINES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_ASCII_LINES = " |||-+++-+++-+++"
_DASHED = {UP | DOWN: ("┆", ":"), LEFT | RIGHT: ("┄", ".")}
_ASCII_TEXT = {"▼": "v", "▲": "^"}


class Canvas:
    """Takes lines and text at any place, and gives the whole as text."""

    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], dict[object, int]] = {}
        self.dashed: dict[tuple[int, int], bool] = {}
        self.text: dict[tuple[int, int], str] = {}

    def line(self, owner: object, row: int, column: int, to: int, *, dashed: bool = False) -> None:
        """Draw from the middle of a place in the directions *to*; lines of one owner are joined."""
        place = row, column
        owners = self.lines.setdefault(place, {})
        owners[owner] = owners.get(owner, 0) | to
        self.dashed[place] = dashed and self.dashed.get(place, True)

    def start(self, row: int, column: int) -> None:
        """Join what is drawn at a place, such as a box's border, to what is below it."""
        for owner in self.lines[row, column]:
            self.lines[row, column][owner] |= DOWN

    def down(
        self, owner: object, rows: tuple[int, int], column: int, *, dashed: bool = False
    ) -> None:
        """Draw from the middle of the first row to the middle of the last."""
        for upper, lower in pairwise(range(rows[0], rows[1] + 1)):
            self.line(owner, upper, column, DOWN, dashed=dashed)
            self.line(owner, lower, column, UP, dashed=dashed)

    def across(
        self, owner: object, row: int, columns: tuple[int, int], *, dashed: bool = False
    ) -> None:
        """Draw from the middle of the first column to the middle of the last."""
        for left, right in pairwise(range(columns[0], columns[1] + 1)):
            self.line(owner, row, left, RIGHT, dashed=dashed)
            self.line(owner, row, right, LEFT, dashed=dashed)

    def write(self, row: int, column: int, text: str, widths: list[int] | None = None) -> None:
        """Write *text*; a character that is two columns wide hides the place after it."""
        for char, wide in zip(text, widths or [1] * len(text), strict=True):
            self.text[row, column] = char
            if wide == 2:
                self.text[row, column + 1] = ""
            column += wide

    def show(self, *, ascii_only: bool = False) -> str:
        """Return the page, without blanks at the ends of lines."""
        places = [*self.lines, *self.text]
        rows: list[dict[int, str]] = [{} for _ in range(1 + max(row for row, _ in places))]
        for (row, column), owners in self.lines.items():
            rows[row][column] = self._joined(owners, self.dashed[row, column], ascii_only)
        for (row, column), char in self.text.items():
            rows[row][column] = _ASCII_TEXT.get(char, char) if ascii_only else char
        return "\n".join(
            "".join(row.get(column, " ") for column in range(1 + max(row, default=-1))).rstrip()
            for row in rows
        )

    @staticmethod
    def _joined(owners: dict[object, int], dashed: bool, ascii_only: bool) -> str:
        crossing = {UP | DOWN, LEFT | RIGHT} == set(owners.values())
        to = UP | DOWN if crossing else 0
        if not crossing:
            for each in owners.values():
                to |= each
        if dashed and to in _DASHED:
            return _DASHED[to][ascii_only]
        return (_ASCII_LINES if ascii_only else _LINES)[to]
