"""Functional workflows whose tasks run in worker processes: the same promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_stream_writer, interrupt
from flowpregel.errors import NodeTimeoutError, ReplayMismatchError, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.policies import CachePolicy, RetryPolicy
from tests.runs.crashes import Once

pytestmark = pytest.mark.slow


@task
def noted(n: int, log: str) -> tuple[int, int]:
    """Add a line to a file, so that calls can be counted wherever they are made."""
    with Path(log).open("a") as file:
        file.write(f"{n}\n")
    return n, os.getpid()


def count(log: Path) -> list[int]:
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def test_tasks_run_in_other_processes(drive: Any, tmp_path: Path) -> None:
    """And their results come back as they were returned."""

    @entrypoint(executor="processes")
    def flow(n: int) -> list[tuple[int, int]]:
        log = str(tmp_path / "log")
        return [future.result() for future in noted.map(range(n), [log] * n)]

    results = drive.invoke(flow, 5)

    assert [0, 1, 2, 3, 4] == [n for n, _ in results]
    assert os.getpid() not in {pid for _, pid in results}


def test_a_resume_starts_nothing_that_is_recorded(drive: Any, tmp_path: Path) -> None:
    """Whether the results are kept in memory or on disk."""
    log, crash = tmp_path / "log", Once(OSError("crash"))

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver, executor="processes")
        def flow(n: int) -> list[int]:
            results = [
                future.result()[0] for future in noted.map(range(n), [str(log)] * n)
            ]
            crash()
            return results

        with pytest.raises(OSError, match="crash"):
            drive.invoke(flow, 20, thread_id="1", durability="sync")

        assert list(range(20)) == drive.invoke(flow, None, thread_id="1")
        assert list(range(20)) == count(log)


def test_tasks_call_tasks_and_methods_are_tasks(drive: Any) -> None:
    """Closures, methods and nested calls travel to workers."""
    factor = 3

    @task
    def inner(n: int) -> int:
        return factor * n

    class Adder:
        def __init__(self, k: int) -> None:
            self.k = k

        @task
        def add(self, n: int) -> int:
            return self.k + inner(n).result()

    @entrypoint(executor="processes", checkpointer=InMemorySaver())
    def flow(n: int) -> list[int]:
        return [future.result() for future in Adder(1).add.map(range(n))]

    assert [1, 4, 7, 10] == drive.invoke(flow, 4, thread_id="1")


@task
async def later(n: int) -> int:
    return n + 1


def test_async_tasks_run_beside_those_in_workers(drive: Any, tmp_path: Path) -> None:
    """They have no need of a process."""

    @entrypoint(executor="processes")
    def flow(n: int) -> int:
        return later(noted(n, str(tmp_path / "log")).result()[0]).result()

    assert 4 == drive.invoke(flow, 3)


@task
def approve(n: int) -> str:
    return f"{n}: {interrupt(n)}"


def test_tasks_in_workers_ask(drive: Any) -> None:
    """Their questions are reported together, and answered by id."""

    @entrypoint(executor="processes", checkpointer=InMemorySaver())
    def flow(n: int) -> list[str]:
        return [future.result() for future in approve.map(range(n))]

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]
    answers = {item.id: f"yes {item.value}" for item in asked}

    assert ["0: yes 0", "1: yes 1", "2: yes 2"] == drive.invoke(
        flow, Command(resume=answers), thread_id="1"
    )


@task
def streamed(n: int) -> int:
    get_stream_writer()(n)
    return n


def test_tasks_in_workers_stream(drive: Any) -> None:
    """What they give the stream arrives before their result."""

    @entrypoint(executor="processes")
    def flow(n: int) -> int:
        return streamed(n).result()

    items = drive.stream(flow, 7, stream_mode=["custom", "updates"])

    assert [
        ("custom", 7),
        ("updates", {"streamed": 7}),
        ("updates", {"flow": 7}),
    ] == items


@task(timeout=0.3)
def endless(n: int) -> None:
    while True:
        pass


@task
def deadly(n: int) -> None:
    os._exit(3)


def test_a_task_in_a_worker_is_stopped_when_its_time_is_over(drive: Any) -> None:
    """Sync code too; the body catches it, and its siblings do not notice."""

    @entrypoint(executor="processes")
    def flow(n: int) -> tuple[str, int]:
        stuck, fine = endless(n), streamed(n)
        with pytest.raises(NodeTimeoutError) as caught:
            stuck.result()
        return caught.value.kind, fine.result()

    assert ("run", 5) == drive.invoke(flow, 5)


def test_a_worker_that_dies_costs_one_task(drive: Any) -> None:
    """The body may catch that as well."""

    @entrypoint(executor="processes")
    def flow(n: int) -> list[int]:
        dead, fine = deadly(n), streamed.map(range(n))
        with pytest.raises(WorkerDiedError):
            dead.result()
        return [future.result() for future in fine]

    assert [0, 1, 2] == drive.invoke(flow, 3)


@task(retry_policy=RetryPolicy(initial_interval=0, jitter=False, retry_on=OSError))
def flaky(n: int, log: str) -> int:
    noted.func(n, log)
    if len(count(Path(log))) < 3:
        raise OSError("again")
    return n


def test_a_task_in_a_worker_is_tried_again(drive: Any, tmp_path: Path) -> None:
    """By its own policy."""
    log = tmp_path / "log"

    @entrypoint(executor="processes")
    def flow(n: int) -> int:
        return flaky(n, str(log)).result()

    assert 4 == drive.invoke(flow, 4)
    assert [4, 4, 4] == count(log)


def test_results_of_workers_are_shared(drive: Any, tmp_path: Path) -> None:
    """The cache is asked here, before a worker is."""
    log = tmp_path / "log"
    shared = noted.with_options(
        cache_policy=CachePolicy(key_func=lambda n, log: str(n))
    )

    @entrypoint(executor="processes", cache=InMemoryCache())
    def flow(n: int) -> int:
        return shared(n, str(log)).result()[0]

    assert [4, 4] == [drive.invoke(flow, 4) for _ in range(2)]
    assert [4] == count(log)


def test_a_divergence_is_told_before_a_worker_is_asked(
    drive: Any, tmp_path: Path
) -> None:
    """As with any other executor."""
    numbers, crash = [1, 2], Once(OSError("crash"))

    @entrypoint(executor="processes", checkpointer=InMemorySaver())
    def flow(log: str) -> int:
        result = noted(numbers.pop(0), log).result()[0]
        crash()
        return result

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, str(tmp_path / "log"), thread_id="1")
    with pytest.raises(ReplayMismatchError, match=r"noted\(1"):
        drive.invoke(flow, None, thread_id="1")
    assert [1] == count(tmp_path / "log")


_SCRIPT = """
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task

class TooBig(Exception):
    def __init__(self, size):
        super().__init__(size)
        self.size = size

class Size:
    def __init__(self, n):
        self.n = n

@task
def measure(n):
    if n > 1:
        raise TooBig(n)
    return Size(n)

@entrypoint(executor="processes")
def flow(n):
    assert isinstance(measure(1).result(), Size)
    try:
        measure(n).result()
    except TooBig as error:
        return f"caught {error.size}"

if __name__ == "__main__":
    print(flow.invoke(7))
"""


def test_the_classes_of_a_script_come_back_as_themselves(tmp_path: Path) -> None:
    """A body can catch what its own program raised in a worker."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60
    )

    assert ("caught 7\n", "") == (done.stdout, done.stderr)


@task
def child(n: int) -> int:
    """Return who runs it."""
    return n


@task
def parent(n: int) -> tuple[int, int]:
    """Wait for a call of its own."""
    return child(n).result(), os.getpid()


@pytest.fixture(scope="module")
def small_pool() -> Iterator[ProcessExecutor]:
    """Two workers, and no room for many tasks at once."""
    with ProcessExecutor(2) as pool:
        pool.room = 4
        yield pool


def test_of_many_tasks_some_are_at_the_pool(
    drive: Any, small_pool: ProcessExecutor
) -> None:
    """What they call goes before those that wait: else each would hold a worker."""

    @entrypoint(executor=small_pool)
    def flow(n: int) -> list[tuple[int, int]]:
        return [future.result() for future in parent.map(range(n))]

    results = drive.invoke(flow, 40)

    assert list(range(40)) == [n for n, _ in results]
    assert len({pid for _, pid in results}) <= 20


def test_tasks_that_wait_do_not_run_when_the_run_is_left(
    small_pool: ProcessExecutor, tmp_path: Path
) -> None:
    """They are withdrawn, every one of them, and the run ends."""
    log = tmp_path / "log"

    @entrypoint(executor=small_pool)
    def flow(n: int) -> None:
        calls = noted.map(range(n), [str(log)] * n)
        get_stream_writer()(calls[0].result()[0])
        calls[-1].result()

    parts = flow.stream(5_000, stream_mode="custom")
    assert 0 == next(parts)
    parts.close()
    assert 0 < len(count(log)) < 5_000


def test_one_at_a_time_needs_few_workers(drive: Any) -> None:
    """Children go before their parents' siblings: these would all wait for theirs."""

    @entrypoint(executor="processes")
    def flow(n: int) -> list[int]:
        return [future.result()[1] for future in parent.map(range(n))]

    pids = drive.invoke(flow, 50, {"max_concurrency": 1})
    assert len(set(pids)) <= 5


UNGUARDED = """
from flowpregel import entrypoint, task

@task
def double(number):
    return 2 * number

@entrypoint()
def flow(number):
    return double(number).result()

flow.run(1)
"""


def test_a_module_that_runs_a_workflow_while_it_is_imported_is_refused(
    tmp_path: Path,
) -> None:
    """A worker would import it, and run the workflow again; pickle waits for ever."""
    (tmp_path / "unguarded.py").write_text(UNGUARDED)

    done = subprocess.run(
        [sys.executable, "-c", "import unguarded"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 1 == done.returncode
    assert "ConfigurationError: the module 'unguarded' runs a workflow" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
