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
from tests.benchmarks.results import ROOT, used_origins

EXPLANATION = ROOT / "docs" / "explanation"
PAGES = (
    ROOT / "README.md",
    EXPLANATION / "performance.md",
    EXPLANATION / "goals.md",
)
BLOCK = re.compile(
    r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- figures end -->)", re.DOTALL
)

ROWS = {
    "W1a": "a step, nothing kept",
    "W2a": "a step on disk before the next one (`sync`)",
    "W2b": "a step on disk soon after (`async`)",
    "W3a": "200 trivial tasks at once, nothing kept: each",
    "W3b sync": "200 at once, on disk before they are used (`sync`): each",
    "W3b": "200 at once, on disk soon after (`async`): each",
    "W4": "16 CPU tasks of 100 ms, 2 cores: all",
    "W5a": "1,000 tasks of 20 µs: all",
    "W6b": "16 tasks that take one 50 MB array: all",
    "W8 import": "the imports of a durable program",
}
"""The rows of the tables for users, and their text."""
COLUMNS = {
    "flowpregel": (OURS,),
    "LangGraph": ("langgraph + SQLite", "langgraph"),
    "DBOS": ("dbos",),
    "Prefect": ("prefect",),
    "Temporal": ("temporal",),
    "huey": ("huey",),
    "Parsl": ("parsl",),
    "joblib": ("joblib",),
    "Dask": ("dask",),
    "Ray": ("ray",),
}
"""The columns of the table for users, and the sides that they show."""
README_COLUMNS = ("flowpregel", "LangGraph", "DBOS", "Prefect", "joblib", "Dask", "Ray")
OTHER_WAYS = {
    "DBOS, a workflow for each task": ("W3b sync", "dbos, workflows"),
    "Prefect, with the start of its workers": ("W4", "prefect, cold"),
}
"""Sides with another way to do the work of a row."""
CLAIM = re.compile(r"<!-- claim: ([^:]+): (.+?), ([\d.]+) to ([\d.]+) (times|s) -->")
"""A range for a figure that the words before it are about."""


def broken_claims(text: str, results: Mapping[str, Any]) -> list[str]:
    """Return the claims of a page that do not fit the figures.

    ``<!-- claim: W3a: langgraph, 3 to 5 times -->`` claims that LangGraph takes 3 to 5
    times as long as ours, and with ``s`` at its end a claim is about the seconds.
    """
    broken = []
    for row, side, low, high, unit in CLAIM.findall(text):
        figures = results["rows"].get(row, {}).get("figures", {})
        if not {side, OURS} <= figures.keys():
            broken.append(f"{row}: there is no figure of {side}")
            continue
        ours = figures[OURS]["median"] if unit == "times" else 1
        value = figures[side]["median"] / ours
        if not float(low) <= value <= float(high):
            broken.append(f"{row}: {side} is {value:.3g} {unit}, not {low} to {high}")
    return broken


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
        "compared": lambda found: _compared(found, README_COLUMNS),
        "compared-all": lambda found: _compared(found, COLUMNS),
        "other-ways": _other_ways,
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
            f" {report.BUSY} Other programs used the machine: the times are too long, "
            "and the ratios are uncertain."
        )
    return text


def _origins(results: Mapping[str, Any]) -> str:
    """Return an item for each origin of a figure, and the machine; several in their
    items.
    """
    found = used_origins(results)
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


def _compared(results: Mapping[str, Any], columns: Iterable[str]) -> str:
    columns = [*columns]
    return report.table(
        ("", *columns),
        (
            (
                text + report.marks(results["rows"][row], results),
                *(_cell(results["rows"][row], COLUMNS[column]) for column in columns),
            )
            for row, text in ROWS.items()
            if row in results["rows"]
        ),
    )


def _other_ways(results: Mapping[str, Any]) -> str:
    lines = []
    for name, (row, side) in OTHER_WAYS.items():
        entry = results["rows"][row]
        lines.append(
            (
                ROWS[row] + report.marks(entry, results),
                name,
                _cell(entry, [side]) or "not measured",
                _cell(entry, [side.partition(",")[0]]),
                _cell(entry, [OURS]),
            )
        )
    return report.table(("", "way", "time", "the faster way", "flowpregel"), lines)


def _cell(row: Mapping[str, Any], sides: Iterable[str]) -> str:
    for side in sides:
        if side in row["figures"]:
            return report.figure_of(row["figures"][side]["median"], row["figure"])
    return ""
