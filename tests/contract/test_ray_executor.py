"""The contract of an executor, for a Ray cluster of one machine: this one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.executor_contract import ExecutorContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with two CPUs."""
    ray = pytest.importorskip(
        "ray", reason="the extra ray is not installed: pip install flowpregel[ray]"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[Any]:
    """Our executor on it."""
    from flowpregel.plugins.cluster.ray import RayExecutor

    with RayExecutor() as executor:
        yield executor


@pytest.fixture
def spare(cluster: Any) -> Any:
    """Return an executor to close."""
    from flowpregel.plugins.cluster.ray import RayExecutor

    return RayExecutor()


class TestRayExecutor(ExecutorContract):
    """An actor of ours on each machine of Ray's."""
