"""Draws the results as SVG, with matplotlib (extra ``bench``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.model import OURS

COLOURS = {
    OURS: "#0b6e4f",
    "langgraph": "#c0392b",
    "langgraph + SQLite": "#e08283",
    "langgraph Send": "#f1a9a0",
    "langgraph, plain reducer": "#f5c6bf",
    "dbos": "#8e44ad",
    "dbos, workflows": "#c39bd3",
    "prefect": "#2c6fbb",
    "prefect, cold": "#a3c4e8",
    "temporal": "#444444",
    "huey": "#e377c2",
    "parsl": "#1a9850",
    "joblib": "#d68910",
    "dask": "#7f6000",
    "ray": "#17a2b8",
}
GREY = "#888888"
MARKS = "osD^vP*X<>hdp8"


def digest(data: Any) -> str:
    """Return what stands in a chart for the figures that it shows."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def shown(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of each chart, and the figures that it shows."""
    growth = {f"growth-{name}.svg": curve for name, curve in results["growth"].items()}
    if not results["rows"]:
        return growth
    return {
        "goals.svg": goals(results["rows"]),
        "peers.svg": peers(results["rows"]),
        **growth,
    }


def goals(rows: Mapping[str, Any]) -> dict[str, float]:
    """Return each goal that was compared, and what it came to as a share of it."""
    found = {}
    for name, row in rows.items():
        for goal in row["goals"]:
            if goal["ratio"] is not None:
                beside = "" if goal["against"] is None else f" beside {goal['against']}"
                # Several sides of ours may be compared with the same one.
                side = "" if goal["side"] == OURS else f" ({goal['side']})"
                found[f"{name}{side}{beside}"] = goal["ratio"] / goal["most"]
    return found


def peers(rows: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return for each row with a peer how many times ours each peer took."""
    found = {}
    for name, row in rows.items():
        ours = row["figures"].get(OURS)
        others = {
            side: figure["median"] / ours["median"]
            for side, figure in row["figures"].items()
            if ours and ours["median"] and side in COLOURS and side != OURS
        }
        if others:
            found[name] = others
    return found


def draw(results: Mapping[str, Any], folder: Path) -> None:
    """Draw all charts into *folder*."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "flowpregel"})
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in shown(results).items():
        if name == "goals.svg":
            figure = _goals(data)
        else:
            figure = _peers(data) if name == "peers.svg" else _curve(data)
        figure.savefig(
            folder / name,
            format="svg",
            bbox_inches="tight",
            metadata={"Date": None, "Description": f"figures {digest(data)}"},
        )


def _canvas(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height))
    axes = figure.subplots()
    axes.grid(axis="x", which="major", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _logarithmic(axis: Any, set_scale: Any) -> None:
    """Make an axis logarithmic, with its numbers written out."""
    from matplotlib.ticker import FuncFormatter

    set_scale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _goals(data: Mapping[str, float]) -> Any:
    figure, axes = _canvas(0.7 + 0.19 * len(data))
    names = [*data][::-1]
    colours = [
        COLOURS[OURS] if data[name] <= 1 else COLOURS["langgraph"] for name in names
    ]
    axes.barh(
        names, [data[name] - 1 for name in names], left=1, color=colours, height=0.7
    )
    axes.axvline(1, color="black", linewidth=1)
    _logarithmic(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("share of what the goal allows (left of the line: it holds)")
    axes.tick_params(labelsize=7)
    axes.margins(y=0.01)
    return figure


def _peers(data: Mapping[str, Mapping[str, float]]) -> Any:
    figure, axes = _canvas(0.9 + 0.22 * len(data))
    names = [*data][::-1]
    sides = [side for side in COLOURS if any(side in each for each in data.values())]
    for number, side in enumerate(sides):
        points = [(each[side], name) for name, each in data.items() if side in each]
        axes.scatter(
            [x for x, _ in points],
            [names.index(name) for _, name in points],
            label=side,
            s=26,
            color=COLOURS[side],
            marker=MARKS[number % len(MARKS)],
        )
    axes.axvline(1, color=COLOURS[OURS], linewidth=2)
    axes.set_yticks(range(len(names)), names)
    _logarithmic(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("times what flowpregel (the line) takes")
    axes.tick_params(labelsize=7)
    axes.margins(y=0.01)
    axes.legend(
        fontsize=7,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=5,
        frameon=False,
    )
    return figure


def _curve(data: Mapping[str, Any]) -> Any:
    figure, axes = _canvas(3.2)
    axes.grid(axis="y", which="major", color="#dddddd")
    for number, (name, points) in enumerate(data["lines"].items()):
        axes.plot(
            [int(size) for size in points],
            [1e3 * value for value in points.values()],
            label=name,
            marker=MARKS[number % len(MARKS)],
            markersize=4,
            color=COLOURS.get(name) or f"C{number}",
        )
    axes.set_xlabel(data["axis"])
    axes.set_ylabel(f"ms {data['unit']}")
    if data["axis"] == "workers":
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        _logarithmic(axes.xaxis, axes.set_xscale)
        _logarithmic(axes.yaxis, axes.set_yscale)
    axes.set_title(data["what"], fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    return figure
