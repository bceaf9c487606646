"""The contract of an executor, for a Dask cluster of two processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.executor_contract import ExecutorContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of two processes."""
    distributed = pytest.importorskip(
        "distributed", reason="the extra dask is not installed: pip install flowpregel[dask]"
    )
    with warnings.catch_warnings():
        # Somebody else's cluster on this machine may have the port of its dashboard.
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def executor(client: Any) -> Iterator[Any]:
    """Our executor on it."""
    from flowpregel.integrations.dask import DaskExecutor

    with DaskExecutor(client) as executor:
        yield executor


@pytest.fixture
def spare(client: Any) -> Any:
    """Return an executor to close."""
    from flowpregel.integrations.dask import DaskExecutor

    return DaskExecutor(client)


class TestDaskExecutor(ExecutorContract):
    """Dask's workers, with a pool of ours in each."""


def test_the_example_runs_unchanged(client: Any) -> None:
    """Here and there it finds the same number."""
    example = Path(__file__).parents[2] / "examples" / "on_a_cluster.py"
    found = set()
    for where in ("processes", client.scheduler.address.replace("tcp://", "dask://")):
        done = subprocess.run(
            [sys.executable, str(example), where], check=False, capture_output=True, text=True,
            timeout=300, env={**os.environ, "PYTHONPATH": str(example.parents[1])},
        )  # fmt: skip
        assert 0 == done.returncode, done.stderr
        found.add(done.stdout.split(",")[0])

    assert 1 == len(found)
