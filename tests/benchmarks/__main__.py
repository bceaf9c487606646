"""Measures ours and the peers in turns: ``python -m tests.benchmarks [row ...]``.

``W1`` asks for W1a, W1b and W1c. ``growth`` measures how costs grow, ``profile`` where
the time of the rows named after it goes, ``all`` everything. What is measured is added
to the file that ``--json`` names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    charts,
    growth,
    harness,
    order,
    pages,
    profiles,
    report,
    results,
)
from tests.benchmarks.model import Workload


def main() -> int:
    """Do what the command line asks for; return 1 if a side failed, 2 if it makes no
    sense.
    """
    asked = arguments()
    begun = time.monotonic()
    found = results.load(asked.json)
    status = 0
    try:
        status = measure(asked, found)
    except LookupError as error:
        sys.stderr.write(f"{error.args[0]}\n")
        return 2
    if asked.json:
        results.save(asked.json, found)
    if asked.svg:
        charts.draw(found, asked.svg)
    if asked.docs:
        pages.rewrite(found)
    sys.stdout.write(f"{time.monotonic() - begun:.0f} s in all\n")
    return status


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="row",
        help="W1a ... W11, G1a ..., census, RT (default: all of them); "
        "or growth [curve ...]; "
        "or profile [row ...]; or all: rows, growth and profiles",
    )
    parser.add_argument(
        "--peers",
        help="only these, with commas between them, of langgraph, dbos, prefect, "
        "joblib, "
        "dask, ray; or none",
    )
    parser.add_argument("--repeats", type=int, help="turns of each side (default: 5)")
    parser.add_argument("--json", type=Path, help="add what is measured to this file")
    parser.add_argument("--svg", type=Path, help="draw charts into this folder")
    parser.add_argument(
        "--docs",
        action="store_true",
        help=(
            "renew the docs: the file, the charts and the marked blocks of README and "
            "docs"
        ),
    )
    parser.add_argument(
        "--no-run", action="store_true", help="measure nothing, only write"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that all works"
    )
    asked = parser.parse_args()
    if asked.docs:
        if asked.quick:
            parser.error("--quick measures nothing that the docs should tell")
        asked.json = asked.json or results.FILE
        asked.svg = asked.svg or results.FIGURES
    return asked


def measure(asked: argparse.Namespace, found: results.Results) -> int:
    """Measure what was asked for into *found*; return 1 if a side failed."""
    if asked.no_run:
        return 0
    found["machine"] = results.machine()
    part, names = asked.rows[:1], asked.rows[1:]
    if part == ["all"] and names:
        raise LookupError("`all` stands alone")
    status = 0
    if part not in (["growth"], ["profile"]):
        status = measure_rows([] if part == ["all"] else asked.rows, asked, found)
    if part in (["growth"], ["all"]):
        keep(growth.measure(names, quick=asked.quick), "growth", asked, found)
    if part in (["profile"], ["all"]):
        keep(profiles.measure(names, quick=asked.quick), "profiles", asked, found)
    return status


def keep(
    parts: Iterable[tuple[str, Any]],
    kind: str,
    asked: argparse.Namespace,
    found: results.Results,
) -> None:
    """Add what is measured to *found* and to the file, bit by bit.

    It takes minutes: whatever stops it, what is measured is kept.
    """
    for name, part in parts:
        found[kind][name] = part
        if asked.json:
            results.save(asked.json, found)


def measure_rows(
    names: Sequence[str], asked: argparse.Namespace, found: results.Results
) -> int:
    """Measure the rows that are named, or all; return 1 if a side failed."""
    peers = None if asked.peers is None else frozenset(asked.peers.split(","))
    wanted = harness.Asked(peers=peers, repeats=asked.repeats)
    failed: list[str] = []
    keep(
        _rows(order.chosen(names, quick=asked.quick), wanted, failed),
        "rows",
        asked,
        found,
    )
    return min(1, len(failed))


def _rows(
    chosen: Iterable[Workload], wanted: harness.Asked, failed: list[str]
) -> Iterator[tuple[str, Any]]:
    for workload in chosen:
        samples = harness.measure(workload, wanted)
        failed += harness.chosen(workload, wanted).keys() - samples.keys()
        for row in workload.rows:
            came_to = harness.result_of(row, workload, samples)
            sys.stdout.write(report.line(row.name, came_to) + "\n")
            sys.stdout.flush()
            yield row.name, came_to


if __name__ == "__main__":
    raise SystemExit(main())
