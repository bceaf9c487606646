"""Writes the marked blocks of README and docs from the file of results.

A block stands between ``<!-- figures: NAME -->`` and ``<!-- figures end -->``; whatever
is between them is replaced.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import origins, profiles, report
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
        return _curve(name, results)
    made = {
        "age": _age,
        "origins": _origins,
        "verdict": _verdict,
        "goals": report.goals_table,
        "peers": report.peers_table,
        "profiles": _profiles,
        "compared": _compared,
    }
    if name not in made:
        raise LookupError(f"no block is called {name!r}")
    text: str = made[name](results)
    return text


def _age(results: Mapping[str, Any]) -> str:
    """Return what the marks mean, as far as a row has one, and since when they hold."""
    commit = results["written"]["commit"]
    rows = results["rows"].values()
    older = sum(origins.is_older(row, results) for row in rows)
    if not older:
        text = f"All figures are of the code of commit `{commit}`."
    else:
        text = (
            f"{report.OLDER} The code has changed since this was measured: {older} of "
            f"{len(rows)} rows, as of commit `{commit}`."
        )
    if any(origins.is_busy(row) for row in rows):
        text += (
            f" {report.BUSY} Other programs used the machine: compare the ratios, not "
            "the times."
        )
    return text


def _origins(results: Mapping[str, Any]) -> str:
    """Return an item for each origin, and the machine; several in their items."""
    found = results["origins"]
    machines = [_machine(origin["machine"]) for origin in found.values()]
    is_one = len({*machines}) == 1
    items = [
        _origin(name, results) + ("" if is_one else f" {machine}")
        for name, machine in zip(found, machines, strict=True)
    ]
    text = "\n".join(f"- {item}" for item in items) or "Not measured yet."
    return f"{text}\n\n{machines[0]}" if is_one else text


def _origin(name: str, results: Mapping[str, Any]) -> str:
    """Return what was measured at an origin, and what has changed since then."""
    origin = results["origins"][name]
    entries = [
        {**entry, "kind": noun}
        for kind, noun in zip(origins.KINDS, ("row", "curve", "profile"), strict=True)
        for entry in results[kind].values()
        if entry["origin"] == name
    ]
    counts = collections.Counter(entry["kind"] for entry in entries)
    what = ", ".join(
        f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()
    )
    days = sorted(entry["measured"] for entry in entries)
    changed = results["written"]["changed"][origin["commit"]]
    return (
        f"Commit `{origin['commit']}` (code `{origin['package']}`): {what}. Measured "
        f"{days[0]} to {days[-1]} UTC; {report.files_changed(changed)} since."
        f"{_load(entries)}"
    )


def _machine(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items()
    )
    return (
        f"{machine['cores']} cores, {machine['memory']}, {machine['system']}, "
        f"Python {machine['python']}; {versions}."
    )


def _load(entries: Iterable[Mapping[str, Any]]) -> str:
    load = max((entry["load"] or 0 for entry in entries), default=0)
    return f" Other programs kept up to {load:.1f} cores busy." if load else ""


def _verdict(results: Mapping[str, Any]) -> str:
    verdicts = [row["holds"] for row in results["rows"].values()]
    missed = [name for name, row in results["rows"].items() if row["holds"] is False]
    text = f"{verdicts.count(True)} of {len(verdicts)} rows hold."
    if missed:
        text += f" Missed: {', '.join(missed)}."
    return text


def _profiles(results: Mapping[str, Any]) -> str:
    parts = [
        f"**{name}**{report.marks(found, results)}, {found['what']}\n\n"
        f"{profiles.table(found)}"
        for name, found in results["profiles"].items()
    ]
    return "\n\n".join(parts) or "Not measured yet."


def _curve(name: str, results: Mapping[str, Any]) -> str:
    curve = results["growth"].get(name.removeprefix("growth-"))
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
    origin = origins.origin_of(curve, results)
    return (
        f"![{curve['what']}: time {curve['unit']}](figures/{name}.svg)\n\n{table}\n\n"
        f"Measured {curve['measured'][:10]}, commit `{origin['commit']}`"
        f"{report.marks(curve, results)}"
    )


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
                what + report.marks(results["rows"][row], results),
                *(
                    _cell(results["rows"][row], sides)
                    for sides in README_PEERS.values()
                ),
            )
            for row, what in README_ROWS.items()
            if row in results["rows"]
        ),
    )


def _cell(row: Mapping[str, Any], sides: Iterable[str]) -> str:
    for side in sides:
        if side in row["figures"]:
            return report.figure_of(row["figures"][side]["median"], row["figure"])
    return ""
