"""Has the sides of a workload take turns, and holds what came out to the goals.

Sides take turns, so that whatever else the machine does meanwhile meets all of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.benchmarks import slow_disk
from tests.benchmarks.child import Child, SideError, search_path
from tests.benchmarks.model import OURS, Goal, Row, Side, Workload

Samples = Mapping[str, Sequence[Mapping[str, float]]]
"""The figures of each turn, by side."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asked for."""

    peers: frozenset[str] | None = None
    """Only these beside ours and the machine's limits; None for all that are
    installed.
    """
    repeats: int | None = None
    """How often, instead of what the workload says."""


def is_there(side: Side) -> bool:
    """Say whether what a side needs is installed."""
    try:
        found = all(importlib.util.find_spec(name) is not None for name in side.needs)
    except ModuleNotFoundError:
        return False
    if side.program and not shutil.which(side.program, path=search_path()):
        return False
    return found and (not side.slow_disk or slow_disk.compiler() is not None)


def chosen(workload: Workload, asked: Asked) -> dict[str, Side]:
    """Return the sides to measure: ours first, and only peers that were asked for."""
    return {
        name: side
        for name, side in workload.sides.items()
        if is_there(side)
        and (asked.peers is None or not side.needs or asked.peers & {*words(name)})
    }


def words(name: str) -> Iterator[str]:
    """Yield what a side may be called on the command line: its name, and its first
    word.
    """
    yield name
    yield re.split(r"\W", name)[0]


def measure(workload: Workload, asked: Asked = Asked()) -> Samples:
    """Measure the sides of *workload* in turns; one that fails is left out, and said to
    be.
    """
    sides = chosen(workload, asked)
    repeats = asked.repeats or workload.repeats
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        children = _started(sides, found, stack)
        for number in range(-int(workload.warm), repeats):
            for name in [*children]:
                limit = sides[name].repeats
                if limit is not None and number >= limit:
                    continue
                try:
                    figures = children[name].go()
                except SideError as error:
                    _give_up(name, error, children, found)
                    continue
                if number >= 0:
                    found[name].append(figures)
    return found


def _started(
    sides: Mapping[str, Side], found: dict[str, Any], stack: contextlib.ExitStack
) -> dict[str, Child]:
    children = {}
    for name, side in sides.items():
        environment = slow_disk.environment(stack) if side.slow_disk else {}
        children[name] = stack.enter_context(Child(side, environment))
    for name, child in [*children.items()]:
        try:
            child.ready()
        except SideError as error:
            _give_up(name, error, children, found)
    return children


def _give_up(
    name: str, error: SideError, children: dict[str, Child], found: dict[str, Any]
) -> None:
    sys.stderr.write(f"{name} failed and is left out:\n{error}\n")
    children.pop(name, None)
    found.pop(name, None)


def result_of(row: Row, workload: Workload, samples: Samples) -> dict[str, Any]:
    """Return what *row* came to, as plain data."""
    figures = {
        name: _summary([turn[row.figure] for turn in turns if row.figure in turn])
        for name, turns in samples.items()
        if any(row.figure in turn for turn in turns)
    }
    for name, figure in figures.items():
        if note := workload.sides[name].note:
            figure["note"] = note
    goals = [_verdict(goal, figures) for goal in row.goals]
    verdicts = [goal["holds"] for goal in goals]
    return {
        "what": row.what,
        "unit": row.unit,
        "figure": row.figure,
        "figures": figures,
        "goals": goals,
        "holds": False if False in verdicts else None if None in verdicts else True,
        "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    low, high = min(values), max(values)
    if len(values) > 2:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    found = {"median": statistics.median(values), "low": low, "high": high}
    return {
        **{name: rounded(value) for name, value in found.items()},
        "turns": len(values),
    }


def rounded(value: float) -> float:
    """Return *value* with five digits: more are noise."""
    return float(f"{value:.5g}")


def _verdict(goal: Goal, figures: Mapping[str, Any]) -> dict[str, Any]:
    ours = figures.get(goal.side)
    other = {"median": 1.0} if goal.against is None else figures.get(goal.against)
    if ours is None or other is None:
        ratio = None
    else:
        ratio = rounded(ours["median"] / other["median"]) if other["median"] else None
    return {
        "side": goal.side,
        "against": goal.against,
        "most": goal.most,
        "ratio": ratio,
        "holds": None if ratio is None else ratio <= goal.most,
    }


def shrunk(workload: Workload) -> Workload:
    """Return *workload* with a single turn of ours and of the limits: to see that it
    works.
    """
    sides = {
        name: side
        for name, side in workload.sides.items()
        if name == OURS or not side.needs
    }
    return replace(workload, sides=sides, repeats=1, warm=False)
