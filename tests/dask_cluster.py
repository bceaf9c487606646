"""A Dask cluster of the tests' own: two processes on this machine, or others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def imported_dask() -> Any:
    """Return the package of Dask's clusters; without it: skip."""
    return pytest.importorskip(
        "distributed",
        reason="the extra dask is not installed: pip install flowpregel[dask]",
    )


@contextmanager
def local_cluster(workers: int = 2, **options: Any) -> Iterator[Any]:
    """Run a cluster while the context is open, and give its client; without Dask:
    skip.

    Args:
        workers: The number of worker processes.
        options: What else `LocalCluster` takes.
    """
    distributed = imported_dask()
    with warnings.catch_warnings():
        # Somebody else's cluster on this machine may have the port of its dashboard.
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=None,
                **options,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


def until(condition: Callable[[], bool]) -> None:
    """Ask a cluster for *condition* until it holds, for at most five minutes."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
