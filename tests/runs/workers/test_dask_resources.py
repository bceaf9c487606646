"""Resources of tasks on a Dask cluster: what its worker has, and what a task gets."""

from __future__ import annotations

import os
import warnings

import pytest

from flowpregel.errors import ResourcesError
from flowpregel.func import entrypoint, task
from tests.dask_cluster import imported_dask

pytestmark = pytest.mark.slow


@task(gpus=1, limit="api")
def use_gpu(number: int) -> tuple[int, str]:
    return number, os.environ["CUDA_VISIBLE_DEVICES"]


@task(memory="2GB")
def use_much_memory() -> None:
    raise NotImplementedError


def test_a_task_gets_the_gpus_and_the_memory_that_a_worker_has_in_dasks_books() -> None:
    """A claim of more than the worker's memory limit is refused."""
    distributed = imported_dask()
    from flowpregel.plugins.cluster.dask import DaskExecutor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit=10**9,
            resources={"GPU": 1},
            dashboard_address=None,
        )
    with (
        cluster,
        distributed.Client(cluster) as client,
        DaskExecutor(client, limits={"api": 1}) as executor,
    ):

        @entrypoint(executor=executor)
        def flow(count: int) -> list[tuple[int, str]]:
            return [future.result() for future in use_gpu.map(range(count))]

        seen = flow.run(2)
        with pytest.raises(ResourcesError) as caught:
            entrypoint(executor=executor)(lambda _: use_much_memory().result()).run(0)

    assert [0, 1] == [number for number, _ in seen]
    assert 1 == len({gpu for _, gpu in seen} - {""})
    error = caught.value
    assert ("memory", 2 * 10**9, 10**9) == (
        error.resource,
        error.requested,
        error.available,
    )
    assert error.machine
