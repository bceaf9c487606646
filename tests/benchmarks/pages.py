"""Writes the marked blocks of README and docs from the file of results.

A block stands between ``<!-- figures: NAME -->`` and ``<!-- figures end -->``; whatever
is between them is replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import profiles, report
from tests.benchmarks.model import OURS
from tests.benchmarks.results import ROOT

EXPLANATION = ROOT / "docs" / "explanation"
PAGES = (
    ROOT / "README.md",
    EXPLANATION / "performance.md",
    EXPLANATION / "goals.md",
)
BLOCK = re.compile(
    r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- figures end -->)", re.DOTALL
)

README_ROWS = {
    "W1a": "a step, nothing kept",
    "W2a": "a step on disk before the next one (`sync`)",
    "W3a": "200 trivial tasks at once: each",
    "W3b": "the same, on disk: each",
    "W4": "16 CPU tasks of 100 ms, 2 cores: all",
    "W5a": "1,000 tasks of 20 µs: all",
    "W6b": "16 tasks that take one 50 MB array: all",
    "W8 import": "importing it",
}
README_PEERS = {
    "flowpregel": (OURS,),
    "LangGraph": ("langgraph + SQLite", "langgraph"),
    "DBOS": ("dbos",),
    "Prefect": ("prefect",),
    "joblib": ("joblib",),
    "Dask": ("dask",),
    "Ray": ("ray",),
}


def rewritten(text: str, results: Mapping[str, Any]) -> str:
    """Return a page with each marked block as *results* say."""
    return BLOCK.sub(
        lambda found: f"{found[1]}{block(found[2], results)}\n{found[3]}", text
    )


def rewrite(results: Mapping[str, Any], pages: Iterable[Path] = PAGES) -> None:
    """Renew the marked blocks of the pages."""
    for page in pages:
        page.write_text(rewritten(page.read_text("utf-8"), results), encoding="utf-8")


def block(name: str, results: Mapping[str, Any]) -> str:
    """Return the text of a block.

    Raises:
        LookupError: There is no such block.
    """
    if name.startswith("growth-"):
        return _curve(name, results["growth"].get(name.removeprefix("growth-")))
    made = {
        "machine": _machine,
        "verdict": _verdict,
        "goals": lambda found: report.goals_table(found["rows"]),
        "peers": lambda found: report.peers_table(found["rows"]),
        "profiles": _profiles,
        "compared": _compared,
    }
    if name not in made:
        raise LookupError(f"no block is called {name!r}")
    text: str = made[name](results)
    return text


def _machine(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    if not machine:
        return "Not measured yet."
    versions = ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items()
    )
    days = sorted(row["measured"] for row in results["rows"].values())
    when = f" Measured {days[0]} to {days[-1]} UTC." if days else ""
    return (
        f"{machine['cores']} cores, {machine['memory']}, {machine['system']}, "
        f"Python {machine['python']}; {versions}.{when}"
    )


def _verdict(results: Mapping[str, Any]) -> str:
    verdicts = [row["holds"] for row in results["rows"].values()]
    missed = [name for name, row in results["rows"].items() if row["holds"] is False]
    text = f"{verdicts.count(True)} of {len(verdicts)} rows hold."
    if missed:
        text += f" Missed: {', '.join(missed)}."
    return text


def _profiles(results: Mapping[str, Any]) -> str:
    parts = [
        f"**{name}**, {found['what']}\n\n{profiles.table(found)}"
        for name, found in results["profiles"].items()
    ]
    return "\n\n".join(parts) or "Not measured yet."


def _curve(name: str, curve: Mapping[str, Any] | None) -> str:
    if curve is None:
        return "Not measured yet."
    sizes = sorted({int(size) for points in curve["lines"].values() for size in points})
    lines = (
        (line, *(_at(points, size) for size in sizes), _growth(points))
        for line, points in curve["lines"].items()
    )
    table = report.table(
        (curve["axis"], *(f"{size:,}" for size in sizes), "grows"), lines
    )
    return f"![{curve['what']}: time {curve['unit']}](figures/{name}.svg)\n\n{table}"


def _growth(points: Mapping[str, float]) -> str:
    """Return the exponent with which a line grew over its last step."""
    if len(points) < 2:
        return ""
    (size, before), (last, after) = sorted((int(k), v) for k, v in points.items())[-2:]
    return f"n^{math.log(after / before) / math.log(last / size):.1f}".replace(
        "-0.0", "0.0"
    )


def _at(points: Mapping[str, float], size: int) -> str:
    value = points.get(str(size))
    return "" if value is None else report.figure_of(value, "seconds")


def _compared(results: Mapping[str, Any]) -> str:
    return report.table(
        ("", *README_PEERS),
        (
            (
                what,
                *(
                    _cell(results["rows"].get(row), sides)
                    for sides in README_PEERS.values()
                ),
            )
            for row, what in README_ROWS.items()
        ),
    )


def _cell(row: Mapping[str, Any] | None, sides: Iterable[str]) -> str:
    for side in sides:
        if row is not None and side in row["figures"]:
            return report.figure_of(row["figures"][side]["median"], row["figure"])
    return ""
