"""Resources of tasks on a Dask cluster: what its worker has, and what a task gets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ResourcesError
from flowpregel.func import entrypoint, task
from tests.busy_flow import keep_busy
from tests.dask_cluster import imported_dask, until

pytestmark = pytest.mark.slow


@contextmanager
def client_of_worker(threads: int, gpus: int) -> Iterator[Any]:
    """Give a client of a cluster with one worker, which declares GPUs and memory."""
    distributed = imported_dask()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=threads,
            memory_limit=10**9,
            resources={"GPU": gpus, "MEMORY": 10**9},
            dashboard_address=None,
        )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster whose only worker has two threads and one GPU."""
    with client_of_worker(threads=2, gpus=1) as client:
        yield client


def executor_on(client: Any, **options: Any) -> Any:
    """Return our executor on the cluster of a client."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    return DaskExecutor(client, **options)


@task(gpus=1, limit="api")
def use_gpu(number: int) -> tuple[int, str]:
    return number, os.environ["CUDA_VISIBLE_DEVICES"]


@task(memory="2GB")
def use_much_memory() -> None:
    raise NotImplementedError


@task(gpus=1)
def call_on_gpu(number: int) -> tuple[str, int, str]:
    called, gpu = use_gpu(number).result()
    return os.environ["CUDA_VISIBLE_DEVICES"], called, gpu


@task(gpus=1, memory="600MB")
def read(pipe: str) -> str:
    """Run until somebody writes into a pipe."""
    return Path(pipe).read_text()


def test_a_task_gets_the_gpus_and_the_memory_that_a_worker_has_in_dasks_books(
    client: Any,
) -> None:
    """A claim of more than the worker's memory limit is refused."""
    with executor_on(client, limits={"api": 1}) as executor:

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


def test_tasks_of_others_wait_for_what_a_task_of_ours_takes(
    client: Any, tmp_path: Path
) -> None:
    """They run when it has ended, although our executor is still open."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with executor_on(client) as executor:
        flow = entrypoint(executor=executor)(lambda pipe: read(pipe).result())
        handle = flow.start(str(pipe))
        with pipe.open("w") as writer:
            on_gpu = client.submit(abs, -1, resources={"GPU": 1})
            in_memory = client.submit(abs, -2, resources={"MEMORY": 6 * 10**8})
            in_less = client.submit(abs, -3, resources={"MEMORY": 4 * 10**8})

            assert 3 == in_less.result(60)
            assert [] == [each for each in (on_gpu, in_memory) if each.done()]
            writer.write("read")

        assert [1, 2] == client.gather([on_gpu, in_memory])
        assert "read" == handle.result()


def test_two_programs_share_the_gpu(client: Any, tmp_path: Path) -> None:
    """The second has its results while the first still has more tasks than GPUs."""
    end = tmp_path / "end"
    with (
        executor_on(client) as first,
        executor_on(client, limits={"api": 1}) as second,
    ):
        handle = keep_busy(first, gpus=1).start(str(end))
        until(lambda: any(client.processing().values()))
        flow = entrypoint(executor=second)(lambda number: use_gpu(number).result())

        assert [0, 1, 2] == [flow.run(number)[0] for number in range(3)]
        assert "running" == handle.status
        end.touch()
        assert handle.result() > 0


def test_a_task_on_a_gpu_may_call_another_one() -> None:
    """Even if the caller has had the only thread, which the call needs to begin."""
    with (
        client_of_worker(threads=1, gpus=2) as client,
        executor_on(client, limits={"api": 1}) as executor,
    ):
        flow = entrypoint(executor=executor)(
            lambda number: call_on_gpu(number).result()
        )

        caller, number, called = flow.run(5)

    assert 5 == number
    assert {"0", "1"} == {caller, called}
