"""Where the time of a workload goes: cProfile of ours, in the OS thread that runs it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import order, report
from tests.benchmarks.child import Child
from tests.benchmarks.model import OURS
from tests.benchmarks.slow_disk import environment

UNFIT = ("W8", "census")
"""Whole programs, which a profiler in the process that starts them does not see."""


def measure(asked: Sequence[str], found: dict[str, Any], *, quick: bool) -> None:
    """Profile the rows that were asked for into *found*; all if none was.

    Raises:
        LookupError: There is no such row.
    """
    for workload in order.chosen(asked, quick=quick):
        row, side = workload.rows[0], workload.sides[OURS]
        if order.is_asked(row.name, UNFIT):
            continue
        with contextlib.ExitStack() as stack:
            more = environment(stack) if side.slow_disk else {}
            child = stack.enter_context(Child(side, more))
            child.ready()
            child.go()
            found[row.name] = {"what": row.what, **child.profile()}
        sys.stdout.write(f"{row.name} {row.what}\n{table(found[row.name])}\n\n")
        sys.stdout.flush()


def table(profile: Any) -> str:
    """Return a profile as a table of Markdown."""
    lines = [
        (f"`{entry['what']}`", f"{entry['calls']:,}", report.figure_of(entry["own"], "seconds"),
         f"{entry['share']:.0%}")
        for entry in profile["entries"]
    ]  # fmt: skip
    return report.table(("function", "calls", "own time", "share"), lines)
