"""Where the time of a workload goes: cProfile of ours, in the OS thread that runs
it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks import order, report
from tests.benchmarks.child import Child, SideError
from tests.benchmarks.model import OURS, Side
from tests.benchmarks.slow_disk import environment

UNFIT = ("W8", "census", "W11 100,000")
"""Whole programs, which a profiler in the process that starts them does not see; W11
again.
"""


def names(asked: Sequence[str], *, quick: bool) -> list[str]:
    """Return the names of the rows that were asked for, or of all, as far as they can
    be profiled: the first of each workload.

    Raises:
        LookupError: There is no such row.
    """
    rows = [workload.rows[0].name for workload in order.chosen(asked, quick=quick)]
    return [name for name in rows if not order.is_asked(name, UNFIT)]


def measure(
    names: Sequence[str], *, quick: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Profile the rows with these names; yield the name and the profile of each."""
    for workload in order.everything(quick=quick):
        row, side = workload.rows[0], workload.sides[OURS]
        if row.name not in names:
            continue
        try:
            found = {
                "what": row.what,
                "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
                **_profiled(side),
            }
        except SideError as error:
            sys.stderr.write(f"{row.name} failed and is left out:\n{error}\n")
            continue
        sys.stdout.write(f"{row.name} {row.what}\n{table(found)}\n\n")
        sys.stdout.flush()
        yield row.name, found


def _profiled(side: Side) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        more = environment(stack) if side.slow_disk else {}
        child = stack.enter_context(Child(side, more))
        child.ready()
        child.go()
        return child.profile()


def table(profile: Any) -> str:
    """Return a profile as a table of Markdown."""
    lines = [
        (
            f"`{entry['what']}`",
            f"{entry['calls']:,}",
            report.figure_of(entry["own"], "seconds"),
            f"{entry['share']:.0%}",
        )
        for entry in profile["entries"]
    ]
    return report.table(("function", "calls", "own time", "share"), lines)
