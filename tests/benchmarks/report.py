"""Results as text: a line of a terminal, a table of a page.

In a page a name has a mark if its figures are older than the code (†), or if other
programs used the machine while they were measured (‡).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.benchmarks import origins
from tests.benchmarks.model import OURS

OLDER, BUSY = "†", "‡"

SCALES = (
    (1e-6, "µs", 1e6),
    (1e-3, "µs", 1e6),
    (1.0, "ms", 1e3),
    (float("inf"), "s", 1.0),
)


def figure_of(value: float, figure: str) -> str:
    """Return a value as text with its unit."""
    if figure == "ratio":
        return f"{value:.2f}"
    if figure == "bytes":
        return f"{value:,.0f} B"
    for below, unit, factor in SCALES:
        if abs(value) < below:
            return f"{short(value * factor)} {unit}"
    raise AssertionError(value)


def short(value: float) -> str:
    """Return a number with three digits, or all that stand before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(figure: Mapping[str, Any]) -> str:
    """Return how far the quartiles are from the median."""
    if figure["turns"] < 2 or not figure["median"]:
        return ""
    half = (figure["high"] - figure["low"]) / 2 / figure["median"]
    return f" ±{half:.0%}"


def marks(entry: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return the marks of a row, a curve or a profile, with a space before them."""
    older = OLDER if origins.is_older(entry, results) else ""
    busy = BUSY if origins.is_busy(entry) else ""
    return f" {older}{busy}" if older or busy else ""


def files_changed(count: int | None) -> str:
    """Return how many files have other code, as text."""
    if count is None:
        return "an unknown number of files changed"
    return f"{count:,} file{'' if count == 1 else 's'} changed"


def goal_of(goal: Mapping[str, Any], figure: str) -> str:
    """Return a goal as text."""
    side = goal.get("side", OURS)
    whose = "" if side == OURS else f"{side.removeprefix(OURS).lstrip(', ')}: "
    if goal["against"] is None:
        return f"{whose}≤ {figure_of(goal['most'], figure)}"
    return f"{whose}≤ {goal['most']:g} x {goal['against']}"


def verdict_of(row: Mapping[str, Any]) -> str:
    """Return whether a row's goals are met, as a word."""
    return {True: "holds", False: "missed", None: "not compared"}[row["holds"]]


def ratio_of(goal: Mapping[str, Any]) -> str:
    """Return what a goal came to."""
    if goal["ratio"] is None:
        return "?"
    return "" if goal["against"] is None else f"{goal['ratio']:.3g} x {goal['against']}"


def line(name: str, row: Mapping[str, Any]) -> str:
    """Return a row for the terminal."""
    goals = "; ".join(
        " ".join(
            filter(None, (ratio_of(goal), f"(goal {goal_of(goal, row['figure'])})"))
        )
        for goal in row["goals"]
    )
    return (
        f"{name:11} {row['what']}, {row['unit']}: {OURS} {_side(row, OURS)}; "
        f"{_others(row)} | "
        f"{goals}: {verdict_of(row).upper()}"
    )


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    heads = list(heads)
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def goals_table(results: Mapping[str, Any]) -> str:
    """Return the table of all rows: ours, the goals, and what they came to."""
    rows = results["rows"]
    return table(
        ("", "work", "flowpregel", "goal", "is", ""),
        (
            (
                name + marks(row, results),
                f"{row['what']} ({row['unit']})",
                _side(row, OURS),
                "; ".join(goal_of(goal, row["figure"]) for goal in row["goals"]),
                "; ".join(filter(None, (ratio_of(goal) for goal in row["goals"])))
                or "-",
                "holds" if row["holds"] else f"**{verdict_of(row)}**",
            )
            for name, row in rows.items()
        ),
    )


def _side(row: Mapping[str, Any], name: str) -> str:
    found = row["figures"].get(name)
    return (
        "-"
        if found is None
        else figure_of(found["median"], row["figure"]) + spread(found)
    )


def peers_table(results: Mapping[str, Any]) -> str:
    """Return the table of what everyone else took, and how many times ours that is."""
    rows = results["rows"]
    return table(
        ("", "flowpregel", "the others, and how many times ours"),
        (
            (name + marks(row, results), _side(row, OURS), _others(row))
            for name, row in rows.items()
        ),
    )


def _others(row: Mapping[str, Any]) -> str:
    ours = row["figures"].get(OURS)
    return (
        ", ".join(
            f"{name} {figure_of(found['median'], row['figure'])}{spread(found)}"
            + (
                f" ({found['median'] / ours['median']:.3g} x)"
                if ours and ours["median"]
                else ""
            )
            + (f" [{found['note']}]" if found.get("note") else "")
            for name, found in row["figures"].items()
            if name != OURS
        )
        or "-"
    )
