"""Measures ours and the peers in turns: ``python -m tests.benchmarks [row ...]``.

``W1`` selects W1a, W1b and W1c. ``growth`` measures how costs grow, ``profile`` where
the time of the rows named after it goes, ``all`` everything. Each result is added to
the file that ``--json`` names as soon as it is measured. ``all`` may be stopped and
started again: it leaves out what was measured on the same code and machine, unless
other programs were busy then and are not now.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    charts,
    growth,
    harness,
    order,
    origins,
    pages,
    profiles,
    report,
    results,
)
from tests.benchmarks.model import Workload
from tests.house import llms


def main() -> int:
    """Do what the command line asks for.

    Returns 1 if a side failed, or if a figure is stale with ``--stale``; and 2 if the
    command line makes no sense.
    """
    options = arguments()
    begun = time.monotonic()
    measured = results.load(options.json)
    if options.stale:
        return list_stale(measured)
    status = 0
    try:
        status = measure(options, measured)
    except LookupError as error:
        sys.stderr.write(f"{error.args[0]}\n")
        return 2
    if options.docs:
        measured["written"] = origins.written(measured["origins"].values())
    if options.json:
        results.save(options.json, measured)
    if options.svg:
        charts.draw(measured, options.svg)
    if options.docs:
        pages.rewrite(measured)
        llms.main()
        for page in pages.PAGES:
            for claim in pages.broken_claims(page.read_text("utf-8"), measured):
                sys.stdout.write(f"the words of {page.name} no longer fit: {claim}\n")
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
        "temporal, huey, parsl, joblib, dask, ray; or none",
    )
    parser.add_argument("--repeats", type=int, help="turns of each side (default: 5)")
    parser.add_argument("--json", type=Path, help="add what is measured to this file")
    parser.add_argument("--svg", type=Path, help="draw charts into this folder")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="renew the file, the charts and the marked blocks of README and docs",
    )
    parser.add_argument(
        "--no-run", action="store_true", help="measure nothing, only write"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="list the figures that are older than the code, and measure nothing; "
        "the exit code is 1 if there are any",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that all works"
    )
    options = parser.parse_args()
    if options.docs:
        if options.quick:
            parser.error("--quick measures nothing that the docs should show")
        if files := origins.uncommitted():
            parser.error(
                "commit these files first, so that each figure names the code that it "
                f"measured: {', '.join(files)}"
            )
        options.svg = options.svg or results.FIGURES
    if options.docs or options.stale:
        options.json = options.json or results.FILE
    return options


def list_stale(measured: results.Results) -> int:
    """Print the figures that are older than the code; return 1 if there are any."""
    stale = origins.stale(measured, origins.package_digest())
    for kind, names in stale.items():
        for name in names:
            entry = measured[kind][name]
            commit = origins.origin_of(entry, measured)["commit"]
            changed = report.files_changed(origins.changed_files(commit))
            kind_and_name = name if kind == "rows" else f"{kind} {name}"
            sys.stdout.write(
                f"{kind_and_name}: measured {entry['measured']} at commit {commit}, "
                f"{changed} since\n"
            )
    count = sum(map(len, stale.values()))
    sys.stdout.write(f"{count} of {results.count(measured)} figures are stale\n")
    return min(1, count)


def measure(options: argparse.Namespace, measured: results.Results) -> int:
    """Add what was asked for to *measured*; return 1 if a side failed."""
    if options.no_run:
        return 0
    part, names = options.rows[:1], options.rows[1:]
    if part == ["all"] and names:
        raise LookupError("`all` must be the only word")
    log = Log(options, measured, resumes=part == ["all"])
    status = 0
    if part not in (["growth"], ["profile"]):
        status = measure_rows([] if part == ["all"] else options.rows, options, log)
    if part in (["growth"], ["all"]):
        curves = log.missing("growth", names or growth.curves(quick=options.quick))
        log.add_all("growth", growth.measure(curves, quick=options.quick))
    if part in (["profile"], ["all"]):
        rows = log.missing("profiles", profiles.names(names, quick=options.quick))
        log.add_all("profiles", profiles.measure(rows, quick=options.quick))
    return status


class Log:
    """The results so far, in memory and in the file, and the origin of new ones.

    Args:
        options: The command line.
        measured: The results so far.
        resumes: Whether results of the same origin are not measured again.
    """

    def __init__(
        self, options: argparse.Namespace, measured: results.Results, *, resumes: bool
    ) -> None:
        self._file: Path | None = options.json
        self._measured = measured
        self._resumes = resumes
        self._origin = origins.origin(results.machine())
        self._name = origins.name_of(self._origin)

    def missing(self, kind: str, names: Iterable[str]) -> list[str]:
        """Return the names whose entries must be measured."""
        return [name for name in names if not self.has(kind, name)]

    def has(self, kind: str, name: str) -> bool:
        """Return whether an entry need not be measured again."""
        entry = self._measured[kind].get(name)
        if not self._resumes or entry is None:
            return False
        origin = origins.origin_of(entry, self._measured)
        if not origins.is_equal(origin, self._origin):
            return False
        return not origins.is_busy(entry) or origins.is_busy(
            {"load": origins.sampled_load()}
        )

    def has_sides(self, workload: Workload, names: Iterable[str]) -> bool:
        """Return whether the rows of a workload were measured with all these sides."""
        rows = [self._measured["rows"].get(row.name) for row in workload.rows]
        sides = {side for row in rows if row for side in row["figures"]}
        return sides >= {*names} and all(
            self.has("rows", row.name) for row in workload.rows
        )

    def add(self, kind: str, name: str, entry: dict[str, Any]) -> None:
        """Add an entry, and write the file: whatever happens later, it is kept."""
        self._measured["origins"][self._name] = self._origin
        self._measured[kind][name] = {**entry, "origin": self._name}
        if self._file:
            results.save(self._file, self._measured)

    def add_all(self, kind: str, entries: Iterable[tuple[str, Any]]) -> None:
        """Add entries as they are measured, each with the load of the machine."""
        before = origins.sampled_load()
        for name, entry in entries:
            after = origins.sampled_load()
            load = origins.greater_load(before, after)
            self.add(kind, name, {**entry, "load": load})
            before = after


def measure_rows(names: Sequence[str], options: argparse.Namespace, log: Log) -> int:
    """Measure the rows that are named, or all; return 1 if a side failed."""
    peers = None if options.peers is None else frozenset(options.peers.split(","))
    wanted = harness.Asked(peers=peers, repeats=options.repeats)
    status = 0
    for workload in order.chosen(names, quick=options.quick):
        sides = harness.chosen(workload, wanted)
        if log.has_sides(workload, sides):
            continue
        before = origins.sampled_load()
        samples = harness.measure(workload, wanted)
        load = origins.greater_load(before, origins.sampled_load())
        if sides.keys() - samples.keys():
            status = 1
        for row in workload.rows:
            entry = {**harness.result_of(row, workload, samples), "load": load}
            sys.stdout.write(report.line(row.name, entry) + "\n")
            sys.stdout.flush()
            log.add("rows", row.name, entry)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
