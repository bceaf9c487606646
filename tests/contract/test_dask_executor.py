"""The contract of an executor, for a Dask cluster of two processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.executor_contract import ExecutorContract
from tests.dask_cluster import local_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of two processes."""
    with local_cluster() as client:
        yield client


@pytest.fixture(scope="module")
def executor(client: Any) -> Iterator[Any]:
    """Our executor on it."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    with DaskExecutor(client) as executor:
        yield executor


@pytest.fixture
def spare(client: Any) -> Any:
    """Return an executor to close."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    return DaskExecutor(client)


class TestDaskExecutor(ExecutorContract):
    """Dask's workers, with a pool of ours in each."""


@pytest.mark.usefixtures("executor")
def test_a_fork_of_the_program_begins_without_an_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the places of shared limits to its parent; here there are none."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

    assert "Error" not in capfd.readouterr().err


def test_the_example_runs_unchanged(client: Any) -> None:
    """Here and there it finds the same number."""
    example = Path(__file__).parents[2] / "examples" / "on_a_cluster.py"
    found = set()
    for where in ("processes", client.scheduler.address.replace("tcp://", "dask://")):
        done = subprocess.run(
            [sys.executable, str(example), where],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(example.parents[1])},
        )
        assert 0 == done.returncode, done.stderr
        found.add(done.stdout.split(",")[0])

    assert 1 == len(found)
