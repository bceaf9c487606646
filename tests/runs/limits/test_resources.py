"""Tasks that say what they take: real workers, which see for themselves what they
have.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel._core.records import Arguments, Withdrawn
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors import ProcessExecutor
from flowpregel.policies import Resources
from tests.runs.marks import marked
from tests.runs.pooling import Run, job_of, node_of, value_of

LIMITS = {"cpus": 3, "memory": "4GB", "gpus": 2, "api": 2, "one": 1}


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """Three workers, and what tasks may take of it."""
    with ProcessExecutor(3, limits=LIMITS) as made:
        yield made


@task(limit="api")
def ask_api(folder: str) -> float:
    return marked(folder)


@task(cpus=2)
def use_two(folder: str) -> tuple[float, str]:
    return marked(folder, 2), os.environ["OMP_NUM_THREADS"]


@task(cpus=1)
def use_one(folder: str) -> float:
    return marked(folder, 1)


@task(gpus=1)
def use_gpu(folder: str) -> tuple[str, float]:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    (Path(folder) / gpu).mkdir(exist_ok=True)
    return gpu, marked(f"{folder}/{gpu}")


@task
def see_gpus() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@task(memory="3GB")
def use_memory(folder: str) -> float:
    return marked(folder, 3)


def run(pool: ProcessExecutor, body: Any) -> Any:
    """Run *body* as a workflow."""
    return entrypoint(executor=pool)(lambda _: body()).invoke("now")


def results(futures: Any) -> list[Any]:
    """Return the results of *futures*."""
    return [each.result() for each in futures]


def test_a_limit_is_never_exceeded(pool: ProcessExecutor, tmp_path: Path) -> None:
    """Though there are more workers than places."""
    seen = run(pool, lambda: results(ask_api.map([str(tmp_path)] * 12)))

    assert 12 == len(seen)
    assert max(seen) <= 2


def test_cpus_are_never_exceeded(
    pool: ProcessExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And numeric libraries start as many OS threads as a task has CPUs."""
    place = [str(tmp_path)]

    def body() -> tuple[list[Any], list[Any]]:
        two, one = use_two.map(place * 5), use_one.map(place * 5)
        return results(two), results(one)

    two, one = run(pool, body)

    assert max([*one, *(taken for taken, _ in two)]) <= 3
    assert os.environ.get("OMP_NUM_THREADS", "2") == two[0][1]


def test_memory_is_never_exceeded(pool: ProcessExecutor, tmp_path: Path) -> None:
    """It is what tasks say that they take."""
    assert 3 == max(run(pool, lambda: results(use_memory.map([str(tmp_path)] * 4))))


def test_a_gpu_is_one_tasks_alone(pool: ProcessExecutor, tmp_path: Path) -> None:
    """Other tasks see what the program sees."""

    def body() -> tuple[list[Any], Any]:
        return results(use_gpu.map([str(tmp_path)] * 6)), see_gpus().result()

    seen, others = run(pool, body)

    assert all(taken == 1 and gpu in "01" for gpu, taken in seen)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == others


@task(rate="2/s")
def start_slowly() -> float:
    return time.monotonic()


def test_a_rate_is_kept(pool: ProcessExecutor) -> None:
    """Calls wait for their time; the others do not wait for them."""
    began = time.monotonic()

    starts = run(pool, lambda: results([start_slowly() for _ in range(5)]))

    assert max(starts) - began >= 2.0


@task(cpus=1)
def take_memory(megabytes: int) -> int:
    return len(b"x" * (megabytes << 20))


def test_memory_that_nobody_states_is_what_earlier_calls_took(tmp_path: Path) -> None:
    """Later ones wait until there is as much."""
    with ProcessExecutor(2, limits={"memory": "100GB"}) as pool:
        run(pool, lambda: take_memory(200).result())
        (needs,) = pool._pool.resources._needs.values()  # noqa: SLF001 - nobody else asks for it

    assert needs.is_measured
    assert 200 << 20 < needs.amounts["memory"] < 50 << 30


@task(priority=1)
def note_turn(name: str, folder: str) -> None:
    (Path(folder) / f"{time.monotonic_ns():020}-{name}").touch()


def test_turns_are_taken_by_priority_and_by_run(tmp_path: Path) -> None:
    """A run of two beside a long one; and what is urgent goes first."""
    urgent = note_turn.with_options(priority=5)
    go = tmp_path / "go"

    @task
    def wait_for_it() -> None:
        while not go.exists():
            time.sleep(0.005)

    def body(name: str, count: int) -> None:
        futures = note_turn.map([name] * count, [str(tmp_path)] * count)
        results([*futures, urgent(f"urgent-{name}", str(tmp_path))])

    with ProcessExecutor(1) as pool:
        gate = entrypoint(executor=pool)(lambda _: wait_for_it().result()).start(1)
        many = entrypoint(executor=pool)(lambda _: body("many", 20)).start(1)
        few = entrypoint(executor=pool)(lambda _: body("few", 2)).start(1)
        # Both have given their tasks to the pool.
        while pool._pool._queue.count < 24:  # noqa: SLF001 - nobody else has to know
            time.sleep(0.01)
        go.touch()
        for handle in (gate, many, few):
            handle.result()

    turns = [each.name.partition("-")[2] for each in sorted(tmp_path.glob("0*"))]
    assert {"urgent-many", "urgent-few"} == {*turns[:3]} - {"many", "few"}
    assert max(n for n, name in enumerate(turns) if name == "few") <= 8


# ------------------------------------------------ nested calls


@task(limit="one")
def hold_and_call(folder: str) -> float:
    return float(ask_api(folder).result())


@task(limit="one")
def hold_and_ask_again() -> Any:
    return hold_and_ask_again().result()


@task(memory="2GB")
def hold_memory(folder: str) -> str:
    mark = Path(folder) / str(os.getpid())
    mark.touch()
    while len([*Path(folder).iterdir()]) < 2:
        time.sleep(0.01)
    try:
        return str(more_memory().result())
    except ResourcesError as error:
        return str(error)


@task(memory="1GB")
def more_memory() -> str:
    return "had it"


def test_a_caller_keeps_its_place_and_lends_its_worker(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """What is called has what it needs."""
    seen = run(pool, lambda: results(hold_and_call.map([str(tmp_path)] * 5)))

    assert [1.0] * 5 == seen


def test_a_call_that_needs_what_its_caller_holds_is_refused(
    pool: ProcessExecutor,
) -> None:
    """Not a wait for ever."""
    with pytest.raises(ResourcesError, match="hold too much") as caught:
        run(pool, lambda: hold_and_ask_again().result())

    assert ["hold_and_ask_again"] == [*caught.value.holders]


def test_callers_that_wait_for_what_each_other_holds_do_not_hang(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """One of their calls is refused, and the other goes on."""
    seen = run(pool, lambda: results(hold_memory.map([str(tmp_path)] * 2)))

    assert ["had it"] == [each for each in seen if "hold too much" not in each]


# ------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({"cpus": 64}, "the pool has 3"),
        ({"memory": "1TB"}, "the pool has 4e"),
        ({"gpus": 3}, "the pool has 2"),
        ({"limit": "nothing"}, "the pool has 0"),
    ],
)
def test_more_than_there_is_is_refused_at_the_call(
    pool: ProcessExecutor, options: dict[str, Any], there: str
) -> None:
    """And the error says what there is."""
    greedy = see_gpus.with_options(**options)

    with pytest.raises(ResourcesError, match=there):
        run(pool, lambda: greedy().result())


def test_a_refused_task_that_is_cancelled_ends_once(pool: ProcessExecutor) -> None:
    """Before it is told that it can never run; what the pool counts stays right."""
    run_of_jobs, may_go_on = Run(pool), threading.Event()
    node = replace(node_of(len), resources=Resources(limit=("nothing",)))
    job = job_of(node, Arguments(((),), {}))
    assert 0 == value_of(run_of_jobs.outcome(len, Arguments(((),), {})))
    book = pool._pool.resources  # noqa: SLF001 - to see that it counts right
    # What follows is one turn of the I/O loop.
    pool._pool.loop.call(may_go_on.wait)  # noqa: SLF001

    pool.start([job], run_of_jobs.mailbox)
    pool.cancel(job.key, kill=False)
    may_go_on.set()

    assert [Withdrawn()] == run_of_jobs.outcomes(job)
    assert 0 == value_of(run_of_jobs.outcome(len, Arguments(((),), {})))
    assert 0 == book.count


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_who_counts_nothing_refuses(executor: Any) -> None:
    """Rather than to run more than the user wants."""
    limited = see_gpus.with_options(gpus=1, executor=executor)

    with pytest.raises(
        ConfigurationError, match="enforces only limit, rate and priority"
    ):
        run(executor, lambda: limited().result())


def test_a_call_for_debugging_has_no_timeout() -> None:
    """In this process nothing could stop it, so a timeout would be refused."""
    here = os.environ.get("CUDA_VISIBLE_DEVICES")

    assert here == see_gpus.with_options(timeout=60).call_here()


def test_a_call_for_debugging_takes_nothing() -> None:
    """It runs here, alone."""
    assert (
        os.environ.get("CUDA_VISIBLE_DEVICES")
        == see_gpus.with_options(gpus=1).call_here()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": 0},
        {"cpus": "2"},
        {"memory": "2 apples"},
        {"memory": -1},
        {"gpus": 0.5},
        {"limit": 3},
        {"limit": [""]},
        {"rate": "60"},
        {"rate": "0/s"},
        {"priority": "high"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """Where the task is made."""
    with pytest.raises((ConfigurationError, TypeError)):
        see_gpus.with_options(**wrong)


def test_units_of_memory() -> None:
    """Decimal and binary."""
    assert [2 * 10**9, 512 << 20, 1000, 7] == [
        Resources(memory=each).memory for each in ("2GB", "512 MiB", "1kB", 7)
    ]
