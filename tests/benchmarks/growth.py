"""How costs grow: one figure over many sizes, ours and LangGraph's where it can
follow.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import harness, report, work
from tests.benchmarks.model import OURS, Side, Workload
from tests.benchmarks.peers.sides import langgraph, limit, ours

SQLITE = "langgraph + SQLite"


Seen = dict[str, Sequence[Mapping[str, float]]]
"""The turns of each side that was measured for one curve or another."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a curve."""

    side: Callable[[int], Side]
    """Makes the side for a size."""
    figure: str = "seconds"
    most: int | None = None
    """The greatest size it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A figure that may grow with a size."""

    what: str
    axis: str
    """What the sizes are."""
    unit: str
    sizes: Sequence[int]
    lines: dict[str, Line]


def powers(last: int) -> list[int]:
    """Return 10, 100, ... up to *last*."""
    found = [10]
    while found[-1] < last:
        found.append(found[-1] * 10)
    return found


def curves(*, quick: bool) -> dict[str, Curve]:
    """Return all curves."""
    return {
        "tasks": _tasks(1_000 if quick else 100_000),
        "channels": _channels(100 if quick else 10_000),
        "history": _history(100 if quick else 100_000),
        "reading": _reading(100 if quick else 100_000),
        "workers": _workers(0.2 if quick else 2.0),
        "payload": _payload(10**5 if quick else 5 * 10**8),
    }


def _tasks(last: int) -> Curve:
    return Curve(
        what="Tasks submitted at once",
        axis="tasks",
        unit="a task",
        sizes=powers(last),
        lines={
            OURS: Line(side=lambda n: ours("gather", count=n)),
            "flowpregel, on disk, async": Line(
                side=lambda n: ours("gather", count=n, kept="async")
            ),
            "flowpregel, resumed": Line(
                side=lambda n: ours("peers.ours_state:resumed", count=n, kept="async")
            ),
            "langgraph": Line(side=lambda n: langgraph("gather", count=n), most=10_000),
            SQLITE: Line(
                side=lambda n: langgraph("gather", count=n, kept="async"), most=1_000
            ),
        },
    )


def _channels(last: int) -> Curve:
    def wide(n: int, **options: Any) -> Side:
        return ours("peers.ours_state:wide", channels=n, count=200, **options)

    return Curve(
        what="Channels, of which a superstep writes one",
        axis="channels",
        unit="a step",
        sizes=powers(last),
        lines={
            OURS: Line(side=lambda n: wide(n)),
            "flowpregel, on disk, async": Line(side=lambda n: wide(n, kept="async")),
            "langgraph": Line(side=lambda n: langgraph("wide", channels=n, count=200)),
        },
    )


def appending(count: int) -> Side:
    """Return our side of a history with *count* supersteps."""
    return ours("peers.ours_state:appended", count=count, durability="async")


def peer_appending(count: int) -> Side:
    """Return the same by LangGraph."""
    return langgraph("appended", count=count, durability="async")


def _history(last: int) -> Curve:
    return Curve(
        what="Supersteps of a thread that appends 200 bytes in each",
        axis="supersteps",
        unit="a step",
        sizes=powers(last),
        lines={
            OURS: Line(side=appending),
            SQLITE: Line(side=peer_appending, most=10_000),
        },
    )


def _reading(last: int) -> Curve:
    return Curve(
        what="Reading the state of such a thread, and its newest 10 checkpoints",
        axis="supersteps",
        unit="once",
        sizes=powers(last),
        lines={
            "flowpregel, state": Line(side=appending, figure="state"),
            "flowpregel, history(10)": Line(side=appending, figure="history"),
            f"{SQLITE}, state": Line(side=peer_appending, figure="state", most=10_000),
            f"{SQLITE}, history(10)": Line(
                side=peer_appending, figure="history", most=10_000
            ),
        },
    )


def _workers(seconds: float) -> Curve:
    count = 40
    given = ["each", count, seconds / count]
    return Curve(
        what=f"{count} CPU tasks that together take {seconds:g} s",
        axis="workers",
        unit="in all",
        sizes=range(1, 2 * work.CORES + 1),
        lines={
            OURS: Line(
                side=lambda n: ours("mapped", function="spin", given=given, workers=n)
            ),
            "ideal": Line(
                side=lambda n: limit(
                    "futures:ideal", seconds=seconds * work.CORES / min(n, work.CORES)
                )
            ),
        },
    )


def _payload(last: int) -> Curve:
    def to(n: int) -> list[Any]:
        return ["bytes", 2, n]

    sizes = [1_000]
    while sizes[-1] * 10 <= last:
        sizes.append(sizes[-1] * 10)
    if sizes[-1] < last:
        sizes.append(last)
    arrays = {"function": "total"}
    return Curve(
        what="2 tasks that each take so many bytes",
        axis="bytes",
        unit="in all",
        sizes=sizes,
        lines={
            "bytes": Line(
                side=lambda n: ours("mapped", function="length", given=to(n))
            ),
            "numpy array": Line(
                side=lambda n: ours("mapped", given=["own", 2, n // 8], **arrays)
            ),
            "loky, numpy array": Line(
                side=lambda n: limit("loky:mapped", given=["own", 2, n // 8], **arrays)
            ),
        },
    )


def turns_for(curve: Curve, size: int) -> int:
    """Return how often a size is measured: the greatest once, the one before it three
    times.
    """
    if curve.axis == "workers":
        return 3
    left = len(curve.sizes) - 1 - [*curve.sizes].index(size)
    return {0: 1, 1: 3}.get(left, 5)


def measure(
    asked: Sequence[str], *, quick: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure the curves that were asked for; yield the name and the points of each.

    Raises:
        LookupError: There is no such curve.
    """
    known = curves(quick=quick)
    if unknown := [name for name in asked if name not in known]:
        raise LookupError(
            f"no curve is called {unknown[0]!r}; there are {', '.join(known)}"
        )
    seen: Seen = {}
    for name in asked:
        found = _measured(known[name], seen)
        sys.stdout.write(f"{name}: {known[name].what}, {known[name].unit}\n")
        for line, points in found["lines"].items():
            shown = ", ".join(
                f"{size}: {report.figure_of(value, 'seconds')}"
                for size, value in points.items()
            )
            sys.stdout.write(f"  {line}: {shown}\n")
        sys.stdout.flush()
        yield name, found


def _measured(curve: Curve, seen: Seen) -> dict[str, Any]:
    lines: dict[str, dict[str, float]] = {name: {} for name in curve.lines}
    for size in curve.sizes:
        for name, value in _at(curve, size, seen).items():
            lines[name][str(size)] = value
    return {
        "what": curve.what,
        "axis": curve.axis,
        "unit": curve.unit,
        "lines": lines,
        "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _at(curve: Curve, size: int, seen: Seen) -> dict[str, float]:
    """Return what each line comes to at a size; those that ask for the same work share
    it.
    """
    asked = {
        name: line for name, line in curve.lines.items() if size <= (line.most or size)
    }
    sides = {name: line.side(size) for name, line in asked.items()}
    fresh = {repr(side): side for side in sides.values() if repr(side) not in seen}
    repeats = turns_for(curve, size)
    seen.update(
        harness.measure(
            Workload(sides=fresh, rows=(), repeats=repeats, warm=repeats > 3)
        )
    )
    found = {}
    for name, line in asked.items():
        turns = [turn[line.figure] for turn in seen.get(repr(sides[name]), ())]
        if turns:
            found[name] = harness.rounded(statistics.median(turns))
    return found
