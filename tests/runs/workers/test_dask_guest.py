"""Our executor on a Dask cluster that others use, too: what it leaves there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel.cli.app import app
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.func import entrypoint, task
from tests.busy_flow import keep_busy
from tests.dask_cluster import imported_dask, local_cluster, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of two processes."""
    with local_cluster() as client:
        yield client


def executor_on(client: Any) -> Any:
    """Return our executor on the cluster of a client."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    return DaskExecutor(client)


def wait_for(name: str) -> None:
    """Wait in a task of somebody else's until an event of the cluster is set."""
    from distributed import Event

    Event(name).wait()


def run_noted(folder: str, name: str) -> int:
    """Return how many tasks run at the same time, of ours and of others."""
    file = Path(folder) / name
    file.touch()
    time.sleep(0.02)  # the work of the task
    running = len(os.listdir(folder))
    file.unlink()
    return running


def read_pipe(pipe: str) -> str:
    """Run until somebody writes into a pipe."""
    return Path(pipe).read_text()


@task
def double(number: int) -> int:
    return 2 * number


@task
def meet(pipe: str, mode: str) -> str:
    """Wait until another task has opened the other end of a pipe."""
    with open(pipe, mode):
        return mode


def run_flow(location: str, count: int) -> int:
    """Run a flow on the cluster of which this is a task."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    with DaskExecutor.connect(location) as executor:

        @entrypoint(executor=executor)
        def flow(count: int) -> int:
            return sum(future.result() for future in double.map(range(count)))

        return flow.run(count)


def names_in_scheduler(dask_scheduler: Any) -> tuple[list[str], ...]:
    """Return the names that the scheduler has for plug-ins, tasks and topics."""
    names = (
        dask_scheduler.worker_plugins,
        dask_scheduler.plugins,
        dask_scheduler.tasks,
        dask_scheduler.handlers,
    )
    return tuple(sorted(each) for each in names)


def names_in_worker(dask_worker: Any) -> tuple[list[str], ...]:
    """Return the names that a worker has for plug-ins, handlers and tasks."""
    names = dask_worker.plugins, dask_worker.handlers, dask_worker.state.tasks
    return tuple(sorted(each) for each in names)


def names_in_cluster(client: Any) -> Any:
    """Return the names that the scheduler and all workers have."""
    in_scheduler = client.run_on_scheduler(names_in_scheduler)
    return in_scheduler, client.run(names_in_worker)


def wait_for_workers(client: Any) -> None:
    """Wait until each worker has run a task, and nothing of these tasks is left.

    A worker that has just joined installs Dask's own plug-ins before its first task.
    """
    for address in client.nthreads():
        client.submit(os.getpid, workers=[address], pure=False).result()
    until(lambda: client.run_on_scheduler(names_in_scheduler)[2] == [])
    until(lambda: all(not names[2] for names in client.run(names_in_worker).values()))


def test_an_executor_leaves_nothing_in_the_cluster(client: Any) -> None:
    """No plug-in, handler, task or large value, whether or not its tasks had ended."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    wait_for_workers(client)
    before = names_in_cluster(client)
    executor = DaskExecutor(client)
    sizes = [executor.submit(len, bytes(1 << 20)) for _ in range(8)]
    assert [1 << 20] * 8 == [size.result() for size in sizes]
    executor.submit(sum, range(10**12))
    assert before != names_in_cluster(client)
    executor.close()

    until(lambda: before == names_in_cluster(client))


def test_an_executor_can_be_closed_after_its_client(client: Any) -> None:
    """So can one whose client has lost the scheduler and closed itself."""
    from distributed import Client

    with Client(client.scheduler.address, set_as_default=False) as own_client:
        executor = executor_on(own_client)
        assert 8 == executor.submit(pow, 2, 3).result()

    executor.close()

    assert executor.is_closed


def test_nothing_is_registered_for_workers_that_join_later(client: Any) -> None:
    """A worker that lacks flowpregel could not unpickle it, and would end."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    with DaskExecutor(client) as executor:
        assert 1 == executor.submit(abs, -1).result()
        plugins, *_ = client.run_on_scheduler(names_in_scheduler)

    assert [] == [name for name in plugins if "flowpregel" in name]


def test_a_task_does_not_wait_for_a_worker_that_others_use(client: Any) -> None:
    """While another worker is idle."""
    from distributed import Event

    from flowpregel.plugins.cluster.dask import DaskExecutor

    busy, _ = client.nthreads()
    theirs = client.submit(wait_for, "theirs", workers=[busy])
    until(lambda: client.processing()[busy] != ())
    with DaskExecutor(client) as executor:
        ours = [executor.submit(abs, -number) for number in range(4)]

        assert [*range(4)] == [future.result(120) for future in ours]
    assert not theirs.done()
    Event("theirs", client=client).set()
    theirs.result(60)


def test_others_tasks_are_not_oversubscribed(client: Any, tmp_path: Path) -> None:
    """Theirs and ours are never more than the threads."""
    with executor_on(client) as executor:
        theirs = client.map(
            run_noted, [str(tmp_path)] * 20, [f"theirs-{n}" for n in range(20)]
        )
        ours = [
            executor.submit(run_noted, str(tmp_path), f"ours-{n}") for n in range(20)
        ]
        counts = client.gather(theirs) + [future.result(120) for future in ours]

    assert 40 == len(counts)
    assert max(counts) <= sum(client.nthreads().values())


def test_a_program_does_not_wait_for_the_end_of_another(
    client: Any, tmp_path: Path
) -> None:
    """The first has more tasks than there are threads, until the second has ended."""
    end = tmp_path / "end"
    with executor_on(client) as first, executor_on(client) as second:
        handle = keep_busy(first).start(str(end))
        until(lambda: all(client.processing().values()))
        results = [second.submit(abs, -number) for number in range(4)]

        assert [*range(4)] == [future.result(100) for future in results]
        assert "running" == handle.status
        end.touch()
        assert handle.result() > 0


def test_an_idle_program_has_no_slot(client: Any) -> None:
    """Its executor is still open."""
    with executor_on(client) as executor:
        assert 1 == executor.submit(abs, -1).result(60)
        assert any(client.processing().values())

        until(lambda: not any(client.processing().values()))
        assert 2 == executor.submit(abs, -2).result(60)


def lose_worker_of_next_data(dask_scheduler: Any) -> None:
    """Let the next worker that gets data end before the scheduler has noted the data.

    The scheduler of the tests is in this process.
    """
    from distributed import scheduler

    send = scheduler.scatter_to_workers

    async def send_and_lose_worker(workers: Any, data: Any, rpc: Any) -> Any:
        scheduler.scatter_to_workers = send
        sent = await send(workers, data, rpc)
        await dask_scheduler.remove_worker(workers[0], stimulus_id="end-of-worker")
        return sent

    scheduler.scatter_to_workers = send_and_lose_worker


def test_a_worker_that_ends_while_it_gets_data_leaves_nothing_in_the_cluster() -> None:
    """The scheduler has no task for the data when the executor is closed."""
    distributed = imported_dask()

    with (
        local_cluster() as client,
        distributed.Client(
            client.cluster, direct_to_workers=False
        ) as client_of_program,
    ):
        with executor_on(client_of_program) as executor:
            client.run_on_scheduler(lose_worker_of_next_data)

            assert 1 << 20 == executor.submit(len, bytes(1 << 20)).result(60)

        until(lambda: client.run_on_scheduler(names_in_scheduler)[2] == [])


DATA_IS_SENT = threading.Event()
DATA_MAY_ARRIVE = threading.Event()


def delay_next_data(dask_scheduler: Any) -> None:
    """Let the next data arrive at its worker only when `DATA_MAY_ARRIVE` is set.

    The scheduler of the tests is in this process.
    """
    from distributed import scheduler

    DATA_IS_SENT.clear()
    DATA_MAY_ARRIVE.clear()
    send = scheduler.scatter_to_workers

    async def send_later(workers: Any, data: Any, rpc: Any) -> Any:
        scheduler.scatter_to_workers = send
        DATA_IS_SENT.set()
        await asyncio.to_thread(DATA_MAY_ARRIVE.wait)
        return await send(workers, data, rpc)

    scheduler.scatter_to_workers = send_later


def has_noted_data(dask_scheduler: Any) -> bool:
    """Return True if the scheduler has sent data to a worker, and noted it."""
    events = dask_scheduler.get_events("all")
    return any(event.get("action") == "scatter" for _, event in events)


def test_an_executor_that_is_closed_while_it_sends_data_leaves_nothing() -> None:
    """The program keeps its client open."""
    distributed = imported_dask()

    with (
        local_cluster() as client,
        distributed.Client(
            client.cluster, direct_to_workers=False
        ) as client_of_program,
    ):
        client.run_on_scheduler(delay_next_data)
        executor = executor_on(client_of_program)
        executor.submit(len, bytes(1 << 20))
        assert DATA_IS_SENT.wait(60)
        executor.close()
        DATA_MAY_ARRIVE.set()

        until(lambda: client.run_on_scheduler(has_noted_data))
        until(lambda: client.run_on_scheduler(names_in_scheduler)[2] == [])


def refuse_data(dask_scheduler: Any) -> None:
    """Let the scheduler take no data, and none that has reached a worker already."""

    def refuse_scatter(**message: Any) -> None:
        raise ValueError("no scatter")

    def refuse_update(**message: Any) -> None:
        raise KeyError("no update")

    dask_scheduler.handlers["scatter"] = refuse_scatter
    dask_scheduler.handlers["update_data"] = refuse_update


def test_the_error_of_a_transfer_is_that_of_its_first_failure() -> None:
    """The clean-up may fail as well, for the same cause."""
    distributed = imported_dask()

    with (
        local_cluster() as client,
        distributed.Client(
            client.cluster, direct_to_workers=False
        ) as client_of_program,
        executor_on(client_of_program) as executor,
    ):
        client.run_on_scheduler(refuse_data)
        address, _ = client.nthreads()
        pool = executor._dask_pool  # noqa: SLF001 - it has the method to test
        transfer = pool.put_buffer(address, memoryview(bytes(1 << 20)))

        assert "no scatter" == str(transfer.exception(60))


def test_the_task_of_a_retired_worker_begins_again_elsewhere(
    tmp_path: Path,
) -> None:
    """Nothing is lost."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with local_cluster() as client, executor_on(client) as executor:
        future = executor.submit(read_pipe, str(pipe))
        until(lambda: any(client.processing().values()))
        (busy,) = [key for key, tasks in client.processing().items() if tasks]
        client.retire_workers([busy])
        until(lambda: any(client.processing().values()))
        pipe.write_text("read")

        assert "read" == future.result(60)


def test_a_flow_in_a_dask_task_may_use_the_cluster_that_runs_it(client: Any) -> None:
    """Even if such flows have all threads of all workers."""
    location = client.scheduler.address.removeprefix("tcp://")
    flows = client.map(run_flow, [location] * 3, range(2, 5))

    assert [2, 6, 12] == client.gather(flows)


def test_an_adaptive_cluster_without_workers_starts_as_many_as_tasks_need(
    tmp_path: Path,
) -> None:
    """The tasks need two threads at once, and there is no worker at first."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with local_cluster(workers=0) as client, executor_on(client) as executor:
        client.cluster.adapt(minimum=0, maximum=2, interval="200ms")

        @entrypoint(executor=executor)
        def flow(modes: str) -> list[str]:
            return [future.result() for future in meet.map([str(pipe)] * 2, modes)]

        assert ["r", "w"] == flow.run("rw")
        until(lambda: client.run_on_scheduler(names_in_scheduler)[2] == [])


@pytest.fixture(scope="module")
def secure_client() -> Iterator[Any]:
    """A client of a cluster that takes nothing but TLS."""
    pytest.importorskip("cryptography", reason="it makes the certificates")
    distributed = imported_dask()
    security = distributed.security.Security.temporary()
    with local_cluster(workers=1, security=security) as client:
        yield client


def test_an_executor_connects_by_tls_with_certificates_of_dasks_configuration(
    secure_client: Any, tmp_path: Path
) -> None:
    """That is what `dask scheduler` and `dask worker` read, too."""
    import dask

    from flowpregel.executors.by_name import executor_named

    security = secure_client.security
    (tmp_path / "certificate.pem").write_text(security.tls_client_cert)
    (tmp_path / "key.pem").write_text(security.tls_client_key)
    tls = {
        "distributed.comm.tls.ca-file": str(tmp_path / "certificate.pem"),
        "distributed.comm.tls.client.cert": str(tmp_path / "certificate.pem"),
        "distributed.comm.tls.client.key": str(tmp_path / "key.pem"),
    }
    url = f"dask+{secure_client.scheduler.address}"
    assert url.startswith("dask+tls://")
    with (
        dask.config.set(tls),
        executor_named(url) as executor,
    ):
        assert 1 == executor.submit(abs, -1).result(60)


def test_an_executor_connects_by_tls_with_certificates_that_are_passed(
    secure_client: Any,
) -> None:
    """A factory passes them, so that the flow's module connects nowhere."""
    from flowpregel.plugins.cluster.dask import DaskExecutor

    address = secure_client.scheduler.address
    made: list[Any] = []

    def connect() -> Any:
        executor = DaskExecutor.connect(address, security=secure_client.security)
        made.append(executor)
        return executor

    @entrypoint(executor=connect)
    def flow(count: int) -> int:
        return sum(future.result() for future in double.map(range(count)))

    assert [] == made
    assert 6 == flow.run(3)
    made[0].close()


def test_an_executor_connects_by_a_scheduler_file(client: Any, tmp_path: Path) -> None:
    """Which `dask scheduler --scheduler-file` writes on a shared disk."""
    import json

    from flowpregel.executors.by_name import executor_named

    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(client.scheduler_info()))

    with executor_named(f"dask+file://{file}") as executor:
        assert 1 == executor.submit(abs, -1).result(60)


def test_a_scheduler_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """Dask itself would wait for it."""
    imported_dask()
    from flowpregel.executors.by_name import executor_named

    with pytest.raises(ExecutorUnavailableError, match=r"no scheduler file .*/s\.json"):
        executor_named(f"dask+file://{tmp_path}/s.json")


def test_an_address_in_place_of_a_client_is_refused() -> None:
    """The error names the function that takes an address."""
    imported_dask()

    with pytest.raises(ConfigurationError, match=r"'tcp://scheduler:8786'.*connect\("):
        executor_on("tcp://scheduler:8786")


PROGRAM = """
import json
import os
import subprocess
import sys
from pathlib import Path
from flowpregel import entrypoint, task

@task
def double(number):
    with open("calls", "a") as file:
        file.write("called\\n")
    return 2 * number

@entrypoint(checkpointer="runs.lmdb", executor=os.environ["CLUSTER"], durability="sync")
def flow(number):
    first = double(number).result()
    if not Path("killed").exists():
        Path("killed").touch()
        os._exit(9)
    return first + double(first).result()

if __name__ == "__main__":
    flow.run(1, id="a")
"""


def environment_with(client: Any) -> dict[str, str]:
    """Return an environment in which CLUSTER names the cluster as an executor."""
    return {
        **os.environ,
        "CLUSTER": f"dask+{client.scheduler.address}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }


def test_a_run_of_a_script_is_resumed_although_workers_lack_its_module(
    client: Any, tmp_path: Path
) -> None:
    """The script sends its tasks by value; the command imports the script's module. The
    killed script leaves nothing in the cluster.
    """
    before = names_in_cluster(client)
    (tmp_path / "only_a_script.py").write_text(
        PROGRAM.replace('"calls"', f'"{tmp_path / "calls"}"')
    )
    environment = environment_with(client)
    script = [sys.executable, "only_a_script.py"]
    resume = [
        sys.executable,
        "-m",
        "flowpregel.cli",
        "resume",
        "a",
        "--store",
        "runs.lmdb",
    ]

    killed = subprocess.run(script, cwd=tmp_path, env=environment, check=False)
    assert 9 == killed.returncode
    subprocess.run(resume, cwd=tmp_path, env=environment, check=True)

    assert 2 == (tmp_path / "calls").read_text().count("called")
    until(lambda: before == names_in_cluster(client))


SHORT_PROGRAM = """
import os
from flowpregel import entrypoint, task

@task
def double(number):
    return 2 * number

@entrypoint(executor=os.environ["CLUSTER"])
def flow(count):
    return sum(future.result() for future in double.map(range(count)))

print(flow.invoke(4))
"""


def test_a_program_that_names_the_cluster_prints_no_errors_at_its_end(
    client: Any,
) -> None:
    """It cannot close the executor, which still holds slots when the program exits."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_PROGRAM],
        env=environment_with(client),
        capture_output=True,
        text=True,
        check=True,
    )

    assert ("12\n", "") == (done.stdout, done.stderr)


def test_doctor_leaves_nothing_in_the_cluster(client: Any) -> None:
    """It checks each worker, and sends values there and back."""
    before = names_in_cluster(client)
    url = client.scheduler.address.replace("tcp://", "dask://")
    flow = "tests.runs.cli_flows:steps"
    command = ["doctor", url, "--flow", flow, "--timeout", "300"]

    result = CliRunner().invoke(app, [*command, "--json"])

    lines = {line["check"]: line for line in json.loads(result.stdout)}
    for address in client.nthreads():
        assert lines[f"machine {address}"]["ok"]
        assert lines[f"machine {address}: module tests"]["ok"]
    assert lines["first task"]["ok"]
    assert lines["10 MB"]["ok"]
    until(lambda: before == names_in_cluster(client))


def pretend_version(version: str) -> str:
    """Have this worker report another version of flowpregel; return the present one."""
    import flowpregel

    present = flowpregel.__version__
    flowpregel.__version__ = version
    return present


def test_a_worker_with_another_flowpregel_gets_no_tasks(client: Any) -> None:
    """The other one gets them; without it, they fail with both versions."""
    first, second = client.nthreads()
    present = client.run(pretend_version, "0.0.1", workers=[first])[first]

    with executor_on(client) as executor:
        pids = {executor.submit(os.getppid).result() for _ in range(4)}
    client.run(pretend_version, "0.0.1", workers=[second])
    with executor_on(client) as executor:
        failed = executor.submit(abs, -1)
        error = failed.exception()
    client.run(pretend_version, present)

    assert {client.run(os.getpid)[second]} == pids
    assert isinstance(error, ExecutorUnavailableError)
    assert first in str(error)
    assert f"flowpregel 0.0.1, and this program Python 3.{sys.version_info[1]}" in str(
        error
    )
