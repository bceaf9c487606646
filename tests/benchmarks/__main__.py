"""Runs the benchmarks: ``python -m tests.benchmarks [workload ...] [--json FILE]``."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from tests.benchmarks import harness

WORKLOADS = ("core", "functional", "state_graph", "store")
"""The modules that offer rows."""


def main() -> int:
    """Measure what the command line names, or everything; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], default=[])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    rows = [
        row
        for name in asked.workloads or WORKLOADS
        for row in importlib.import_module(f"tests.benchmarks.{name}").rows()
    ]
    return min(1, harness.run(rows, asked.json))


if __name__ == "__main__":
    raise SystemExit(main())
