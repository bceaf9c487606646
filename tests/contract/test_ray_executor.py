"""The contract of an executor, for a Ray cluster of one machine: this one."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowpregel import Stored, stored
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.cluster import ClusterExecutor
from flowpregel.func import entrypoint, task
from tests.busy_flow import keep_busy
from tests.contract.executor_contract import ExecutorContract
from tests.dask_cluster import until
from tests.runs.workers.test_missing_modules import module_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with two CPUs, and two GPUs that it takes on trust."""
    ray = pytest.importorskip(
        "ray", reason="the extra ray is not installed: pip install flowpregel[ray]"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=2,
            include_dashboard=False,
            log_to_driver=False,
        )
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


def test_two_programs_share_the_cpus(cluster: Any, tmp_path: Path) -> None:
    """The second has its results while the first still has more tasks than CPUs."""
    from flowpregel.plugins.cluster.ray import RayExecutor

    end = tmp_path / "end"
    with RayExecutor() as first, RayExecutor() as second:
        handle = keep_busy(first).start(str(end))
        until(lambda: not cluster.available_resources().get("CPU"))
        results = [second.submit(abs, -number) for number in range(4)]

        assert [*range(4)] == [future.result(500) for future in results]
        assert "running" == handle.status
        end.touch()
        assert handle.result() > 0
    until(lambda: cluster.available_resources().get("CPU") == 2)


def test_the_process_of_a_slot_does_not_import_flowpregel(cluster: Any) -> None:
    """The slot occupies a CPU of Ray's while its process starts."""
    from flowpregel.plugins.cluster.ray_slots import RaySlots, occupy_resources

    def modules_after_slot(occupy: Any, keeper: Any) -> list[str]:
        occupy(keeper, 1)
        return [name for name in sys.modules if name.startswith("flowpregel")]

    keeper = cluster.remote(RaySlots).options(num_cpus=0, max_concurrency=10).remote()
    keeper.release.remote(1)
    # No process of another test has this environment.
    environment = {"env_vars": {"FLOWPREGEL_TEST": "modules of a slot"}}
    function = cluster.remote(modules_after_slot).options(runtime_env=environment)

    assert [] == cluster.get(function.remote(occupy_resources, keeper), timeout=500)


@task(gpus=1)
def meet_on_gpus(pipe: str, mode: str) -> str:
    """Wait until another task has opened the other end of a pipe."""
    with open(pipe, mode):
        return os.environ["CUDA_VISIBLE_DEVICES"]


def gpus_in_use(cluster: Any) -> float:
    """Return the number of GPUs that are not free in Ray's books."""
    free: float = cluster.available_resources().get("GPU", 0.0)
    return cluster.cluster_resources()["GPU"] - free


def test_tasks_that_run_at_once_see_different_gpus(
    cluster: Any, executor: Any, tmp_path: Path
) -> None:
    """Those that Ray has given them, until they are idle."""
    os.mkfifo(tmp_path / "pipe")

    @entrypoint(executor=executor)
    def flow(modes: str) -> list[str]:
        pipes = [str(tmp_path / "pipe")] * 2
        return [future.result() for future in meet_on_gpus.map(pipes, modes)]

    assert ["0", "1"] == sorted(flow.run("rw"))
    until(lambda: not gpus_in_use(cluster))
    assert ["0", "1"] == sorted(flow.run("wr"))


def read(pipe: str) -> str:
    """Run until somebody writes into a pipe."""
    return Path(pipe).read_text()


def write(pipe: str) -> int:
    """End what runs until then."""
    return Path(pipe).write_text("go")


def test_a_program_without_tasks_that_need_gpus_takes_none(
    cluster: Any, executor: Any, tmp_path: Path
) -> None:
    """A task of others that needs all of them runs beside ours."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    future = executor.submit(read, str(pipe))
    theirs = cluster.remote(num_cpus=0, num_gpus=2)(write)

    assert 2 == cluster.get(theirs.remote(str(pipe)), timeout=500)
    assert "go" == future.result()


def test_two_programs_share_the_gpus(cluster: Any, tmp_path: Path) -> None:
    """The second has its results while the first still has more tasks than GPUs."""
    from flowpregel.plugins.cluster.ray import RayExecutor

    end = tmp_path / "end"
    with RayExecutor() as first, RayExecutor() as second:
        handle = keep_busy(first, gpus=1).start(str(end))
        until(lambda: gpus_in_use(cluster) == 2)
        with_gpu = task(gpus=1)(abs)
        flow = entrypoint(executor=second)(
            lambda numbers: [each.result() for each in with_gpu.map(numbers)]
        )

        assert [1, 2, 3] == flow.run([-1, -2, -3])
        assert "running" == handle.status
        end.touch()
        assert handle.result() > 0
    until(lambda: not gpus_in_use(cluster))


def test_a_module_that_is_shipped_is_sent_by_value(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the beginning: no machine reports that it lacks the module."""
    from flowpregel.plugins.cluster.ray import RayExecutor

    text = "FACTOR = 10\ndef scaled(number):\n    return FACTOR * number\n"
    module: Any = module_of("only_here_for_ray", text, tmp_path)
    try:
        with RayExecutor(ship=[module]) as executor:
            result = executor.submit(module.scaled, 5).result(500)
    finally:
        del sys.modules["only_here_for_ray"]

    assert 50 == result
    assert [] == [text for text in caplog.messages if "only_here_for_ray" in text]


class NeedsModule:
    """An actor that cannot begin where a module is missing."""

    def __init__(self) -> None:
        __import__("no_such_module")


def test_an_import_that_fails_on_a_machine_is_named_without_rays_report(
    cluster: Any,
) -> None:
    """As it is on Dask; the report is a text of twenty lines."""
    from flowpregel.plugins.cluster.ray import import_error_in

    actor = cluster.remote(NeedsModule).remote()
    with pytest.raises(cluster.exceptions.RayError) as caught:
        cluster.get(actor.__ray_ready__.remote())

    error = import_error_in(caught.value)

    assert isinstance(error, ModuleNotFoundError)
    assert ("No module named 'no_such_module'", "no_such_module") == (
        str(error),
        error.name,
    )
    other = ValueError("No module named 'x'")
    assert other is import_error_in(other)


def test_a_call_to_a_machine_that_ray_does_not_list_names_the_machine(
    cluster: Any,
) -> None:
    """The pool may still have tasks for it, until it compares its list with Ray's."""
    from flowpregel.plugins.cluster.ray import RayPool

    pool = RayPool(60.0, None, "pool")
    error = pytest.raises(ExecutorUnavailableError, match="machine 'gone'")

    with ClusterExecutor(pool), error:
        pool.call("gone", "beat")


@task
def stored_array(number: int, folder: str) -> Stored[np.ndarray]:
    return stored(np.full(50_000, float(number)), folder=folder)


@task
def sum_and_pid(array: np.ndarray) -> tuple[float, int]:
    return float(array.sum()), os.getpid()


def test_tasks_get_stored_results_without_the_program(
    executor: Any, tmp_path: Path
) -> None:
    """The program has only handles of them, until its body asks for a value."""

    @entrypoint(executor=executor)
    def flow(folder: str) -> Any:
        handles: list[Any] = [stored_array(number, folder) for number in range(4)]
        results = [call.result() for call in sum_and_pid.map(handles)]
        return [handle.result() for handle in handles], results

    handles, results = flow.run(str(tmp_path))

    assert [0.0, 50_000.0, 100_000.0, 150_000.0] == [total for total, _ in results]
    assert os.getpid() not in {pid for _, pid in results}
    assert all(isinstance(handle, Stored) for handle in handles)
    assert 3.0 == handles[3].value[7]
