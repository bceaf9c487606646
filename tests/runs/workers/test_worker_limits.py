"""Workers where something is scarce: memory, CPU time, shared memory, descriptors."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs import jobs
from tests.runs.cgroups import memory_cgroup
from tests.runs.pooling import Run, error_of, node_of, value_of

MIB = 1 << 20

# ------------------------------------------------ memory


@pytest.mark.slow
def test_a_leak_over_many_tasks_costs_workers_and_no_task() -> None:
    """Each worker is replaced when it has grown too large."""
    with ProcessExecutor(1, worker_max_rss=140 * MIB) as pool:
        run, node = Run(pool), node_of(jobs.leak)
        outcomes = run.outcomes(*(run.start(node, 20 * MIB) for _ in range(20)))

    pids = [value_of(each) for each in outcomes]
    # One begins with about 40 MiB: five or so of these tasks are too much for it.
    assert 3 <= len(set(pids)) <= 10


@pytest.mark.slow
def test_a_task_that_gets_no_memory_fails_alone() -> None:
    """An allocation that is refused is an error like any other."""
    with ProcessExecutor(1, initializer=jobs.may_have, initargs=(2048 * MIB,)) as pool:
        run = Run(pool)
        error = error_of(run.outcome(jobs.touch, 4096 * MIB))
        before = value_of(run.outcome(jobs.touch, MIB))

        assert isinstance(error, OSError | MemoryError)
        assert before == value_of(run.outcome(jobs.touch, MIB))


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 150 MiB, which workers can join."""
    with memory_cgroup(150 * MIB) as cgroup:
        yield cgroup


@pytest.mark.slow
def test_a_task_that_the_kernel_kills_for_its_memory_says_so(
    small_cgroup: Path,
) -> None:
    """Its error names the OOM killer; another task of the pool runs on."""
    with ProcessExecutor(1, initializer=jobs.join, initargs=(small_cgroup,)) as pool:
        run = Run(pool)

        error = error_of(run.outcome(jobs.touch, 400 * MIB))

        assert isinstance(error, WorkerDiedError)
        assert "OOM killer" in error.cause
        assert "peak memory" in error.report
        assert value_of(run.outcome(jobs.touch, MIB))


# ------------------------------------------------ with other file systems around


def in_namespace(mount: str, program: str) -> str:
    """Return what *program* prints where the shell command *mount* has changed what is
    mounted.
    """
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here, which gives a program mounts of its own")
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    command = [
        "unshare",
        "--mount",
        *as_root,
        "sh",
        "-c",
        f'{mount} && exec "$0" -c "$1"',
    ]
    done = subprocess.run(
        [*command, sys.executable, program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"mounts cannot be changed here: {done.stderr.strip()}")
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


COUNT = """
import os
from flowpregel.executors import ProcessExecutor
if __name__ == "__main__":
    with ProcessExecutor() as pool:
        nap = __import__("time").sleep
        pids = set(pool.map(lambda _: nap(0.05) or os.getpid(), range(8)))
        caps = pool.submit(lambda: os.environ["OMP_NUM_THREADS"]).result()
    print(len(pids), caps)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("quota", "workers"), [("50000", 1), ("150000", 2)])
def test_a_pool_has_no_more_workers_than_its_cpu_quota_feeds(
    quota: str, workers: int
) -> None:
    """Half a CPU is one worker, one and a half are two."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU is one worker, whatever the quota")
    mount = (
        "mount -t tmpfs none /sys/fs/cgroup && "
        f"echo '{quota} 100000' > /sys/fs/cgroup/cpu.max"
    )

    assert f"{workers} 1" == in_namespace(mount, COUNT)


ARRAY = """
import os
from flowpregel.executors import ProcessExecutor
if __name__ == "__main__":
    data = bytearray(os.urandom(30 << 20))
    with ProcessExecutor(1) as pool:
        print(pool.submit(bytes, data).result() == data)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mount", ["mount -t tmpfs -o size=4k none /dev/shm", "umount -l /dev/shm"]
)
def test_large_values_need_no_dev_shm(mount: str) -> None:
    """Whether it is full, or there is none."""
    assert "True" == in_namespace(mount, ARRAY)


# ------------------------------------------------ descriptors


@task
def double(number: int) -> int:
    return 2 * number


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_many_runs_leave_no_descriptor_open(drive: Any, tmp_path: Path) -> None:
    """Neither with a store nor without."""
    with (
        contextlib.closing(LMDBSaver(tmp_path / "store")) as saver,
        ProcessExecutor(2) as pool,
    ):

        @entrypoint(executor=pool, checkpointer=saver)
        def flow(number: int) -> int:
            return sum(future.result() for future in double.map(range(number)))

        def runs(count: int) -> None:
            for number in range(count):
                assert 6 == drive.invoke(flow, 3, thread_id=f"{number % 10}")

        runs(10)
        before = descriptors()

        runs(20)

        assert descriptors() <= before
