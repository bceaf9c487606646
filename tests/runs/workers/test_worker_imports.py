"""The modules that a worker does not import: they would lengthen its cold start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import context
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel.executors import ProcessExecutor
from tests.runs.listing_flows import modules_of_task

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, sys
from flowpregel import LMDBSaver
from flowpregel.executors import ProcessExecutor
from tests.runs import listing_flows

with ProcessExecutor(1) as pool, LMDBSaver(sys.argv[2]) as saver:
    print(json.dumps(getattr(listing_flows, sys.argv[1])(saver, pool)))
"""
"""A program of its own, since coverage and other tests add imports to those here."""

FOR_COORDINATORS = {
    "asyncio",
    "decimal",
    "html",
    "lmdb",
    "statistics",
    "zoneinfo",
    "flowpregel.cache.memory",
    "flowpregel.checkpoint.arguments",
    "flowpregel.checkpoint.durable",
    "flowpregel.checkpoint.layout",
    "flowpregel.checkpoint.leases",
    "flowpregel.checkpoint.lmdb",
    "flowpregel.checkpoint.memory",
    "flowpregel.checkpoint.reader",
    "flowpregel.checkpoint.records",
    "flowpregel.checkpoint.retention",
    "flowpregel.storage.claims",
    "flowpregel.storage.codec",
    "flowpregel.storage.group_commit",
    "flowpregel.storage.headers",
    "flowpregel.storage.in_memory",
    "flowpregel.storage.lmdb",
    "flowpregel.storage.locks",
    "flowpregel.storage.options",
    "flowpregel.storage.tables",
    "flowpregel.store.memory",
}
"""Modules that no worker needs: they open and use stores, run an event loop, draw
graphs, follow schedules, or estimate times.
"""


@pytest.mark.parametrize("run", ["modules_of_task", "modules_of_node"])
def test_a_worker_imports_nothing_that_only_uses_a_store(
    run: str, tmp_path: Path
) -> None:
    """It does import the user's module, and the names that the module imports."""
    command = [sys.executable, "-c", PROGRAM, run, str(tmp_path / "runs.lmdb")]
    # Where coverage is measured, this makes each process import it.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COVERAGE_PROCESS")
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    modules = json.loads(done.stdout)

    assert "flowpregel.func" in modules or "flowpregel.graph" in modules
    assert set() == FOR_COORDINATORS.intersection(modules)


def test_a_worker_imports_no_joblib_because_its_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib has a copy of loky, which takes the place of loky's start method."""
    loky = pytest.importorskip("joblib.externals.loky.backend.context")
    contexts = context._concrete_contexts  # noqa: SLF001 - an import of joblib does so
    monkeypatch.setitem(contexts, "loky", loky.LokyContext())

    with ProcessExecutor(1) as pool, LMDBSaver(tmp_path / "runs.lmdb") as saver:
        modules = modules_of_task(saver, pool)

    assert "loky" in modules
    assert "joblib" not in modules
