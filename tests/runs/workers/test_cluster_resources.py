"""Tasks that say what they take, on a cluster of two machines in this process."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from flowpregel import RetryPolicy, entrypoint, task
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError, ResourcesError, RunNotice
from flowpregel.executors.cluster import (
    ClusterExecutor,
    RemotePool,
    RemotePoolHost,
    limits_of_cluster,
)
from flowpregel.executors.resources import (
    LimitsScope,
    folder_of_limit,
    limits_folder_of,
)
from tests.dask_cluster import until
from tests.other_programs import OtherProgram, wait_for_a_waiting_run
from tests.runs.marks import marked
from tests.slot_books import ResourceBooks, SlotBooks

pytestmark = pytest.mark.slow

GIGABYTE = 10**9


class TwoMachines(SlotBooks, RemotePool):
    """An engine with a small and a large machine, both in this process."""

    def __init__(self, scope: LimitsScope = "pool", timeout: float = 60.0) -> None:
        self.sizes = {"small": 1, "large": 2}
        self.has: dict[str, dict[str, float]] = {
            "small": {"memory": GIGABYTE},
            "large": {"memory": 4 * GIGABYTE, "gpus": 2},
            "huge": {"memory": 64 * GIGABYTE},
        }
        self.made: dict[str, RemotePoolHost] = {}
        self.sent: list[tuple[str, str]] = []
        """The name of each task, with the machine that got it."""
        self.is_adaptive = False
        limits = limits_of_cluster({"api": 1}, scope)
        super().__init__("two machines", timeout, limits=limits)

    def machines(self) -> Mapping[str, int]:
        return dict(self.sizes)

    def machine(self, address: str) -> RemotePoolHost:
        """Return a machine, which begins with its first message."""
        if address not in self.made:
            size = self.sizes[address]
            self.made[address] = RemotePoolHost(size, self.has[address])
        return self.made[address]

    def put_buffer(self, address: str, data: memoryview) -> Any:
        return bytes(data)

    def run_batch(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        _, _, _, orders = pickle.loads(packed)
        self.sent += [(name, address) for _, name, *_ in orders]
        values = list(buffers.values())
        return self.machine(address).run(self.name, packed, list(buffers), *values)

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = getattr(self.machine(address), method)(self.name, *args)
        return answer

    def can_grow(self) -> bool:
        return self.is_adaptive

    def release_machines(self) -> None:
        for machine in self.made.values():
            machine.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[TwoMachines]:
    """The machines."""
    machines = TwoMachines()
    with ClusterExecutor(machines) as executor:
        machines.executor = executor  # type: ignore[attr-defined]
        yield machines


def run(pool: Any, body: Any) -> Any:
    """Run *body* as a workflow on the machines."""
    return entrypoint(executor=pool.executor)(lambda _: body()).invoke("now")


def results(futures: Any) -> list[Any]:
    """Return the results of *futures*."""
    return [each.result() for each in futures]


@task(limit="api")
def ask_api(folder: str) -> float:
    return marked(folder)


@task(memory="2GB")
def use_memory(folder: str) -> float:
    return marked(folder)


@task(memory="3GB")
def use_most_memory(folder: str) -> float:
    return marked(folder)


@task(gpus=1)
def use_gpu(folder: str) -> tuple[str, float]:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    (Path(folder) / gpu).mkdir(exist_ok=True)
    return gpu, marked(f"{folder}/{gpu}")


@task(cpus=2)
def use_two(folder: str) -> tuple[float, str | None]:
    return marked(folder, 2), os.environ.get("OMP_NUM_THREADS")


@task(isolation="fresh")
def use_process() -> int:
    return os.getpid()


@task(gpus=3)
def use_three_gpus() -> None:
    raise NotImplementedError


@task(memory="32GB")
def use_much_memory() -> str:
    return "done"


@task(rate="2/s")
def start_slowly() -> float:
    return time.monotonic()


@task(memory="3GB")
def call_in_memory(folder: str) -> float:
    return use_memory(folder).result()


@task(retry_policy=RetryPolicy(max_attempts=2, on_memory="alone", initial_interval=0))
def run_out_of_memory(folder: str) -> str:
    mark = Path(folder) / "tried"
    if mark.exists():
        return "alone"
    mark.touch()
    raise MemoryError


def places(pool: Any, name: str) -> set[str]:
    """Return the machines that have got the task of this name."""
    return {address for sent, address in pool.sent if sent == name}


def test_a_limit_holds_for_all_machines_together(pool: Any, tmp_path: Path) -> None:
    """There are three slots on two machines."""
    seen = run(pool, lambda: results(ask_api.map([str(tmp_path)] * 6)))

    assert [1.0] * 6 == seen


def test_a_task_runs_where_its_memory_is(pool: Any, tmp_path: Path) -> None:
    """And as many of them as fit there."""
    where = [str(tmp_path)] * 3
    seen = run(pool, lambda: results(use_most_memory.map(where)))

    assert [1.0] * 3 == seen
    assert {"large"} == places(pool, "use_most_memory")


def test_a_gpu_of_a_machine_is_one_tasks_alone(pool: Any, tmp_path: Path) -> None:
    """It sees no other."""
    seen = run(pool, lambda: results(use_gpu.map([str(tmp_path)] * 4)))

    assert all(taken == 1 and gpu in "01" for gpu, taken in seen)
    assert {"large"} == places(pool, "use_gpu")


class BookedMachines(ResourceBooks, TwoMachines):
    """The engine counts GPUs and memory, and chooses the GPUs."""

    def lose(self, address: str) -> None:
        """Lose a machine."""
        machine = self.made[address]
        machine.poll(self.name, [("end", 0, 0)], 0, 0, False, 0).result(60)
        del self.sizes[address]


@task(gpus=1, memory="1GB")
def use_gpu_and_memory(folder: str) -> tuple[str, float]:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    (Path(folder) / gpu).mkdir(exist_ok=True)
    return gpu, marked(f"{folder}/{gpu}")


def test_a_task_runs_on_the_gpu_that_the_engine_has_chosen(tmp_path: Path) -> None:
    """Nothing stays allocated, and the second flow needs no further allocation."""
    machines = BookedMachines()
    machines.has["large"]["memory"] = 2 * GIGABYTE
    with ClusterExecutor(machines) as executor:
        machines.executor = executor  # type: ignore[attr-defined]
        seen = run(
            machines, lambda: results(use_gpu_and_memory.map([str(tmp_path)] * 4))
        )
        most = dict(machines.most_held)

    assert {"0@large", "1@large"} >= {gpu for gpu, _ in seen}
    assert [1.0] * 4 == [taken for _, taken in seen]
    assert ({}, {}, {}) == (machines.wanted, machines.allocated, machines.held)
    assert "small" not in most


def test_tasks_without_gpus_and_memory_need_no_allocation(tmp_path: Path) -> None:
    """Only those of which they have said that they need them."""
    machines = BookedMachines()
    with ClusterExecutor(machines) as executor:
        machines.executor = executor  # type: ignore[attr-defined]
        assert [1.0] * 2 == run(
            machines, lambda: results(ask_api.map([str(tmp_path)] * 2))
        )
        assert 0 == machines.allocations

        run(machines, lambda: results(use_memory.map([str(tmp_path)])))
        assert 1 == machines.allocations


@task(gpus=1)
def process_on_gpu() -> int:
    return os.getpid()


def test_no_process_stays_on_a_gpu_that_is_released() -> None:
    """It would have memory there, which others need. The executor is still open."""
    machines = BookedMachines()
    with ClusterExecutor(machines) as executor:
        machines.executor = executor  # type: ignore[attr-defined]
        (pid,) = run(machines, lambda: results([process_on_gpu()]))
        assert Path(f"/proc/{pid}").exists()

        until(lambda: not Path(f"/proc/{pid}").exists())
        assert {} == machines.allocated


@task(gpus=1)
def begin_again(folder: str) -> str:
    """The first time, wait for the end."""
    mark = Path(folder) / "begun"
    if not mark.exists():
        mark.touch()
        (Path(folder) / "pipe").read_text()
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_task_whose_machine_dies_gets_a_gpu_of_another(tmp_path: Path) -> None:
    """What it had on the first one is released."""
    os.mkfifo(tmp_path / "pipe")
    machines = BookedMachines()
    with ClusterExecutor(machines) as executor:
        flow = entrypoint(executor=executor)(
            lambda folder: begin_again(folder).result()
        )
        handle = flow.start(str(tmp_path))
        with (tmp_path / "pipe").open("w"):
            machines.sizes["huge"] = 2
            machines.has["huge"]["gpus"] = 1
            machines.lose("large")

            assert "0@huge" == handle.result()
    assert {} == machines.allocated


def test_a_task_of_two_cpus_has_two_slots_and_os_threads(
    pool: Any, tmp_path: Path
) -> None:
    """Of one machine."""
    where = [str(tmp_path)] * 2
    seen = run(pool, lambda: results(use_two.map(where)))

    threads = os.environ.get("OMP_NUM_THREADS", "2")
    assert [(2.0, threads)] * 2 == seen
    assert 2 == pool.most_held["large"]
    assert {"large"} == places(pool, "use_two")


def test_an_isolated_task_has_a_process_of_its_own(pool: Any) -> None:
    """On any machine."""
    pids = run(pool, lambda: results([use_process() for _ in range(3)]))

    assert 3 == len({*pids})


def test_a_rate_is_kept(pool: Any) -> None:
    """By all machines together."""
    began = time.monotonic()

    starts = run(pool, lambda: results([start_slowly() for _ in range(3)]))

    assert max(starts) - began >= 1.0


def test_a_task_that_fits_no_machine_fails_at_once(pool: Any) -> None:
    """With the name of the largest one."""
    with pytest.raises(ResourcesError, match=r"the largest, .*large, has 2;") as caught:
        run(pool, lambda: use_three_gpus().result())

    error = caught.value
    assert ("use_three_gpus", "gpus", 3, 2) == (
        error.task,
        error.resource,
        error.requested,
        error.available,
    )
    assert error.machine.endswith("large")


def test_a_call_whose_caller_holds_what_it_needs_fails(
    pool: Any, tmp_path: Path
) -> None:
    """The caller waits for it, and no machine has as much besides."""
    with pytest.raises(ResourcesError, match="hold too much of") as caught:
        run(pool, lambda: call_in_memory(str(tmp_path)).result())

    assert ["call_in_memory"] == [*caught.value.holders]


def test_a_task_that_ran_out_of_memory_is_tried_again(
    pool: Any, tmp_path: Path
) -> None:
    """Alone on a machine."""
    with pytest.warns(RunNotice, match="alone"):
        assert "alone" == run(pool, lambda: run_out_of_memory(str(tmp_path)).result())


def test_a_task_waits_for_a_machine_that_an_adaptive_cluster_starts() -> None:
    """Until then no machine could run it."""
    machines = TwoMachines()
    machines.is_adaptive = True
    request = machines.request_slots

    def grow(slots: Sequence[int], addresses: Sequence[str]) -> None:
        machines.sizes["huge"] = 1
        request(slots, addresses)

    machines.request_slots = grow  # type: ignore[method-assign]
    with ClusterExecutor(machines) as executor:
        flow = entrypoint(executor=executor)(lambda _: use_much_memory().result())

        assert "done" == flow.invoke("now")
    assert [("use_much_memory", "huge")] == machines.sent


def test_programs_of_a_store_share_the_slots_of_a_limit(tmp_path: Path) -> None:
    """As in the pool of one machine: a slot is taken while a task has it."""
    machines = TwoMachines("store")
    with (
        ClusterExecutor(machines) as executor,
        LMDBSaver(tmp_path / "store") as saver,
    ):
        folder = limits_folder_of(saver)
        assert folder
        theirs = OtherProgram(folder_of_limit(folder, "api"))
        flow = entrypoint(executor=executor, checkpointer=saver)(
            lambda where: ask_api(where).result()
        )
        assert 1 == theirs.available(0, 0.0)
        (tmp_path / "marks").mkdir()
        handle = flow.start(str(tmp_path / "marks"), id="1")
        wait_for_a_waiting_run()
        assert [] == machines.sent
        theirs.give_back(0)

        assert 1 == handle.result()
        theirs.take_when_free()
        theirs.close()


def test_tasks_in_this_process_have_the_named_limits_as_well(pool: Any) -> None:
    """Those of the executor."""

    @task(limit="api")
    async def ask() -> str:
        return "answer"

    assert "answer" == run(pool, lambda: ask().result())


def test_a_limit_of_the_machines_cannot_be_set() -> None:
    """Each machine reports what it has."""
    with pytest.raises(ConfigurationError, match="each machine of a cluster"):
        limits_of_cluster({"memory": 1})
