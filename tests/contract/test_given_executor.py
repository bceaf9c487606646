"""The contract of an executor, for the cluster that ``FLOWPREGEL_TEST_CLUSTER``
names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.executors.by_name import executor_named
from tests.contract.executor_contract import ExecutorContract

ADDRESS = os.environ.get("FLOWPREGEL_TEST_CLUSTER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ADDRESS, reason="FLOWPREGEL_TEST_CLUSTER names no cluster"),
]


@pytest.fixture(scope="module")
def executor() -> Iterator[Any]:
    """The program's executor there."""
    executor = executor_named(ADDRESS)
    yield executor
    executor.close()


@pytest.fixture
def spare() -> Any:
    """Return a second executor, to close."""
    kind, _, place = ADDRESS.partition("://")
    if kind == "dask":
        from flowpregel.plugins.cluster.dask import DaskExecutor

        return DaskExecutor.connect(place)
    from flowpregel.plugins.cluster.ray import RayExecutor

    return RayExecutor.connect(place)


class TestGivenExecutor(ExecutorContract):
    """Machines that are there already."""
