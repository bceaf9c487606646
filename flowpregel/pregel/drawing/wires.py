"""How the lines between two layers run: each in a row of its own, so that none is mistaken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Wire:
    """A line between two layers: from all its tops to all its bottoms.

    It comes down in the columns of its tops, runs along its row, and goes down
    in the columns of its bottoms.
    """

    tops: list[int] = field(default_factory=list)
    bottoms: list[int] = field(default_factory=list)
    turn: int | None = None
    """A column beside all cells, where it goes on along other layers."""
    dashed: bool = False
    row: int = 0
    """Counted from the first row below the upper layer."""
    after: Wire | None = None
    """The wire that this one goes on from."""

    @property
    def columns(self) -> list[int]:
        """All columns that it touches."""
        turn = [] if self.turn is None else [self.turn]
        return [*self.tops, *self.bottoms, *turn]

    @property
    def is_straight(self) -> bool:
        """Whether it needs no row: it goes straight down."""
        return self.turn is None and len(set(self.columns)) == 1


def give_rows(wires: list[Wire], free: int) -> tuple[list[Wire], int]:
    """Give each wire a row in which it meets no other; return the wires, and how many rows.

    A wire that comes down where another goes down has to run above it. Where
    wires ask that of each other in a circle, one is led around, through a column
    of its own from *free* on: so the wires that are returned may be more.
    """
    bent = [wire for wire in wires if not wire.is_straight]
    placed: list[Wire] = []
    waiting = list(bent)
    while waiting:
        ready = [wire for wire in waiting if not _above(wire, waiting)]
        if ready:
            for wire in ready:
                wire.row = _free_row(wire, _above(wire, placed), placed)
                placed.append(wire)
            waiting = [wire for wire in waiting if wire not in ready]
        else:
            circled = waiting.pop(0)
            lower = Wire([], circled.bottoms, free, circled.dashed)
            upper = Wire(circled.tops, [], free, circled.dashed)
            lower.after = upper
            waiting = [upper, *waiting, lower]
            free += 3
    straight = [wire for wire in wires if wire.is_straight]
    return [*placed, *straight], max((wire.row + 1 for wire in placed), default=0)


def _above(wire: Wire, others: Iterable[Wire]) -> list[Wire]:
    """Return those of *others* that have to run above *wire*."""
    down = set(wire.bottoms)
    return [
        other
        for other in others
        if other is not wire and (other is wire.after or not down.isdisjoint(other.tops))
    ]


def _free_row(wire: Wire, above: list[Wire], placed: list[Wire]) -> int:
    row = max((other.row + 1 for other in above), default=0)
    left, right = min(wire.columns), max(wire.columns)
    while any(
        other.row == row and min(other.columns) <= right + 1 and max(other.columns) >= left - 1
        for other in placed
    ):
        row += 1
    return row
