"""The file of results: rows, growth curves, profiles, and the machine they were
measured on.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import work

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "explanation" / "figures"
FILE = FIGURES / "benchmarks.json"
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "dbos",
    "prefect",
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
        return {"machine": {}, "rows": {}, "growth": {}, "profiles": {}}
    found: Results = json.loads(path.read_text("utf-8"))
    return found


def save(path: Path, results: Results) -> None:
    """Write the results to a file, in the order of the goals."""
    from tests.benchmarks import order

    rows = order.sorted_rows(results["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**results, "rows": rows}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


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
