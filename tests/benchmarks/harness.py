"""Measures ours and the peers in turns, and compares their medians.

A `Row` is one line of the goals: what is done, by whom, and how much of a peer's
time ours may take. Each side is a function that does the work once and returns
the seconds one unit of it took. Sides take turns, so that whatever else the
machine does meanwhile meets all of them.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Side = Callable[[], float]
"""Does the work once; returns the seconds one unit took."""

OURS = "flowpregel"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One goal: ours against one other side."""

    name: str
    what: str
    unit: str
    sides: Mapping[str, Side]
    against: str
    """The side that ours is compared with."""
    goal: float
    """Ours may take at most this times that side's time."""
    repeats: int = 5


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a row came to; times are seconds for one unit."""

    row: Row
    medians: Mapping[str, float]
    spreads: Mapping[str, float]
    """The distance between the quartiles, as a share of the median."""
    missing: Sequence[str] = field(default_factory=tuple)

    @property
    def ratio(self) -> float | None:
        """Our time as a multiple of the side it is compared with."""
        other = self.medians.get(self.row.against)
        return None if other is None else self.medians[OURS] / other

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met; None if the peer is not there to compare with."""
        return None if self.ratio is None else self.ratio <= self.row.goal

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "name": self.row.name,
            "what": self.row.what,
            "unit": self.row.unit,
            "against": self.row.against,
            "goal": self.row.goal,
            "ratio": self.ratio,
            "holds": self.holds,
            "microseconds": {k: round(v * 1e6, 3) for k, v in self.medians.items()},
            "spread": {k: round(v, 3) for k, v in self.spreads.items()},
        }


def measure(row: Row) -> Measured:
    """Measure all sides of *row* in turns."""
    times: dict[str, list[float]] = {name: [] for name in row.sides}
    for _ in range(row.repeats):
        for name, side in row.sides.items():
            gc.collect()
            times[name].append(side())
    return Measured(
        row=row,
        medians={name: statistics.median(found) for name, found in times.items()},
        spreads={name: _spread(found) for name, found in times.items()},
    )


def _spread(times: Sequence[float]) -> float:
    if len(times) < 3:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


def line_of(found: Measured) -> str:
    """Return a result as a line of text."""
    row = found.row
    times = ", ".join(
        f"{name} {value * 1e6:,.1f} (±{found.spreads[name] / 2:.0%})"
        for name, value in found.medians.items()
    )
    if found.ratio is None:
        return f"{row.name:5} {row.what}: {times} µs {row.unit}; {row.against} is not installed"
    verdict = "holds" if found.holds else "MISSED"
    return (
        f"{row.name:5} {row.what}: {times} µs {row.unit}; "
        f"{found.ratio:.3f} x {row.against}, goal {row.goal} x: {verdict}"
    )


def run(rows: Sequence[Row], output: Path | None) -> int:
    """Measure *rows*, print each, write them to *output*; return how many goals were missed."""
    results = []
    for row in rows:
        found = measure(row)
        results.append(found)
        sys.stdout.write(line_of(found) + "\n")
        sys.stdout.flush()
    if output is not None:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        data = {"machine": machine, "rows": [found.as_json() for found in results]}
        output.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return sum(found.holds is False for found in results)
