"""Tasks on a Dask cluster: a real one, of two processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.func import entrypoint, task
from tests.dask_cluster import local_cluster
from tests.runs.workers.test_carried_context import tenant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Dask's executor on a cluster of two worker processes."""
    with local_cluster() as client:
        yield client.get_executor()


@task
def where(number: int) -> tuple[int, int]:
    return os.getpid(), number


@task
def fail(number: int) -> None:
    raise LookupError(number)


@task
def nested(number: int) -> Any:
    return where(number).result()


@task
def whose(_: int) -> str:
    return tenant.get()


@task(timeout=5)
def bounded(number: int) -> int:
    return number


def flow_of(cluster: Any, work: Any) -> Any:
    """Return a flow that maps *work* over numbers."""

    @entrypoint(executor=cluster, checkpointer=InMemorySaver())
    def flow(count: int) -> list[Any]:
        return [future.result() for future in work.map(range(count))]

    return flow


def test_tasks_run_on_the_cluster_and_are_recorded_here(
    drive: Any, cluster: Any
) -> None:
    """In its processes; what they return is kept like any result."""
    flow = flow_of(cluster, where)

    found = drive.invoke(flow, 8, thread_id="1")

    assert list(range(8)) == [number for _, number in found]
    assert os.getpid() not in {pid for pid, _ in found}
    assert found == flow.get_state({"configurable": {"thread_id": "1"}}).values


def test_an_error_of_the_cluster_comes_back_as_itself(drive: Any, cluster: Any) -> None:
    """With a note that says where it was raised."""
    with pytest.raises(LookupError) as caught:
        drive.invoke(flow_of(cluster, fail), 1, thread_id="1")

    assert "(attempt 1, worker " in str(caught.value.__notes__)


def test_declared_variables_travel_to_the_cluster(drive: Any, cluster: Any) -> None:
    """As to our own workers."""
    token = tenant.set("ada")
    try:
        assert ["ada"] == drive.invoke(flow_of(cluster, whose), 1, thread_id="1")
    finally:
        tenant.reset(token)


def test_what_a_cluster_cannot_do_is_refused(drive: Any, cluster: Any) -> None:
    """A timeout before anything is sent, a call where it is made."""
    with pytest.raises(ConfigurationError, match="timeout"):
        drive.invoke(flow_of(cluster, bounded), 1, thread_id="1")
    with pytest.raises(ExecutorUnavailableError, match="executor='processes'"):
        drive.invoke(flow_of(cluster, nested), 1, thread_id="2")
